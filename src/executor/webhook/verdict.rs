//! The meaning of a receiver's answer for the delivery.

use std::time::Duration;

use http::StatusCode;

use crate::clock::Timestamp;
use crate::executor::{CallError, HttpAnswer, RetryAfter};

/// The longest delay that a receiver can request with `Retry-After`.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The result of a try to deliver.
///
/// It follows Standard Webhooks: 2xx is delivered, 410 means that the receiver is gone, and any other answer is tried
/// again, since a misconfigured receiver (a redirect, a 401, a 404) is often repaired before the tries are used up.
/// Only a call that this side refuses to send is not tried again: it would be refused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has the message.
    Delivered,
    /// The receiver is gone for good (410): it gets no further messages, and its owner is informed.
    Gone,
    /// The delivery is tried again.
    Retry {
        /// The shortest delay, if the receiver requested one; at most [`MAX_RETRY_AFTER`].
        after: Option<Duration>,
    },
    /// The target or the request is not allowed. The delivery is not tried again, and is reported.
    Refused,
}

impl Verdict {
    /// Returns the verdict on a call that ended at `now`.
    #[must_use]
    pub fn of(outcome: &Result<HttpAnswer, CallError>, now: Timestamp) -> Self {
        match outcome {
            Ok(answer) if answer.status.is_success() => Self::Delivered,
            Ok(answer) if answer.status == StatusCode::GONE => Self::Gone,
            Ok(answer) => Self::Retry { after: answer.retry_after.map(|after| wait(after, now)) },
            Err(error) if error.is_transient() => Self::Retry { after: None },
            Err(_) => Self::Refused,
        }
    }
}

fn wait(after: RetryAfter, now: Timestamp) -> Duration {
    let asked = match after {
        RetryAfter::In(wait) => wait,
        RetryAfter::At(time) => time.since(now),
    };
    asked.min(MAX_RETRY_AFTER)
}
