//! The history: where settled jobs are kept, in an index for each month of their end.
//!
//! A version says in which index its document lies ([`Place`]), since each index numbers its writes on its own.
//! **The live index decides.** Whatever lies in the history, every accepted change of a job is one conditional write of
//! its document in the live index; the history only ever gets copies and loses them. What stands under an id in the
//! live index says where the job is:
//!
//! | live index | the job |
//! | --- | --- |
//! | a job | is that one; a copy in the history is not yet, or no longer, it |
//! | a tombstone to a month | is the copy in that month |
//! | a tombstone to nowhere | was removed; a copy that is left goes |
//! | nothing | is the copy in the history, if there is one |
//!
//! A tombstone stands for longer than any write can be under way. So whoever has found an id absent from the live index
//! and then creates it there meets a tombstone when the job was moved or removed meanwhile.

use std::fmt;

use chrono::{DateTime, Datelike, Utc};

use super::Indices;
use crate::clock::Timestamp;
use crate::store::{StoreError, Version};

/// A month of the calendar, in UTC. In the order of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Month(u32);

impl Month {
    /// The month that `time` is in.
    pub(super) fn of(time: Timestamp) -> Self {
        let date = DateTime::<Utc>::from_timestamp_millis(time.as_millis()).unwrap_or_default();
        Self::new(u32::try_from(date.year()).unwrap_or(1), date.month())
    }

    const fn new(year: u32, month: u32) -> Self {
        Self(year * 12 + month - 1)
    }

    /// Reads what [`Month`] displays.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (year, month) = text.split_once('.')?;
        let (year, month): (u32, u32) = (year.parse().ok()?, month.parse().ok()?);
        let read = Self::new(year, month.checked_sub(1)? + 1);
        (read.to_string() == text).then_some(read)
    }
}

/// As in an index's name: `2026.11`.
impl fmt::Display for Month {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}.{:02}", self.0 / 12, self.0 % 12 + 1)
    }
}

/// Where a document lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Place {
    /// In the live index: 0 in a version.
    Live,
    /// In the history of a month: in a version, how many months it is from the year 0.
    History(Month),
}

impl Place {
    /// Where the document with this version lies.
    pub(super) fn of(version: Version) -> Self {
        match u32::try_from(version.place()) {
            Ok(0) => Self::Live,
            Ok(months) => Self::History(Month(months)),
            Err(_) => Self::History(Month(u32::MAX)),
        }
    }

    /// The version of a document here.
    pub(super) fn version(self, primary_term: u64, seq_no: u64) -> Version {
        let place = match self {
            Self::Live => 0,
            Self::History(Month(months)) => u64::from(months),
        };
        Version { primary_term: place << Version::TERM_BITS | primary_term, seq_no }
    }
}

/// The term as the server has it.
pub(super) const fn term(version: Version) -> u64 {
    version.primary_term & ((1 << Version::TERM_BITS) - 1)
}

impl Indices {
    /// The index of a month.
    pub(super) fn of_month(&self, month: Month) -> String {
        format!("{}-{month}", self.history)
    }

    /// All months' indices, as a pattern.
    pub(super) fn months(&self) -> String {
        format!("{}-*", self.history)
    }

    /// Live jobs and history together.
    pub(super) fn whole(&self) -> String {
        format!("{},{}", self.jobs, self.months())
    }

    /// The index of a place.
    pub(super) fn of_place(&self, place: Place) -> String {
        match place {
            Place::Live => self.jobs.clone(),
            Place::History(month) => self.of_month(month),
        }
    }

    /// The month whose index this is.
    pub(super) fn month_of(&self, index: &str) -> Option<Month> {
        index.strip_prefix(&self.history)?.strip_prefix('-').and_then(Month::parse)
    }

    /// The place that an index is.
    pub(super) fn place_of(&self, index: &str) -> Result<Place, StoreError> {
        if index == self.jobs {
            return Ok(Place::Live);
        }
        let unknown = || StoreError::Corrupt(format!("`{index}` is named as the history is and has no month"));
        self.month_of(index).map(Place::History).ok_or_else(unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let first = Place::History(month("0001-01-01T00:00:00Z"));
        let last = Place::History(month("9999-12-31T00:00:00Z"));
        for place in [Place::Live, first, last] {
            let version = place.version(7, 9);
            assert_eq!((Place::of(version), term(version), version.seq_no), (place, 7, 9));
            assert!(place.version(7, 10).is_later_than(version) && place.version(8, 0).is_later_than(version));
            assert!(!version.is_later_than(version));
        }
        let (live, moved) = (Place::Live.version(1, 5), first.version(1, 4));
        assert!(!live.is_later_than(moved) && !moved.is_later_than(live));
    }
}
