//! A process that dies after any one of its requests, in a move, a return or a removal; and what others do to the job
//! before the next run puts things right.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::Job;
use leasehold::store::{Store, Write, WriteError};

use super::{HOUR, STEP, Site, end, is_moved, on_both, retried};
use crate::proxy::FaultProxy;
use crate::store::conflict;

on_both!(
    [every_night_on_opensearch] a_move_loses_and_doubles_nothing_wherever_it_ends,
    [every_night_on_opensearch] a_job_can_be_started_again_wherever_its_move_ended,
    [every_night_on_opensearch] a_job_can_be_removed_wherever_its_move_ended,
    [every_night_on_opensearch] a_job_cannot_be_submitted_again_wherever_its_move_ended,
    [every_night_on_opensearch] a_return_from_the_archive_is_done_or_not_done_wherever_it_ends,
    [every_night_on_opensearch] a_removal_from_the_archive_is_done_or_not_done_wherever_it_ends,
);

/// More requests than anything here takes.
pub(super) const MANY: u64 = 40;
/// How often in a row something comes to its end before it counts as done with: not all runs have as many requests.
const SURVIVALS: u32 = 2;
/// How long a process that has died is waited for: its requests fail by themselves, but are tried again.
const DEATH: Duration = Duration::from_millis(150);
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a move is interrupted at least: it has more requests than that.
pub(super) const REQUESTS_OF_A_MOVE: u32 = 4;

/// The numbers of requests after which a process dies: none, one and so on, until it has all that it needs.
#[derive(Debug, Default)]
pub(super) struct Deaths {
    next: u64,
    /// How often it came to its end since it died last.
    survived: u32,
    /// How often it died.
    pub(super) interrupted: u32,
}

impl Deaths {
    /// The next number of requests, if it is not done with.
    pub(super) fn next(&mut self) -> Option<u64> {
        assert!(self.next < MANY, "it comes to its end: {self:?}");
        let requests = self.next;
        self.next += 1;
        (self.survived < SURVIVALS).then_some(requests)
    }

    /// Takes down whether the process came to its end with as many.
    pub(super) fn note(&mut self, survived: bool) {
        self.survived = if survived { self.survived + 1 } else { 0 };
        self.interrupted += u32::from(!survived);
    }
}

impl Site {
    /// Moves what is to be moved in a process that dies after so many requests; whether it got through.
    pub(super) async fn move_until(&self, requests: u64, hours: u32) -> bool {
        self.refresh().await;
        let step = self.mortal.archive(self.now.plus(hours * HOUR), STEP);
        let moved = until_it_dies(&self.proxy, requests, step).await;
        let survived = moved.is_some_and(|step| step.is_ok_and(|archived| archived.obstacle.is_none()));
        self.proxy.allow(None);
        survived
    }

    /// Does a write in a process of its own that dies after so many requests, and for good: what it has handed over it
    /// would send again. `None` when it died.
    pub(super) async fn write_until(
        &self,
        requests: u64,
        write: Write,
    ) -> Option<Result<leasehold::store::Version, WriteError>> {
        let (mortal, proxy) = self.mortal().await;
        let answers = until_it_dies(&proxy, requests, mortal.write(vec![write])).await;
        answers.map(|mut answers| answers.remove(0))
    }
}

/// Lets a process do something until it dies at the request after so many; `None` when it did not come to its end.
async fn until_it_dies<T>(proxy: &FaultProxy, requests: u64, doing: impl Future<Output = T>) -> Option<T> {
    proxy.allow(Some(requests));
    let mut doing = std::pin::pin!(doing);
    let ended = tokio::time::timeout(PATIENCE, async {
        tokio::select! {
            done = &mut doing => Some(done),
            () = proxy.cut_off() => None,
        }
    });
    match ended.await.expect("it ends or is cut off") {
        Some(done) => Some(done),
        None => tokio::time::timeout(DEATH, doing).await.ok(),
    }
}

/// Has a job's move end after every number of requests, and `then` something done to it.
async fn wherever_a_move_ends(site: &Site, mut then: impl AsyncFnMut(&Site, Arc<Job>, u32)) {
    let (mut hours, mut deaths) = (1, Deaths::default());
    while let Some(requests) = deaths.next() {
        let job = site.ended(&format!("after {requests}"));
        site.create(&job).await;
        deaths.note(site.move_until(requests, hours).await);
        then(site, job, hours).await;
        hours += 2;
    }
    assert!(deaths.interrupted >= REQUESTS_OF_A_MOVE, "{deaths:?}");
}

async fn a_move_loses_and_doubles_nothing_wherever_it_ends(site: Site) {
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    let mut deaths = Deaths::default();
    while let Some(requests) = deaths.next() {
        let hours = 1 + 2 * u32::try_from(jobs.len()).expect("few");
        let new = ["a", "b"].map(|name| site.ended(&format!("{name} after {requests}")));
        for job in &new {
            site.create(job).await;
        }
        jobs.extend(new);
        deaths.note(site.move_until(requests, hours).await);
        site.holds(&jobs.iter().collect::<Vec<_>>()).await;

        site.archive(hours).await;
        site.holds(&jobs.iter().collect::<Vec<_>>()).await;
        site.counts(jobs.len() as u64).await;
        assert!(site.whole().await.values().all(is_moved));
    }
    assert!(deaths.interrupted >= REQUESTS_OF_A_MOVE, "{deaths:?}");
    site.archive(1_000).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, jobs.len() as u64));
}

async fn a_job_can_be_started_again_wherever_its_move_ended(site: Site) {
    let mut live: Vec<Arc<Job>> = Vec::new();
    wherever_a_move_ends(&site, async |site, job, hours| {
        let found = site.get(&job.id).await.expect("the job");
        let again = retried(&job, site.now.plus(hours * HOUR));
        let retry = Write::Replace { job: again.clone(), expected: found.version, bodies: vec![] };
        site.write(retry).await.expect("it is written under its version");
        assert_eq!(site.get(&job.id).await.map(|found| found.job), Some(again.clone()));
        live.push(again);
        site.archive(hours).await;
        site.holds(&live.iter().collect::<Vec<_>>()).await;
        site.counts(live.len() as u64).await;
    })
    .await;

    let mut ended = Vec::new();
    for job in &live {
        let found = site.get(&job.id).await.expect("the job");
        let job = end(job, site.now.plus(100 * HOUR));
        site.write(Write::Replace { job: job.clone(), expected: found.version, bodies: vec![] })
            .await
            .expect("written");
        ended.push(job);
    }
    assert_eq!(site.archive(200).await.moved, ended.len());
    site.holds(&ended.iter().collect::<Vec<_>>()).await;
    assert_eq!(site.documents("archive-*").await, ended.len() as u64);
}

async fn a_job_can_be_removed_wherever_its_move_ended(site: Site) {
    wherever_a_move_ends(&site, async |site, job, hours| {
        let found = site.get(&job.id).await.expect("the job");
        site.write(Write::Remove { job: job.clone(), expected: found.version }).await.expect("removed");
        assert_eq!(site.get(&job.id).await, None);
        site.archive(hours + 1).await;
        site.holds(&[]).await;
        site.counts(0).await;
    })
    .await;
    site.archive(1_000).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, 0));
}

async fn a_job_cannot_be_submitted_again_wherever_its_move_ended(site: Site) {
    let mut jobs: Vec<Arc<Job>> = Vec::new();
    wherever_a_move_ends(&site, async |site, job, hours| {
        jobs.push(job.clone());
        for _ in 0..2 {
            let again = Write::Create { job: retried(&job, site.now), bodies: vec![] };
            let existing = conflict(site.write(again).await);
            assert_eq!(existing.map(|found| found.job), Some(job.clone()));
            site.archive(hours).await;
            site.holds(&jobs.iter().collect::<Vec<_>>()).await;
        }
    })
    .await;
}

async fn a_return_from_the_archive_is_done_or_not_done_wherever_it_ends(site: Site) {
    let mut deaths = Deaths::default();
    while let Some(requests) = deaths.next() {
        let job = site.ended(&format!("after {requests}"));
        site.create(&job).await;
        let tombstone = requests % 2 == 0;
        site.archive(1).await;
        site.archive(if tombstone { 1 } else { 3 }).await;
        let found = site.get(&job.id).await.expect("the job");
        let again = retried(&job, site.now);
        let retry = Write::Replace { job: again.clone(), expected: found.version, bodies: vec![] };
        let answer = site.write_until(requests, retry).await;
        deaths.note(matches!(answer, Some(Ok(_))));

        let now = site.get(&job.id).await.expect("the job");
        let was_done = now.job == again;
        assert!(was_done || (now.job == job && !matches!(answer, Some(Ok(_)))), "{answer:?}");
        site.archive(3).await;
        site.holds(&[&now.job]).await;
        site.counts(1).await;
        let now = site.get(&job.id).await.expect("the job");
        site.write(Write::Remove { job: now.job.clone(), expected: now.version }).await.expect("removed");
        site.holds(&[]).await;
    }
    assert!(deaths.interrupted > 1, "{deaths:?}");
}

async fn a_removal_from_the_archive_is_done_or_not_done_wherever_it_ends(site: Site) {
    let mut deaths = Deaths::default();
    while let Some(requests) = deaths.next() {
        let job = site.ended(&format!("after {requests}"));
        site.create(&job).await;
        site.archive(1).await;
        site.archive(if requests % 2 == 0 { 1 } else { 3 }).await;
        let found = site.get(&job.id).await.expect("the job");
        let removal = Write::Remove { job: job.clone(), expected: found.version };
        let answer = site.write_until(requests, removal).await;
        deaths.note(matches!(answer, Some(Ok(_))));

        let now = site.get(&job.id).await;
        assert!(now.is_none() || !matches!(answer, Some(Ok(_))), "{answer:?}");
        site.archive(5).await;
        match now {
            Some(now) => {
                site.holds(&[&job]).await;
                let removal = Write::Remove { job, expected: now.version };
                site.write(removal).await.expect("removed");
            }
            None => site.holds(&[]).await,
        }
    }
    assert!(deaths.interrupted > 1, "{deaths:?}");
    site.archive(1_000).await;
    assert_eq!((site.documents("jobs").await, site.documents("archive-*").await), (0, 0));
}
