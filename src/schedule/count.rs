//! How many fire times there are within a time, without going from one to the next: a schedule for every second that
//! was paused for a year has left out thirty millions.
//!
//! An expression fires as often in each day that it names as it names times of a day, and the same goes for hours.
//! Only where an hour is cut off or the clocks change are fire times counted one by one.

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Timelike as _, Utc};
use chrono_tz::Tz;

use super::cron::Cron;
use super::exclude::ExcludedDays;
use super::local::{end_if_even, first_moment};
use super::period::{Period, Repeat, utc};
use crate::clock::Timestamp;

const HOUR: TimeDelta = TimeDelta::hours(1);
const DAY: TimeDelta = TimeDelta::days(1);

/// Returns how many fire times of a period there are after `after` and up to `until`, without those on excluded days.
pub(super) fn count(period: &Period, excluded: &ExcludedDays, after: Timestamp, until: Timestamp) -> u64 {
    let (mut after, mut count) = (after, 0);
    // Each pass leaves a day behind, or an hour, or at least the fire time that it has found.
    while let Some(next) = period.fire_times(after, excluded).next().filter(|next| *next <= until) {
        let (last, of_them) = match &period.repeat {
            Repeat::Once(_) => (next, 1),
            Repeat::Every(every) => {
                let last = until.min(end_of_day(period.zone, next)).max(next);
                (last, every.count(next, last))
            }
            Repeat::Cron(cron) => whole_from(cron, period.zone, next, until).unwrap_or((next, 1)),
        };
        count += of_them;
        after = last;
    }
    count
}

/// Returns the last millisecond of the day or the hour that begins with this fire time, with the number of its fire
/// times; `None` when it is not over by `until`, when this is not its first one, or when the clocks change.
fn whole_from(cron: &Cron, zone: Tz, first: Timestamp, until: Timestamp) -> Option<(Timestamp, u64)> {
    let moment = utc(first);
    let time = moment.with_timezone(&zone).time();
    let whole = |since_start: u32, length: TimeDelta, count: Option<u64>| {
        let end = end_if_even(zone, moment, TimeDelta::seconds(since_start.into()), length)?;
        Some((before(end), count?)).filter(|(last, _)| *last <= until)
    };
    whole(time.num_seconds_from_midnight(), DAY, cron.in_day_from(time))
        .or_else(|| whole(time.num_seconds_from_midnight() % 3_600, HOUR, cron.in_hour_from(time)))
}

/// Returns the last millisecond of the day, by the clock of the zone.
fn end_of_day(zone: Tz, moment: Timestamp) -> Timestamp {
    let start_of = |day: NaiveDate| before(first_moment(zone, day.and_time(NaiveTime::MIN)));
    utc(moment).with_timezone(&zone).date_naive().succ_opt().map_or(Timestamp::MAX, start_of)
}

fn before(moment: DateTime<Utc>) -> Timestamp {
    Timestamp::from_millis(moment.timestamp_millis() - 1)
}
