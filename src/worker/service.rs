//! What a worker needs of a service that hands out jobs: a server over HTTP, or a manager in the same process.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::job::{Fence, JobId, JobState, Json, Kind, QueueName, WorkerId};
use crate::manager::{ClaimRequest, Finish, Heartbeat};

/// A job whose lease this worker holds.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// The job's id.
    pub id: JobId,
    /// The fence of the claim, which every report about the job must carry.
    pub fence: Fence,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The queue that the job was in.
    pub queue: QueueName,
    /// The job's kind, which names its handler.
    pub kind: Kind,
    /// The job's input.
    pub payload: Option<Json>,
    /// How long the attempt may take.
    pub timeout: Option<Duration>,
    /// The resources that the job needs of the worker, by name.
    pub resources: BTreeMap<String, u64>,
}

/// The answer to one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lease is held.
    Held {
        /// Whether the attempt is to be ended.
        cancel_requested: bool,
    },
    /// The lease is lost: another worker holds the job, or none.
    Lost,
    /// The outcome is unknown; the next heartbeat may tell.
    Undecided,
}

/// The answer to one finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishAnswer {
    /// The finish is recorded.
    Accepted {
        /// The job's state after it, where the service returns it.
        state: Option<JobState>,
    },
    /// The lease had been lost before; nothing changed.
    Lost,
    /// The service will never accept it as it is, such as a result that is too large.
    Refused(String),
    /// It was not recorded, or the outcome is unknown; repeating it is safe.
    Again(String),
}

/// Why a call as a whole failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The service did not answer, not in time, or asked to be called later. Repeating the call is safe.
    #[error("{0}")]
    Unavailable(String),
    /// The service will refuse every repetition, such as that with a token that lacks the role.
    #[error("{0}")]
    Refused(String),
}

/// Hands out jobs and records how they end.
#[async_trait]
pub trait JobService: Send + Sync + 'static {
    /// Claims up to `max_jobs` jobs and waits for the first one. The same `request_id` again returns the same jobs.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// Returns the jobs of a claim whose answer was not awaited, so that they can be released. None where a dropped
    /// claim takes no job.
    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// Extends leases. The answers come in order.
    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError>;

    /// Ends attempts. The answers come in order.
    async fn finish(&self, worker: &WorkerId, finishes: &[Finish]) -> Result<Vec<FinishAnswer>, ServiceError>;
}
