//! The phase of a job: its state, with two more words for a job that is available only later. A phase is never stored,
//! since it changes by itself when a time is reached.

use super::state::JobState;
use super::words;
use crate::clock::Timestamp;

words! {
    /// How far a job has come, in one word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Phase: "a phase of a job", "phases" {
        /// The job is due later, and no attempt of it counts.
        Scheduled = "scheduled",
        /// The job is due later, after an attempt that counts.
        Retrying = "retrying",
        /// The job waits to be claimed.
        Available = "available",
        /// A worker runs the job.
        Running = "running",
        /// The job has ended well.
        Completed = "completed",
        /// The job has ended without success.
        Failed = "failed",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// The job was not begun in time.
        Expired = "expired",
    }
}

impl Phase {
    /// Returns the phase at the time `now` of a job in this state, which is claimed from `run_at` on and has had so
    /// many attempts.
    #[must_use]
    pub fn of(state: JobState, run_at: Timestamp, attempt: u64, now: Timestamp) -> Self {
        match state {
            JobState::Available if run_at > now && attempt > 0 => Self::Retrying,
            JobState::Available if run_at > now => Self::Scheduled,
            JobState::Available => Self::Available,
            JobState::Running => Self::Running,
            JobState::Completed => Self::Completed,
            JobState::Failed => Self::Failed,
            JobState::Cancelled => Self::Cancelled,
            JobState::Expired => Self::Expired,
        }
    }

    /// Returns the state of the jobs in this phase.
    #[must_use]
    pub fn state(self) -> JobState {
        match self {
            Self::Scheduled | Self::Retrying | Self::Available => JobState::Available,
            Self::Running => JobState::Running,
            Self::Completed => JobState::Completed,
            Self::Failed => JobState::Failed,
            Self::Cancelled => JobState::Cancelled,
            Self::Expired => JobState::Expired,
        }
    }
}
