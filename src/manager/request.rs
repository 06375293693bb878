//! The manager's requests, answers and errors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Bearer, CallingWorker, Fence, JobError, JobId, JobSpec, Json, Kind, Offers, Progress, QueueName, Refusal,
    RequestId, WorkerId, words,
};
use crate::store::record::RecordError;
use crate::store::{StoreError, Versioned};

/// A job as it is submitted.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The client's own id for the job; the manager generates one when it is `None`.
    pub id: Option<JobId>,
    /// The client's key for this submission, so that it can be repeated.
    pub idempotency_key: Option<String>,
    /// The input of the work.
    pub payload: Option<Json>,
    /// The earliest time at which the job may be claimed; the time of the submission when `None`.
    pub run_at: Option<Timestamp>,
    /// The time at which the job expires if no worker has claimed it.
    pub expires_at: Option<Timestamp>,
    /// What becomes of the submission while another job of its unique key waits or runs.
    pub duplicate: Duplicate,
    /// The rest of the job's specification. The manager sets its fingerprint.
    pub spec: JobSpec,
}

impl NewJob {
    /// Creates a job with this specification: due at once, without a payload, and with an id from the manager.
    #[must_use]
    pub const fn of(spec: JobSpec) -> Self {
        let duplicate = Duplicate { on_duplicate: OnDuplicate::Refuse, longest_wait: None };
        Self { id: None, idempotency_key: None, payload: None, run_at: None, expires_at: None, duplicate, spec }
    }

    /// Creates a job with defaults for everything but its queue and kind.
    #[must_use]
    pub fn new(queue: QueueName, kind: Kind) -> Self {
        Self::of(JobSpec::new(queue, kind))
    }
}

words! {
    /// What becomes of a submission while another job of its unique key waits or runs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum OnDuplicate: "an answer to a duplicate", "answers" {
        /// It is refused, and the refusal names the other job.
        #[default]
        Refuse = "refuse",
        /// It is answered with the other job.
        Existing = "existing",
        /// The other job takes over its payload, and its times where it names them, if the job waits; a job that runs
        /// is only answered with.
        Replace = "replace",
    }
}

/// What becomes of a submission while another job of its unique key waits or runs, and for how long it may.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Duplicate {
    /// What becomes of it.
    pub on_duplicate: OnDuplicate,
    /// How long after its own submission a job that waits may be put off to by others; without end when `None`.
    pub longest_wait: Option<Duration>,
}

/// A job with its payload and result, wherever they are stored.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The job and its version.
    pub versioned: Versioned,
    /// The job's payload.
    pub payload: Option<Json>,
    /// The job's result.
    pub result: Option<Json>,
}

/// The answer to a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The job.
    pub job: JobView,
    /// Whether this submission created the job; otherwise an earlier submission with the same id, idempotency key or
    /// unique key did.
    pub created: bool,
}

/// A worker's request for jobs.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// The worker's name.
    pub worker_id: WorkerId,
    /// Who makes the claim; `None` within the process, and on a server without tokens.
    pub bearer: Option<Bearer>,
    /// The queues that the worker takes jobs from; at least one.
    pub queues: Vec<QueueName>,
    /// The most jobs that the claim takes; at least one.
    pub max_jobs: usize,
    /// The resources that the worker offers to these jobs together, by name. The claim takes no job that needs more. A
    /// resource that is not named is not offered; a worker that names none takes any job.
    pub resources: BTreeMap<String, u64>,
    /// The labels that the worker offers. The claim takes no job whose requirements they do not meet; a worker that
    /// offers none is given no job that requires one.
    pub labels: Offers,
    /// The kinds of the jobs that the claim takes, each once and in their order; any kind when empty.
    pub kinds: Vec<Kind>,
    /// How long the claim waits for a first job.
    pub wait: Duration,
    /// How long each lease lasts without a heartbeat.
    pub lease: Duration,
    /// From which of the queues the claim takes next.
    pub order: ClaimOrder,
    /// The worker's name for this claim. A repeated claim of the same name returns the same jobs and takes no others.
    pub request_id: Option<RequestId>,
    /// Whether the worker repeats a claim whose answer was lost. The manager then also finds, by a costlier search,
    /// jobs that another manager claimed for the first call a moment ago.
    pub repeated: bool,
}

impl ClaimRequest {
    /// Returns the worker as it calls.
    #[must_use]
    pub fn calling_worker(&self) -> CallingWorker {
        CallingWorker { id: self.worker_id.clone(), bearer: self.bearer.clone() }
    }
}

words! {
    /// From which of its queues a claim takes next.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum QueueOrder: "an order of queues", "orders" {
        /// The most urgent job of all queues is next.
        #[default]
        Dispatch = "dispatch",
        /// The queues come in the order in which they are named, each before the next.
        Strict = "strict",
        /// The queues take turns, by their weights.
        Weighted = "weighted",
    }
}

/// The weights of queues that take turns. A queue that is not named has the weight 1.
pub type QueueWeights = BTreeMap<QueueName, u32>;

/// The greatest weight that a queue can have in a claim.
pub const MAX_QUEUE_WEIGHT: u32 = 1_000;

/// The most kinds that a claim names.
pub const MAX_CLAIMED_KINDS: usize = 64;

/// From which of its queues a claim takes next, with all that it takes to decide that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ClaimOrder {
    /// The most urgent job of all queues is next.
    #[default]
    Dispatch,
    /// The queues come in the order in which the claim names them: nothing is taken from one while a queue before it
    /// has a job that suits.
    Strict,
    /// The queues take turns: one gives so many jobs for each of a queue of weight 1.
    Weighted(Arc<QueueWeights>),
}

impl ClaimOrder {
    /// Returns the word for the order.
    #[must_use]
    pub fn word(&self) -> QueueOrder {
        match self {
            Self::Dispatch => QueueOrder::Dispatch,
            Self::Strict => QueueOrder::Strict,
            Self::Weighted(_) => QueueOrder::Weighted,
        }
    }

    /// Returns the weights of the queues, if they take turns.
    #[must_use]
    pub fn weights(&self) -> Option<&Arc<QueueWeights>> {
        match self {
            Self::Dispatch | Self::Strict => None,
            Self::Weighted(weights) => Some(weights),
        }
    }

    /// Returns whether the queue decides what is next before the jobs do.
    pub(super) fn is_by_queue(&self) -> bool {
        *self != Self::Dispatch
    }
}

/// A heartbeat for one job.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The job.
    pub id: JobId,
    /// The fence of the claim.
    pub fence: Fence,
    /// The progress of the work, if the worker reports it.
    pub progress: Option<Progress>,
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HeartbeatAnswer {
    /// When the lease expires now.
    pub lease_expires_at: Timestamp,
    /// Whether the worker is requested to stop the attempt.
    pub cancel_requested: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The attempt completed the job.
    Completed {
        /// The job's result.
        result: Option<Json>,
    },
    /// The attempt failed.
    Failed {
        /// The error that the worker reported.
        error: JobError,
        /// Whether another attempt may be made.
        retryable: bool,
        /// The shortest wait before the next attempt, if the worker requested one.
        retry_after: Option<Duration>,
    },
    /// The worker gives the job back, and the attempt does not count.
    Released {
        /// Why the job is given back.
        reason: String,
        /// The time after which it can be claimed again.
        delay: Duration,
    },
}

/// The end of one attempt.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The job.
    pub id: JobId,
    /// The fence of the claim.
    pub fence: Fence,
    /// How the attempt ended.
    pub outcome: Outcome,
}

/// Who makes a call, and what it may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name of the authenticated client, for histories and for idempotency keys, which belong to one client each.
    pub name: Actor,
    /// What the client may change of what is there.
    pub reach: Reach,
}

/// What a client may change of the jobs and schedules that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// What was submitted under this name, its own, and by the schedules that were created under it.
    Of(Actor),
    /// All jobs and schedules, under whatever name they were submitted.
    All,
}

impl Caller {
    /// Returns a part of this system, or a client that may change everything.
    #[must_use]
    pub fn system(name: &'static str) -> Self {
        Self { name: Actor::system(name), reach: Reach::All }
    }

    /// Returns whether the client may change what was submitted under this name; `None` where nobody is known to whom
    /// it belongs.
    pub(crate) fn may_change(&self, submitter: Option<&Actor>) -> bool {
        match &self.reach {
            Reach::All => true,
            Reach::Of(name) => submitter == Some(name),
        }
    }
}

/// Why the manager refused or failed. Nothing was changed, except possibly after [`ManagerError::Unknown`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum ManagerError {
    /// There is no such job.
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// The request is invalid.
    #[error("{field}: {message}")]
    Invalid {
        /// The name of the invalid field.
        field: &'static str,
        /// What is wrong with the field.
        message: String,
    },
    /// The job has changed since the version that the request names.
    #[error("job {0} has changed since it was read")]
    VersionDiffers(JobId),
    /// Another job was submitted under this id or key.
    #[error("job {0} was submitted under the same id or key with another content")]
    SubmissionDiffers(JobId),
    /// This job, which waits or runs, has the unique key that another one was to have.
    #[error("job {0} has the same unique key and has not ended")]
    Duplicate(JobId),
    /// The job's state does not allow the change.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Other writers kept changing the same job, so that every try met a conflict.
    #[error("the job was written by others {tries} times in a row; try again")]
    Contended {
        /// The number of tries that were made.
        tries: usize,
    },
    /// The store refused or could not be reached.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The outcome of the write is unknown: the change may or may not have been made.
    #[error("whether it was done is unknown: {0}")]
    Unknown(String),
    /// The manager is shutting down.
    #[error("the server is shutting down")]
    ShuttingDown,
}

impl From<RecordError> for ManagerError {
    fn from(error: RecordError) -> Self {
        match error {
            RecordError::Contended => Self::Contended { tries: RecordError::TRIES },
            RecordError::Store(error) => Self::Store(error),
            RecordError::Unknown(why) => Self::Unknown(why),
        }
    }
}
