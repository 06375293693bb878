//! What becomes of due times, and what of it is kept when their triggers are removed.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::words;

/// The longest message that is kept, in characters.
const MAX_MESSAGE: usize = 200;

words! {
    /// What has become of a due time.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Outcome: "an outcome", "outcomes" {
        /// It is not due yet, or waits for its turn.
        Waiting = "waiting",
        /// It is being performed.
        Running = "running",
        /// The action was performed.
        Fired = "fired",
        /// The action was performed, more than a second after the due time and within the margin of error.
        Late = "late",
        /// The receiver refused the call for a reason that is the user's to mend; it is not made again.
        Consumed = "consumed",
        /// The action was tried until the margin of error was over.
        Failed = "failed",
        /// It could not begin within the margin of error.
        Missed = "missed",
        /// It was not performed, since an earlier one had not ended or the schedule was paused, changed or removed.
        Skipped = "skipped",
        /// Its trigger is not kept any more.
        Removed = "removed",
    }
}

words! {
    /// What has kept a due time that was missed from beginning within its margin of error.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum MissReason: "a reason", "reasons" {
        /// The host had as many calls as it may, or the schedule or its owner had as many of them.
        Limit = "limit",
        /// The host did not answer, and was not called.
        HostDown = "host_down",
    }
}

impl MissReason {
    /// Returns the reason in words.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Limit => "until the margin of error was over, as many calls were under way as may be",
            Self::HostDown => "the host did not answer until the margin of error was over",
        }
    }
}

impl Outcome {
    /// Returns whether the action was performed.
    #[must_use]
    pub const fn is_done(self) -> bool {
        matches!(self, Self::Fired | Self::Late | Self::Consumed)
    }
}

/// What became of a due time whose trigger was removed.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptOutcome {
    /// When the schedule was due.
    pub due_at: Timestamp,
    /// What became of it.
    pub outcome: Outcome,
    /// How late it began, in milliseconds; `None` when it did not begin.
    pub late_ms: Option<u64>,
    /// Whether it submitted a job, which is found by the schedule and the due time.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_job: bool,
    /// Whether this is what a backfill made of it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub backfilled: bool,
    /// Why it was not performed, or what was answered, cut short.
    pub message: Option<String>,
}

impl KeptOutcome {
    /// Returns whether the action was performed when it was due, and not by a backfill.
    #[must_use]
    pub const fn was_performed_when_due(&self) -> bool {
        self.outcome.is_done() && !self.backfilled
    }

    /// Returns the outcome with a message that is short enough to be kept.
    #[must_use]
    pub fn shortened(self) -> Self {
        let message = self.message.map(|message| match message.char_indices().nth(MAX_MESSAGE) {
            Some((end, _)) => format!("{}…", &message[..end]),
            None => message,
        });
        Self { message, ..self }
    }
}
