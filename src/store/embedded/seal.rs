//! The seal: what the database in a data directory must have, kept beside it, and what its member of the group has
//! voted.
//!
//! The database cannot tell that a part of it is gone: without a journal, a table or a whole keyspace it opens with
//! less. So a file of ours says how far the store has come and which files that is in. It is written anew at every
//! checkpoint ([`super::checkpoint`]), and exactly when the store is closed; [`super::inspect`] compares the database
//! with it before the database may touch its own files. The first line is the format and a checksum of the second one.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::error::Damage;
use super::journal::Journal;
use crate::store::Identity;

pub(super) const SEAL_FILE: &str = "leasehold.seal";
const HEADING: &str = "leasehold seal 2";
/// The heading of the seal of one of several members, which a version that knows of none does not read: it would go on
/// with the directory by itself.
const GROUP_HEADING: &str = "leasehold seal 3";
/// The heading of the seal of a database behind which the log of the member goes on. A version that does not know it
/// would begin another log, and forget what the member has acknowledged.
const REBUILT_HEADING: &str = "leasehold rebuilt 1";

/// What a data directory must have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Seal {
    pub(super) stage: Stage,
    /// The number of a write that is certainly durable.
    pub(super) seq_no: u64,
    /// The number of a write that is certainly in the database.
    pub(super) flushed: u64,
    pub(super) log: LogSeal,
    pub(super) vote: Vote,
    /// The group of several members that it is of; `None` for a store of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<SealedGroup>,
    /// The keyspaces that must be there, by the names of their folders.
    pub(super) keyspaces: BTreeMap<u64, KeyspaceSeal>,
    /// The journals that are written no more, by their numbers. One may be gone once all its items are in tables.
    pub(super) journals: BTreeMap<u64, JournalSeal>,
    /// The number of the journal that was being written.
    pub(super) active: Option<u64>,
}

/// The term that this member of its group knows of, and the member for which it has voted in it; 0 for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vote {
    pub(super) term: u64,
    pub(super) member: u64,
}

/// The name of a group of several members, and what one of them keeps of it beside what they have agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SealedGroup {
    pub(super) cluster: String,
    pub(super) member: u64,
    /// The number of the data directory, which no other one has; 0 before directories had numbers.
    #[serde(default)]
    pub(super) directory: u64,
    /// Whether the others know the directory.
    #[serde(default)]
    pub(super) is_admitted: bool,
    /// The members that the group was founded with; none in the directory of one that joined later.
    #[serde(default)]
    pub(super) founders: Vec<u64>,
    /// The directories of the others, as this member knows them.
    #[serde(default)]
    pub(super) known: BTreeMap<u64, u64>,
    /// The identity of the group, once that is agreed on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) identity: Option<Identity>,
    /// Whether the group is founded only once all founders have said that their directories are new. From then on this
    /// member takes part in elections.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) awaits_founders: bool,
}

/// How far the log has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LogSeal {
    /// The number of an entry that is certainly durable, or of the one before the first.
    pub(super) last: u64,
    /// The number of the first entry of the segment that was being written.
    pub(super) segment: u64,
    /// Whether the log was closed with that entry.
    pub(super) is_closed: bool,
}

/// Where the database is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Stage {
    /// It is being created, and nothing was acknowledged yet.
    Creating,
    /// It is in use, or its process has ended without closing it: there may be more than the seal says.
    Open,
    /// It was closed: it is exactly as the seal says.
    Closed,
}

/// A keyspace at a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeyspaceSeal {
    pub(super) name: String,
    /// The number of its manifest.
    pub(super) manifest: u64,
    /// The number of the last batch that is in its tables.
    pub(super) persisted: Option<u64>,
    /// The number of the last batch with something for it.
    pub(super) highest: Option<u64>,
}

/// A journal that is written no more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct JournalSeal {
    /// The length of its batches in bytes.
    pub(super) length: u64,
    /// The XXH3 checksum of these bytes.
    pub(super) checksum: u128,
    /// For each keyspace that it has items of, the number of the last batch with some.
    pub(super) keyspaces: BTreeMap<u64, u64>,
}

impl From<Journal> for JournalSeal {
    fn from(journal: Journal) -> Self {
        Self { length: journal.length, checksum: journal.checksum, keyspaces: journal.keyspaces }
    }
}

impl Seal {
    /// Creates the seal of a database that is being created.
    pub(super) fn creating() -> Self {
        let (keyspaces, journals) = (BTreeMap::new(), BTreeMap::new());
        let (log, vote) = (LogSeal::default(), Vote::default());
        let (group, active) = (None, None);
        Self { stage: Stage::Creating, seq_no: 0, flushed: 0, log, vote, group, keyspaces, journals, active }
    }

    /// Returns the seal of the same database once it is in use.
    pub(super) fn opened(mut self) -> Self {
        // The journal that was written last is written again.
        if self.stage == Stage::Closed {
            self.active = self.journals.pop_last().map(|(number, _)| number);
        }
        Self { stage: Stage::Open, ..self }
    }

    /// Returns the damage of the seal in a directory that has entries of this term, where it does not know of the term.
    pub(super) fn lacks(&self, term: u64, directory: &Path) -> Option<Damage> {
        let what = || format!("its vote is of term {}, and there are entries of term {term}", self.vote.term);
        (self.vote.term < term).then(|| Damage::of(&Self::path(directory), what()))
    }

    /// Reads the seal of a data directory.
    ///
    /// # Errors
    /// A damage when there is none, or it is not as it was written.
    pub(super) fn read(directory: &Path) -> Result<Self, Damage> {
        Self::read_file(&Self::path(directory))
    }

    /// Reads a seal from a file.
    ///
    /// # Errors
    /// A damage when there is none, or it is not as it was written.
    pub(super) fn read_file(path: &Path) -> Result<Self, Damage> {
        let bytes = fs::read(path).map_err(|error| Damage::unreadable(path, &error))?;
        Self::decode(&bytes).ok_or_else(|| Damage::of(path, "it is not as it was written"))
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let content = content_of(bytes, GROUP_HEADING);
        let is_of_group = content.is_some();
        let seal: Self = serde_json::from_str(content.or_else(|| content_of(bytes, HEADING))?).ok()?;
        (seal.group.is_some() == is_of_group).then_some(seal)
    }

    /// Returns the file that it is written to.
    pub(super) fn path(directory: &Path) -> PathBuf {
        directory.join(SEAL_FILE)
    }

    /// Returns the bytes of the file.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        checked_json(if self.group.is_some() { GROUP_HEADING } else { HEADING }, self)
    }
}

/// The seal of a database that was received from another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Received {
    pub(super) seal: Seal,
    /// Whether the log of this member goes on behind that database. Otherwise it has nothing of what follows.
    pub(super) keeps_log: bool,
}

impl Received {
    /// Reads the seal from a file.
    ///
    /// # Errors
    /// A damage when there is none, or it is not as it was written.
    pub(super) fn read_file(path: &Path) -> Result<Self, Damage> {
        let bytes = fs::read(path).map_err(|error| Damage::unreadable(path, &error))?;
        let keeps_log = content_of(&bytes, REBUILT_HEADING);
        let seal = match keeps_log {
            Some(content) => serde_json::from_str(content).ok(),
            None => Seal::decode(&bytes),
        };
        let seal = seal.ok_or_else(|| Damage::of(path, "it is not as it was written"))?;
        Ok(Self { seal, keeps_log: keeps_log.is_some() })
    }

    /// Returns the bytes of the file.
    pub(super) fn encode(&self) -> io::Result<Vec<u8>> {
        match self.keeps_log {
            true => checked_json(REBUILT_HEADING, &self.seal),
            false => self.seal.encode(),
        }
    }
}

/// Returns the bytes of a file whose first line is a heading and the checksum of what follows, a value as JSON.
pub(super) fn checked_json(heading: &str, value: &impl Serialize) -> io::Result<Vec<u8>> {
    let content = serde_json::to_string(value)? + "\n";
    Ok(format!("{heading} {:016x}\n{content}", xxh3_64(content.as_bytes())).into_bytes())
}

/// Returns what such a file has behind its first line; `None` where that has another heading, or the checksum differs.
fn content_of<'b>(bytes: &'b [u8], heading: &str) -> Option<&'b str> {
    let (first, content) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
    let checksum = first.strip_prefix(heading)?.trim_start();
    (format!("{:016x}", xxh3_64(content.as_bytes())) == checksum).then_some(content)
}

/// Reads such a file; the default where there is none.
///
/// # Errors
/// A damage when it is not as it was written.
pub(super) fn read_checked_json<T: DeserializeOwned + Default>(path: &Path, heading: &str) -> Result<T, Damage> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(T::default()),
        read => read.map_err(|error| Damage::unreadable(path, &error))?,
    };
    let value = content_of(&bytes, heading).and_then(|content| serde_json::from_str(content).ok());
    value.ok_or_else(|| Damage::of(path, "it is not as it was written"))
}
