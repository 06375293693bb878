mod next;

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::*;
use crate::clock::SystemClock;
use crate::job::{Actor, AdminRelease, JobId, JobSpec, JobState, Json, State, Then};
use crate::manager::{Caller, ClaimOrder, Heartbeat, Manager, ManagerConfig, NewJob, Recall, RecallReason};
use crate::store::Versioned;
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

/// A manager on a store of its own.
struct Bed {
    manager: Manager,
    _directory: tempfile::TempDir,
}

impl Bed {
    fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("a store");
        let clock = Arc::new(SystemClock::default());
        let manager = Manager::start(Arc::new(store), clock, ManagerConfig::default());
        Self { manager, _directory: directory }
    }

    async fn submit(&self, kind: &str, timeout: Option<Duration>) -> JobId {
        let new = NewJob::of(JobSpec { timeout, max_attempts: 1, ..JobSpec::new(name("q"), name(kind)) });
        let submitted = self.manager.submit(&Caller::system("test"), vec![new]).await;
        let submitted = submitted.into_iter().next().expect("an answer").expect("submitted");
        submitted.job.versioned.job.id.clone()
    }

    async fn job(&self, id: &JobId) -> Arc<crate::job::Job> {
        self.manager.get(id).await.expect("the job").versioned.job
    }

    async fn ended(&self, id: &JobId) -> Arc<crate::job::Job> {
        let job = self.manager.wait(id, DEADLINE).await.expect("the job").versioned.job;
        assert!(job.state.name().is_final(), "still {}", job.state.name());
        job
    }
}

fn name<T>(text: &str) -> T
where
    T: std::str::FromStr,
    T::Err: std::fmt::Debug,
{
    text.parse().expect("a good name")
}

fn config() -> WorkerConfig {
    WorkerConfig {
        worker_id: name("w"),
        queues: vec![name("q")],
        order: ClaimOrder::default(),
        slots: 2,
        resources: BTreeMap::new(),
        labels: BTreeMap::new(),
        // Short, so that heartbeats are soon sent.
        lease: Duration::from_millis(300),
        wait: DEADLINE,
        drain_timeout: DEADLINE,
        grace: DEADLINE,
    }
}

/// Tells when it begins, and then does as its kind says.
struct Script {
    kind: &'static str,
    begun: mpsc::UnboundedSender<JobId>,
    endings: mpsc::UnboundedSender<Ending>,
    go_on: Arc<tokio::sync::Semaphore>,
}

#[async_trait]
impl Handler for Script {
    async fn run(&self, mut attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        drop(self.begun.send(attempt.job.id.clone()));
        match self.kind {
            "quick" => Ok(Json::parse("7".to_owned()).ok()),
            "panic" => panic!("out of paper"),
            "held" => {
                drop(self.go_on.acquire().await);
                Ok(None)
            }
            _ => {
                let ending = attempt.ended().await;
                let _ = self.endings.send(ending);
                Err(HandlerError::retryable("ended", "as asked"))
            }
        }
    }
}

/// A worker at work.
struct Running {
    stop: StopHandle,
    worker: tokio::task::JoinHandle<Result<(), ServiceError>>,
    begun: mpsc::UnboundedReceiver<JobId>,
    endings: mpsc::UnboundedReceiver<Ending>,
    go_on: Arc<tokio::sync::Semaphore>,
}

impl Running {
    fn start(service: Arc<dyn JobService>, config: WorkerConfig) -> Self {
        let (begun, begun_receiver) = mpsc::unbounded_channel();
        let (endings, endings_receiver) = mpsc::unbounded_channel();
        let go_on = Arc::new(tokio::sync::Semaphore::new(0));
        let mut worker = Worker::new(service, config);
        for kind in ["quick", "panic", "held", "until ended"] {
            let script = Script { kind, begun: begun.clone(), endings: endings.clone(), go_on: go_on.clone() };
            worker = worker.handle(name(kind), Arc::new(script));
        }
        let stop = StopHandle::default();
        let worker = tokio::spawn(worker.run(stop.clone()));
        Self { stop, worker, begun: begun_receiver, endings: endings_receiver, go_on }
    }

    async fn begun(&mut self) -> JobId {
        tokio::time::timeout(DEADLINE, self.begun.recv()).await.expect("a job begins in time").expect("a worker")
    }

    async fn ending(&mut self) -> Ending {
        tokio::time::timeout(DEADLINE, self.endings.recv()).await.expect("an attempt is ended").expect("a worker")
    }

    async fn stopped(self) -> Result<(), ServiceError> {
        tokio::time::timeout(DEADLINE, self.worker).await.expect("the worker stops in time").expect("no panic")
    }
}

#[tokio::test]
async fn jobs_are_run_and_their_results_kept() {
    let bed = Bed::start();
    let running = Running::start(Arc::new(bed.manager.clone()), config());
    for _ in 0..20 {
        let id = bed.submit("quick", None).await;
        let job = bed.ended(&id).await;
        assert!(matches!(&job.state, State::Completed { .. }), "{:?}", job.state);
        let view = bed.manager.get(&id).await.expect("the job");
        assert_eq!(view.result.as_ref().map(Json::as_str), Some("7"));
    }
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
}

#[tokio::test]
async fn a_panic_fails_the_job_and_not_the_worker() {
    let bed = Bed::start();
    let _running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("panic", None).await;
    let error = bed.ended(&job).await.error.clone().expect("an error");
    assert_eq!((error.code.as_str(), error.message.contains("out of paper")), ("panic", true));
    let next = bed.submit("quick", None).await;
    assert_eq!(bed.ended(&next).await.state.name(), JobState::Completed);
}

#[tokio::test]
async fn a_job_of_a_kind_without_a_handler_is_left_to_other_workers() {
    let bed = Bed::start();
    let _running = Running::start(Arc::new(bed.manager.clone()), config());
    let other = bed.submit("alchemy", None).await;
    let job = bed.submit("quick", None).await;
    assert_eq!(bed.ended(&job).await.state.name(), JobState::Completed);
    let left = bed.manager.get(&other).await.expect("it is there").versioned.job;
    assert_eq!((left.state.name(), left.attempt.get()), (JobState::Available, 0));
}

/// The handler of jobs that do not come.
struct Unused;

#[async_trait]
impl Handler for Unused {
    async fn run(&self, _attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        Ok(None)
    }
}

#[tokio::test]
async fn a_kind_nobody_knows_fails_with_its_name_where_there_are_more_handlers_than_a_claim_can_name() {
    let bed = Bed::start();
    let mut worker = Worker::new(Arc::new(bed.manager.clone()), config());
    for number in 0..=MAX_CLAIMED_KINDS {
        worker = worker.handle(name(&format!("kind-{number}")), Arc::new(Unused));
    }
    tokio::spawn(worker.run(StopHandle::default()));
    let job = bed.submit("alchemy", None).await;
    let error = bed.ended(&job).await.error.clone().expect("an error");
    assert_eq!((error.code.as_str(), error.message.contains("`alchemy`")), ("unknown_kind", true));
}

#[tokio::test]
async fn an_attempt_past_its_time_is_ended_and_fails() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("until ended", Some(Duration::from_millis(20))).await;
    assert_eq!(running.ending().await, Ending::TimedOut);
    let error = bed.ended(&job).await.error.clone().expect("an error");
    assert_eq!((error.code.as_str(), error.message.contains("20 ms")), ("timeout", true));
}

#[tokio::test]
async fn a_cancelled_job_is_ended() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("until ended", None).await;
    running.begun().await;
    bed.manager.cancel(&Caller::system("test"), &job, None).await.expect("asked");
    assert_eq!(running.ending().await, Ending::Cancelled);
    assert_eq!(bed.ended(&job).await.state.name(), JobState::Cancelled);
}

/// A worker whose next heartbeat comes long after any test.
fn patient() -> WorkerConfig {
    WorkerConfig { lease: Duration::from_secs(24 * 3600), ..config() }
}

#[tokio::test]
async fn an_attempt_that_has_to_end_does_not_wait_for_a_heartbeat() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), patient());
    let first = bed.submit("until ended", None).await;
    assert_eq!(running.begun().await, first);
    // It is claimed while the worker waits for recalls of the first.
    let second = bed.submit("until ended", None).await;
    assert_eq!(running.begun().await, second);
    bed.manager.cancel(&Caller::system("test"), &second, None).await.expect("asked for");
    assert_eq!(running.ending().await, Ending::Cancelled);
    bed.manager.cancel(&Caller::system("test"), &first, None).await.expect("asked for");
    assert_eq!(running.ending().await, Ending::Cancelled);
    for id in [&first, &second] {
        assert_eq!(bed.ended(id).await.state.name(), JobState::Cancelled);
    }
    running.stop.request(Stop::Now);
    running.stopped().await.expect("a clean end");
}

#[tokio::test]
async fn what_was_cancelled_between_two_calls_is_found_at_the_next() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), patient());
    let id = bed.submit("until ended", None).await;
    running.begun().await;
    let fence = bed.job(&id).await.fence;
    bed.manager.cancel(&Caller::system("test"), &id, None).await.expect("asked for");
    let held = [(id.clone(), fence)];
    let recalls = bed.manager.recalls(&name("w"), &held, DEADLINE).await.expect("answered");
    let recall = |reason| Recall { worker_id: name("w"), id: id.clone(), fence, reason, holder: None };
    assert!(
        recalls == [recall(RecallReason::CancelRequested)] || recalls == [recall(RecallReason::LeaseLost)],
        "{recalls:?}"
    );
    let stranger = bed.manager.recalls(&name("other"), &held, DEADLINE).await.expect("answered");
    assert_eq!(stranger[0].reason, RecallReason::LeaseLost, "another worker holds none of it");
    running.stop.request(Stop::Now);
    running.stopped().await.expect("a clean end");
}

#[tokio::test]
async fn a_lost_lease_ends_the_attempt_and_nothing_it_says_counts() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("until ended", None).await;
    running.begun().await;
    let order = AdminRelease {
        actor: Actor::system("test"),
        reason: "test".to_owned(),
        then: Then::Fail,
        expected_fence: None,
    };
    bed.manager.admin_release(&job, order).await.expect("released");
    assert_eq!(running.ending().await, Ending::LeaseLost);
    running.stop.request(Stop::Now);
    assert_eq!(running.stopped().await, Ok(()));
    assert_eq!(bed.job(&job).await.error.as_ref().map(|error| error.code.as_str()), Some("released"));
}

#[tokio::test]
async fn heartbeats_keep_a_job_that_takes_longer_than_its_lease() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("held", None).await;
    running.begun().await;
    let first = bed.job(&job).await.lease().expect("a lease").expires_at;
    let deadline = Instant::now() + DEADLINE;
    while bed.job(&job).await.lease().expect("still held").heartbeat_at <= first {
        assert!(Instant::now() < deadline, "no heartbeat after the first lease would have ended");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    running.go_on.add_permits(1);
    assert_eq!(bed.ended(&job).await.state.name(), JobState::Completed);
}

#[tokio::test]
async fn a_job_waits_while_those_that_run_need_too_much_of_what_the_worker_has() {
    let bed = Bed::start();
    let needing = |kind: &str, memory: u64| {
        let resources = [("memory".to_owned(), memory)].into();
        NewJob::of(JobSpec { resources, max_attempts: 1, ..JobSpec::new(name("q"), name(kind)) })
    };
    let submit = async |new: NewJob| {
        let submitted = bed.manager.submit(&Caller::system("test"), vec![new]).await;
        submitted.into_iter().next().expect("an answer").expect("submitted").job.versioned.job.id.clone()
    };
    let config = WorkerConfig { resources: [("memory".to_owned(), 10)].into(), ..config() };
    let first = submit(needing("held", 6)).await;
    let mut worker = Running::start(Arc::new(bed.manager.clone()), config);
    assert_eq!(worker.begun().await, first);
    let (large, small) = (submit(needing("quick", 6)).await, submit(needing("quick", 4)).await);
    assert_eq!(worker.begun().await, small, "what fits does not wait for what does not");
    bed.ended(&small).await;
    assert_eq!(bed.job(&large).await.state, State::Available);
    worker.go_on.add_permits(1);
    assert_eq!(worker.begun().await, large);
    bed.ended(&large).await;
    worker.stop.request(Stop::Drain);
    worker.stopped().await.expect("a good end");
}

#[tokio::test]
async fn a_gentle_stop_waits_for_what_runs_and_takes_nothing_new() {
    let bed = Bed::start();
    let mut running = Running::start(Arc::new(bed.manager.clone()), config());
    let job = bed.submit("held", None).await;
    running.begun().await;
    running.stop.request(Stop::Drain);
    // The free slot's claim must be gone before the next job comes.
    let deadline = Instant::now() + DEADLINE;
    while bed.manager.waiting_claims() > 0 {
        assert!(Instant::now() < deadline, "the worker still waits for jobs");
        tokio::task::yield_now().await;
    }
    let untouched = bed.submit("quick", None).await;
    running.go_on.add_permits(1);
    assert_eq!(running.stopped().await, Ok(()));
    assert_eq!(bed.job(&job).await.state.name(), JobState::Completed);
    assert_eq!(bed.job(&untouched).await.state, State::Available);
}

#[tokio::test]
async fn what_does_not_end_in_time_is_given_back_unharmed() {
    let bed = Bed::start();
    let config = WorkerConfig { drain_timeout: Duration::from_millis(20), ..config() };
    let mut running = Running::start(Arc::new(bed.manager.clone()), config);
    let job = bed.submit("until ended", None).await;
    running.begun().await;
    running.stop.request(Stop::Drain);
    assert_eq!(running.ending().await, Ending::WorkerStops);
    assert_eq!(running.stopped().await, Ok(()));
    let job = bed.job(&job).await;
    assert_eq!((job.state.name(), job.attempt.get(), job.fence.get()), (JobState::Available, 0, 1));
}

/// A manager that cannot be reached for a while.
struct Unreachable {
    manager: Manager,
    /// How many calls of each sort still fail.
    claims: AtomicU32,
    finishes: AtomicU32,
    /// Whether a finish is done though its answer is lost.
    finishes_are_heard: bool,
    asked: Mutex<Vec<(Option<RequestId>, bool)>>,
}

impl Unreachable {
    fn new(manager: Manager, claims: u32, finishes: u32, finishes_are_heard: bool) -> Arc<Self> {
        let (claims, finishes) = (AtomicU32::new(claims), AtomicU32::new(finishes));
        Arc::new(Self { manager, claims, finishes, finishes_are_heard, asked: Mutex::default() })
    }

    fn fails(counter: &AtomicU32) -> bool {
        counter.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
    }

    fn error() -> ServiceError {
        ServiceError::Unavailable("the cable is out".to_owned())
    }
}

#[async_trait]
impl JobService for Unreachable {
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        self.asked.lock().push((request.request_id.clone(), request.repeated));
        if Self::fails(&self.claims) {
            return Err(Self::error());
        }
        JobService::claim(&self.manager, request).await
    }

    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        self.manager.recover_claim(request).await
    }

    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError> {
        JobService::heartbeat(&self.manager, worker, beats).await
    }

    async fn finish(
        &self,
        worker: &WorkerId,
        finishes: &[Finish],
        next: Option<&ClaimRequest>,
    ) -> Result<Finished, ServiceError> {
        if Self::fails(&self.finishes) {
            if self.finishes_are_heard {
                let _: Vec<Result<Versioned, _>> = self.manager.finish(worker, finishes.to_vec()).await;
            }
            return Err(Self::error());
        }
        JobService::finish(&self.manager, worker, finishes, next).await
    }
}

#[tokio::test]
async fn a_claim_without_an_answer_is_repeated_under_its_name() {
    let bed = Bed::start();
    let service = Unreachable::new(bed.manager.clone(), 3, 0, false);
    let running = Running::start(service.clone(), config());
    let job = bed.submit("quick", None).await;
    assert_eq!(bed.ended(&job).await.state.name(), JobState::Completed);
    running.stop.request(Stop::Drain);
    assert_eq!(running.stopped().await, Ok(()));
    let asked = service.asked.lock().clone();
    assert!(asked[0].0.is_some() && asked[..4].iter().all(|(id, _)| *id == asked[0].0), "{asked:?}");
    assert_eq!(asked[..4].iter().map(|(_, repeated)| *repeated).collect::<Vec<_>>(), [false, true, true, true]);
    assert!(asked[4..].iter().all(|(id, repeated)| *id != asked[0].0 && !repeated), "{asked:?}");
}

#[tokio::test]
async fn a_result_is_not_lost_while_nobody_answers() {
    for heard in [false, true] {
        let bed = Bed::start();
        let service = Unreachable::new(bed.manager.clone(), 0, 4, heard);
        let running = Running::start(service.clone(), config());
        let job = bed.submit("quick", None).await;
        let job = bed.ended(&job).await;
        running.stop.request(Stop::Drain);
        assert_eq!(running.stopped().await, Ok(()));
        assert_eq!(service.finishes.load(Ordering::SeqCst), 0, "the worker gave up");
        assert_eq!((job.state.name(), job.history.len()), (JobState::Completed, 3), "recorded more than once");
    }
}

/// A service that will never hand out a job.
struct Closed;

#[async_trait]
impl JobService for Closed {
    async fn claim(&self, _: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        Err(ServiceError::Refused("no such token".to_owned()))
    }
    async fn recover_claim(&self, _: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        Ok(Vec::new())
    }
    async fn heartbeat(&self, _: &WorkerId, _: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError> {
        Ok(Vec::new())
    }
    async fn finish(&self, _: &WorkerId, _: &[Finish], _: Option<&ClaimRequest>) -> Result<Finished, ServiceError> {
        Ok(Finished { answers: Vec::new(), next: Ok(Vec::new()) })
    }
}

#[tokio::test]
async fn a_worker_that_is_refused_says_why_and_ends() {
    let running = Running::start(Arc::new(Closed), config());
    assert_eq!(running.stopped().await, Err(ServiceError::Refused("no such token".to_owned())));
}
