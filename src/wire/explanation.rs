//! Why a job does not run.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::job::JobState;
use crate::manager;

/// Why a job does not run, or how it is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Explanation {
    /// The job's id.
    pub id: String,
    /// The state of the job.
    pub state: JobState,
    /// Whether a worker with enough resources that claims now could get the job.
    pub runnable: bool,
    /// The reasons, the most important first; at least one.
    pub reasons: Vec<Reason>,
}

/// A reason why a job does not run, or how it is doing, with the facts behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(example = json!({
    "code": "queue_paused", "message": "The queue `reports` is paused by ann since 2030-01-31T08:00:00.000Z: repairs.",
    "queue": "reports", "since": "2030-01-31T08:00:00.000Z", "by": "ann", "reason": "repairs",
}))]
pub struct Reason {
    /// A stable word for the reason. For a waiting job: `start_deadline_passed`, `not_due`, `waiting_for_retry`,
    /// `queue_paused`, `never_asked`, `not_asked_lately`, `needs_more_than_offered`, `workers_busy`, `jobs_ahead`,
    /// `start_deadline` or `next`. For a running job: `running`, `lease_expired`, `orphaned`, `overdue`,
    /// `cancel_requested` or `time_limit`. For a job that has ended, its state.
    pub code: String,
    /// The reason as a sentence.
    pub message: String,
    /// The facts behind the reason: names, times and numbers, which depend on the code.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub evidence: Map<String, Value>,
}

impl From<manager::Explanation> for Explanation {
    fn from(explanation: manager::Explanation) -> Self {
        Self {
            id: explanation.id.into(),
            state: explanation.state,
            runnable: explanation.runnable,
            reasons: explanation.reasons.into_iter().map(Reason::from).collect(),
        }
    }
}

impl From<manager::Reason> for Reason {
    fn from(reason: manager::Reason) -> Self {
        Self { code: reason.code.to_owned(), message: reason.message, evidence: reason.evidence }
    }
}
