//! Which moments the times of a wall clock are, in a zone whose clocks change.
//!
//! An expression names times of the clock, and fires once for each:
//!
//! - A time that the clock leaves out is fired at the end of the gap. Several such times, and the time to which the
//!   clock is put forward, are fired together once.
//! - A time that the clock shows twice is fired the first time.
//!
//! An expression that leaves out no hour of the day is about what passes within an hour. It fires whenever the clock
//! shows one of its times, and makes up for none that is left out: `*/5 * * * *` fires every five minutes throughout.
//!
//! This is what Vixie cron does with jobs at fixed times and with wildcard jobs. It goes by a `*` at the beginning of
//! the hours or the minutes; here only the set of hours counts, so that `0-23` and a list of all hours are the same as
//! `*`.

use chrono::{DateTime, FixedOffset, LocalResult, NaiveDateTime, Offset as _, TimeDelta, TimeZone as _, Utc};
use chrono_tz::Tz;

use super::cron::Cron;

const SECOND: TimeDelta = TimeDelta::seconds(1);

/// The clocks of a zone change at most once within this time.
const STEP: TimeDelta = TimeDelta::days(1);

/// A bound on how far clocks are put forward at once: more than the day that Samoa left out in 2011.
const LONGEST_GAP: TimeDelta = TimeDelta::hours(25);

/// Returns the first moment after `after` at which the expression fires in the zone; `None` after the end of the
/// calendar.
pub(super) fn next_after(cron: &Cron, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let after = DateTime::from_timestamp(after.timestamp(), 0)?;
    if cron.is_for_every_hour() { whenever_shown(cron, zone, after) } else { once_for_each(cron, zone, after) }
}

/// Returns the first moment at which the clock of the zone shows `time`, or would have shown it: the end of the gap.
pub(super) fn first_moment(zone: Tz, time: NaiveDateTime) -> DateTime<Utc> {
    match zone.from_local_datetime(&time) {
        LocalResult::Single(moment) | LocalResult::Ambiguous(moment, _) => moment.to_utc(),
        LocalResult::None => {
            let time = time.and_utc();
            let (before, after) = (offset(zone, time - LONGEST_GAP), offset(zone, time + LONGEST_GAP));
            change(zone, time - after, time - before)
        }
    }
}

/// Returns the end of what began `since_start` before a moment and is `length` long, such as an hour; `None` when the
/// clock of the zone is changed within it or at its beginning.
pub(super) fn end_if_even(
    zone: Tz,
    moment: DateTime<Utc>,
    since_start: TimeDelta,
    length: TimeDelta,
) -> Option<DateTime<Utc>> {
    let start = moment - since_start;
    let (end, own) = (start + length, offset(zone, moment));
    (offset(zone, start - SECOND) == own && offset(zone, end - SECOND) == own).then_some(end)
}

fn once_for_each(cron: &Cron, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let mut time = shown(zone, after) + SECOND;
    // Passes over the times that are shown again: what the clock was put back by is their bound.
    loop {
        time = cron.at_or_after(time)?;
        let moment = first_moment(zone, time);
        if moment > after {
            return Some(moment);
        }
        time += SECOND;
    }
}

fn whenever_shown(cron: &Cron, zone: Tz, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let mut from = after + SECOND;
    let mut next = cron.at_or_after(shown(zone, from))?;
    // Each pass comes a day closer to the next time, or to a change of the clocks on the way there.
    loop {
        let distance = next - shown(zone, from);
        let moment = from + distance.min(STEP);
        if offset(zone, moment) != offset(zone, from) {
            from = change(zone, from, moment);
            next = cron.at_or_after(shown(zone, from))?;
        } else if distance <= STEP {
            return Some(moment);
        } else {
            from = moment;
        }
    }
}

/// Returns what the clock of the zone shows.
fn shown(zone: Tz, moment: DateTime<Utc>) -> NaiveDateTime {
    moment.naive_utc() + offset(zone, moment)
}

fn offset(zone: Tz, moment: DateTime<Utc>) -> FixedOffset {
    zone.offset_from_utc_datetime(&moment.naive_utc()).fix()
}

/// Returns the first second after `before`, up to `after`, at which the offset of the zone is not that at `before`.
fn change(zone: Tz, mut before: DateTime<Utc>, mut after: DateTime<Utc>) -> DateTime<Utc> {
    let former = offset(zone, before);
    while after - before > SECOND {
        let middle = before + TimeDelta::seconds((after - before).num_seconds() / 2);
        if offset(zone, middle) == former { before = middle } else { after = middle }
    }
    after
}
