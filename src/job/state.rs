//! Where a job stands. Each state carries the data that it has and no other, and says who moves a job out of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::body::Body;
use super::names::{RequestId, WorkerId};
use super::word_enum::words;
use crate::clock::{Timestamp, rfc3339};

/// A fencing token: one higher at every claim of the job, never reset. What a worker writes under it is accepted only
/// while it is the job's current one (Kleppmann, "How to do distributed locking", 2016).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// The fence with this number.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the fence of the next claim.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the fence of the claim before this one.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// How many claims count against the budget: a graceful release gives one back, the fence never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// The attempt with this number; zero is none yet.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// One more.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// One given back.
    #[must_use]
    pub const fn given_back(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// The term of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The worker that holds the lease.
    pub worker_id: WorkerId,
    /// The worker's name for the claim call, if it gave one.
    pub request_id: Option<RequestId>,
    /// When the lease was acquired.
    pub acquired_at: Timestamp,
    /// When the worker last sent a heartbeat.
    pub heartbeat_at: Timestamp,
    /// When the lease expires; from then on others may take the job.
    pub expires_at: Timestamp,
    /// How long a heartbeat prolongs the lease by.
    pub term: Duration,
}

/// How far the work is, as the worker reports it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Progress {
    /// The share of the work that is done, from 0 to 100 percent.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 100, example = 42.5)]
    pub percent: Option<f64>,
    /// The worker's description of its progress, at most 4 KiB.
    #[serde(default)]
    #[schema(example = "page 17 of 40")]
    pub message: Option<String>,
}

/// The flag of a running job that looks abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// When the job was flagged.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub flagged_at: Timestamp,
    /// Why the job looks abandoned.
    pub reason: String,
    /// Whether the job is left alone until a person decides.
    pub held: bool,
}

/// What went wrong in an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    /// A stable word for programs, such as `exit` or `timeout`; at most 256 bytes.
    #[schema(example = "exit")]
    pub code: String,
    /// A sentence for people, at most 64 KiB.
    #[schema(example = "the program ended with status 2")]
    pub message: String,
}

/// The data of a running job.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// The lease of the worker that runs the job.
    pub lease: Lease,
    /// How far the work is, as the worker reports it.
    pub progress: Option<Progress>,
    /// When the worker was asked to stop.
    pub cancel_requested_at: Option<Timestamp>,
    /// The flag of a job that looks abandoned.
    pub orphan: Option<Orphan>,
    /// When the attempt was found to take longer than expected.
    pub overdue_at: Option<Timestamp>,
}

/// The state of a job, with the data of that state.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The job waits for its time and a worker. A claim moves it on; so do a cancellation and its start deadline.
    Available,
    /// A worker runs the job. The worker moves it on; so do an administrator, and the monitor when the worker is gone.
    Running(Box<Running>),
    /// The work is done. Final.
    Completed {
        /// When.
        finished_at: Timestamp,
        /// What came of it.
        result: Body,
    },
    /// The job failed for good. Final but for an explicit retry.
    Failed {
        /// When.
        finished_at: Timestamp,
    },
    /// The job was cancelled. Final but for an explicit retry.
    Cancelled {
        /// When.
        finished_at: Timestamp,
    },
    /// Nobody claimed the job before its start deadline. Final but for an explicit retry.
    Expired {
        /// When.
        finished_at: Timestamp,
    },
}

words! {
    /// The state of a job, without the state's data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum JobState: "a state" {
        /// The job waits for its time and a worker.
        Available = "available",
        /// A worker holds the lease of the job.
        Running = "running",
        /// The work is done.
        Completed = "completed",
        /// The job failed and has no attempts left, or its failure was not retryable.
        Failed = "failed",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// Nobody claimed the job before its start deadline.
        Expired = "expired",
    }
}

impl State {
    /// Returns the state without its data.
    #[must_use]
    pub const fn name(&self) -> JobState {
        match self {
            Self::Available => JobState::Available,
            Self::Running(_) => JobState::Running,
            Self::Completed { .. } => JobState::Completed,
            Self::Failed { .. } => JobState::Failed,
            Self::Cancelled { .. } => JobState::Cancelled,
            Self::Expired { .. } => JobState::Expired,
        }
    }
}

impl JobState {
    /// Returns whether a job in this state has ended.
    #[must_use]
    pub const fn is_final(self) -> bool {
        !matches!(self, Self::Available | Self::Running)
    }
}
