//! Schedules: their periods, and the fire times that follow.

use std::ops::RangeInclusive;

use chrono::NaiveDate;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid};
use crate::clock::Timestamp;
use crate::schedule::{self, Cron, EVERY_MS, Every, ExcludedDays, MAX_EXCLUDED, Repeat, parse_day, parse_zone};

/// The most fire times of one preview.
pub const MAX_FIRE_TIMES: u64 = 1000;
/// The default number of fire times of a preview.
const DEFAULT_FIRE_TIMES: u64 = 10;

/// When a schedule fires: exactly one of `cron`, `every_ms` and `at`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"cron": "*/5 8-18 * * MON-FRI", "time_zone": "Europe/Berlin"}))]
pub struct Period {
    /// The times that a cron expression names. It has 5 fields (minute, hour, day of the month, month, day of the
    /// week), or 6 with the second first, or is one of `@hourly`, `@daily`, `@midnight`, `@weekly`, `@monthly`,
    /// `@yearly` and `@annually`. At most 1,024 bytes.
    #[schema(max_length = 1024)]
    pub cron: Option<String>,
    /// The time zone of the expression and of excluded days, by its name in the IANA database; `UTC` by default.
    #[schema(example = "Europe/Berlin")]
    pub time_zone: Option<String>,
    /// The time between two fire times, in milliseconds: from a second to a year.
    #[schema(minimum = 1000, maximum = 31_622_400_000_u64)]
    pub every_ms: Option<u64>,
    /// A moment from which `every_ms` counts, forwards and backwards; 1970-01-01T00:00:00Z by default.
    #[schema(format = DateTime)]
    pub anchor: Option<String>,
    /// The only fire time.
    #[schema(format = DateTime)]
    pub at: Option<String>,
}

/// Days without fire times, in the time zone of the period: either `date`, or `from` and `to`.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"from": "2030-12-24", "to": "2031-01-01"}))]
pub struct ExcludedDates {
    /// A day.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub date: Option<String>,
    /// The first day of a range.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub from: Option<String>,
    /// The last day of the range.
    #[schema(format = Date, pattern = "^[0-9]{4}-[0-9]{2}-[0-9]{2}$")]
    pub to: Option<String>,
}

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
        let period = self.period.check(&mut checks);
        checks.count("exclude", self.exclude.len(), MAX_EXCLUDED);
        let excluded = self.exclude.iter().take(MAX_EXCLUDED).enumerate();
        let excluded = ExcludedDays::new(excluded.filter_map(|(index, dates)| dates.check(&mut checks, index)));
        let from = checks.time("from", self.from.as_deref());
        let n = checks.within("n", self.n.unwrap_or(DEFAULT_FIRE_TIMES), 1..=MAX_FIRE_TIMES);
        let period = checks.finish(period)?;
        Ok(Preview { period, excluded, from, n: usize::try_from(n).unwrap_or(usize::MAX) })
    }
}

impl Period {
    fn check(&self, checks: &mut Checks) -> Option<schedule::Period> {
        let zone = self.time_zone.as_deref().map_or(Ok(chrono_tz::UTC), parse_zone);
        let zone = zone.map_err(|error| checks.fault("period.time_zone", error.to_string())).ok();
        let anchor = checks.time("period.anchor", self.anchor.as_deref());
        if self.anchor.is_some() && self.every_ms.is_none() {
            checks.fault("period.anchor", "says what `every_ms` counts from, and there is none");
        }
        let repeat = match (&self.cron, self.every_ms, &self.at) {
            (Some(cron), None, None) => {
                let cron = cron.parse::<Cron>().map_err(|error| checks.fault("period.cron", error.to_string()));
                cron.ok().map(Repeat::Cron)
            }
            (None, Some(millis), None) => {
                checks.within("period.every_ms", millis, EVERY_MS);
                Every::new(millis, anchor.unwrap_or_default()).map(Repeat::Every)
            }
            (None, None, Some(at)) => checks.time("period.at", Some(at)).map(Repeat::Once),
            _ => {
                checks.fault("period", "must have exactly one of `cron`, `every_ms` and `at`");
                None
            }
        };
        repeat.zip(zone).map(|(repeat, zone)| schedule::Period { repeat, zone })
    }
}

impl ExcludedDates {
    fn check(&self, checks: &mut Checks, index: usize) -> Option<RangeInclusive<NaiveDate>> {
        let field = format!("exclude[{index}]");
        let mut day = |name: &str, text: &str| {
            parse_day(text).map_err(|message| checks.fault(format!("{field}.{name}"), message)).ok()
        };
        match (&self.date, &self.from, &self.to) {
            (Some(date), None, None) => day("date", date).map(|day| day..=day),
            (None, Some(from), Some(to)) => {
                let (from, to) = day("from", from).zip(day("to", to))?;
                if to < from {
                    checks.fault(format!("{field}.to"), "must not be before `from`");
                }
                Some(from..=to)
            }
            _ => {
                checks.fault(field, "must have either `date`, or `from` and `to`");
                None
            }
        }
    }
}
