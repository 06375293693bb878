//! The cells of tables of jobs.

use super::look::Look;
use crate::job::Phase;
use crate::wire::Job;

/// Returns the phase of a job, and when it is due if that is later.
pub(super) fn phase_of(job: &Job) -> String {
    let look = Look::get();
    match Phase::of(job.state, job.run_at, job.attempt.into(), look.now) {
        phase @ (Phase::Scheduled | Phase::Retrying) => format!("{phase} {}", look.time(job.run_at)),
        phase => phase.to_string(),
    }
}

/// Returns the latest error of a job; empty where there is none.
pub(super) fn error_of(job: &Job) -> String {
    job.error.as_ref().map(|error| format!("{}: {}", error.code, error.message)).unwrap_or_default()
}
