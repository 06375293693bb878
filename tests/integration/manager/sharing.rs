//! Managers on one Elasticsearch share the jobs of a queue.

use std::collections::BTreeSet;
use std::sync::Mutex;

use futures::future::join_all;
use tokio::time::Instant;

use super::*;
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

/// How many jobs are submitted at a time: so many that two managers that share have some each.
const JOBS: usize = 64;

/// How many jobs of one key are submitted: each manager has about half of them.
const KEYED: usize = 160;

/// How many urgent jobs another manager's backlog is not to get between, how many jobs of it begin before, and how long
/// each runs: longer than jobs wait before their manager asks for a turn, and than a mark is kept for which nothing
/// waits.
const URGENT: usize = 4;
const BEGUN: usize = 3;
const RUNS_FOR: Duration = Duration::from_millis(900);

/// How long a worker waits for jobs, which are found at once if they are in the share of its manager.
const SOON: Duration = Duration::from_secs(2);

/// How long the managers may take to agree on something: many times what they take.
const AMPLE: Duration = Duration::from_secs(90);

/// Two managers of one store, each with workers of its own.
struct Pair {
    clock: Arc<ManualClock>,
    store: Arc<dyn Store>,
    managers: [Manager; 2],
    _set: IndexSet,
}

impl Pair {
    async fn new(set: IndexSet, urls: [&str; 2]) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let [store, behind] = [urls[0], urls[1]].map(|url| patient(url, set.prefix()));
        let (store, behind): (Arc<dyn Store>, Arc<dyn Store>) =
            (Arc::new(connect(store).await), Arc::new(connect(behind).await));
        let managers = [&store, &behind]
            .map(|store| Manager::start(Arc::clone(store), Arc::clone(&clock) as Arc<dyn Clock>, config()));
        Self { clock, store, managers, _set: set }
    }

    /// Submits jobs to the first manager, which both find from then on.
    async fn submit(&self, count: usize) -> BTreeSet<JobId> {
        let submitted = self.managers[0].submit(&caller(), vec![new_job(); count]).await;
        engines::refresh(&*self.store).await;
        submitted.into_iter().map(|job| job.expect("the job is taken").job.versioned.job.id.clone()).collect()
    }

    /// Claims as a worker of this manager that waits, and returns the jobs, which end here.
    async fn work(&self, manager: usize, max_jobs: usize) -> BTreeSet<JobId> {
        let name = worker(["first", "second"][manager]);
        let request = ClaimRequest { worker_id: name.clone(), wait: SOON, ..claim(max_jobs) };
        let manager = &self.managers[manager];
        // One whose network was down may not have noticed yet that it is up again.
        let claimed = manager.claim(request).await.map(taken).unwrap_or_default();
        let end = |job: &Versioned| Finish { id: job.job.id.clone(), fence: job.job.fence, outcome: completed("1") };
        for result in manager.finish(&name, claimed.iter().map(end).collect()).await {
            result.expect("the end is accepted");
        }
        claimed.into_iter().map(|claimed| claimed.job.id.clone()).collect()
    }

    /// Returns how many of 64 jobs the first manager takes at once that are submitted to it. The workers of these
    /// managers take the rest.
    async fn taken_by_the_first(&self, rest_by: &[usize]) -> usize {
        let jobs = self.submit(JOBS).await;
        let first = self.work(0, JOBS).await;
        let mut left: BTreeSet<JobId> = jobs.difference(&first).cloned().collect();
        let deadline = Instant::now() + AMPLE;
        while !left.is_empty() {
            assert!(Instant::now() < deadline, "{} jobs are handed out by nobody", left.len());
            for manager in rest_by {
                for id in self.work(*manager, JOBS).await {
                    assert!(left.remove(&id), "a job is handed out once");
                }
            }
            // Whatever is left lying may be taken by either.
            self.clock.advance(Duration::from_secs(1));
        }
        first.len()
    }

    async fn share(&self) {
        eventually("the first manager leaves jobs to the second", async || {
            // The second manager has a worker, which finds nothing yet.
            let request = ClaimRequest { worker_id: worker("second"), ..claim(JOBS) };
            let found = self.managers[1].claim(request).await.map(taken).unwrap_or_default();
            assert_eq!(found, []);
            (1..JOBS).contains(&self.taken_by_the_first(&[1, 0]).await)
        })
        .await;
    }

    async fn first_has_all(&self) {
        eventually("the first manager has all to itself", async || self.taken_by_the_first(&[0]).await == JOBS).await;
    }
}

/// Repeats until `done` returns true.
async fn eventually(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + AMPLE;
    while !done().await {
        assert!(Instant::now() < deadline, "not yet: {what}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn managers_with_workers_share_a_queue_and_who_stops_leaves_its_share_to_the_others() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    pair.share().await;
    pair.managers[1].shutdown().await;
    pair.first_has_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_that_is_silent_loses_its_share_and_has_it_again_when_it_is_back() {
    let server = servers::elasticsearch().await;
    let mut proxy = FaultProxy::start(server.url(), Faults { one_in: 1, seed: 1, kinds: vec![Fault::Swallow] }).await;
    let pair = Pair::new(server.index_set().await, [server.url(), &proxy.url()]).await;
    pair.share().await;
    proxy.go_down().await;
    pair.first_has_all().await;
    proxy.come_up().await;
    pair.share().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manager_without_workers_has_no_share() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    // Jobs are submitted at the first manager, and worked on at the second only. No time passes by their clock, so that
    // nothing is left lying for long.
    let jobs = pair.submit(JOBS).await;
    let (mut second, deadline) = (BTreeSet::new(), Instant::now() + AMPLE);
    while second.len() < jobs.len() {
        assert!(Instant::now() < deadline, "{} of {JOBS} jobs are handed out", second.len());
        second.extend(pair.work(1, JOBS).await);
    }
    assert_eq!(second, jobs);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_goes_to_the_manager_whose_worker_takes_its_kind_wherever_it_was_submitted() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    let taking = |number: usize, kind: &str| ClaimRequest {
        worker_id: worker(["first", "second"][number]),
        bearer: None,
        kinds: vec![Kind::new(kind).expect("a name")],
        wait: SOON,
        ..claim(JOBS)
    };
    let submit = async |kind: &str| {
        let spec = JobSpec::new(queue(), Kind::new(kind).expect("a name"));
        let submitted = pair.managers[0].submit(&caller(), vec![NewJob::of(spec); JOBS]).await;
        engines::refresh(&*pair.store).await;
        submitted.into_iter().map(|job| job.expect("taken").job.versioned.job.id.clone()).collect::<BTreeSet<_>>()
    };
    // All at the first, half of them of a kind that only the second's worker takes.
    let (usual, rare) = (submit("usual").await, submit("rare").await);
    let (mut by_first, mut by_second) = (BTreeSet::new(), BTreeSet::new());
    let deadline = Instant::now() + AMPLE;
    while by_first.len() < JOBS || by_second.len() < JOBS {
        assert!(Instant::now() < deadline, "{} and {} of {JOBS}", by_first.len(), by_second.len());
        let claims =
            [(0, "usual"), (1, "rare")].map(|(number, kind)| pair.managers[number].claim(taking(number, kind)));
        let [first, second] = claims;
        // What is left lying may be taken by either, while a claim waits for it.
        let passing = async {
            loop {
                tokio::time::sleep(Duration::from_millis(50)).await;
                pair.clock.advance(Duration::from_millis(250));
            }
        };
        let (first, second) = tokio::select! {
            claimed = async { tokio::join!(first, second) } => claimed,
            () = passing => unreachable!("time goes on"),
        };
        by_first.extend(first.map(taken).expect("answered").into_iter().map(|job| job.job.id.clone()));
        by_second.extend(second.map(taken).expect("answered").into_iter().map(|job| job.job.id.clone()));
    }
    assert_eq!((by_first, by_second), (usual, rare));
}

/// Of one key, whose jobs run one at a time, while workers of both managers wait.
#[tokio::test(flavor = "multi_thread")]
async fn managers_whose_jobs_wait_for_one_slot_take_turns_at_it() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    pair.share().await;
    for result in pair.managers[0].submit(&caller(), (0..KEYED).map(|_| keyed("db", 1)).collect()).await {
        result.expect("the job is taken");
    }
    engines::refresh(&*pair.store).await;
    let began = Mutex::new(Vec::new());
    let works = [0, 1, 0, 1].map(async |manager| {
        while began.lock().expect("no panic").len() < KEYED {
            let ended = pair.work(manager, 1).await.len();
            began.lock().expect("no panic").extend(vec![manager; ended]);
        }
    });
    join_all(works).await;
    let began = began.into_inner().expect("no panic");
    // Once one has no jobs any more, all others are the other's.
    let last = began.last().copied();
    let until = began.iter().rposition(|manager| Some(*manager) != last).expect("both have run some");
    let runs: Vec<usize> = began[..=until].chunk_by(|one, next| one == next).map(<[usize]>::len).collect();
    assert!(runs.iter().all(|run| *run <= 2 * KEYED / 5), "{runs:?}");
}

/// Of one key, whose jobs run one at a time: only workers of the first manager take the urgent ones, and only those of
/// the second the others.
#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_a_backlog_take_no_turns_between_urgent_ones_of_another_manager() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    let submit = async |manager: usize, kind: &str, priority: i64, count: usize| {
        let JobSpec { conditions, .. } = keyed("db", 1).spec;
        let priority = Priority::new(priority).expect("a priority");
        let spec = JobSpec { priority, conditions, ..JobSpec::new(queue(), Kind::new(kind).expect("a name")) };
        for answer in pair.managers[manager].submit(&caller(), vec![NewJob::of(spec); count]).await {
            answer.expect("the job is taken");
        }
        engines::refresh(&*pair.store).await;
    };
    let began = Mutex::new(Vec::new());
    let count = |of: usize| began.lock().expect("no panic").iter().filter(|manager| **manager == of).count();
    let work = async |manager: usize| {
        let (name, kind) = [("first", "urgent"), ("second", "usual")][manager];
        let kinds = vec![Kind::new(kind).expect("a name")];
        while count(0) < URGENT {
            let request = ClaimRequest { worker_id: worker(name), kinds: kinds.clone(), wait: SOON, ..claim(1) };
            for job in pair.managers[manager].claim(request).await.map(taken).expect("answered") {
                began.lock().expect("no panic").push(manager);
                tokio::time::sleep(RUNS_FOR).await;
                let end = Finish { id: job.job.id.clone(), fence: job.job.fence, outcome: completed("1") };
                for result in pair.managers[manager].finish(&worker(name), vec![end]).await {
                    result.expect("the end is accepted");
                }
            }
        }
    };
    let course = async {
        submit(1, "usual", 0, JOBS).await;
        while count(1) < BEGUN {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        submit(0, "urgent", 100, URGENT).await;
    };
    let passing = async {
        loop {
            tokio::time::sleep(Duration::from_millis(50)).await;
            pair.clock.advance(Duration::from_millis(50));
        }
    };
    let all = tokio::time::timeout(AMPLE, async { tokio::join!(course, work(0), work(1), work(1)) });
    let is_over = tokio::select! {
        all = all => all.is_ok(),
        () = passing => unreachable!("time goes on"),
    };
    let began = began.into_inner().expect("no panic");
    assert!(is_over, "{began:?}");
    let first = began.iter().position(|manager| *manager == 0).expect("one");
    let last = began.iter().rposition(|manager| *manager == 0).expect("one");
    // One may begin just before the next urgent one is asked for.
    let between = began[first..last].iter().filter(|manager| **manager == 1).count();
    assert!(between <= 1, "{began:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_that_another_manager_took_begins_before_a_backlog() {
    let server = servers::elasticsearch().await;
    let pair = Pair::new(server.index_set().await, [server.url(); 2]).await;
    pair.submit(5 * JOBS).await;
    let claim = |max_jobs| ClaimRequest { worker_id: worker("second"), wait: SOON, ..claim(max_jobs) };
    assert_eq!(pair.managers[1].claim(claim(1)).await.map(taken).expect("an answer").len(), 1);
    let urgent = JobSpec { priority: Priority::new(100).expect("a priority"), ..spec() };
    for answer in pair.managers[0].submit(&caller(), vec![NewJob::of(urgent); 8]).await {
        answer.expect("the job is taken");
    }
    engines::refresh(&*pair.store).await;
    pair.clock.advance(Duration::from_secs(1));
    for _ in 0..8 {
        let next = pair.managers[1].claim(claim(1)).await.map(taken).expect("an answer");
        assert_eq!(next.iter().map(|job| job.job.spec.priority.get()).collect::<Vec<_>>(), [100]);
    }
}
