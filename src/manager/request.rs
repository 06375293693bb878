//! What the manager is asked and what it answers.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Fence, JobError, JobId, JobSpec, Json, Kind, Progress, QueueName, Refusal, RequestId, WorkerId,
};
use crate::store::record::RecordError;
use crate::store::{StoreError, Versioned};

/// A job as it is submitted.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// The client's own id for it; made by the manager when there is none.
    pub id: Option<JobId>,
    /// The client's key for this submission, so that it can be repeated; unlike an id it says nothing about the job.
    pub idempotency_key: Option<String>,
    /// The input of the work.
    pub payload: Option<Json>,
    /// The earliest time at which the job may be claimed; the time of the submission when `None`.
    pub run_at: Option<Timestamp>,
    /// The job expires when nobody has claimed it by this time.
    pub expires_at: Option<Timestamp>,
    /// All else that is asked for. Its fingerprint is set by the manager.
    pub spec: JobSpec,
}

impl NewJob {
    /// A job of this specification, due at once, without a payload and with an id of the manager's making.
    #[must_use]
    pub const fn of(spec: JobSpec) -> Self {
        Self { id: None, idempotency_key: None, payload: None, run_at: None, expires_at: None, spec }
    }

    /// A job with defaults for everything but its queue and kind.
    #[must_use]
    pub fn new(queue: QueueName, kind: Kind) -> Self {
        Self::of(JobSpec::new(queue, kind))
    }
}

/// A job with its bodies, wherever they are kept.
#[derive(Clone, Debug)]
pub struct JobView {
    /// The document and its version.
    pub versioned: Versioned,
    /// The input.
    pub payload: Option<Json>,
    /// The output.
    pub result: Option<Json>,
}

/// The answer to a submission.
#[derive(Clone, Debug)]
pub struct Submitted {
    /// The job.
    pub job: JobView,
    /// Whether this submission made it; else an earlier one with the same key or id did.
    pub created: bool,
}

/// A worker's wish for jobs.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    /// Who asks.
    pub worker_id: WorkerId,
    /// Which lines it takes from; at least one.
    pub queues: Vec<QueueName>,
    /// How many jobs at most; at least one.
    pub max_jobs: usize,
    /// What the worker offers to these jobs together, by the resource's name. It gets none that need more of anything,
    /// and nothing is there of what is not named. Where nothing is named, it takes any job.
    pub resources: BTreeMap<String, u64>,
    /// How long to wait for the first one.
    pub wait: Duration,
    /// How long each lease lasts without a heartbeat.
    pub lease: Duration,
    /// The worker's name for this call: the same again gives the same jobs.
    pub request_id: Option<RequestId>,
    /// Whether the worker knows that it asks again, because an answer was lost. Then jobs that another manager claimed
    /// for the first call a moment ago are found too, at the price of a costlier search.
    pub repeated: bool,
}

/// A sign of life for one job.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    /// The job.
    pub id: JobId,
    /// The fence of the claim.
    pub fence: Fence,
    /// How far the work is.
    pub progress: Option<Progress>,
}

/// The answer to a sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeartbeatAnswer {
    /// Until when the lease lasts now.
    pub lease_expires_at: Timestamp,
    /// Whether the worker is asked to end the attempt.
    pub cancel_requested: bool,
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Well.
    Completed {
        /// What came of it.
        result: Option<Json>,
    },
    /// Badly.
    Failed {
        /// What went wrong.
        error: JobError,
        /// Whether another attempt could do better.
        retryable: bool,
        /// The shortest wait before it, where the failure named one.
        retry_after: Option<Duration>,
    },
    /// Not at all: the worker gives the job back unharmed.
    Released {
        /// Why.
        reason: String,
    },
}

/// The end of one attempt.
#[derive(Clone, Debug)]
pub struct Finish {
    /// The job.
    pub id: JobId,
    /// The fence of the claim.
    pub fence: Fence,
    /// How it ended.
    pub outcome: Outcome,
}

/// Who asks, for the history and for idempotency keys, which each client has its own of.
pub type Caller = Actor;

/// Why the manager did not do what it was asked. Nothing changed, but for [`ManagerError::Unknown`].
#[derive(Clone, Debug, thiserror::Error)]
pub enum ManagerError {
    /// There is no such job.
    #[error("there is no job {0}")]
    NotFound(JobId),
    /// The request cannot be meant.
    #[error("{field}: {message}")]
    Invalid {
        /// The field that is wrong.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// Another job was submitted under this id or key.
    #[error("job {0} was submitted under the same id or key with another content")]
    SubmissionDiffers(JobId),
    /// The job's state does not allow it.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Others wrote the same job at the same time, again and again.
    #[error("the job was written by others {tries} times in a row; try again")]
    Contended {
        /// How often this was tried.
        tries: usize,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It may have been done or not.
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
