//! The states of a job. Each state carries only its own data, and its documentation says who moves a job out of it.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;

use super::body::Body;
use super::names::{Actor, ErrorCode, RequestId, WorkerId};
use super::names_in_one::NamesInOne;
use super::retry::millis;
use super::word_enum::words;
use crate::clock::Timestamp;

/// A fencing token: it rises by one at every claim of the job and is never reset. A worker's write is accepted only
/// while its fence is the job's current one (Kleppmann, "How to do distributed locking", 2016).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(u64);

impl Fence {
    /// Makes the fence with this number.
    #[must_use]
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the fence of the next claim.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// Returns the fence of the claim before this one, at least zero.
    #[must_use]
    pub const fn before(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the fence as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The number of claims that count against `max_attempts`. A release gives one back; the fence never goes back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(u32);

impl Attempt {
    /// Makes the number of attempts from `value`; zero means that no claim counts.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value)
    }

    /// Returns the number with one more attempt.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// Returns the number with one attempt given back, at least zero.
    #[must_use]
    pub const fn given_back(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the number of attempts.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

/// A worker's exclusive right to run a job, for a limited time that its heartbeats renew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(remote = "Self")]
pub struct Lease {
    /// The worker that holds the lease.
    pub worker_id: WorkerId,
    /// The name of the token that the lease was taken with; `None` on a server without tokens, within the process, and
    /// for leases of earlier versions. Only calls with a token of this name, or an administrator's, change the lease.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Actor>,
    /// The worker's id for the claim call, if it gave one.
    pub request_id: Option<RequestId>,
    /// When the lease was acquired.
    pub acquired_at: Timestamp,
    /// When the worker last sent a heartbeat.
    pub heartbeat_at: Timestamp,
    /// When the lease expires unless a heartbeat renews it. The job can then be taken from the worker.
    pub expires_at: Timestamp,
    /// How long the lease lasts after each heartbeat.
    #[serde(rename = "term_ms", with = "millis")]
    pub term: Duration,
}

/// A lease in a format that names no fields: the holder is in the text of the worker.
#[derive(Serialize, Deserialize)]
struct Compact<W, R> {
    worker_id: W,
    request_id: R,
    acquired_at: Timestamp,
    heartbeat_at: Timestamp,
    expires_at: Timestamp,
    #[serde(with = "millis")]
    term: Duration,
}

impl Serialize for Lease {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            return Self::serialize(self, serializer);
        }
        let Self { worker_id, holder, request_id, acquired_at, heartbeat_at, expires_at, term } = self;
        let (acquired_at, heartbeat_at, expires_at, term) = (*acquired_at, *heartbeat_at, *expires_at, *term);
        let worker_id = NamesInOne(worker_id, holder.as_ref());
        let compact = Compact { worker_id, request_id, acquired_at, heartbeat_at, expires_at, term };
        Serialize::serialize(&compact, serializer)
    }
}

impl<'de> Deserialize<'de> for Lease {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            return Self::deserialize(deserializer);
        }
        let compact: Compact<NamesInOne<WorkerId, Actor>, Option<RequestId>> = Deserialize::deserialize(deserializer)?;
        let Compact { worker_id, request_id, acquired_at, heartbeat_at, expires_at, term } = compact;
        let NamesInOne(worker_id, holder) = worker_id;
        Ok(Self { worker_id, holder, request_id, acquired_at, heartbeat_at, expires_at, term })
    }
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
    #[schema(max_length = 4096, example = "page 17 of 40")]
    pub message: Option<String>,
}

/// The orphan flag of a running job that looks abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Orphan {
    /// When the job was flagged.
    pub flagged_at: Timestamp,
    /// The reason why the job looks abandoned.
    pub reason: String,
    /// Whether the job is left alone until a person decides.
    pub held: bool,
}

/// The error of a failed attempt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct JobError {
    /// The error's code for programs, a stable word such as `exit` or `timeout`; at most 256 bytes.
    #[schema(value_type = ErrorCode, example = "exit")]
    pub code: String,
    /// The error's description for people, at most 64 KiB.
    #[schema(max_length = 65_536, example = "the program ended with status 2")]
    pub message: String,
}

/// The data of a running job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Running {
    /// The lease of the worker that runs the job.
    pub lease: Lease,
    /// How far the work is, as the worker reports it.
    pub progress: Option<Progress>,
    /// When cancellation of the job was requested, if it was.
    pub cancel_requested_at: Option<Timestamp>,
    /// The orphan flag, if the job looks abandoned.
    pub orphan: Option<Orphan>,
    /// When the attempt was found to take longer than expected, if it was.
    pub overdue_at: Option<Timestamp>,
}

impl Running {
    /// Returns whether nothing tells the two apart; `==` takes a zero for its negative.
    pub(crate) fn is_exactly(&self, other: &Self) -> bool {
        let bits = |running: &Self| running.progress.as_ref()?.percent.map(f64::to_bits);
        self == other && bits(self) == bits(other)
    }
}

/// The state of a job, with the data of that state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum State {
    /// The job waits for its time and a worker. A claim, a cancellation or the start deadline moves it out of this
    /// state.
    Available,
    /// A worker runs the job. The worker, an administrator or the monitor moves it out of this state.
    Running(Box<Running>),
    /// The work is done. No transition leaves this state.
    Completed {
        /// When the job was completed.
        finished_at: Timestamp,
        /// The output of the work, if any.
        result: Body,
    },
    /// The job failed for good. Only an explicit retry leaves this state.
    Failed {
        /// When the job failed.
        finished_at: Timestamp,
    },
    /// The job was cancelled. Only an explicit retry leaves this state.
    Cancelled {
        /// When the job was cancelled.
        finished_at: Timestamp,
    },
    /// No worker claimed the job before its start deadline. Only an explicit retry leaves this state.
    Expired {
        /// When the job expired.
        finished_at: Timestamp,
    },
}

words! {
    /// The state of a job, without the state's data.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum JobState: "a state", "states" {
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
        /// No worker claimed the job before its start deadline.
        Expired = "expired",
    }
}

impl State {
    /// Returns whether nothing tells the two apart, as [`Running::is_exactly`] does.
    pub(crate) fn is_exactly(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Running(one), Self::Running(other)) => one.is_exactly(other),
            (one, other) => one == other,
        }
    }

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
