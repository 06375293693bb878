//! The worker: claims jobs from a server or a manager, runs them in slots, and delivers their ends.
//!
//! In reading order: [`service`] (what a worker needs of a service, with `in_process` for a manager in the same
//! process), [`handler`] (the work itself), [`shell`] (the handler that runs commands), [`stop`], this loop, and its
//! parts: `slots`, `attempt`, `roster`, `heartbeats`, `recalls`, [`output`], `finishes`, `backoff`.
//!
//! A claim waits for jobs while slots are free. While all are taken, the call that hands in how jobs ended claims the
//! next ones for their slots.
//!
//! What it guarantees: a slot is offered by one claim at a time; a job holds its slot until the service has answered
//! how it ended, or has given the next job in the same call; every running job gets its heartbeats, also while its end
//! is on the way; after a lost answer the claim is repeated under the same name; a result is not lost while the process
//! lives, however long the service stays away.

mod attempt;
pub(crate) mod backoff;
mod finishes;
pub mod handler;
mod heartbeats;
pub(crate) mod in_process;
pub mod output;
mod recalls;
mod roster;
pub mod service;
pub mod shell;
mod slots;
pub mod stop;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use backon::Retryable as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

pub(crate) use attempt::NOT_BEGUN;
pub use handler::{Attempt, Ending, Handler, HandlerError};
pub use output::{AttemptSink, NoOutput, OutputSink, ServiceOutput};
pub use service::{Beat, ClaimedJob, FinishAnswer, Finished, JobService, PieceAnswer, ServiceError};
pub use stop::{Stop, StopHandle, StopListener};

use finishes::{Finishes, NextClaim, NextJobs};
use roster::{EndingHandle, Roster};
use slots::{SlotPool, Slots};

use crate::job::{Kind, Offers, QueueName, RequestId, WorkerId};
use crate::manager::{ClaimOrder, ClaimRequest, Finish, MAX_CLAIMED_KINDS, Outcome};

/// How long the worker searches for the jobs of an abandoned claim before it leaves them to their leases.
const RECOVERY: Duration = Duration::from_secs(5);
/// The longest wait of a claim while running jobs use a part of the worker's resources.
const WAIT_WITH_LESS: Duration = Duration::from_secs(5);
/// How long the queues of a worker that ends when they are empty have to be so: longer than searches lag.
const EMPTY_FOR: Duration = Duration::from_secs(2);

/// A worker's settings.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// The worker's id, which no other worker may have.
    pub worker_id: WorkerId,
    /// The queues that the worker claims from; at least one.
    pub queues: Vec<QueueName>,
    /// From which of its queues the worker claims next.
    pub order: ClaimOrder,
    /// The most jobs that the worker runs at a time; at least one.
    pub slots: usize,
    /// The resources that the worker offers to all its running jobs together, by name. It claims no job that needs more
    /// than is free. Empty for a worker that takes any job.
    pub resources: BTreeMap<String, u64>,
    /// The labels that the worker offers, by name. It claims no job whose requirements they do not meet.
    pub labels: Offers,
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
    /// Where the output of attempts goes; `None` for the service.
    output: Option<Arc<dyn OutputSink>>,
    max_jobs: Option<usize>,
    until_empty: bool,
}

impl Worker {
    /// Creates a worker that has no handler yet.
    #[must_use]
    pub fn new(service: Arc<dyn JobService>, config: WorkerConfig) -> Self {
        Self {
            service,
            config,
            handlers: HashMap::new(),
            observer: None,
            output: None,
            max_jobs: None,
            until_empty: false,
        }
    }

    /// Adds the handler for one kind of jobs. The worker claims jobs of the kinds that it has handlers for, and of no
    /// others, as long as these are not more than a claim can name ([`MAX_CLAIMED_KINDS`]).
    #[must_use]
    pub fn handle(mut self, kind: Kind, handler: Arc<dyn Handler>) -> Self {
        self.handlers.insert(kind, handler);
        self
    }

    /// Returns the kinds of the jobs that the worker claims; none for any.
    fn kinds(&self) -> Vec<Kind> {
        if self.handlers.len() > MAX_CLAIMED_KINDS {
            return Vec::new();
        }
        let mut kinds: Vec<Kind> = self.handlers.keys().cloned().collect();
        kinds.sort_unstable();
        kinds
    }

    /// Adds an observer.
    #[must_use]
    pub fn observe(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// Puts a sink for the output of attempts in the place of the service.
    #[must_use]
    pub fn send_output_to(mut self, sink: Arc<dyn OutputSink>) -> Self {
        self.output = Some(sink);
        self
    }

    /// Makes the worker end once it has run this many jobs, of which it claims no more.
    #[must_use]
    pub fn at_most(mut self, jobs: usize) -> Self {
        self.max_jobs = Some(jobs);
        self
    }

    /// Makes the worker end when it runs nothing and no job is to be had for two seconds.
    #[must_use]
    pub fn until_empty(mut self) -> Self {
        self.until_empty = true;
        self
    }

    /// Claims and runs jobs until a stop is requested, and then waits until every running attempt has ended or was
    /// released.
    ///
    /// # Errors
    /// Returns why the service refuses to hand out jobs to this worker; running attempts have ended before.
    pub async fn run(self, stop: StopHandle) -> Result<(), ServiceError> {
        let (service, config) = (self.service.clone(), self.config.clone());
        let roster = Arc::new(Roster::default());
        let max_jobs = self.max_jobs;
        let heartbeats = heartbeats::run(service.clone(), config.worker_id.clone(), roster.clone(), config.lease);
        let _heartbeats = AbortOnDropHandle::new(tokio::spawn(heartbeats));
        let to_service = || Arc::new(ServiceOutput::start(service.clone(), config.worker_id.clone())) as Arc<_>;
        let output = self.output.clone().unwrap_or_else(to_service);
        let recalls = recalls::run(service.clone(), config.worker_id.clone(), roster.clone());
        let _recalls = AbortOnDropHandle::new(tokio::spawn(recalls));
        let running = Arc::new_cyclic(|running: &Weak<RunningWorker>| RunningWorker {
            worker: self,
            roster,
            output,
            finishes: Finishes::start(service, config.worker_id, running.clone(), stop.listen()),
            pool: SlotPool::new(config.slots, config.resources, max_jobs),
            begun: AtomicUsize::new(0),
            is_spent: CancellationToken::new(),
            found_too_few: AtomicBool::new(false),
            attempts: TaskTracker::new(),
            stop: stop.listen(),
        });
        let claimed = running.clone().claim_until_stopped().await;
        if claimed.is_ok() {
            running.end_begun().await;
        }
        // A worker that is refused stops as well, and claims nothing with its last ends.
        stop.request(Stop::Drain);
        running.drain(stop).await;
        claimed
    }
}

/// The state of a running worker.
struct RunningWorker {
    worker: Worker,
    roster: Arc<Roster>,
    output: Arc<dyn OutputSink>,
    finishes: Finishes,
    pool: SlotPool,
    /// How many jobs were begun.
    begun: AtomicUsize,
    /// Cancelled once as many were begun as may be.
    is_spent: CancellationToken,
    /// Whether the last claim took fewer jobs than it offered slots.
    found_too_few: AtomicBool,
    attempts: TaskTracker,
    stop: StopListener,
}

impl RunningWorker {
    async fn claim_until_stopped(self: Arc<Self>) -> Result<(), ServiceError> {
        let mut stop = self.stop.clone();
        loop {
            let slots = tokio::select! {
                biased;
                () = stop.reached(Stop::Drain) => return Ok(()),
                () = self.is_spent.cancelled() => return Ok(()),
                slots = self.pool.take() => slots,
            };
            let resources = &self.worker.config.resources;
            // A claim's resources are fixed while it waits, so it waits only briefly while more may become free.
            let mut longest = if slots.resources() == resources { Duration::MAX } else { WAIT_WITH_LESS };
            let until_empty = self.worker.until_empty;
            if until_empty {
                longest = longest.min(EMPTY_FOR);
            }
            let was_idle = self.attempts.is_empty();
            let request = self.claim_request(&slots, self.worker.config.wait.min(longest));
            let found = self.clone().claim_and_start(NextClaim { request, slots }).await?;
            // A job that ran when the claim was made may have submitted others since.
            if until_empty && was_idle && found == 0 {
                return Ok(());
            }
        }
    }

    fn claim_request(&self, slots: &Slots, wait: Duration) -> ClaimRequest {
        let config = &self.worker.config;
        ClaimRequest {
            worker_id: config.worker_id.clone(),
            bearer: None,
            queues: config.queues.clone(),
            max_jobs: slots.count(),
            resources: slots.resources().clone(),
            labels: config.labels.clone(),
            kinds: self.worker.kinds(),
            wait,
            lease: config.lease,
            order: config.order.clone(),
            request_id: RequestId::new(uuid::Uuid::new_v4().simple().to_string()).ok(),
            repeated: false,
        }
    }

    /// Claims jobs for free slots, starts them and returns their number. When the worker stops meanwhile, the jobs of
    /// the unheard answer are released.
    async fn claim_and_start(self: Arc<Self>, NextClaim { request, slots }: NextClaim) -> Result<usize, ServiceError> {
        let mut stop = self.stop.clone();
        let jobs = tokio::select! {
            biased;
            () = stop.reached(Stop::Drain) => self.recover_claim(&request).await,
            jobs = self.claim(&request) => jobs?,
        };
        let found = jobs.len();
        self.start_all(jobs, slots);
        Ok(found)
    }

    /// Starts jobs in the slots that were offered for them, and returns the other slots. A worker that stops releases
    /// the jobs instead.
    fn start_all(self: Arc<Self>, jobs: Vec<ClaimedJob>, mut slots: Slots) -> Slots {
        self.found_too_few.store(jobs.len() < slots.count(), Ordering::Relaxed);
        let stops = self.stop.urgency() >= Stop::Drain;
        for job in jobs {
            if stops {
                self.attempts.spawn(self.clone().release(job));
            } else if let Some(slot) = slots.take(&job.resources) {
                // The attempt is entered before its task starts, so that a stop in between finds it.
                let output = self.output.begin(&job);
                let entered = self.roster.enter(&job, &self.worker.config.worker_id, output);
                self.attempts.spawn(self.clone().attempt(job, entered, slot.begin()));
                let begun = self.begun.fetch_add(1, Ordering::Relaxed) + 1;
                if self.worker.max_jobs.is_some_and(|most| begun >= most) {
                    self.is_spent.cancel();
                }
            }
        }
        slots
    }

    /// Repeats the claim until there is an answer, and logs when answers stop and when they come again. The request has
    /// a name, so that a repetition returns the jobs of a lost answer.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError> {
        let mut tries = 0;
        let mut unanswered_since = None;
        let claim = || {
            tries += 1;
            let request = ClaimRequest { repeated: request.repeated || tries > 1, ..request.clone() };
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

    /// Returns the jobs of a claim whose answer was not awaited.
    async fn recover_claim(&self, request: &ClaimRequest) -> Vec<ClaimedJob> {
        match tokio::time::timeout(RECOVERY, self.worker.service.recover_claim(request)).await {
            Ok(Ok(jobs)) => return jobs,
            Ok(Err(error)) => tracing::warn!(%error, "the last claim's answer is not known"),
            Err(_) => tracing::warn!("the last claim's answer did not come in time"),
        }
        Vec::new()
    }

    /// Gives back a job that was not begun.
    async fn release(self: Arc<Self>, job: ClaimedJob) {
        self.finishes.finish(Finish { id: job.id, fence: job.fence, outcome: attempt::not_begun() }, None).await;
    }

    async fn attempt(self: Arc<Self>, job: ClaimedJob, (attempt, ending): (Attempt, EndingHandle), slot: Slots) {
        let worker = &self.worker;
        let begun = Instant::now();
        if let Some(observer) = &worker.observer {
            observer.started(&job);
        }
        let output = Arc::clone(&attempt.output);
        let outcome = match worker.handlers.get(&job.kind) {
            Some(handler) => attempt::run(handler.clone(), attempt, &ending, worker.config.grace).await,
            None => Some(no_handler(&job.kind)),
        };
        let took = begun.elapsed();
        // Before the end is reported: after that, whoever asks for the output finds all of it.
        output.end().await;
        let answer = match outcome.clone() {
            Some(outcome) => {
                self.finishes.finish(Finish { id: job.id.clone(), fence: job.fence, outcome }, Some(slot)).await
            }
            None => {
                drop(slot);
                FinishAnswer::Lost
            }
        };
        self.roster.leave(&job);
        if let Some(observer) = &worker.observer {
            observer.ended(&job, &AttemptEnd { outcome, answer, took });
        }
    }

    /// Waits until the running attempts have ended or a stop is requested.
    async fn end_begun(&self) {
        self.attempts.close();
        let mut stop = self.stop.clone();
        tokio::select! {
            biased;
            () = stop.reached(Stop::Drain) => {}
            () = self.attempts.wait() => {}
        }
    }

    /// Lets the running attempts end by themselves for the drain timeout, then ends them.
    async fn drain(&self, stop: StopHandle) {
        let Self { attempts, .. } = self;
        attempts.close();
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

impl NextJobs for RunningWorker {
    /// Claims for the slots of ended attempts unless the last claim found too few jobs: slots are free then, and a
    /// claim waits for jobs. That one may offer too few resources, which those of ended attempts make up for.
    fn claim(&self, ended: &mut dyn Iterator<Item = Slots>) -> Option<NextClaim> {
        let waits = self.found_too_few.load(Ordering::Relaxed) && self.worker.config.resources.is_empty();
        if waits || self.stop.urgency() >= Stop::Drain {
            return None;
        }
        let slots = Slots::of_ended(ended)?;
        // It does not wait, since the answers to the ends would wait with it.
        Some(NextClaim { request: self.claim_request(&slots, Duration::ZERO), slots })
    }

    fn start(self: Arc<Self>, claimed: Result<Vec<ClaimedJob>, ServiceError>, claim: NextClaim) -> Option<Slots> {
        if let Ok(jobs) = claimed {
            return Some(self.start_all(jobs, claim.slots));
        }
        // It is not known whether it took jobs, so it is made again under its name.
        self.attempts.spawn(self.clone().claim_and_start(claim.again()));
        None
    }
}

/// Returns the outcome of a job without a handler. It is retryable, since another worker may have the handler.
fn no_handler(kind: &Kind) -> Outcome {
    let message = format!("this worker has no handler for jobs of kind `{kind}`");
    HandlerError::retryable("unknown_kind", message).into()
}

#[cfg(test)]
mod tests;
