//! Records: small documents beside the jobs, such as the monitor's lease or a queue's settings.
//!
//! A record is compared and swapped as a job is. The meaning of its body is known only to its writer; the store keeps
//! the body and never interprets it. A record has no history and no bodies apart, and there are few of them: all of one
//! kind are listed at once.

mod cached;

use std::fmt;

use serde::de::DeserializeOwned;

pub use cached::{CachedRecords, RecordError, body, change_record};

use super::{StoreError, Version};
use crate::job::{Json, RecordName, words};

/// The most records of one kind that [`super::Store::records`] lists; with more, it fails.
pub const MAX_RECORDS: usize = 10_000;

words! {
    /// The kind of a record, which says what the record is for.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum RecordKind: "a kind of record", "kinds" {
        /// The lease of a process that does work which only one process may do at a time.
        Lease = "lease",
        /// The settings of a queue.
        Queue = "queue",
        /// A subscription to events of jobs.
        Subscription = "subscription",
        /// A setting of the whole installation.
        Setting = "setting",
        /// A manager that is running.
        Manager = "manager",
        /// How far the backfill of a schedule has come.
        Backfill = "backfill",
        /// A limit of how many jobs run at once.
        Limit = "limit",
        /// The jobs that run under a limit.
        Slots = "slots",
        /// The job that holds a unique key.
        Unique = "unique",
        /// The line of an ordering key: which place in it is the next.
        Line = "line",
    }
}

/// The key of a record. Keys are ordered by kind, then by name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordKey {
    /// The record's kind.
    pub kind: RecordKind,
    /// The record's name, unique among those of its kind.
    pub name: RecordName,
}

impl RecordKey {
    /// Makes the key of the record of `kind` called `name`.
    #[must_use]
    pub fn new(kind: RecordKind, name: RecordName) -> Self {
        Self { kind, name }
    }
}

/// Writes `kind/name`, which is unique, since no kind has a `/`.
impl fmt::Display for RecordKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.name)
    }
}

/// A record as it is stored, with the version to write it back under.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The record's key.
    pub key: RecordKey,
    /// The record's content.
    pub body: Json,
    /// The version that was last read or written.
    pub version: Version,
}

impl Record {
    /// Parses the body as a `T`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the body is not a `T`.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, StoreError> {
        serde_json::from_str(self.body.as_str())
            .map_err(|error| StoreError::Corrupt(format!("the record `{}`: {error}", self.key)))
    }

    /// Returns the write of `body` over this version.
    #[must_use]
    pub fn replaced_by(&self, body: Json) -> RecordWrite {
        RecordWrite::Replace { key: self.key.clone(), body, expected: self.version }
    }

    /// Returns the removal of this version.
    #[must_use]
    pub fn removal(&self) -> RecordWrite {
        RecordWrite::Remove { key: self.key.clone(), expected: self.version }
    }
}

/// One conditional write of a record.
#[derive(Clone, Debug)]
pub enum RecordWrite {
    /// Writes a record that must not exist yet.
    Create {
        /// The record's key.
        key: RecordKey,
        /// The record's new content.
        body: Json,
    },
    /// Writes a record over the version `expected` and no other.
    Replace {
        /// The record's key.
        key: RecordKey,
        /// The record's new content.
        body: Json,
        /// The version under which the record was read.
        expected: Version,
    },
    /// Removes the version `expected` of a record and no other.
    Remove {
        /// The record's key.
        key: RecordKey,
        /// The version under which the record was read.
        expected: Version,
    },
}

impl RecordWrite {
    /// Returns the write of `body` over the version `expected` of the record, or of a new record when that is `None`.
    #[must_use]
    pub fn put(key: RecordKey, body: Json, expected: Option<Version>) -> Self {
        match expected {
            Some(expected) => Self::Replace { key, body, expected },
            None => Self::Create { key, body },
        }
    }

    /// Returns the key of the record.
    #[must_use]
    pub fn key(&self) -> &RecordKey {
        match self {
            Self::Create { key, .. } | Self::Replace { key, .. } | Self::Remove { key, .. } => key,
        }
    }

    /// Returns the record's new content; `None` for a removal.
    #[must_use]
    pub fn body(&self) -> Option<&Json> {
        match self {
            Self::Create { body, .. } | Self::Replace { body, .. } => Some(body),
            Self::Remove { .. } => None,
        }
    }
}

/// Returns the error for more than [`MAX_RECORDS`] records of one kind.
pub(super) fn too_many(kind: RecordKind) -> StoreError {
    StoreError::Corrupt(format!("there are more than {MAX_RECORDS} records of the kind `{kind}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(body: &str) -> Record {
        let name = RecordName::new("leader").expect("a name");
        Record {
            key: RecordKey::new(RecordKind::Lease, name),
            body: Json::parse(body.to_owned()).expect("JSON"),
            version: Version { place: crate::store::Place::Main, primary_term: 1, seq_no: 2 },
        }
    }

    #[test]
    fn a_kind_is_read_as_it_is_written_and_no_other_word_is_one() {
        for kind in RecordKind::ALL {
            assert_eq!(kind.as_str().parse(), Ok(kind));
        }
        let refusal = "job".parse::<RecordKind>().expect_err("no such kind");
        assert_eq!(
            refusal,
            "`job` is not a kind of record; the kinds are lease, queue, subscription, setting, manager, backfill, \
             limit, slots, unique, line"
        );
    }

    #[test]
    fn a_body_that_is_something_else_names_its_record() {
        assert_eq!(record("[1, 2]").read::<Vec<u8>>().expect("numbers"), [1, 2]);
        let refusal = record("\"one\"").read::<Vec<u8>>().expect_err("no list");
        assert!(matches!(&refusal, StoreError::Corrupt(what) if what.contains("lease/leader")), "{refusal}");
    }
}
