//! The names of the events of a job. Every history entry has one.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::word_enum::words;

words! {
    /// The name of an event of a job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum EventName: "an event", "events" {
        /// The job was submitted.
        Submitted = "submitted",
        /// A worker claimed the job.
        Claimed = "claimed",
        /// The job was completed.
        Completed = "completed",
        /// The job failed for good.
        Failed = "failed",
        /// The job is available again: an attempt failed with attempts left, or the job was retried on request.
        Retried = "retried",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// Cancellation of the running job was requested.
        CancelRequested = "cancel_requested",
        /// No worker claimed the job before its start deadline.
        Expired = "expired",
        /// An administrator or the monitor ended the lease, and the job is available again.
        Released = "released",
        /// The worker released the job, and the attempt does not count.
        Returned = "returned",
        /// The job was flagged as an orphan.
        Orphaned = "orphaned",
        /// The attempt takes longer than expected.
        Overdue = "overdue",
        /// The job is held: it is not claimed until it is let go.
        Held = "held",
        /// The job is held no more.
        Unheld = "unheld",
        /// Fields of the job were changed.
        Edited = "edited",
        /// The job was removed; only the audit shows it.
        Deleted = "deleted",
    }
}

impl EventName {
    /// The events that receivers can be notified of. The others are routine, so that notifications of them would cost
    /// almost every job a second write; a live stream shows all events.
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

    /// Returns whether a person has changed the job beside its course: its state stays as it was.
    #[must_use]
    pub const fn is_amendment(self) -> bool {
        matches!(self, Self::Held | Self::Unheld | Self::Edited)
    }
}
