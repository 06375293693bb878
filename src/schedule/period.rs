//! What a schedule repeats, and the fire times that follow from it.

use std::iter::FusedIterator;
use std::ops::RangeInclusive;
use std::time::Duration;

use chrono::{DateTime, NaiveTime, Utc};
use chrono_tz::Tz;

use super::cron::Cron;
use super::exclude::ExcludedDays;
use super::local::{first_moment, next_after};
use crate::clock::Timestamp;

/// The shortest and the longest time between two fire times at a fixed distance, in milliseconds: a second and a year.
pub const EVERY_MS: RangeInclusive<u64> = 1_000..=31_622_400_000;

/// How far ahead fire times are looked for: a hundred years of 365.25 days.
pub const HORIZON: Duration = Duration::from_secs(36_525 * 24 * 3_600);

/// When a schedule fires, but for excluded days.
#[derive(Clone, Debug)]
pub struct Period {
    /// What is repeated.
    pub repeat: Repeat,
    /// The zone whose clocks and calendar count.
    pub zone: Tz,
}

/// What a schedule repeats.
#[derive(Clone, Debug)]
pub enum Repeat {
    /// The times that an expression names.
    Cron(Cron),
    /// Moments at a fixed distance.
    Every(Every),
    /// One moment, once.
    Once(Timestamp),
}

/// Moments at a fixed distance from each other: the anchor, and what is a multiple of the distance before or after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Every {
    millis: i64,
    anchor: Timestamp,
}

impl Every {
    /// Makes such moments; `None` when the distance is not within [`EVERY_MS`].
    #[must_use]
    pub fn new(millis: u64, anchor: Timestamp) -> Option<Self> {
        let millis = i64::try_from(Some(millis).filter(|millis| EVERY_MS.contains(millis))?).ok()?;
        Some(Self { millis, anchor })
    }

    /// Returns how many moments there are from one of them up to `last`.
    pub(super) fn count(self, first: Timestamp, last: Timestamp) -> u64 {
        1 + u64::try_from((last.as_millis() - first.as_millis()) / self.millis).unwrap_or(0)
    }

    /// Returns the first moment after `after`, in milliseconds since the epoch.
    fn next_after(self, after: Timestamp) -> i64 {
        let passed = (after.as_millis() - self.anchor.as_millis()).div_euclid(self.millis);
        self.anchor.as_millis() + (passed + 1) * self.millis
    }
}

impl Period {
    /// Returns the fire times after `after` and within [`HORIZON`] of it, in order, without those on excluded days.
    #[must_use]
    pub fn fire_times<'a>(&'a self, after: Timestamp, excluded: &'a ExcludedDays) -> FireTimes<'a> {
        FireTimes { period: self, excluded, after, until: after.plus(HORIZON) }
    }

    /// Returns the first moment after `after`, up to `until`.
    fn next_after(&self, after: Timestamp, until: Timestamp) -> Option<Timestamp> {
        let next = match &self.repeat {
            Repeat::Cron(cron) => next_after(cron, self.zone, utc(after))?.timestamp_millis(),
            Repeat::Every(every) => every.next_after(after),
            Repeat::Once(at) => at.as_millis(),
        };
        (after.as_millis() + 1..=until.as_millis()).contains(&next).then(|| Timestamp::from_millis(next))
    }
}

/// The fire times of a period, in order. Each is found in bounded time, however rare they are.
#[derive(Clone, Debug)]
pub struct FireTimes<'a> {
    period: &'a Period,
    excluded: &'a ExcludedDays,
    /// The latest fire time, or where the search for the next one goes on.
    after: Timestamp,
    until: Timestamp,
}

impl Iterator for FireTimes<'_> {
    type Item = Timestamp;

    fn next(&mut self) -> Option<Timestamp> {
        // Each pass but the last leaves a row of excluded days behind. Only where the clock goes back at midnight does
        // one end twice.
        loop {
            let Some(next) = self.period.next_after(self.after, self.until) else {
                self.after = self.until;
                return None;
            };
            self.after = next;
            let day = utc(next).with_timezone(&self.period.zone).date_naive();
            let Some(last) = self.excluded.last_in_a_row(day) else { return Some(next) };
            let day_after = last.succ_opt()?;
            let first = first_moment(self.period.zone, day_after.and_time(NaiveTime::MIN)).timestamp_millis();
            self.after = next.max(Timestamp::from_millis(first - 1));
        }
    }
}

impl FusedIterator for FireTimes<'_> {}

/// Returns a moment as the calendar's library has it.
pub(super) fn utc(time: Timestamp) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(time.as_millis()).unwrap_or_default()
}
