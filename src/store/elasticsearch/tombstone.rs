//! Tombstones: documents of the live index that replace jobs that were moved or removed.
//!
//! A tombstone has no state, so that no search for jobs to run or to monitor finds it, and every other search excludes
//! it ([`FIELD`]). It is a document like any other as far as conditional writes and lost answers go, with a write id of
//! its own.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_with::{DeserializeFromStr, SerializeDisplay};

use super::archive::Month;
use super::conditional::CurrentDocument;
use super::document::WriteIds;
use super::write_id::WriteId;
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::store::{Place, Version};

/// The field that every tombstone has and no job.
pub(super) const FIELD: &str = "moved_to";
/// The field that holds the time at which the tombstone was written.
pub(super) const SINCE: &str = "moved_at";
/// The start of every tombstone's JSON and of no job's.
const START: &str = "{\"moved_to\"";
/// The destination of a removed job.
const NOWHERE: &str = "nowhere";

/// The destination of the job that a tombstone replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, SerializeDisplay, DeserializeFromStr)]
pub(super) enum Destination {
    /// The job was moved to the archive of a month.
    Month(Month),
    /// The job was removed.
    Nowhere,
}

impl Destination {
    /// Returns the place of the moved job; `None` for a removed one.
    pub(super) fn place(self) -> Option<Place> {
        match self {
            Self::Month(month) => Some(month.into()),
            Self::Nowhere => None,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Month(month) => month.fmt(f),
            Self::Nowhere => f.write_str(NOWHERE),
        }
    }
}

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            NOWHERE => Ok(Self::Nowhere),
            month => Month::parse(month).map(Self::Month).ok_or_else(|| format!("`{month}` is no month")),
        }
    }
}

/// A tombstone as it is written and read.
#[serde_with::skip_serializing_none]
#[derive(Serialize, Deserialize)]
pub(super) struct TombstoneDocument {
    /// The destination. It must be the first field, as [`START`] says.
    moved_to: Destination,
    id: JobId,
    moved_at: Timestamp,
    write_id: Option<WriteId>,
    previous_write_id: Option<WriteId>,
}

/// A tombstone as it was read.
#[derive(Clone, Debug)]
pub(super) struct Tombstone<'a> {
    pub(super) document: CurrentDocument<'a>,
    pub(super) destination: Destination,
}

impl TombstoneDocument {
    /// Makes a tombstone for the job `id`.
    pub(super) fn new(id: JobId, moved_to: Destination, moved_at: Timestamp, ids: WriteIds) -> Self {
        Self { moved_to, id, moved_at, write_id: Some(ids.own), previous_write_id: ids.previous }
    }
}

/// Returns whether a document of the live index is a tombstone.
pub(super) fn is_tombstone(source: &RawValue) -> bool {
    source.get().trim_start().starts_with(START)
}

/// Parses a tombstone that was read under `version`.
pub(super) fn decode(source: &RawValue, version: Version) -> Result<Tombstone<'_>, serde_json::Error> {
    let stored: TombstoneDocument = serde_json::from_str(source.get())?;
    let TombstoneDocument { moved_to: destination, write_id, previous_write_id, .. } = stored;
    Ok(Tombstone { document: CurrentDocument { version, source, write_id, previous_write_id }, destination })
}

#[cfg(test)]
mod tests {
    use super::super::document::{BodyForm, JobDocument};
    use super::super::write_id::WriteIdSource;
    use super::*;

    #[test]
    fn a_tombstone_reads_back_as_it_was_written_and_a_job_is_none() {
        let source = WriteIdSource::new();
        let ids = WriteIds { own: source.next(), previous: Some(source.next()) };
        let id = JobId::new("a").expect("an id");
        let version = Version { place: Place::Main, primary_term: 1, seq_no: 2 };
        let month = Destination::Month(Month::of(Timestamp::from_millis(0)));
        for destination in [month, Destination::Nowhere] {
            let document = TombstoneDocument::new(id.clone(), destination, Timestamp::from_millis(0), ids);
            let raw = serde_json::value::to_raw_value(&document).expect("JSON");
            assert!(is_tombstone(&raw));
            let read = decode(&raw, version).expect("a tombstone");
            assert_eq!((read.destination, read.document.version), (destination, version));
            let Tombstone { document, .. } = read;
            assert_eq!((document.write_id, document.previous_write_id), (Some(ids.own), ids.previous));
        }

        let job = super::super::document::tests::available(crate::job::Body::Empty);
        let document = JobDocument::new(&job, Some(ids), BodyForm::Json);
        let raw = serde_json::value::to_raw_value(&document).expect("JSON");
        assert!(!is_tombstone(&raw));
    }
}
