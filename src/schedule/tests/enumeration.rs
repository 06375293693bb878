//! Fire times are compared with an enumeration that knows nothing of how they are found: every second or minute of
//! some days is looked at, and the rule for clock changes is put in other words, by the latest time that the clock has
//! shown. They are counted as well.

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike as _, NaiveDate, NaiveDateTime, TimeDelta, Timelike as _, Utc};
use chrono_tz::Tz;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::schedule::count::count;

/// An entry of a field's list.
#[derive(Clone, Debug)]
enum Entry {
    Any,
    Step(u32),
    Value(u32),
    Range(u32, u32),
    RangeStep(u32, u32, u32),
    Nth(u32, u32),
    Last(u32),
    LastDay,
}

impl Entry {
    fn text(&self) -> String {
        match self {
            Self::Any => "*".to_owned(),
            Self::Step(step) => format!("*/{step}"),
            Self::Value(value) => value.to_string(),
            Self::Range(first, last) => format!("{first}-{last}"),
            Self::RangeStep(first, last, step) => format!("{first}-{last}/{step}"),
            Self::Nth(day, nth) => format!("{day}#{nth}"),
            Self::Last(day) => format!("{day}L"),
            Self::LastDay => "L".to_owned(),
        }
    }

    /// Whether the entry of a field from `first` on names a value.
    fn names(&self, first: u32, value: u32) -> bool {
        match *self {
            Self::Any => true,
            Self::Step(step) => (value - first).is_multiple_of(step),
            Self::Value(named) => value == named,
            Self::Range(from, to) => (from..=to).contains(&value),
            Self::RangeStep(from, to, step) => (from..=to).contains(&value) && (value - from).is_multiple_of(step),
            Self::Nth(..) | Self::Last(_) | Self::LastDay => false,
        }
    }
}

type Entries = Vec<Entry>;

fn entries(first: u32, last: u32, special: Option<BoxedStrategy<Entry>>) -> BoxedStrategy<Entries> {
    let range = (first..=last, first..=last).prop_map(|(one, other)| (one.min(other), one.max(other)));
    let plain = prop_oneof![
        3 => (first..=last).prop_map(Entry::Value),
        1 => range.clone().prop_map(|(from, to)| Entry::Range(from, to)),
        1 => (range, 1..=last - first).prop_map(|((from, to), step)| Entry::RangeStep(from, to, step)),
        1 => (1..=last - first).prop_map(Entry::Step),
    ];
    let entry = match special {
        Some(special) => prop_oneof![3 => plain, 1 => special].boxed(),
        None => plain.boxed(),
    };
    prop_oneof![1 => Just(vec![Entry::Any]), 2 => vec(entry, 1..4)].boxed()
}

#[derive(Clone, Debug)]
struct Expression {
    /// Second, minute, hour, day of the month, month, day of the week.
    fields: [Entries; 6],
}

/// Where the values of each field begin.
const FIRST: [u32; 6] = [0, 0, 0, 1, 1, 0];

impl Expression {
    fn text(&self) -> String {
        let field = |entries: &Entries| entries.iter().map(Entry::text).collect::<Vec<_>>().join(",");
        self.fields.each_ref().map(field).join(" ")
    }

    fn field(&self, index: usize, value: u32) -> bool {
        self.fields[index].iter().any(|entry| entry.names(FIRST[index], value))
    }

    fn names_day(&self, day: NaiveDate) -> bool {
        let is_last_week = (day + TimeDelta::days(7)).month() != day.month();
        let is_last_day = (day + TimeDelta::days(1)).month() != day.month();
        let weekday = day.weekday().num_days_from_sunday();
        let of_month = self.field(3, day.day())
            || is_last_day && self.fields[3].iter().any(|entry| matches!(entry, Entry::LastDay));
        let of_week = self.fields[5].iter().any(|entry| match *entry {
            Entry::Nth(named, nth) => named % 7 == weekday && (day.day() - 1) / 7 + 1 == nth,
            Entry::Last(named) => named % 7 == weekday && is_last_week,
            _ => entry.names(0, weekday) || weekday == 0 && entry.names(0, 7),
        });
        let has_star = |index: usize| matches!(self.fields[index][0], Entry::Any | Entry::Step(_));
        let is_named = if has_star(3) || has_star(5) { of_month && of_week } else { of_month || of_week };
        is_named && self.field(4, day.month())
    }

    fn names(&self, time: NaiveDateTime) -> bool {
        self.field(0, time.second())
            && self.field(1, time.minute())
            && self.field(2, time.hour())
            && self.names_day(time.date())
    }

    /// The moments from `from` to `to`, `step` apart, at which the expression fires. Its seconds are 0 if `step` is a
    /// minute.
    fn enumerate(&self, zone: Tz, from: DateTime<Utc>, to: DateTime<Utc>, step: TimeDelta) -> BTreeSet<i64> {
        let every_hour = (0..24).all(|hour| self.field(2, hour));
        let shown = |moment: DateTime<Utc>| moment.with_timezone(&zone).naive_local();
        let mut fired = BTreeSet::new();
        // Before the first moment, the clock has shown all times up to then.
        let mut moment = from - TimeDelta::days(2);
        let mut latest = shown(moment);
        while moment < to {
            moment += step;
            let now = shown(moment);
            let mut is_named = every_hour && self.names(now);
            while !every_hour && latest < now {
                latest += step;
                is_named |= self.names(latest);
            }
            if is_named && moment > from {
                fired.insert(moment.timestamp_millis());
            }
        }
        fired
    }
}

fn expression(with_seconds: bool) -> impl Strategy<Value = Expression> {
    let seconds = if with_seconds { entries(0, 59, None) } else { Just(vec![Entry::Value(0)]).boxed() };
    let weekday = prop_oneof![
        (0_u32..=7, 1_u32..=5).prop_map(|(day, nth)| Entry::Nth(day, nth)),
        (0_u32..=7).prop_map(Entry::Last),
    ];
    let days = entries(1, 31, Some(Just(Entry::LastDay).boxed()));
    let hours = prop_oneof![3 => entries(0, 23, None), 1 => entries(0, 4, None)];
    // Most take in the month that is looked at.
    let months = prop_oneof![3 => Just(vec![Entry::Any]), 1 => entries(1, 12, None)];
    (seconds, entries(0, 59, None), hours, days, months, entries(0, 7, Some(weekday.boxed()))).prop_map(
        |(second, minute, hour, day, month, weekday)| Expression {
            fields: [second, minute, hour, day, month, weekday],
        },
    )
}

/// Zones with a moment at which their clocks change, if they do.
const CHANGES: [(&str, &str); 13] = [
    ("UTC", "2026-03-01T00:00:00Z"),
    ("Asia/Kolkata", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-03-29T01:00:00Z"),
    ("Europe/Berlin", "2026-10-25T01:00:00Z"),
    ("America/New_York", "2026-03-08T07:00:00Z"),
    ("America/New_York", "2026-11-01T06:00:00Z"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00Z"),
    ("Australia/Lord_Howe", "2026-10-03T15:30:00Z"),
    ("Asia/Beirut", "2026-03-28T22:00:00Z"),
    ("Asia/Beirut", "2026-10-24T21:00:00Z"),
    ("America/St_Johns", "2006-10-29T02:31:00Z"),
    ("Africa/Casablanca", "2026-02-15T02:00:00Z"),
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
];

/// Compares the fire times of some hours around a change of clocks with the enumerated ones.
fn compare(expression: &Expression, zone: &str, around: &str, start_minutes: i64, hours: i64, step: TimeDelta) {
    let parsed = match expression.text().parse::<Cron>() {
        Ok(parsed) => parsed,
        Err(error) => return assert_eq!(error, InvalidCron::NeverFires, "{}", expression.text()),
    };
    let zone = parse_zone(zone).expect("a zone");
    let from = DateTime::parse_from_rfc3339(around).expect("a time").to_utc() - TimeDelta::minutes(start_minutes);
    let to = from + TimeDelta::hours(hours);
    let expected = expression.enumerate(zone, from, to, step);
    let period = Period { repeat: Repeat::Cron(parsed), zone };
    let found: BTreeSet<i64> = period
        .fire_times(Timestamp::from_millis(from.timestamp_millis()), &ExcludedDays::default())
        .map(Timestamp::as_millis)
        .take_while(|millis| *millis <= to.timestamp_millis())
        .collect();
    let difference: Vec<_> = found.symmetric_difference(&expected).map(|at| Timestamp::from_millis(*at)).collect();
    assert!(difference.is_empty(), "{} in {zone} after {from}: {difference:?}", expression.text());
    let (from, to) = (from.timestamp_millis(), to.timestamp_millis());
    let counted = count(&period, &ExcludedDays::default(), Timestamp::from_millis(from), Timestamp::from_millis(to));
    assert_eq!(counted, expected.len() as u64, "{} in {zone} after {from}", expression.text());
}

proptest! {
    // A case looks at thousands of moments.
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases / 8, ..ProptestConfig::default() })]

    #[test]
    fn minutes_fire_as_an_enumeration_says(
        expression in expression(false), (zone, around) in select(&CHANGES[..]), start_minutes in -300_i64..10_000,
    ) {
        compare(&expression, zone, around, start_minutes, 24 * 9, TimeDelta::minutes(1));
    }

    #[test]
    fn seconds_fire_as_an_enumeration_says(
        expression in expression(true), (zone, around) in select(&CHANGES[..]), start_minutes in -90_i64..150,
    ) {
        let mut expression = expression;
        // Only the time of the day is tried here, so that there is something to compare within some hours.
        expression.fields[3..].fill(vec![Entry::Any]);
        compare(&expression, zone, around, start_minutes, 3, TimeDelta::seconds(1));
    }
}
