//! Checks all of a data directory that nobody has open, and changes nothing in it.
//!
//! First every file is compared with the seal, with the checksums that the database keeps of its files, and with those
//! of the log. Then every record is read, in a database of its own in the directory for temporary files: it has copies
//! of the journals and links to the tables, since the database writes where it reads.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;

use fjall::{Database, KeyspaceCreateOptions, Readable};

use super::block::{Block, Column};
use super::directory::{Directory, LOG};
use super::disk::{ENTRY, FINISHED_PREFIX, MetaKey, PRIMARY_TERM, SUM_KEYS, number};
use super::entry::Entry;
use super::equality::sum::{Part, Sum};
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

/// The sum of the hashes (XXH3, 128 bits) of all documents that a database has and of what is in their bodies, which is
/// the same at all members of a cluster that have applied the same entries, and have written them to their databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateHash {
    /// The number of the last entry of the log that the database has.
    pub entry: u64,
    /// The sum of the hashes of all documents in the database, modulo 2^128.
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
    let mut kept = Kept::default();
    // Without threads of its own the database only reads.
    let opened = Database::builder(copy.path()).worker_threads_unchecked(0).open();
    match opened {
        Err(error) => verified.damages.push(Damage::of(&database, format!("it cannot be opened: {error}"))),
        Ok(db) => {
            for (number, sealed) in seal.keyspaces.iter().filter(|(number, _)| **number != NAMES) {
                let folder = keyspace_folder(&database, *number);
                if let Err(error) = verified.read(&db, &sealed.name, &folder, (seal.flushed, &mut kept)) {
                    verified.report(&folder, format!("it cannot be read: {error}"));
                }
            }
        }
    }
    let Kept { entry: flushed, term: mut last_term, sum, .. } = kept;
    if let Some(of_log) = kept.sum_of_log().filter(|of_log| verified.damages.is_empty() && *of_log != sum) {
        let what = "its documents are not those that were written: the sum over them is";
        verified.report(&database, format!("{what} {:032x}, and that of what was written {:032x}", sum.0, of_log.0));
    }
    if verified.damages.is_empty() {
        verified.state = Some(StateHash { entry: flushed, hash: (sum + kept.contents).0 });
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

/// What a database says of itself, and the sum over its documents.
#[derive(Default)]
struct Kept {
    /// The last entry of the log that it has, and its term.
    entry: u64,
    term: u64,
    sum: Sum,
    /// The sum of the hashes of what is in bodies, which have a part in the other one by their lengths.
    contents: Sum,
    /// The sum as the log has it: the entry that it is as of, and its halves.
    of_log: [Option<u64>; 3],
}

impl Kept {
    /// Returns the sum that the documents must have by what the log has made of them, where that is kept.
    fn sum_of_log(&self) -> Option<Sum> {
        let [of, high, low] = self.of_log;
        high.zip(low).filter(|_| of == Some(self.entry)).map(Sum::of_halves)
    }
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

    /// Reads and decodes everything in a keyspace, and takes note of what the database says of itself there.
    fn read(
        &mut self,
        db: &Database,
        name: &str,
        folder: &Path,
        (sealed, kept): (u64, &mut Kept),
    ) -> Result<(), fjall::Error> {
        let keyspace = db.keyspace(name, KeyspaceCreateOptions::default)?;
        let snapshot = db.snapshot();
        let mut last_write = 0;
        for entry in snapshot.iter(&keyspace) {
            let (key, value) = entry.into_inner()?;
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
                    kept.contents += Sum::of(Part::Content, &key, &value);
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
                    ENTRY => kept.entry = number,
                    PRIMARY_TERM => kept.term = number,
                    key => {
                        if let Some(part) = SUM_KEYS.iter().position(|of| *of == key) {
                            kept.of_log[part] = Some(number);
                        }
                    }
                }),
                _ => Ok(()),
            };
            let decoded = decoded.and_then(|()| {
                kept.sum += Sum::of_stored(name, &key, &value).map_err(|error| error.0)?.unwrap_or_default();
                Ok(())
            });
            if let Err(why) = decoded {
                let shown = key.strip_prefix(FINISHED_PREFIX).unwrap_or(&key).escape_ascii();
                self.report(folder, format!("`{shown}` of `{name}`: {why}"));
            }
        }
        if name == "meta" && last_write < sealed {
            self.report(folder, format!("it ends with write {last_write}, and write {sealed} was made"));
        }
        Ok(())
    }
}
