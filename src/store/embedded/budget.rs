//! The time that a query may take.

use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;

use crate::store::StoreError;

/// How many jobs are judged between two looks at the clock.
const JOBS_BETWEEN_CHECKS: usize = 64;

/// The time that a query has left. It has none once nobody waits for the answer.
#[derive(Clone)]
pub(super) struct Budget {
    limit: Duration,
    until: Instant,
    is_abandoned: Option<CancellationToken>,
}

impl Budget {
    /// Creates a budget that begins now.
    pub(super) fn of(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit, is_abandoned: None }
    }

    /// Has the budget end early when the token is cancelled.
    pub(super) fn unless(self, is_abandoned: CancellationToken) -> Self {
        Self { is_abandoned: Some(is_abandoned), ..self }
    }

    /// Checks that time is left and that somebody waits.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.is_abandoned.as_ref().is_some_and(CancellationToken::is_cancelled) {
            return Err(StoreError::Unavailable("the caller has gone".to_owned()));
        }
        if Instant::now() < self.until { Ok(()) } else { Err(StoreError::QueryTooSlow { limit: self.limit }) }
    }

    /// Checks that time is left before the job with this number in a row of many; most numbers cost nothing.
    pub(super) fn check_at(&self, number: usize) -> Result<(), StoreError> {
        if number.is_multiple_of(JOBS_BETWEEN_CHECKS) { self.check() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
