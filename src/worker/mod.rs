//! The worker: claims jobs from a server or a manager, runs them in slots, and delivers their ends.
//!
//! In reading order: [`service`] (what a worker needs of a service, with `in_process` for a manager in the same
//! process), [`handler`] (the work itself), [`shell`] (the handler that runs commands), [`stop`], this loop, and its
//! parts: `attempt`, `roster`, `heartbeats`, `finishes`, `backoff`.
//!
//! What it guarantees: a job holds its slot until the service has answered how it ended; every running job gets its
//! heartbeats, also while its end is on the way; after a lost answer the claim is repeated under the same name; a
//! result is not lost while the process lives, however long the service stays away.

mod attempt;
pub(crate) mod backoff;
mod finishes;
pub mod handler;
mod heartbeats;
mod in_process;
mod roster;
pub mod service;
pub mod shell;
pub mod stop;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable as _;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub use handler::{Attempt, Ending, Handler, HandlerError};
pub use service::{Beat, ClaimedJob, FinishAnswer, JobService, ServiceError};
pub use stop::{Stop, StopHandle, StopListener};

use finishes::Finishes;
use roster::{EndingHandle, Roster};

use crate::job::{Kind, QueueName, RequestId, WorkerId};
use crate::manager::{ClaimRequest, Finish, Outcome};

/// The most jobs that one claim takes.
const MAX_CLAIM: usize = 100;
/// How long the worker searches for the jobs of an abandoned claim before it leaves them to their leases.
const RECOVERY: Duration = Duration::from_secs(5);
/// The longest wait of a claim while running jobs use a part of the worker's resources.
const WAIT_WITH_LESS: Duration = Duration::from_secs(5);

/// A worker's settings.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The worker's id, which no other worker may have.
    pub worker_id: WorkerId,
    /// The queues that the worker claims from; at least one.
    pub queues: Vec<QueueName>,
    /// The most jobs that the worker runs at a time; at least one.
    pub slots: usize,
    /// The resources that the worker offers to all its running jobs together, by name. It claims no job that needs more
    /// than is free. Empty for a worker that takes any job.
    pub resources: BTreeMap<String, u64>,
    /// How long a lease lasts without a heartbeat.
    pub lease: Duration,
    /// How long one claim waits for a job.
    pub wait: Duration,
    /// How long running jobs may continue after a stop was requested.
    pub drain_timeout: Duration,
    /// How long a handler may take to end after it was requested to.
    pub grace: Duration,
}

/// How an attempt ended, for observers.
#[derive(Clone, Debug)]
pub struct AttemptEnd {
    /// The outcome that was reported; `None` when the lease was lost.
    pub outcome: Option<Outcome>,
    /// The service's answer to the outcome.
    pub answer: FinishAnswer,
    /// How long the attempt took.
    pub took: Duration,
}

/// Receives the start and the end of a worker's attempts.
pub trait Observer: Send + Sync + 'static {
    /// Called when an attempt begins.
    fn started(&self, job: &ClaimedJob);
    /// Called when an attempt has ended and the service has answered.
    fn ended(&self, job: &ClaimedJob, end: &AttemptEnd);
}

/// Claims jobs and runs them.
pub struct Worker {
    service: Arc<dyn JobService>,
    config: WorkerConfig,
    handlers: HashMap<Kind, Arc<dyn Handler>>,
    observer: Option<Arc<dyn Observer>>,
}

impl Worker {
    /// Creates a worker that has no handler yet.
    #[must_use]
    pub fn new(service: Arc<dyn JobService>, config: WorkerConfig) -> Self {
        Self { service, config, handlers: HashMap::new(), observer: None }
    }

    /// Adds the handler for one kind of jobs.
    #[must_use]
    pub fn handle(mut self, kind: Kind, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(kind, handler);
        self
    }

    /// Adds an observer.
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Claims and runs jobs until a stop is requested, and then waits until every running attempt has ended or was
    /// released.
    ///
    /// # Errors
    /// Returns why the service refuses to hand out jobs to this worker; running attempts have ended before.
    pub async fn run(self, stop: StopHandle) -> Result<(), ServiceError> {
        let roster = Arc::new(Roster::default());
        let finishes = Finishes::start(self.service.clone(), self.config.worker_id.clone(), stop.listen());
        let heartbeats =
            heartbeats::run(self.service.clone(), self.config.worker_id.clone(), roster.clone(), self.config.lease);
        let _heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats));
        let free = Mutex::new(self.config.resources.clone());
        let running = Arc::new(RunningWorker { worker: self, roster, finishes, free });
        let attempts = TaskTracker::new();

        let claimed = running.clone().claim_until_stopped(&attempts, stop.listen()).await;
        attempts.close();
        running.drain(&attempts, stop).await;
        claimed
    }
}

/// The state of a running worker.
struct RunningWorker {
    worker: Worker,
    roster: Arc<Roster>,
    finishes: Finishes,
    /// The resources that no running job uses.
    free: Mutex<BTreeMap<String, u64>>,
}

impl RunningWorker {
    async fn claim_until_stopped(
        self: Arc<Self>,
        attempts: &TaskTracker,
        mut stop: StopListener,
    ) -> Result<(), ServiceError> {
        let slots = Arc::new(Semaphore::new(self.worker.config.slots));
        loop {
            let free = tokio::select! {
                biased;
                () = stop.reached(Stop::Drain) => return Ok(()),
                free = free_slots(&slots) => free,
            };
            let request = self.claim_request(free.len());
            let jobs = tokio::select! {
                biased;
                () = stop.reached(Stop::Drain) => {
                    self.give_back_unheard(&request).await;
                    return Ok(());
                }
                jobs = self.claim(&request) => jobs?,
            };
            for (job, slot) in jobs.into_iter().zip(free) {
                // The attempt is entered before its task starts, so that a stop in between finds it.
                let entered = self.roster.enter(&job, &self.worker.config.worker_id);
                self.take_room(&job);
                attempts.spawn(self.clone().attempt(job, entered, slot));
            }
        }
    }

    fn claim_request(&self, max_jobs: usize) -> ClaimRequest {
        let config = &self.worker.config;
        let resources = self.free.lock().clone();
        // A claim's resources are fixed while it waits, so it waits only briefly while more may become free.
        let wait = if resources == config.resources { config.wait } else { config.wait.min(WAIT_WITH_LESS) };
        ClaimRequest {
            worker_id: config.worker_id.clone(),
            queues: config.queues.clone(),
            max_jobs,
            resources,
            wait,
            lease: config.lease,
            request_id: RequestId::new(uuid::Uuid::new_v4().simple().to_string()).ok(),
            repeated: false,
        }
    }

    /// Repeats the claim until there is an answer, and logs when answers stop and when they come again. The request has
    /// a name, so that a repetition returns the jobs of a lost answer.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        let mut tries = 0;
        let mut unanswered_since = None;
        let claim = || {
            tries += 1;
            let request = ClaimRequest { repeated: tries > 1, ..request.clone() };
            async move { self.worker.service.claim(&request).await }
        };
        let claimed = claim
            .retry(backoff::waits())
            .when(|error| !matches!(error, ServiceError::Refused(_)))
            .notify(|error, _| {
                // A service that is being stopped says so to every waiting claim, and that is no trouble.
                if unanswered_since.is_none() && matches!(error, ServiceError::Unavailable(_)) {
                    unanswered_since = Some(Instant::now());
                    tracing::warn!(%error, "claims are not answered; trying again");
                }
            })
            .await;
        if let (Some(since), Ok(_)) = (unanswered_since, &claimed) {
            tracing::info!(seconds = since.elapsed().as_secs(), "claims are answered again");
        }
        claimed
    }

    /// Releases the jobs of a claim whose answer was not awaited.
    async fn give_back_unheard(&self, request: &ClaimRequest) {
        let recovered = tokio::time::timeout(RECOVERY, self.worker.service.recover_claim(request)).await;
        let jobs = match recovered {
            Ok(Ok(jobs)) => jobs,
            Ok(Err(error)) => return tracing::warn!(%error, "the last claim's answer is not known"),
            Err(_) => return tracing::warn!("the last claim's answer did not come in time"),
        };
        let released =
            |job: &ClaimedJob| Finish { id: job.id.clone(), fence: job.fence, outcome: attempt::given_back() };
        futures::future::join_all(jobs.iter().map(|job| self.finishes.finish(released(job)))).await;
    }

    async fn attempt(
        self: Arc<Self>,
        job: ClaimedJob,
        (attempt, ending): (Attempt, EndingHandle),
        slot: OwnedSemaphorePermit,
    ) {
        let worker = &self.worker;
        let begun = Instant::now();
        if let Some(observer) = &worker.observer {
            observer.started(&job);
        }
        let outcome = match worker.handlers.get(&job.kind) {
            Some(handler) => attempt::run(handler.clone(), attempt, &ending, worker.config.grace).await,
            None => Some(no_handler(&job.kind)),
        };
        let took = begun.elapsed();
        let answer = match outcome.clone() {
            Some(outcome) => self.finishes.finish(Finish { id: job.id.clone(), fence: job.fence, outcome }).await,
            None => FinishAnswer::Lost,
        };
        self.roster.leave(&job);
        self.give_room_back(&job);
        drop(slot);
        if let Some(observer) = &worker.observer {
            observer.ended(&job, &AttemptEnd { outcome, answer, took });
        }
    }

    fn take_room(&self, job: &ClaimedJob) {
        let mut free = self.free.lock();
        for (name, needed) in &job.resources {
            if let Some(free) = free.get_mut(name) {
                *free = free.saturating_sub(*needed);
            }
        }
    }

    fn give_room_back(&self, job: &ClaimedJob) {
        let mut free = self.free.lock();
        for (name, needed) in &job.resources {
            if let (Some(free), Some(most)) = (free.get_mut(name), self.worker.config.resources.get(name)) {
                *free = free.saturating_add(*needed).min(*most);
            }
        }
    }

    /// Lets the running attempts end by themselves for the drain timeout, then ends them.
    async fn drain(&self, attempts: &TaskTracker, stop: StopHandle) {
        let mut listener = stop.listen();
        tokio::select! {
            () = attempts.wait() => return,
            () = tokio::time::sleep(self.worker.config.drain_timeout) => stop.request(Stop::Now),
            () = listener.reached(Stop::Now) => {}
        }
        self.roster.end_all(Ending::WorkerStops);
        attempts.wait().await;
    }
}

/// Waits for one free slot, and takes all others that are free then.
async fn free_slots(slots: &Arc<Semaphore>) -> Vec<OwnedSemaphorePermit> {
    let mut free: Vec<OwnedSemaphorePermit> = slots.clone().acquire_owned().await.into_iter().collect();
    while free.len() < MAX_CLAIM
        && let Ok(slot) = slots.clone().try_acquire_owned()
    {
        free.push(slot);
    }
    free
}

/// Returns the outcome of a job without a handler. It is retryable, since another worker may have the handler.
fn no_handler(kind: &Kind) -> Outcome {
    let message = format!("this worker has no handler for jobs of kind `{kind}`");
    HandlerError::retryable("unknown_kind", message).into()
}

#[cfg(test)]
mod tests;
