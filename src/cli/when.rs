//! Times as people write them: `in 10m`, `02:00`, `tomorrow 02:00`, `monday 8:30`, `2030-01-31 08:00`. Without an
//! offset they are times of the machine's own zone.

use chrono::{DateTime, Datelike as _, Days, Local, NaiveDate, NaiveDateTime, NaiveTime, TimeZone, Utc, Weekday};

use super::duration;
use crate::clock::Timestamp;

/// The forms that [`parse`] takes, for messages.
const FORMS: &str = "a time is one such as `now`, `in 10m`, `02:00`, `today 18:00`, `tomorrow 02:00`, `monday 8:30`, \
                     `2030-01-31`, `2030-01-31 08:00` or `2030-01-31T08:00:00Z`";

/// Parses a time, as seen from now.
pub(super) fn parse(text: &str) -> Result<Timestamp, String> {
    parse_from(text, Local::now())
}

/// Parses a time of which something in the past is asked, as seen from now: also `2h ago` and `yesterday 18:00`. What a
/// clock shows is the last moment at which it did, not the next.
pub(super) fn parse_past(text: &str) -> Result<Timestamp, String> {
    parse_past_from(text, &Local::now())
}

fn parse_past_from<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Result<Timestamp, String> {
    let text = text.trim().to_lowercase();
    if let Some(ago) = text.strip_suffix("ago") {
        return Ok(timestamp(now).minus(duration::parse(ago.trim())?));
    }
    let today = now.naive_local().date();
    let before = |time: NaiveTime| {
        let day = today.pred_opt().ok_or_else(|| FORMS.to_owned())?;
        in_zone(day.and_time(time), now).map(|at| timestamp(&at))
    };
    if let Some(rest) = text.strip_prefix("yesterday") {
        let rest = rest.trim();
        let time = if rest.is_empty() { Some(NaiveTime::MIN) } else { clock_time(rest) };
        return before(time.ok_or_else(|| FORMS.to_owned())?);
    }
    let Some(time) = clock_time(&text) else { return parse_from(&text, now.clone()) };
    match in_zone(today.and_time(time), now)? {
        at if at <= *now => Ok(timestamp(&at)),
        _ => before(time),
    }
}

fn parse_from<Z: TimeZone>(text: &str, now: DateTime<Z>) -> Result<Timestamp, String> {
    let text = text.trim();
    if let Ok(time) = Timestamp::parse_rfc3339(text) {
        return Ok(time);
    }
    let text = text.to_lowercase();
    if text == "now" {
        return Ok(timestamp(&now));
    }
    if let Some(wait) = text.strip_prefix("in ").or_else(|| text.strip_prefix('+')) {
        return Ok(timestamp(&now).plus(duration::parse(wait.trim())?));
    }
    let wrong = || FORMS.to_owned();
    let (first, rest) = text.split_once([' ', 't']).filter(|_| !starts_a_word(&text)).unwrap_or_else(|| {
        let (first, rest) = text.split_once(' ').unwrap_or((&text, ""));
        (first, rest)
    });
    let today = now.naive_local().date();
    if let Some(time) = clock_time(first).filter(|_| rest.is_empty()) {
        // The next moment at which the clock shows this.
        let at = in_zone(today.and_time(time), &now)?;
        return match at > now {
            true => Ok(timestamp(&at)),
            false => in_zone(after(today, 1)?.and_time(time), &now).map(|at| timestamp(&at)),
        };
    }
    let time = if rest.is_empty() { Some(NaiveTime::MIN) } else { clock_time(rest.trim()) }.ok_or_else(wrong)?;
    let day = match first {
        "today" => today,
        "tomorrow" => after(today, 1)?,
        _ => match (first.parse::<NaiveDate>(), first.parse::<Weekday>()) {
            (Ok(day), _) => day,
            (_, Ok(weekday)) => {
                let ahead = (7 + weekday.num_days_from_monday() - today.weekday().num_days_from_monday()) % 7;
                let day = after(today, u64::from(ahead))?;
                let is_over = ahead == 0 && in_zone(day.and_time(time), &now).is_ok_and(|at| at <= now);
                if is_over { after(day, 7)? } else { day }
            }
            _ => return Err(wrong()),
        },
    };
    in_zone(day.and_time(time), &now).map(|at| timestamp(&at))
}

/// Returns whether a text begins with a letter, so that a `t` in it does not part a day from a time.
fn starts_a_word(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
}

/// Parses what a clock shows: `2:00`, `02:00` or `02:00:30`.
fn clock_time(text: &str) -> Option<NaiveTime> {
    ["%H:%M", "%H:%M:%S"].iter().find_map(|form| NaiveTime::parse_from_str(text, form).ok())
}

fn after(day: NaiveDate, days: u64) -> Result<NaiveDate, String> {
    day.checked_add_days(Days::new(days)).ok_or_else(|| FORMS.to_owned())
}

/// Returns the first moment at which the clocks show a time, if they ever do.
fn in_zone<Z: TimeZone>(time: NaiveDateTime, now: &DateTime<Z>) -> Result<DateTime<Z>, String> {
    now.timezone().from_local_datetime(&time).earliest().ok_or_else(|| format!("the clocks skip {time}"))
}

fn timestamp<Z: TimeZone>(time: &DateTime<Z>) -> Timestamp {
    Timestamp::from_millis(time.with_timezone(&Utc).timestamp_millis())
}

#[cfg(test)]
mod tests {
    use chrono_tz::Europe::Berlin;

    use super::*;

    /// A Wednesday.
    fn parsed(text: &str) -> Result<String, String> {
        let now = Berlin.with_ymd_and_hms(2030, 1, 30, 12, 0, 0).single().expect("a time");
        parse_from(text, now).map(|time| time.to_rfc3339())
    }

    #[test]
    fn times_are_those_of_the_zone() {
        for (text, expected) in [
            ("now", "2030-01-30T11:00:00.000Z"),
            ("in 10m", "2030-01-30T11:10:00.000Z"),
            ("+1.5h", "2030-01-30T12:30:00.000Z"),
            ("12:30", "2030-01-30T11:30:00.000Z"),
            ("02:00", "2030-01-31T01:00:00.000Z"),
            ("today 18:00", "2030-01-30T17:00:00.000Z"),
            ("tomorrow 2:00", "2030-01-31T01:00:00.000Z"),
            ("Tomorrow", "2030-01-30T23:00:00.000Z"),
            ("wednesday 11:00", "2030-02-06T10:00:00.000Z"),
            ("wed 13:00", "2030-01-30T12:00:00.000Z"),
            ("thu 8:30", "2030-01-31T07:30:00.000Z"),
            ("tuesday", "2030-02-04T23:00:00.000Z"),
            ("2030-07-01", "2030-06-30T22:00:00.000Z"),
            ("2030-07-01 08:00", "2030-07-01T06:00:00.000Z"),
            ("2030-07-01T08:00:30", "2030-07-01T06:00:30.000Z"),
            ("2030-07-01T08:00:30Z", "2030-07-01T08:00:30.000Z"),
        ] {
            assert_eq!(parsed(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn times_in_the_past_are_the_last_ones() {
        let now = Berlin.with_ymd_and_hms(2030, 1, 30, 12, 0, 0).single().expect("a time");
        for (text, expected) in [
            ("now", "2030-01-30T11:00:00.000Z"),
            ("2h ago", "2030-01-30T09:00:00.000Z"),
            ("08:00", "2030-01-30T07:00:00.000Z"),
            ("18:00", "2030-01-29T17:00:00.000Z"),
            ("yesterday", "2030-01-28T23:00:00.000Z"),
            ("Yesterday 18:00", "2030-01-29T17:00:00.000Z"),
            ("2030-01-01 08:00", "2030-01-01T07:00:00.000Z"),
            ("2030-01-01T08:00:30Z", "2030-01-01T08:00:30.000Z"),
        ] {
            assert_eq!(parse_past_from(text, &now).map(|time| time.to_rfc3339()).as_deref(), Ok(expected), "{text}");
        }
        for text in ["ago", "x ago", "yesterday noon", "25:00"] {
            assert!(parse_past_from(text, &now).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "soon", "25:00", "in a while", "tomorrow noon", "2030-02-30", "2030-03-31 02:30", "1t"] {
            assert!(parsed(text).is_err(), "{text}");
        }
    }
}
