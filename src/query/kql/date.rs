//! Times in queries: ISO 8601, complete or shortened, milliseconds since the epoch, and arithmetic on these and on
//! `now`.
//!
//! They are parsed as Elasticsearch does with `strict_date_optional_time||epoch_millis`: a shortened time is the first
//! millisecond of the period that it names, or the last in the comparisons `<=` and `>`. A missing month or day is the
//! first in either case. Rounding with `/d` and the other units follows the same rule.

use chrono::{DateTime, Datelike, Days, Duration, FixedOffset, Months, NaiveDate, NaiveDateTime, NaiveTime, Utc};
use chrono::{LocalResult, Offset, SecondsFormat, TimeZone, Timelike};
use chrono_tz::Tz;
use winnow::Parser;
use winnow::combinator::{alt, eof, opt, preceded, repeat};
use winnow::error::{EmptyError, ParserError};
use winnow::token::{literal, one_of, take_while};

use crate::clock::Timestamp;

/// The largest number of steps of arithmetic on one time.
const MAX_STEPS: usize = 16;

/// A bound on how far clocks are put forward at once, in hours: more than the day that Samoa left out in 2011.
const LONGEST_GAP: i64 = 25;

/// The time zone of times that name none, which also decides when days begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zone(Rules);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rules {
    /// A fixed offset from UTC at all times.
    Fixed(FixedOffset),
    /// The rules of a place, by its name in the IANA time zone database.
    Named(Tz),
}

impl Default for Zone {
    fn default() -> Self {
        Self(Rules::Fixed(Utc.fix()))
    }
}

impl Zone {
    /// Parses `Z`, `UTC`, `+02:00`, `+0200`, `+02`, or the name of a place such as `Europe/Berlin`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.eq_ignore_ascii_case("utc") {
            return Some(Self::default());
        }
        let fixed = zone.parse(text).ok().map(Rules::Fixed);
        // All zones of places have a `/`. The other names, such as `EST`, mean different things to different programs.
        let named = || text.contains('/').then(|| text.parse().ok().map(Rules::Named)).flatten();
        fixed.or_else(named).map(Self)
    }

    /// Returns the zone of a place.
    #[must_use]
    pub const fn of(place: Tz) -> Self {
        Self(Rules::Named(place))
    }

    /// Returns the name that Elasticsearch takes: `+02:00`, `Europe/Berlin`.
    #[must_use]
    pub fn name(self) -> String {
        match self.0 {
            Rules::Fixed(offset) => offset.to_string(),
            Rules::Named(place) => place.name().to_owned(),
        }
    }

    /// Returns whether the zone is UTC.
    #[must_use]
    pub fn is_utc(self) -> bool {
        matches!(self.0, Rules::Fixed(offset) if offset.local_minus_utc() == 0)
    }

    /// Formats a time as RFC 3339 with milliseconds, as the clocks of the zone show it.
    #[must_use]
    pub fn write(self, time: Timestamp) -> String {
        let utc = DateTime::from_timestamp_millis(time.as_millis()).unwrap_or_default();
        self.at(utc).to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// Returns the local time in the zone.
    fn at(self, time: DateTime<Utc>) -> DateTime<FixedOffset> {
        let offset = match self.0 {
            Rules::Fixed(offset) => offset,
            Rules::Named(place) => place.offset_from_utc_datetime(&time.naive_utc()).fix(),
        };
        time.with_timezone(&offset)
    }

    /// Returns the time at which clocks in the zone show `local`. Where they show it twice, as when summer time ends,
    /// it is the time with the offset `before`, or else the first. Where they never show it, as when summer time
    /// begins, it is later by as much as the clocks were put forward.
    fn when(self, local: NaiveDateTime, before: Option<FixedOffset>) -> Option<DateTime<FixedOffset>> {
        let place = match self.0 {
            Rules::Fixed(offset) => return offset.from_local_datetime(&local).single(),
            Rules::Named(place) => place,
        };
        let offsets = |local: &NaiveDateTime| place.offset_from_local_datetime(local).map(|offset| offset.fix());
        let offset = match offsets(&local) {
            LocalResult::Single(offset) => offset,
            LocalResult::Ambiguous(first, second) => {
                if before == Some(second) {
                    second
                } else {
                    first
                }
            }
            LocalResult::None => {
                // The offset before the gap.
                let earlier = (1..=LONGEST_GAP).map(|hours| local - Duration::hours(hours));
                let offset = earlier.filter_map(|local| offsets(&local).latest()).next()?;
                return Some(self.at(offset.from_local_datetime(&local).single()?.to_utc()));
            }
        };
        offset.from_local_datetime(&local).single()
    }
}

/// A time in a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moment {
    start: Start,
    steps: Vec<Adjustment>,
    zone: Zone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Now,
    /// A named period, from its first millisecond to its last.
    Named {
        first: DateTime<Utc>,
        last: DateTime<Utc>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Adjustment {
    Add(i32, Unit),
    Round(Unit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Year,
    Month,
    Week,
    Day,
    Hour,
    Minute,
    Second,
}

/// The first or the last millisecond of a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The first millisecond of the period.
    First,
    /// The last millisecond of the period.
    Last,
}

impl Moment {
    /// Parses a time, which is in `zone` unless it names another one.
    ///
    /// Returns `None` when the text is not a time between the years 1 and 9999.
    #[must_use]
    pub fn parse(text: &str, zone: Zone) -> Option<Self> {
        let (start, steps) = if let Some(math) = text.strip_prefix("now") {
            (Start::Now, math)
        } else if let Some((named, math)) = text.split_once("||") {
            let (first, _) = iso(named, zone)?;
            (Start::Named { first, last: first }, math)
        } else {
            let (first, last) = iso(text, zone).or_else(|| epoch(text))?;
            (Start::Named { first, last }, "")
        };
        let steps: Vec<Adjustment> = repeat(0..=MAX_STEPS, step).parse(steps).ok()?;
        let moment = Self { start, steps, zone };
        let today = Timestamp::parse_rfc3339("2026-01-01T00:00:00Z").ok()?;
        moment.checked(today, End::First).and(moment.checked(today, End::Last)).map(|_| moment)
    }

    /// Returns whether the time depends on `now`.
    #[must_use]
    pub fn is_relative(&self) -> bool {
        self.start == Start::Now
    }

    /// Returns the first or the last millisecond of the time, where `now` is the present.
    #[must_use]
    pub fn at(&self, now: Timestamp, end: End) -> Timestamp {
        // The time was within bounds when it was parsed; a clock that has moved on since may have pushed it out.
        self.checked(now, end).unwrap_or(if self.is_relative() { Timestamp::MAX } else { Timestamp::MIN })
    }

    fn checked(&self, now: Timestamp, end: End) -> Option<Timestamp> {
        let start = match (self.start, end) {
            (Start::Now, _) => DateTime::from_timestamp_millis(now.as_millis())?,
            (Start::Named { first, .. }, End::First) => first,
            (Start::Named { last, .. }, End::Last) => last,
        };
        let mut time = self.zone.at(start);
        for step in &self.steps {
            time = match *step {
                Adjustment::Add(count, unit) => unit.add(time, count, self.zone)?,
                Adjustment::Round(unit) => unit.round(time, end, self.zone)?,
            };
        }
        let millis = time.timestamp_millis();
        (Timestamp::MIN.as_millis()..=Timestamp::MAX.as_millis())
            .contains(&millis)
            .then(|| Timestamp::from_millis(millis))
    }
}

impl Unit {
    /// Adds the unit `count` times. Days and longer units follow the calendar, hours and shorter units the elapsed
    /// time: the two differ when clocks are put forward or back.
    fn add(self, time: DateTime<FixedOffset>, count: i32, zone: Zone) -> Option<DateTime<FixedOffset>> {
        let local = time.naive_local();
        let months = |each: u32| {
            let months = Months::new(count.unsigned_abs().checked_mul(each)?);
            if count < 0 { local.checked_sub_months(months) } else { local.checked_add_months(months) }
        };
        let many = i64::from(count);
        let elapsed = |span: Duration| Some(zone.at(time.to_utc().checked_add_signed(span)?));
        let date = match self {
            Self::Year => months(12),
            Self::Month => months(1),
            Self::Week => local.checked_add_signed(Duration::try_weeks(many)?),
            Self::Day => local.checked_add_signed(Duration::try_days(many)?),
            Self::Hour => return elapsed(Duration::try_hours(many)?),
            Self::Minute => return elapsed(Duration::try_minutes(many)?),
            Self::Second => return elapsed(Duration::try_seconds(many)?),
        };
        zone.when(date?, Some(*time.offset()))
    }

    fn round(self, time: DateTime<FixedOffset>, end: End, zone: Zone) -> Option<DateTime<FixedOffset>> {
        let (date, clock) = (time.date_naive(), time.time());
        let first = match self {
            Self::Year => date.with_ordinal(1)?.and_time(NaiveTime::MIN),
            Self::Month => date.with_day(1)?.and_time(NaiveTime::MIN),
            Self::Week => {
                let since_monday = u64::from(date.weekday().num_days_from_monday());
                date.checked_sub_days(Days::new(since_monday))?.and_time(NaiveTime::MIN)
            }
            Self::Day => date.and_time(NaiveTime::MIN),
            Self::Hour => date.and_hms_opt(clock.hour(), 0, 0)?,
            Self::Minute => date.and_hms_opt(clock.hour(), clock.minute(), 0)?,
            Self::Second => date.and_hms_opt(clock.hour(), clock.minute(), clock.second())?,
        };
        let first = zone.when(first, Some(*time.offset()))?;
        match end {
            End::First => Some(first),
            End::Last => self.add(first, 1, zone)?.checked_sub_signed(Duration::milliseconds(1)),
        }
    }
}

type Input<'i> = &'i str;
type Read<T> = Result<T, EmptyError>;

fn number<'i, E: ParserError<Input<'i>>>(digits: usize) -> impl Parser<Input<'i>, u32, E> {
    take_while(digits..=digits, |digit: char| digit.is_ascii_digit()).parse_to()
}

fn step(input: &mut Input<'_>) -> Read<Adjustment> {
    fn unit(input: &mut Input<'_>) -> Read<Unit> {
        alt((
            'y'.value(Unit::Year),
            'M'.value(Unit::Month),
            'w'.value(Unit::Week),
            'd'.value(Unit::Day),
            one_of(['h', 'H']).value(Unit::Hour),
            'm'.value(Unit::Minute),
            's'.value(Unit::Second),
        ))
        .parse_next(input)
    }
    if let Some(unit) = opt(preceded(('/', opt('1')), unit)).parse_next(input)? {
        return Ok(Adjustment::Round(unit));
    }
    let sign = alt(('+'.value(1), '-'.value(-1))).parse_next(input)?;
    let digits = take_while(0.., |digit: char| digit.is_ascii_digit()).parse_next(input)?;
    let count: i32 = if digits.is_empty() { 1 } else { digits.parse().map_err(|_| EmptyError)? };
    Ok(Adjustment::Add(sign * count, unit.parse_next(input)?))
}

/// Parses an offset from UTC: `Z`, `+02:00`, `+0200`, `+02`.
fn zone(input: &mut Input<'_>) -> Read<FixedOffset> {
    let offset = (alt(('+'.value(1), '-'.value(-1))), number(2), opt(preceded(opt(':'), number(2))))
        .verify(|(_, hours, minutes)| *hours <= 18 && minutes.unwrap_or(0) < 60)
        .verify_map(|(sign, hours, minutes)| {
            let seconds = i32::try_from(hours * 3_600 + minutes.unwrap_or(0) * 60).ok()?;
            FixedOffset::east_opt(sign * seconds)
        });
    alt(('Z'.value(Utc.fix()), offset)).parse_next(input)
}

/// A time of day: hours, minutes, seconds, nanoseconds, each after the first only with the one before it.
type Clock = (u32, Option<u32>, Option<u32>, Option<u32>);

fn clock(input: &mut Input<'_>) -> Read<Clock> {
    let hour = number(2).parse_next(input)?;
    let minute = opt(preceded(':', number(2))).parse_next(input)?;
    let second = if minute.is_some() { opt(preceded(':', number(2))).parse_next(input)? } else { None };
    let digits = take_while(1..=9, |digit: char| digit.is_ascii_digit());
    let fraction = if second.is_some() { opt(preceded(one_of(['.', ',']), digits)).parse_next(input)? } else { None };
    let nanos = fraction.map(|digits: &str| format!("{digits:0<9}").parse().unwrap_or(0));
    Ok((hour, minute, second, nanos))
}

/// Returns the first and the last millisecond of the period that an ISO 8601 text names.
fn iso(text: &str, default: Zone) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    let mut input = text;
    let parsed: Read<_> = (
        number(4),
        opt(preceded('-', number(2))),
        opt(preceded('-', number(2))),
        opt(preceded(literal("T"), opt((clock, opt(zone))))),
        eof,
    )
        .parse_next(&mut input);
    let (year, month, day, time, _) = parsed.ok()?;
    if time.is_some() && day.is_none() {
        return None;
    }
    let date = NaiveDate::from_ymd_opt(i32::try_from(year).ok()?, month.unwrap_or(1), day.unwrap_or(1))?;
    let ((hour, minute, second, nanos), own) = match time.flatten() {
        Some((clock, own)) => ((Some(clock.0), clock.1, clock.2, clock.3), own),
        None => ((None, None, None, None), None),
    };
    let zone = own.map_or(default, |own| Zone(Rules::Fixed(own)));
    let moment = |hours: u32, sixty: u32, nano: u32| {
        let (minute, second) = (minute.unwrap_or(sixty), second.unwrap_or(sixty));
        let clock = NaiveTime::from_hms_nano_opt(hour.unwrap_or(hours), minute, second, nanos.unwrap_or(nano))?;
        let local = date.and_time(clock);
        Some(zone.when(local, None)?.to_utc())
    };
    Some((moment(0, 0, 0)?, moment(23, 59, 999_999_999)?))
}

/// Parses milliseconds since the epoch, which are the same in every zone.
fn epoch(text: &str) -> Option<(DateTime<Utc>, DateTime<Utc>)> {
    if !is_epoch(text) {
        return None;
    }
    let time = DateTime::from_timestamp_millis(text.parse().ok()?)?;
    Some((time, time))
}

/// Returns whether the text is a number of milliseconds since the epoch, which Kibana sends without a zone.
#[must_use]
pub fn is_epoch(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
