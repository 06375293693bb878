//! What a worker says of its jobs: a line at the start and at the end of each, and a summary.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::cli::duration;
use crate::cli::output::shorten;
use crate::job::JobState;
use crate::manager::Outcome;
use crate::worker::{AttemptEnd, ClaimedJob, FinishAnswer, Observer};

/// How many characters of a failure are shown.
const MESSAGE_CHARACTERS: usize = 200;

/// Logs the starts and ends of attempts, and counts them.
#[derive(Debug)]
pub(super) struct Telling {
    begun: Instant,
    completed: AtomicU64,
    failed: AtomicU64,
    given_back: AtomicU64,
    lost: AtomicU64,
}

impl Telling {
    /// Begins to count.
    pub(super) fn start() -> Arc<Self> {
        let [completed, failed, given_back, lost] = [(); 4].map(|()| AtomicU64::new(0));
        Arc::new(Self { begun: Instant::now(), completed, failed, given_back, lost })
    }

    /// Returns whether an attempt has ended.
    pub(super) fn has_worked(&self) -> bool {
        [&self.completed, &self.failed, &self.given_back, &self.lost].iter().any(|count| count.load(RELAXED) > 0)
    }

    /// Logs the summary.
    pub(super) fn sum_up(&self) {
        tracing::info!(
            completed = self.completed.load(RELAXED),
            failed = self.failed.load(RELAXED),
            given_back = self.given_back.load(RELAXED),
            lost = self.lost.load(RELAXED),
            took = duration::show(self.begun.elapsed()),
            "the worker ends"
        );
    }
}

const RELAXED: Ordering = Ordering::Relaxed;

impl Observer for Telling {
    fn started(&self, job: &ClaimedJob) {
        tracing::info!(job = %job.id, queue = %job.queue, kind = %job.kind, attempt = job.attempt, "started");
    }

    fn ended(&self, job: &ClaimedJob, end: &AttemptEnd) {
        let (id, attempt, took) = (&job.id, job.attempt, duration::show(end.took));
        let count = |count: &AtomicU64| count.fetch_add(1, RELAXED);
        match (&end.answer, &end.outcome) {
            (FinishAnswer::Accepted { .. }, Some(Outcome::Completed { .. })) => {
                count(&self.completed);
                tracing::info!(job = %id, attempt, took, "completed");
            }
            (FinishAnswer::Accepted { .. }, Some(Outcome::Released { reason, .. })) => {
                count(&self.given_back);
                tracing::info!(job = %id, attempt, took, reason = shorten(reason, MESSAGE_CHARACTERS), "given back");
            }
            (FinishAnswer::Accepted { state }, Some(Outcome::Failed { error, .. })) => {
                count(&self.failed);
                let said = shorten(&error.message, MESSAGE_CHARACTERS);
                match state {
                    Some(JobState::Cancelled) => tracing::info!(job = %id, attempt, took, "cancelled"),
                    Some(JobState::Available) => {
                        tracing::warn!(job = %id, attempt, took, error = said, "failed, and will be tried again");
                    }
                    _ => tracing::warn!(job = %id, attempt, took, error = said, "failed"),
                }
            }
            (FinishAnswer::Lost, _) | (FinishAnswer::Accepted { .. }, None) => {
                count(&self.lost);
                tracing::warn!(job = %id, attempt, took, "ended without effect, since the lease was lost");
            }
            (FinishAnswer::Again(why) | FinishAnswer::Refused(why), _) => {
                count(&self.lost);
                tracing::error!(job = %id, attempt, took, why, "ended, which could not be recorded");
            }
        }
    }
}
