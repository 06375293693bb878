//! What an answer means for the delivery of a webhook.

use std::time::Duration;

use http::StatusCode;

use crate::clock::Timestamp;
use crate::executor::{CallError, HttpAnswer, RetryAfter};

/// The longest that a receiver can put a delivery off for.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// What becomes of a delivery after a try.
///
/// As Standard Webhooks has it: 2xx is delivered, 410 means that the receiver is no more, and everything else is tried
/// again, since a receiver that is set up wrongly (a redirect, a 401, a 404) is often mended before the tries are used
/// up. Only what this side refuses to send is not tried again: it would be refused again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The receiver has it.
    Delivered,
    /// The receiver is gone for good (410): it is to be told nothing any more, and its owner is to be told that.
    Gone,
    /// To be tried again.
    Retry {
        /// No sooner than after this, if the receiver said so; at most [`MAX_RETRY_AFTER`].
        after: Option<Duration>,
    },
    /// The target or the request is not allowed: not to be tried again, and to be reported.
    Refused,
}

impl Verdict {
    /// The verdict on the outcome of a call that ended at `now`.
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
