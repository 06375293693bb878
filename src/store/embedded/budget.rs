//! The time that a query may take.

use std::time::{Duration, Instant};

use crate::store::StoreError;

/// How many jobs are judged between two looks at the clock.
const JOBS_BETWEEN_CHECKS: usize = 64;

/// The time that a query has left.
#[derive(Clone, Copy)]
pub(super) struct Budget {
    limit: Duration,
    until: Instant,
}

impl Budget {
    /// Creates a budget that begins now.
    pub(super) fn of(limit: Duration) -> Self {
        Self { limit, until: Instant::now() + limit }
    }

    /// Checks that time is left.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if Instant::now() < self.until { Ok(()) } else { Err(StoreError::QueryTooSlow { limit: self.limit }) }
    }

    /// Checks that time is left before the job with this number in a row of many; most numbers cost nothing.
    pub(super) fn check_at(&self, number: usize) -> Result<(), StoreError> {
        if number.is_multiple_of(JOBS_BETWEEN_CHECKS) { self.check() } else { Ok(()) }
    }
}
