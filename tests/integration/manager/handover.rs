//! Jobs that are submitted while a worker waits for them: created as already claimed.

use async_trait::async_trait;
use leasehold::manager::{EventFilter, EventsFrom, FeedItem, Submitted};
use leasehold::store::Write;
use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::*;
use crate::interference::{Gate, InterferedEngine, Interference};

cases! {
    a_job_that_a_claim_waits_for_is_written_once,
    many_jobs_go_to_those_that_wait_and_the_rest_is_available,
    a_submission_that_was_made_before_hands_over_nothing,
    a_named_claim_has_its_name_answered_by_what_is_handed_over,
}

/// Answers of a claim that waits.
type Waiting = JoinHandle<Result<Claimed, ManagerError>>;

impl Site {
    /// Makes a claim and returns once it waits.
    async fn wait(&self, request: ClaimRequest) -> Waiting {
        let (manager, before) = (self.manager.clone(), self.manager.waiting_claims());
        let request = ClaimRequest { wait: if request.wait.is_zero() { PATIENCE } else { request.wait }, ..request };
        let waiting = tokio::spawn(async move { manager.claim(request).await });
        until("a waiting claim", async || self.manager.waiting_claims() > before).await;
        waiting
    }

    fn submitting(&self, job: NewJob) -> JoinHandle<Vec<Result<Submitted, ManagerError>>> {
        let manager = self.manager.clone();
        tokio::spawn(async move { manager.submit(&caller(), vec![job]).await })
    }
}

async fn answer(waiting: Waiting) -> Vec<Versioned> {
    taken(waiting.await.expect("no panic").expect("the claim is answered"))
}

fn ids(jobs: &[Versioned]) -> Vec<&str> {
    jobs.iter().map(|found| found.job.id.as_str()).collect()
}

fn with_id(id: &str, priority: i64) -> NewJob {
    let spec = JobSpec { priority: Priority::new(priority).expect("a priority"), ..spec() };
    NewJob { id: Some(JobId::new(id).expect("an id")), ..NewJob::of(spec) }
}

async fn a_job_that_a_claim_waits_for_is_written_once(site: Site) {
    let mut feed = site.manager.events(EventFilter::default(), EventsFrom::Now).await.expect("a feed");
    let waiting = site.wait(claim(1)).await;
    let payload = Some(json("{\"a\":1}"));
    let submitted = site.submit(NewJob { payload: payload.clone(), ..new_job() }).await;
    let claimed = answer(waiting).await.pop().expect("the job");
    assert_eq!(claimed, submitted.versioned, "what the submitter is told is what the worker is told");
    assert_eq!((claimed.job.fence, claimed.job.attempt.get()), (Fence::new(1), 1));
    assert_eq!(claimed.job.lease().map(|lease| lease.expires_at), Some(site.clock.now().plus(LEASE)));
    assert_eq!(site.job(&claimed.job.id).await.versioned, claimed);
    let mut told = Vec::new();
    while told.len() < 2 {
        match feed.next().await.expect("the feed goes on") {
            FeedItem::Event(_, event) => told.push(event.entry.event.as_str()),
            other => assert!(told.is_empty(), "{other:?} between the two"),
        }
    }
    assert_eq!(told, ["submitted", "claimed"]);
    let tally = site.manager.insights().tally;
    assert_eq!((tally.submitted, tally.claimed), (1, 1));
    let done = site.finish(&claimed, completed("1")).await.expect("accepted");
    let steps: Vec<JobState> = done.job.history.entries().iter().map(|entry| entry.to).collect();
    assert_eq!(steps, [JobState::Available, JobState::Running, JobState::Completed]);
    assert_eq!(site.job(&claimed.job.id).await.payload, payload);
}

async fn many_jobs_go_to_those_that_wait_and_the_rest_is_available(site: Site) {
    let first = site.wait(claim(1)).await;
    let second = site.wait(ClaimRequest { worker_id: worker("v"), ..claim(2) }).await;
    let jobs = (0..5).map(|_| new_job()).collect();
    let submitted = site.manager.submit(&caller(), jobs).await;
    let jobs: Vec<Versioned> =
        submitted.into_iter().map(|answer| answer.expect("the job is taken").job.versioned).collect();
    let (first, second) = (answer(first).await, answer(second).await);
    assert_eq!((first.len(), second.len()), (1, 2));
    let running = |found: &&Versioned| found.job.state.name() == JobState::Running;
    let mut handed: Vec<&str> = ids(&first).into_iter().chain(ids(&second)).collect();
    let mut told: Vec<&str> = jobs.iter().filter(running).map(|found| found.job.id.as_str()).collect();
    handed.sort_unstable();
    told.sort_unstable();
    assert_eq!(handed, told);
    site.engine.settle().await;
    assert_eq!(site.claim(claim(9)).await.len(), 2);
}

/// Its job may have ended long ago.
async fn a_submission_that_was_made_before_hands_over_nothing(site: Site) {
    site.submit(with_id("job", 0)).await;
    let claimed = site.claim_one().await;
    site.finish(&claimed, completed("1")).await.expect("accepted");
    let waiting = site.wait(claim(1)).await;
    let again = site.try_submit(with_id("job", 0)).await.expect("answered");
    assert_eq!((again.created, again.job.versioned.job.state.name()), (false, JobState::Completed));
    let other = site.try_submit(with_id("job", 9)).await;
    assert!(matches!(other, Err(ManagerError::SubmissionDiffers(_))), "{other:?}");
    until("the claim's return", async || site.manager.waiting_claims() == 1).await;
    site.submit(with_id("next", 0)).await;
    assert_eq!(ids(&answer(waiting).await), ["next"]);
}

async fn a_named_claim_has_its_name_answered_by_what_is_handed_over(site: Site) {
    let waiting = site.wait(named("call")).await;
    let id = site.submit(new_job()).await.versioned.job.id.clone();
    drop(waiting.await.expect("no panic").expect("answered"));
    site.submit(new_job()).await;
    let again = site.claim(named("call")).await;
    assert_eq!(ids(&again), [id.as_str()], "the jobs of a named claim are kept for it");
    assert_eq!(again[0].job.fence, Fence::new(1));
}

/// Counts writes, refuses them, or holds them up.
#[derive(Default)]
pub(super) struct Hampered {
    /// The number of jobs of each write.
    pub(super) writes: Mutex<Vec<usize>>,
    refused: Mutex<bool>,
    gate: Mutex<Option<Arc<Gate>>>,
}

#[async_trait]
impl Interference for Hampered {
    async fn before_write(&self, writes: &[Write]) {
        self.writes.lock().push(writes.len());
        let gate = self.gate.lock().take();
        if let Some(gate) = gate {
            gate.pass().await;
        }
    }

    fn refuses(&self, _: &Write) -> bool {
        *self.refused.lock()
    }
}

impl Hampered {
    pub(super) async fn site() -> (Site, Arc<Self>) {
        let hampered = Arc::new(Self::default());
        let engine = InterferedEngine::around(engines::embedded().await, &hampered);
        (Site::on(engine, config()).await, hampered)
    }

    /// Holds up the next write.
    pub(super) fn hold_up(&self) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        *self.gate.lock() = Some(Arc::clone(&gate));
        gate
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_write_does_for_the_submission_and_the_claim() {
    let (site, hampered) = Hampered::site().await;
    let waiting = site.wait(claim(2)).await;
    site.manager.submit(&caller(), vec![new_job(), new_job(), new_job()]).await;
    assert_eq!(answer(waiting).await.len(), 2);
    assert_eq!(*hampered.writes.lock(), [3]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_waits_on_when_the_store_refuses_its_job() {
    let (site, hampered) = Hampered::site().await;
    let waiting = site.wait(claim(1)).await;
    *hampered.refused.lock() = true;
    assert!(matches!(site.try_submit(with_id("lost", 0)).await, Err(ManagerError::Store(_))));
    *hampered.refused.lock() = false;
    assert_eq!(site.manager.waiting_claims(), 1);
    site.submit(with_id("next", 0)).await;
    assert_eq!(ids(&answer(waiting).await), ["next"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_goes_away_while_its_job_is_written_costs_it_nothing() {
    let (site, hampered) = Hampered::site().await;
    let waiting = site.wait(claim(1)).await;
    let gate = hampered.hold_up();
    let submitting = site.submitting(with_id("job", 0));
    gate.reached.cancelled().await;
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    gate.open.cancel();
    submitting.await.expect("no panic").pop().expect("one answer").expect("the job is taken");
    let id = JobId::new("job").expect("an id");
    until("the job's return", async || site.state(&id).await == JobState::Available).await;
    let next = site.claim_one().await;
    assert_eq!((next.job.attempt.get(), next.job.fence), (1, Fence::new(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_submitter_that_goes_away_while_its_job_is_written_keeps_it_from_nobody() {
    let (site, hampered) = Hampered::site().await;
    let waiting = site.wait(claim(1)).await;
    let gate = hampered.hold_up();
    let submitting = site.submitting(with_id("job", 0));
    gate.reached.cancelled().await;
    submitting.abort();
    assert!(submitting.await.is_err_and(|error| error.is_cancelled()));
    gate.open.cancel();
    assert_eq!(ids(&answer(waiting).await), ["job"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_whose_time_ends_while_its_job_is_written_gets_it() {
    let (site, hampered) = Hampered::site().await;
    // Long enough for the submission to find it waiting on a machine that stands still for some seconds.
    let wait = Duration::from_secs(10);
    let waiting = site.wait(ClaimRequest { wait, ..claim(1) }).await;
    let gate = hampered.hold_up();
    let submitting = site.submitting(with_id("job", 0));
    gate.reached.cancelled().await;
    tokio::time::sleep(wait + Duration::from_millis(200)).await;
    gate.open.cancel();
    submitting.await.expect("no panic").pop().expect("one answer").expect("the job is taken");
    assert_eq!(ids(&answer(waiting).await), ["job"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_named_claim_made_anew_while_its_job_is_written_gets_it() {
    let (site, hampered) = Hampered::site().await;
    let first = site.wait(named("call")).await;
    let gate = hampered.hold_up();
    let submitting = site.submitting(with_id("job", 0));
    gate.reached.cancelled().await;
    // The worker has lost its connection.
    first.abort();
    let manager = site.manager.clone();
    let again = tokio::spawn(async move { manager.claim(ClaimRequest { wait: PATIENCE, ..named("call") }).await });
    tokio::task::yield_now().await;
    gate.open.cancel();
    submitting.await.expect("no panic").pop().expect("one answer").expect("the job is taken");
    let again = answer(again).await;
    assert_eq!((ids(&again), again[0].job.fence), (vec!["job"], Fence::new(1)));
}
