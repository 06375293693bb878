//! What overviews ([`super::overview`]) have shown, and when.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::QueueName;

/// An overview that is to be made.
pub(super) struct Overview {
    pub(super) now: Timestamp,
    pub(super) queues: Vec<QueueName>,
}

/// When overviews were made.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overviews {
    pub(super) made_at: Option<Timestamp>,
    /// When one last found due jobs.
    pub(super) found_at: Option<Timestamp>,
}

/// What overviews have shown of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// When the last one showed nothing, if it did.
    pub(super) nothing_at: Option<Timestamp>,
    /// When one last showed something.
    pub(super) something_at: Option<Timestamp>,
}

/// Returns whether `at` is as long ago at the most, and not to come: the clock may have been set back since.
pub(super) fn is_within(at: Timestamp, now: Timestamp, time: Duration) -> bool {
    at <= now && now.since(at) < time
}
