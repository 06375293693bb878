//! The archive: where settled jobs are kept, in an index for each month of their end.
//!
//! A version says in which index its document lies ([`Place`]), since each index numbers its writes on its own.
//! **The live index decides.** Whatever lies in the archive, every accepted change of a job is one conditional write of
//! its document in the live index; the archive only ever gets copies and loses them. What stands under an id in the
//! live index says where the job is:
//!
//! | live index | the job |
//! | --- | --- |
//! | a job | is that one; a copy in the archive is not yet, or no longer, it |
//! | a tombstone to a month | is the copy in that month |
//! | a tombstone to nowhere | was removed; a copy that is left goes |
//! | nothing | is the copy in the archive, if there is one |
//!
//! A tombstone stands for longer than any write can be under way. So a writer that finds an id absent from the live
//! index and then creates it there meets a tombstone when the job was moved or removed meanwhile.

use std::fmt;

use chrono::{DateTime, Datelike, Utc};

use crate::clock::Timestamp;
use crate::store::Place;

/// A calendar month in UTC. Months are ordered by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Month(u32);

impl Month {
    /// Returns the month that contains `time`.
    pub(super) fn of(time: Timestamp) -> Self {
        let date = DateTime::<Utc>::from_timestamp_millis(time.as_millis()).unwrap_or_default();
        Self::new(u32::try_from(date.year()).unwrap_or(1), date.month())
    }

    /// Returns the month whose index `place` is; `None` when `place` is not in the archive.
    pub(super) fn at(place: Place) -> Option<Self> {
        match place {
            Place::Other(months) => Some(Self(months)),
            Place::Main | Place::Superseded => None,
        }
    }

    const fn new(year: u32, month: u32) -> Self {
        Self(year * 12 + month - 1)
    }

    /// Returns the month that was so many months before.
    pub(super) fn minus(self, months: u32) -> Self {
        Self(self.0.saturating_sub(months))
    }

    /// Parses a month as [`Month`] displays it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('.')?;
        let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
        let read = Self::new(year, month.checked_sub(1)? + 1);
        (read.to_string() == text).then_some(read)
    }
}

/// Writes the month as in an index's name: `2026.11`.
impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}.{:02}", self.0 / 12, self.0 % 12 + 1)
    }
}

/// A month is numbered by the months since the year 0.
impl From<Month> for Place {
    fn from(month: Month) -> Self {
        Self::Other(month.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Version;

    fn month(text: &str) -> Month {
        Month::of(Timestamp::parse_rfc3339(text).expect("a time"))
    }

    #[test]
    fn a_month_begins_and_ends_in_utc_and_reads_back_from_its_name() {
        assert_eq!(month("2026-11-30T23:59:59.999Z").to_string(), "2026.11");
        assert_eq!(month("2026-12-01T00:30:00+01:00").to_string(), "2026.11");
        assert_eq!(month("2026-12-01T00:00:00Z").to_string(), "2026.12");
        assert_eq!(month("2027-01-01T00:00:00Z").to_string(), "2027.01");
        assert!(month("2026-12-31T00:00:00Z") < month("2027-01-01T00:00:00Z"));
        for text in ["0001.01", "2026.01", "2026.12", "9999.12"] {
            assert_eq!(Month::parse(text).map(|month| month.to_string()).as_deref(), Some(text));
        }
        for text in ["", "2026", "2026.00", "2026.13", "2026.1", "26.01", "2026.01-shrunk", "*"] {
            assert_eq!(Month::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_version_tells_where_its_document_lies_and_is_compared_within_one_place_only() {
        let first = Place::from(month("0001-01-01T00:00:00Z"));
        let last = Place::from(month("9999-12-31T00:00:00Z"));
        assert_eq!(Month::at(Place::Main), None);
        let version = |place, primary_term, seq_no| Version { place, primary_term, seq_no };
        for place in [Place::Main, first, last] {
            assert_eq!(Month::at(place).map_or(Place::Main, Place::from), place);
            let this = version(place, 7, 9);
            assert!(version(place, 7, 10).is_later_than(this) && version(place, 8, 0).is_later_than(this));
            assert!(!this.is_later_than(this));
        }
        let (live, moved) = (version(Place::Main, 1, 5), version(first, 1, 4));
        assert!(!live.is_later_than(moved) && !moved.is_later_than(live));
    }
}
