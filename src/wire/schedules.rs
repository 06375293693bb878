//! Schedules: their periods, and the fire times that follow.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::clock::Timestamp;
use crate::schedule::{self, ExcludedDays};
pub use crate::schedule::{DatesText as ExcludedDates, PeriodText as Period};

/// The most fire times of one preview.
pub const MAX_FIRE_TIMES: u64 = 1000;
/// The default number of fire times of a preview.
const DEFAULT_FIRE_TIMES: u64 = 10;

/// A question for the next fire times of a period. Only `period` is required.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PreviewSchedule {
    /// The period.
    pub period: Period,
    /// The days without fire times; at most 1,000 dates and ranges.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 1000)]
    pub exclude: Vec<ExcludedDates>,
    /// The moment after which the fire times are; now by default.
    #[schema(format = DateTime)]
    pub from: Option<String>,
    /// The most fire times to return; 10 by default.
    #[schema(minimum = 1, maximum = 1000)]
    pub n: Option<u64>,
}

/// The fire times of a period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FireTimes {
    /// The fire times, in order. There are fewer than requested where no more come within a hundred years.
    pub fire_times: Vec<Timestamp>,
}

/// A checked [`PreviewSchedule`].
#[derive(Clone, Debug)]
pub struct Preview {
    period: schedule::Period,
    excluded: ExcludedDays,
    from: Option<Timestamp>,
    n: usize,
}

impl Preview {
    /// Returns the fire times, after `now` unless the request named another moment.
    #[must_use]
    pub fn fire_times(&self, now: Timestamp) -> FireTimes {
        let fire_times = self.period.fire_times(self.from.unwrap_or(now), &self.excluded);
        FireTimes { fire_times: fire_times.take(self.n).collect() }
    }
}

impl PreviewSchedule {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong, by name.
    pub fn into_preview(self) -> Result<Preview, Invalid> {
        let mut checks = Checks::default();
        let mut faults = Vec::new();
        let period = self.period.parse(&mut faults);
        let excluded = ExcludedDates::parse_all(&self.exclude, &mut faults);
        checks.faults(faults);
        let from = checks.time("from", self.from.as_deref());
        let n = checks.within("n", self.n.unwrap_or(DEFAULT_FIRE_TIMES), 1..=MAX_FIRE_TIMES);
        let period = checks.finish(period)?;
        Ok(Preview { period, excluded, from, n: usize::try_from(n).unwrap_or(usize::MAX) })
    }
}
