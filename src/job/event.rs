//! What happens to a job, in one word each. Every history entry names its event.

use serde::{Deserialize, Serialize};

use super::word_enum::words;

words! {
    /// What happened to a job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EventName: "an event" {
        /// The job was submitted.
        Submitted = "submitted",
        /// A worker claimed the job.
        Claimed = "claimed",
        /// The job was completed.
        Completed = "completed",
        /// The job failed for good.
        Failed = "failed",
        /// The job waits again: an attempt failed with attempts left, or somebody retried the job.
        Retried = "retried",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// The worker was asked to stop.
        CancelRequested = "cancel_requested",
        /// Nobody claimed the job before its start deadline.
        Expired = "expired",
        /// Somebody other than the worker ended the lease, and the job waits again.
        Released = "released",
        /// The worker gave the job back unharmed.
        Returned = "returned",
        /// The job was flagged as an orphan.
        Orphaned = "orphaned",
        /// The attempt takes longer than expected.
        Overdue = "overdue",
    }
}

impl EventName {
    /// The events that can be notified. The others happen to every job, so that notifying them would cost every job a
    /// second write; a live stream shows them all.
    pub const NOTIFIABLE: [Self; 8] = [
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
        Self::Orphaned,
        Self::Overdue,
        Self::Released,
        Self::Retried,
    ];
}
