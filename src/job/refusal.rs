//! Why a request to change a job is refused.

use super::state::{Fence, JobState};
use crate::clock::Timestamp;

/// The reason why a request is refused. A refused request changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The job is in this state instead of available.
    #[error("the job is {0}, not available")]
    NotAvailable(JobState),
    /// The job is not due before this time.
    #[error("the job is not due before {0}")]
    NotDue(Timestamp),
    /// The job was submitted under another name, and the client may change its own alone.
    #[error("the job was submitted under another name: only that one and an administrator may change it")]
    NotOwn,
    /// Somebody holds the job.
    #[error("the job is held")]
    Held,
    /// The start deadline, which is this time, has passed.
    #[error("the job's start deadline {0} has passed")]
    StartDeadlinePassed(Timestamp),
    /// The lease of the request is not, or is no longer, the job's current one.
    #[error("the lease is not the job's current one: the job is {state}, its fence is {}", fence.get())]
    LeaseLost {
        /// The current state of the job.
        state: JobState,
        /// The current fence of the job.
        fence: Fence,
    },
    /// The lease was taken with a token of another name.
    #[error(
        "the lease was taken with a token of another name: only a token of that name, or an administrator's, ends it"
    )]
    ForeignLease,
    /// The job is in this state instead of running.
    #[error("the job is {0}, not running")]
    NotRunning(JobState),
    /// The job runs, and so cannot be removed.
    #[error("the job is running; cancel or release it first")]
    StillRunning,
    /// The job is in this state; only a job that has ended can be run again.
    #[error("the job is {0}; only a job that has ended can be run again")]
    NotEnded(JobState),
    /// The field would have more entries than a job may have.
    #[error("the job would have more than {most} {field}")]
    TooMany {
        /// The name of the field.
        field: &'static str,
        /// The most entries that the field may have.
        most: usize,
    },
    /// The fence is not the expected one but this one: the job was claimed again.
    #[error("the job's fence is {}, not the expected one: it was claimed anew", .0.get())]
    FenceMoved(Fence),
    /// The job has already ended in this state.
    #[error("the job is already {0}")]
    AlreadyFinal(JobState),
    /// The job is in this state; only a failed, cancelled or expired job can be retried.
    #[error("the job is {0}; only a failed, cancelled or expired job can be retried")]
    NotRetryable(JobState),
    /// No job was ever created under this id: its submission was given up.
    #[error("the job's submission was not completed, so that there is nothing to retry")]
    NeverCreated,
    /// The request comes too early: the lease, the deadline or the time limit still runs.
    #[error("the time has not come yet")]
    NotYet,
}
