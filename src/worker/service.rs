//! What a worker needs of whoever hands out jobs: a server over HTTP, or a manager in the same process.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::job::{Fence, JobId, JobState, Json, Kind, QueueName, WorkerId};
use crate::manager::{ClaimRequest, Finish, Heartbeat};

/// A job that this worker holds the lease of.
#[derive(Clone, Debug)]
pub struct ClaimedJob {
    /// Its name.
    pub id: JobId,
    /// The fence of the claim: what makes this worker's word count.
    pub fence: Fence,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The line it waited in.
    pub queue: QueueName,
    /// Its handler's name.
    pub kind: Kind,
    /// Its input.
    pub payload: Option<Json>,
    /// How long the attempt may take.
    pub timeout: Option<Duration>,
    /// What it needs of the worker, by the resource's name.
    pub resources: BTreeMap<String, u64>,
}

/// What became of one sign of life.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The lease holds.
    Held {
        /// Whether the attempt is to be ended.
        cancel_requested: bool,
    },
    /// The job is somebody else's by now, or nobody's.
    Lost,
    /// It could not be found out; the next one may tell.
    Undecided,
}

/// What became of one finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishAnswer {
    /// It is recorded.
    Accepted {
        /// The state that the job is in since, where the service tells.
        state: Option<JobState>,
    },
    /// The lease had been lost before; nothing changed.
    Lost,
    /// It will never be taken as it is: a result that is too large, for one.
    Refused(String),
    /// It was not recorded, or nobody knows; the same again is safe.
    Again(String),
}

/// Why a call as a whole came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// Nobody answers, or not in time, or with the wish to be asked later. The same call again is safe.
    #[error("{0}")]
    Unavailable(String),
    /// It will not be answered, however often it is repeated: a token without the role, for one.
    #[error("{0}")]
    Refused(String),
}

/// Hands out jobs and hears how they end.
#[async_trait]
pub trait JobService: Send + Sync + 'static {
    /// Takes up to `max_jobs` jobs, waiting for the first one. The same `request_id` again gives the same jobs.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// The jobs that a claim has taken whose answer nobody waited for, so that they can be given back. None where a
    /// dropped claim takes no job.
    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// Prolongs leases. Answers in order.
    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError>;

    /// Ends attempts. Answers in order.
    async fn finish(&self, worker: &WorkerId, finishes: &[Finish]) -> Result<Vec<FinishAnswer>, ServiceError>;
}
