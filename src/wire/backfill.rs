//! Backfills of schedules.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::clock::Timestamp;
use crate::job::JobId;

/// How many due times of a backfill may be under way at once.
const MAX_CONCURRENT: RangeInclusive<u64> = 1..=100;

/// A request to run the due times of a schedule that were not performed. `from` and `to` are required.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from": "2030-01-01T00:00:00Z", "to": "2030-01-31T00:00:00Z", "max_concurrent": 4}))]
pub struct BackfillSchedule {
    /// The first due time that is run is at this moment or after it.
    #[schema(format = DateTime)]
    pub from: String,
    /// The last due time that is run is at this moment or before it. It is after `from` and not in the future.
    #[schema(format = DateTime)]
    pub to: String,
    /// How many due times may be under way at once, each until the job that it submits has ended; 1 by default.
    #[schema(minimum = 1, maximum = 100)]
    pub max_concurrent: Option<u64>,
}

/// A backfill that was started, or that is under way already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartedBackfill {
    /// The id of the backfill, which is a job in the queue `leasehold.triggers`: it is waited for and cancelled as any
    /// job.
    pub backfill_id: JobId,
    /// How many due times are between `from` and `to`, performed or not.
    pub due: u64,
}

impl BackfillSchedule {
    /// Checks every field, and returns the two moments, and how many due times may be under way at once.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_parts(self) -> Result<(Timestamp, Timestamp, usize), Invalid> {
        let mut checks = Checks::default();
        let (from, to) = (checks.time("from", Some(&self.from)), checks.time("to", Some(&self.to)));
        let most = checks.within("max_concurrent", self.max_concurrent.unwrap_or(1), MAX_CONCURRENT);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        checks.finish(from.zip(to).map(|(from, to)| (from, to, most)))
    }
}
