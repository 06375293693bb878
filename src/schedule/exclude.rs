//! Days without fire times.

use std::ops::RangeInclusive;

use chrono::{Datelike as _, NaiveDate};

/// The most excluded dates and ranges of a schedule.
pub const MAX_EXCLUDED: usize = 1000;

/// The days on which a schedule does not fire, by the calendar of its time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExcludedDays {
    /// Ranges in order, with at least one day between them.
    ranges: Vec<RangeInclusive<NaiveDate>>,
}

impl ExcludedDays {
    /// Makes the set of all days that are in one of the ranges, which may come in any order and overlap.
    #[must_use]
    pub fn new(ranges: impl IntoIterator<Item = RangeInclusive<NaiveDate>>) -> Self {
        let mut given: Vec<RangeInclusive<NaiveDate>> = ranges.into_iter().filter(|range| !range.is_empty()).collect();
        given.sort_by_key(|range| *range.start());
        let mut ranges: Vec<RangeInclusive<NaiveDate>> = Vec::with_capacity(given.len());
        for range in given {
            match ranges.last_mut() {
                Some(last) if last.end().succ_opt().is_none_or(|next| *range.start() <= next) => {
                    *last = *last.start()..=*range.end().max(last.end());
                }
                _ => ranges.push(range),
            }
        }
        Self { ranges }
    }

    /// Returns the last of the excluded days in a row that `day` is one of; `None` when the day is not excluded.
    pub(super) fn last_in_a_row(&self, day: NaiveDate) -> Option<NaiveDate> {
        let index = self.ranges.partition_point(|range| *range.end() < day);
        self.ranges.get(index).filter(|range| range.contains(&day)).map(|range| *range.end())
    }
}

/// Parses a day, such as `2026-12-24`.
///
/// # Errors
/// Returns a description of the mistake if `text` is not a day between the years 0001 and 9999.
pub fn parse_day(text: &str) -> Result<NaiveDate, String> {
    let day = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok();
    // The parser takes signs and missing zeros as well.
    let day = day.filter(|day| (1..=9999).contains(&day.year()) && day.to_string() == text);
    day.ok_or_else(|| "is not a day of the calendar, such as `2026-12-24`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn day(text: &str) -> NaiveDate {
        parse_day(text).expect("a day")
    }

    #[test]
    fn ranges_that_touch_or_overlap_become_one() {
        let range = |from: &str, to: &str| day(from)..=day(to);
        let excluded = ExcludedDays::new([
            range("2026-12-31", "2027-01-01"),
            range("2026-12-24", "2026-12-26"),
            range("2026-12-25", "2026-12-30"),
            range("2027-01-03", "2027-01-03"),
            range("2027-02-02", "2027-02-01"),
        ]);
        assert_eq!(excluded.ranges, [range("2026-12-24", "2027-01-01"), range("2027-01-03", "2027-01-03")]);
        for (of, last) in [
            ("2026-12-23", None),
            ("2026-12-24", Some("2027-01-01")),
            ("2027-01-01", Some("2027-01-01")),
            ("2027-01-02", None),
            ("2027-01-03", Some("2027-01-03")),
            ("2027-02-02", None),
        ] {
            assert_eq!(excluded.last_in_a_row(day(of)), last.map(day), "{of}");
        }
    }

    #[test]
    fn a_day_is_written_in_one_way() {
        for wrong in ["", "2026-2-03", "2026-02-30", "+2026-02-03", "2026-02-03T00:00:00Z", "10000-01-01", "0000-01-01"]
        {
            assert!(parse_day(wrong).is_err(), "{wrong}");
        }
    }
}
