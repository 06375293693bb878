//! `phase: scheduled`: a query for what no job has as a field, since it changes by itself when a time is reached. It
//! stands for a query over fields that jobs have, with the `now` of the call.

use super::ast::{Operator, Value};
use crate::job::Phase;
use crate::query::fields::{Access, Field, KEYWORD};

/// The name that stands for a query over other fields.
pub const PHASE: &str = "phase";

/// The phase as a field that queries can name. No document has it, so lists cannot be ordered or grouped by it.
pub static PHASE_FIELD: Field = Field::new(
    PHASE,
    KEYWORD,
    Access::None,
    "The state, or `scheduled` or `retrying` for a job that is available only later.",
    "phase: (scheduled or retrying)",
);

/// Returns the query over fields of jobs that finds the jobs in this phase, in Kibana as well.
#[must_use]
pub const fn query_of(phase: Phase) -> &'static str {
    match phase {
        Phase::Scheduled => "state: available and run_at > now and attempt: 0",
        Phase::Retrying => "state: available and run_at > now and attempt > 0",
        Phase::Available => "state: available and run_at <= now",
        Phase::Running => "state: running",
        Phase::Completed => "state: completed",
        Phase::Failed => "state: failed",
        Phase::Cancelled => "state: cancelled",
        Phase::Expired => "state: expired",
    }
}

/// Returns the phases whose names satisfy the comparison.
pub(super) fn meant(operator: Option<Operator>, value: &Value) -> impl Iterator<Item = Phase> {
    let written = match value {
        Value::Pattern(pattern) => pattern.pieces().join("*"),
        value => value.text().unwrap_or_default().to_owned(),
    };
    Phase::ALL.into_iter().filter(move |phase| match (operator, value) {
        (Some(operator), _) => operator.admits(phase.as_str().cmp(&written)),
        (None, Value::Pattern(pattern)) => pattern.matches(phase.as_str()),
        (None, _) => phase.as_str() == written,
    })
}
