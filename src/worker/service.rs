//! What a worker needs of a service that hands out jobs: a server over HTTP, or a manager in the same process.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;

use crate::job::{Fence, JobId, JobState, Json, Kind, QueueName, WorkerId};
use crate::manager::{ClaimRequest, Finish, Heartbeat, OutputPiece, Recall};

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
    /// The time limit of the attempt, if it has one.
    pub timeout: Option<Duration>,
    /// The resources that the job needs of the worker, by name.
    pub resources: BTreeMap<String, u64>,
}

/// The answer to one heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The worker still holds the lease.
    Held {
        /// Whether the worker must end the attempt, because the job's cancellation was requested.
        cancel_requested: bool,
    },
    /// The lease is lost; another worker or no worker holds the job.
    Lost,
    /// It is unknown whether the lease was extended; the next heartbeat may show it.
    Undecided,
}

/// The answer to one finish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FinishAnswer {
    /// The finish is recorded.
    Accepted {
        /// The job's state after the finish, if the service returns it.
        state: Option<JobState>,
    },
    /// The lease had been lost before, and the job was not changed.
    Lost,
    /// The service will never accept the finish, for example because its result is too large.
    Refused(String),
    /// The finish was not recorded, or the outcome is unknown; repeating the finish is safe.
    Again(String),
}

/// The answer to one piece of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PieceAnswer {
    /// The piece is kept.
    Kept,
    /// The service takes no more output of the attempt.
    Refused,
    /// The piece was not kept, or the outcome is unknown; sending it again is safe.
    Again(String),
}

/// The answer to a call that ends attempts.
#[derive(Debug)]
pub struct Finished {
    /// The answers, in the order of the finishes.
    pub answers: Vec<FinishAnswer>,
    /// The jobs that were claimed along with the finishes; none when the call claimed none. The error says why the
    /// claim failed, and does not concern the finishes.
    pub next: Result<Vec<ClaimedJob>, ServiceError>,
}

/// Why a call as a whole failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// The service did not answer in time, or requested that the call be made later. Repeating the call is safe.
    #[error("{0}")]
    Unavailable(String),
    /// The service is being stopped. Another may take its place, so the call can be repeated.
    #[error("{0}")]
    Closing(String),
    /// The service will refuse every repetition, for example because the token lacks the role.
    #[error("{0}")]
    Refused(String),
}

/// Hands out jobs and records how they end.
#[async_trait]
pub trait JobService: Send + Sync + 'static {
    /// Claims up to `max_jobs` jobs and waits for the first one. A repeated `request_id` returns the same jobs.
    async fn claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// Returns the jobs of a claim whose answer was not awaited, so that they can be released. Returns no jobs if the
    /// service takes no job for a dropped claim.
    async fn recover_claim(&self, request: &ClaimRequest) -> Result<Vec<ClaimedJob>, ServiceError>;

    /// Extends leases, and returns the answers in the order of the heartbeats.
    async fn heartbeat(&self, worker: &WorkerId, beats: &[Heartbeat]) -> Result<Vec<Beat>, ServiceError>;

    /// Keeps output of attempts, and returns the answers in the order of the pieces. A service that keeps none refuses
    /// them.
    async fn put_output(&self, _worker: &WorkerId, pieces: &[OutputPiece]) -> Result<Vec<PieceAnswer>, ServiceError> {
        Ok(vec![PieceAnswer::Refused; pieces.len()])
    }

    /// Waits until attempts of the worker have to end early, for `wait` at most, and returns these. `leases` are those
    /// that the worker holds, at most 1,000; the answer may name leases that it was given since.
    ///
    /// A service that does not offer this refuses, as it does by default: the worker then hears of the same by its
    /// heartbeats.
    async fn recalls(
        &self,
        _worker: &WorkerId,
        _leases: &[(JobId, Fence)],
        _wait: Duration,
    ) -> Result<Vec<Recall>, ServiceError> {
        Err(ServiceError::Refused("this service has no recalls".to_owned()))
    }

    /// Ends attempts and, in the same call, claims the next jobs, unless none of the finishes is accepted. A repeated
    /// call with the same `request_id` returns the same jobs.
    async fn finish(
        &self,
        worker: &WorkerId,
        finishes: &[Finish],
        next: Option<&ClaimRequest>,
    ) -> Result<Finished, ServiceError>;
}
