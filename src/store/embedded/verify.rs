//! Checks all of a data directory that nobody has open, and changes nothing in it.
//!
//! First every file is compared with the seal, with the checksums that the database keeps of its files, and with those
//! of the log. Then every record is read, in a database of its own in the directory for temporary files: it has copies
//! of the journals and links to the tables, since the database writes where it reads.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions, Readable};
use xxhash_rust::xxh3::Xxh3;

use super::block::{Block, Column};
use super::directory::{Directory, LOG};
use super::disk::{ENTRY, FINISHED_PREFIX, MetaKey, PRIMARY_TERM, number};
use super::entry::Entry;
use super::error::{Damage, OpenError};
use super::inspect::{Inspected, NAMES, inspect, journal_file, keyspace_folder};
use super::journal::SEQ_NO;
use super::log::{self, Expected};
use super::schedules::Index;
use super::seal::{LogSeal, Seal, Stage};
use super::{records, schedules, stored};
use crate::job::Json;
use crate::store::Membership;

/// The most damages that are listed.
const MAX_DAMAGES: usize = 1_000;

/// The keyspaces with documents, in the order in which [`StateHash`] takes them. The others follow from these, or lie
/// differently where they were written at other times.
const DOCUMENTS: [&str; 5] = ["live", "done", "bodies", "records", "schedules"];

/// What was found in a data directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// The number of jobs, live and finished.
    pub jobs: u64,
    /// The number of payloads and results that are kept apart.
    pub bodies: u64,
    /// The number of records.
    pub records: u64,
    /// The number of schedules.
    pub schedules: u64,
    /// The number of entries of the log, of changes that are not in these numbers yet.
    pub entries: u64,
    /// Whether the records were read; they are not where a file is damaged.
    pub is_read: bool,
    /// What identifies all of these documents; `None` when not all of them were read.
    pub state: Option<StateHash>,
    /// What is damaged, at most 1,000 of it.
    pub damages: Vec<Damage>,
}

/// The hash (XXH3, 128 bits) of all keys and values of documents that a database has, which is the same at all members
/// of a cluster that have applied the same entries, and have written them to their databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHash {
    /// The number of the last entry of the log that the database has.
    pub entry: u64,
    /// The hash.
    pub hash: u128,
}

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.hash)
    }
}

/// Checks a data directory.
///
/// # Errors
/// [`OpenError`] when the directory is in use, is none of this version, or there is no room for the copies.
pub fn verify(path: impl AsRef<Path>) -> Result<Verified, OpenError> {
    let path = path.as_ref();
    let failed = |doing| move |source| OpenError::Io { doing, directory: path.to_owned(), source };
    let (_lock, database) = Directory::look_at(path)?;
    let seal = match Seal::read(path) {
        Ok(seal) => seal,
        Err(damage) => return Ok(Verified { damages: vec![damage], ..Verified::default() }),
    };
    let mut found = inspect(&database, &seal, |_| true);
    let log = path.join(LOG);
    found.damages.extend(log::look_at(&log, seal.log));
    if seal.stage == Stage::Creating {
        found.damages.extend(log::look_at_new(&log));
    }
    if !found.damages.is_empty() {
        return Ok(Verified { damages: found.damages, ..Verified::default() });
    }
    let copy = tempfile::tempdir().map_err(failed("make a copy of"))?;
    lay_out(&found, &database, copy.path()).map_err(failed("make a copy of"))?;
    let mut verified = Verified { is_read: true, ..Verified::default() };
    let (mut flushed, mut last_term, mut hashes) = (0, 0, BTreeMap::new());
    // Without threads of its own the database only reads.
    let opened = Database::builder(copy.path()).worker_threads_unchecked(0).open();
    match opened {
        Err(error) => verified.damages.push(Damage::of(&database, format!("it cannot be opened: {error}"))),
        Ok(db) => {
            for (number, sealed) in seal.keyspaces.iter().filter(|(number, _)| **number != NAMES) {
                let folder = keyspace_folder(&database, *number);
                match verified.read(&db, &sealed.name, &folder, seal.flushed) {
                    Ok((entry, term, hash)) => {
                        (flushed, last_term) = (flushed.max(entry), last_term.max(term));
                        hashes.insert(sealed.name.as_str(), hash);
                    }
                    Err(error) => verified.report(&folder, format!("it cannot be read: {error}")),
                }
            }
        }
    }
    if verified.damages.is_empty() {
        verified.state = Some(StateHash { entry: flushed, hash: of_all(&hashes) });
        let sealed = LogSeal { last: seal.log.last.max(flushed), ..seal.log };
        let expected = Expected { first: flushed + 1, sealed };
        let read = log::read(&log, &expected, |_, bytes| {
            last_term = Entry::decode(bytes)?.term;
            verified.entries += 1;
            Ok(())
        });
        verified.damages.extend(read.err().unwrap_or_default());
        verified.damages.extend(seal.lacks(last_term, path));
    }
    Ok(verified)
}

/// Returns the hash of the documents, given those of their keyspaces.
fn of_all(hashes: &BTreeMap<&str, u128>) -> u128 {
    let mut all = Xxh3::new();
    for name in DOCUMENTS {
        // An older directory lacks a keyspace that has nothing in it yet.
        let hash = hashes.get(name).copied().unwrap_or_else(|| Xxh3::new().digest128());
        all.update(&hash.to_be_bytes());
    }
    all.digest128()
}

/// Lays out a database with the same content at `copy`.
fn lay_out(found: &Inspected, database: &Path, copy: &Path) -> io::Result<()> {
    for marker in ["version", "lock"] {
        fs::copy(database.join(marker), copy.join(marker))?;
    }
    for (number, journal) in &found.journals {
        let to = journal_file(copy, *number);
        let mut whole = io::Read::take(fs::File::open(journal_file(database, *number))?, journal.length);
        io::copy(&mut whole, &mut fs::File::create(to)?)?;
    }
    for (number, manifest) in &found.keyspaces {
        let (from, to) = (keyspace_folder(database, *number), keyspace_folder(copy, *number));
        fs::create_dir_all(to.join("tables"))?;
        for file in &manifest.own {
            fs::copy(file, to.join(file.strip_prefix(&from).unwrap_or(file)))?;
        }
        for (table, _) in &manifest.tables {
            let link = to.join(table.strip_prefix(&from).unwrap_or(table));
            link.parent().map_or(Ok(()), fs::create_dir_all)?;
            symlink(std::path::absolute(table)?, link)?;
        }
    }
    Ok(())
}

impl Verified {
    fn report(&mut self, path: &Path, what: String) {
        if self.damages.len() < MAX_DAMAGES {
            self.damages.push(Damage::of(path, what));
        }
    }

    /// Reads and decodes everything in a keyspace. Returns the last entry of the log that the database has, and its
    /// term, if they are said there, and the hash of all keys and values.
    fn read(
        &mut self,
        db: &Database,
        name: &str,
        folder: &Path,
        sealed: u64,
    ) -> Result<(u64, u64, u128), fjall::Error> {
        let keyspace = db.keyspace(name, KeyspaceCreateOptions::default)?;
        let snapshot = db.snapshot();
        let (mut last_write, mut last_entry, mut last_term) = (0, 0, 0);
        let mut hash = Xxh3::new();
        for entry in snapshot.iter(&keyspace) {
            let (key, value) = entry.into_inner()?;
            for part in [&key, &value] {
                // With their lengths, so that no bytes of one can pass for those of the next.
                hash.update(&(part.len() as u64).to_be_bytes());
                hash.update(part);
            }
            let decoded = match name {
                "live" | "done" => {
                    self.jobs += 1;
                    stored::id_of(&key).and_then(|id| stored::decode(&id, &value)).map(drop).map_err(|error| error.0)
                }
                "recent" => stored::id_of(&value).map(drop).map_err(|error| error.0),
                "records" => {
                    self.records += 1;
                    let decoded = records::key_of(&key).and_then(|key| records::decode(&key, &value));
                    decoded.map(drop).map_err(|error| error.0)
                }
                "schedules" => {
                    self.schedules += 1;
                    let decoded = Index::Id.id_of(&key).and_then(|id| schedules::decode(&id, &value));
                    decoded.map(drop).map_err(|error| error.0)
                }
                "schedules_due" => Index::Due.id_of(&key).map(drop).map_err(|error| error.0),
                "schedules_owners" => Index::Owner.id_of(&key).map(drop).map_err(|error| error.0),
                "bodies" => {
                    self.bodies += 1;
                    let text = std::str::from_utf8(&value).map_err(|error| error.to_string());
                    text.and_then(|text| Json::parse(text.to_owned()).map(drop).map_err(|error| error.to_string()))
                }
                "blocks" if key.first() == Some(&(Column::Head as u8)) => {
                    Block::decode(0, &value).map(drop).map_err(|error| error.0)
                }
                "meta" if *key == *MetaKey::Members.bytes() => {
                    serde_json::from_slice::<Membership>(&value).map(drop).map_err(|error| error.to_string())
                }
                "meta" => number(&value).map(|number| match &*key {
                    SEQ_NO => last_write = number,
                    ENTRY => last_entry = number,
                    PRIMARY_TERM => last_term = number,
                    _ => {}
                }),
                _ => Ok(()),
            };
            if let Err(why) = decoded {
                let shown = key.strip_prefix(FINISHED_PREFIX).unwrap_or(&key).escape_ascii();
                self.report(folder, format!("`{shown}` of `{name}`: {why}"));
            }
        }
        if name == "meta" && last_write < sealed {
            self.report(folder, format!("it ends with write {last_write}, and write {sealed} was made"));
        }
        Ok((last_entry, last_term, hash.digest128()))
    }
}
