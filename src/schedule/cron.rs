//! Cron expressions over the times that a wall clock shows, whatever happens to that clock.
//!
//! `croner` reads an expression and knows which days it names. Its search for the next moment is not used: what it
//! does where clocks change depends on whether a field has a list, a range or a step, it ends with an error where a
//! zone has left out a day, and it looks for 31 February for thousands of years.

use std::str::FromStr;

use chrono::{Datelike as _, Months, NaiveDate, NaiveDateTime, NaiveTime, Timelike as _};
use croner::parser::{CronParser, Seconds, Year};
use croner::{CronPattern, Weekday};

use super::field::{FIELDS, InvalidField};

/// The longest cron expression, in bytes.
pub const MAX_CRON_BYTES: usize = 1024;

/// How many years after one day the next one is at most, if there is one: 29 February is the same day of the week
/// after 40 years when a year such as 2100 comes between.
const LONGEST_WAIT_YEARS: i32 = 40;

/// The names of expressions, and what they stand for.
const NICKNAMES: [(&str, &str); 7] = [
    ("@HOURLY", "0 * * * *"),
    ("@DAILY", "0 0 * * *"),
    ("@MIDNIGHT", "0 0 * * *"),
    ("@WEEKLY", "0 0 * * 0"),
    ("@MONTHLY", "0 0 1 * *"),
    ("@YEARLY", "0 0 1 1 *"),
    ("@ANNUALLY", "0 0 1 1 *"),
];

/// A text that is not a cron expression with a fire time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCron {
    /// The text is longer than [`MAX_CRON_BYTES`].
    #[error("must have at most {MAX_CRON_BYTES} bytes, not {0}")]
    TooLong(usize),
    /// The text has neither five nor six fields.
    #[error(
        "must have 5 fields (minute, hour, day of the month, month, day of the week), or 6 with the second first, not \
         {0}"
    )]
    FieldCount(usize),
    /// The text begins with `@` and is the name of no expression.
    #[error("`{0}` is none of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually")]
    Nickname(String),
    /// A field is wrong.
    #[error(transparent)]
    Field(#[from] InvalidField),
    /// The parser of expressions refuses what its fields allow.
    #[error("cannot be read: {0}")]
    Refused(String),
    /// The calendar has no such day.
    #[error("never fires: no month has such a day")]
    NeverFires,
}

/// A cron expression.
#[derive(Clone, Debug)]
pub struct Cron {
    /// Tells which days the expression names.
    pattern: Box<CronPattern>,
    months: Vec<u32>,
    hours: Vec<u32>,
    minutes: Vec<u32>,
    seconds: Vec<u32>,
}

impl Cron {
    /// Returns whether the expression leaves out no hour of the day.
    pub(super) fn is_for_every_hour(&self) -> bool {
        self.hours.len() == 24
    }

    /// Returns the first time that the expression names at `from`, which is a whole second, or later. `None` after the
    /// end of the calendar alone: an expression that names no day is refused.
    pub(super) fn at_or_after(&self, from: NaiveDateTime) -> Option<NaiveDateTime> {
        if self.names(from.date())
            && let Some(time) = self.time_from(from.time())
        {
            return Some(from.date().and_time(time));
        }
        Some(self.day_after(from.date())?.and_time(self.time_from(NaiveTime::MIN)?))
    }

    /// Returns how many times of an hour the expression names, if `time` is the first of them in its hour.
    pub(super) fn in_hour_from(&self, time: NaiveTime) -> Option<u64> {
        let is_first = self.minutes.first() == Some(&time.minute()) && self.seconds.first() == Some(&time.second());
        is_first.then(|| (self.minutes.len() * self.seconds.len()) as u64)
    }

    /// Returns how many times of a day the expression names, if `time` is the first of them.
    pub(super) fn in_day_from(&self, time: NaiveTime) -> Option<u64> {
        let is_first = self.hours.first() == Some(&time.hour());
        self.in_hour_from(time).filter(|_| is_first).map(|in_hour| in_hour * self.hours.len() as u64)
    }

    fn time_from(&self, from: NaiveTime) -> Option<NaiveTime> {
        let (hour, minute, second) = (from.hour(), from.minute(), from.second());
        for &hour_named in self.hours.iter().filter(|named| **named >= hour) {
            let minute = if hour_named > hour { 0 } else { minute };
            for &minute_named in self.minutes.iter().filter(|named| **named >= minute) {
                let is_later = hour_named > hour || minute_named > minute;
                let second = if is_later { 0 } else { second };
                if let Some(&second) = self.seconds.iter().find(|named| **named >= second) {
                    return NaiveTime::from_hms_opt(hour_named, minute_named, second);
                }
            }
        }
        None
    }

    fn day_after(&self, day: NaiveDate) -> Option<NaiveDate> {
        let last_year = day.year() + LONGEST_WAIT_YEARS;
        let mut day = day.succ_opt()?;
        while day.year() <= last_year {
            if !self.months.contains(&day.month()) {
                day = day.with_day(1)?.checked_add_months(Months::new(1))?;
            } else if self.names(day) {
                return Some(day);
            } else {
                day = day.succ_opt()?;
            }
        }
        None
    }

    fn names(&self, day: NaiveDate) -> bool {
        let weekday = Weekday::from_days_from_sunday(day.weekday().num_days_from_sunday());
        // The only error is about days that the calendar does not have.
        self.months.contains(&day.month())
            && self.pattern.day_match(day.year(), day.month(), day.day(), weekday).unwrap_or(false)
    }
}

impl FromStr for Cron {
    type Err = InvalidCron;

    fn from_str(text: &str) -> Result<Self, InvalidCron> {
        if text.len() > MAX_CRON_BYTES {
            return Err(InvalidCron::TooLong(text.len()));
        }
        let text = text.trim().to_ascii_uppercase();
        let text = match NICKNAMES.iter().find(|(name, _)| *name == text) {
            Some((_, expression)) => expression,
            None if text.starts_with('@') => return Err(InvalidCron::Nickname(text.to_ascii_lowercase())),
            None => text.as_str(),
        };
        let mut fields: Vec<&str> = text.split_ascii_whitespace().collect();
        if fields.len() == FIELDS.len() - 1 {
            fields.insert(0, "0");
        }
        if fields.len() != FIELDS.len() {
            return Err(InvalidCron::FieldCount(fields.len()));
        }
        let checked = FIELDS.iter().zip(&fields).map(|(field, text)| field.check(text));
        let checked = checked.collect::<Result<Vec<String>, InvalidField>>()?;
        // A day has to be of both fields where one begins with `*`, as in Vixie cron, and else of either.
        let is_of_both = [fields[3], fields[5]].iter().any(|field| field.starts_with('*'));
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).dom_and_dow(is_of_both);
        let parsed = parser.build().parse(&checked.join(" "));
        let pattern = parsed.map_err(|error| InvalidCron::Refused(error.to_string()))?.pattern;
        let values = |field: &croner::CronComponent| field.values().into_iter().map(u32::from).collect();
        let (months, hours) = (values(&pattern.months), values(&pattern.hours));
        let (minutes, seconds) = (values(&pattern.minutes), values(&pattern.seconds));
        let cron = Self { pattern: Box::new(pattern), months, hours, minutes, seconds };
        let is_possible = cron.day_after(NaiveDate::default()).is_some();
        if is_possible { Ok(cron) } else { Err(InvalidCron::NeverFires) }
    }
}
