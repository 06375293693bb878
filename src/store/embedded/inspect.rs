//! What the database has on disk, compared with what its seal says it must have, and how a seal comes about.
//!
//! Nothing is changed by looking. What a crash leaves behind is told from damage as far as possible: see
//! [`super::journal`].

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use fjall::{AbstractTree, Keyspace};

use super::error::Damage;
use super::journal::{Journal, follows};
use super::manifest::{self, Manifest};
use super::seal::{JournalSeal, KeyspaceSeal, Seal, Stage};

/// The database's own files beside its journals and keyspaces, and what must be in them.
const MARKERS: [(&str, &[u8]); 2] = [("version", b"FJL\x03"), ("lock", b"")];

/// The keyspace in which the database keeps the names of the others.
pub(super) const NAMES: u64 = 0;

/// A database as it lies on disk.
#[derive(Debug)]
pub(super) struct Inspected {
    /// The journals, by their numbers.
    pub(super) journals: BTreeMap<u64, Journal>,
    /// The keyspaces, by their numbers.
    pub(super) keyspaces: BTreeMap<u64, Manifest>,
    /// What is damaged.
    pub(super) damages: Vec<Damage>,
}

/// Looks at the database at `database`, as far as can be done in about the time that opening it takes: the journals and
/// manifests whole, and the tables of those keyspaces for which `reads` says that opening reads them whole.
pub(super) fn inspect(database: &Path, seal: &Seal, reads: impl Fn(&str) -> bool) -> Inspected {
    let mut found = Inspected { journals: BTreeMap::new(), keyspaces: BTreeMap::new(), damages: Vec::new() };
    if !database.is_dir() {
        found.damages.push(Damage::missing(database));
        return found;
    }
    for (marker, expected) in MARKERS {
        let path = database.join(marker);
        match fs::read(&path) {
            Ok(bytes) if bytes.starts_with(expected) => {}
            Ok(_) => found.damages.push(Damage::of(&path, "it is not as it was written")),
            Err(error) => found.damages.push(Damage::unreadable(&path, &error)),
        }
    }
    found.look_at_keyspaces(database, seal, reads);
    match numbers_of_journals(database) {
        Ok(numbers) => found.look_at_journals(database, seal, &numbers),
        Err(error) => found.damages.push(Damage::unreadable(database, &error)),
    }
    found
}

/// Returns the folder of all keyspaces.
pub(super) fn keyspaces_folder(database: &Path) -> PathBuf {
    database.join("keyspaces")
}

/// Returns the folder of a keyspace.
pub(super) fn keyspace_folder(database: &Path, number: u64) -> PathBuf {
    keyspaces_folder(database).join(number.to_string())
}

/// How the names of journals end.
pub(super) const JOURNAL_END: &str = ".jnl";

/// Returns the file of a journal.
pub(super) fn journal_file(database: &Path, number: u64) -> PathBuf {
    database.join(format!("{number}{JOURNAL_END}"))
}

/// Returns the numbers of the journals that are there.
pub(super) fn numbers_of_journals(database: &Path) -> io::Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    for entry in fs::read_dir(database)? {
        let name = entry?.file_name();
        let number: Option<u64> = name.to_str().and_then(|name| name.strip_suffix(JOURNAL_END)?.parse().ok());
        found.extend(number);
    }
    Ok(found)
}

/// Returns the seal of an open database. `former` is the seal before, with how far the store has come since.
pub(super) fn seal_open(database: &Path, keyspaces: &[&Keyspace], former: &Seal) -> io::Result<Seal> {
    let mut numbers = numbers_of_journals(database)?;
    let active = numbers.pop_last();
    let mut journals = BTreeMap::new();
    for number in numbers {
        let journal = match former.journals.get(&number) {
            Some(journal) => journal.clone(),
            None => match Journal::read(&journal_file(database, number), true) {
                Ok(journal) => journal.into(),
                // All of it is in tables since a moment ago, or the next opening refuses it.
                Err(_) => continue,
            },
        };
        journals.insert(number, journal);
    }
    let names = KeyspaceSeal { manifest: manifest::number(&keyspace_folder(database, NAMES))?, ..Default::default() };
    let mut sealed = BTreeMap::from([(NAMES, names)]);
    for keyspace in keyspaces {
        // The manifest before what is in tables: more may have been written to tables when the next line is read.
        let manifest = manifest::number(keyspace.path())?;
        let is_written_out = keyspace.tree.get_highest_memtable_seqno().is_none();
        let (highest, in_tables) = (keyspace.tree.get_highest_seqno(), keyspace.tree.get_highest_persisted_seqno());
        let former = former.keyspaces.get(&keyspace.id());
        // What was once in tables may have gone from them since, as the mark of a removal does.
        let persisted = in_tables.max(former.and_then(|former| former.persisted));
        let persisted =
            if is_written_out { persisted.max(former.and_then(|former| former.highest)) } else { persisted };
        sealed.insert(keyspace.id(), KeyspaceSeal { name: keyspace.name().to_string(), manifest, persisted, highest });
    }
    Ok(Seal { stage: Stage::Open, keyspaces: sealed, journals, active, ..former.clone() })
}

/// Returns the seal of a database that nobody has open any more. `last` is the seal of the moment before.
pub(super) fn seal_closed(database: &Path, last: Seal) -> Result<Seal, Damage> {
    let numbers = numbers_of_journals(database).map_err(|error| Damage::unreadable(database, &error))?;
    let read = |number| Ok((number, Journal::read(&journal_file(database, number), false)?.into()));
    let journals = numbers.into_iter().map(read).collect::<Result<BTreeMap<u64, JournalSeal>, _>>()?;
    Ok(Seal { stage: Stage::Closed, journals, active: None, ..last })
}

impl Inspected {
    /// Reads all tables, and returns those that are damaged.
    pub(super) fn damaged_tables(&self) -> Vec<Damage> {
        self.keyspaces.values().flat_map(Manifest::damaged_tables).collect()
    }

    /// Cuts off batches that a crash has cut short, and which were never acknowledged.
    pub(super) fn cut_torn(&self, database: &Path) -> io::Result<()> {
        for (number, journal) in self.journals.iter().filter(|(_, journal)| journal.is_torn) {
            let path = journal_file(database, *number);
            tracing::info!(journal = %path.display(), length = journal.length, "a batch that was cut short is dropped");
            let file = OpenOptions::new().write(true).open(path)?;
            file.set_len(journal.length)?;
            file.sync_all()?;
        }
        Ok(())
    }

    fn look_at_keyspaces(&mut self, database: &Path, seal: &Seal, reads: impl Fn(&str) -> bool) {
        let parent = keyspaces_folder(database);
        if !parent.is_dir() {
            return self.damages.push(Damage::missing(&parent));
        }
        for (&number, sealed) in &seal.keyspaces {
            match Manifest::read(&keyspace_folder(database, number)) {
                Err(damage) => self.damages.push(damage),
                Ok(manifest) if manifest.number < sealed.manifest => {
                    let what = format!("it is older than the one of the last checkpoint, v{}", sealed.manifest);
                    self.damages.push(Damage::of(&manifest.own[0], what));
                }
                Ok(manifest) => {
                    if number == NAMES || reads(&sealed.name) {
                        self.damages.extend(manifest.damaged_tables());
                    }
                    self.keyspaces.insert(number, manifest);
                }
            }
        }
    }

    fn look_at_journals(&mut self, database: &Path, seal: &Seal, numbers: &BTreeSet<u64>) {
        self.look_for_missing(database, seal, numbers);
        let mut later: Option<(u64, u64)> = None;
        for &number in numbers.iter().rev() {
            let path = journal_file(database, number);
            let journal = match Journal::read(&path, later.is_none()) {
                Ok(journal) => journal,
                Err(damage) => {
                    self.damages.push(damage);
                    continue;
                }
            };
            let sealed = seal.journals.get(&number);
            let is_as_sealed = sealed.is_none_or(|sealed| {
                (sealed.length, sealed.checksum) == (journal.length, journal.checksum) && !journal.is_torn
            });
            if !is_as_sealed {
                self.damages.push(Damage::of(&path, "it is not as it was when it was written last"));
            }
            if let Some((first, last)) = journal.batches {
                if later.is_some_and(|(later, _)| !follows(later, last)) {
                    self.damages.push(Damage::of(&path, "its batches do not come before those of the next journal"));
                }
                later = Some((first, last));
            }
            self.journals.insert(number, journal);
        }
        // A later write than the last one here would be in the same journal or in a later one, and no journal goes
        // before an earlier one does.
        let last = self.journals.iter().rev().find_map(|(number, journal)| Some((*number, journal.seq_no?)));
        if let Some((number, last)) = last.filter(|(_, last)| *last < seal.flushed && self.damages.is_empty()) {
            let what = format!("it ends with write {last}, and write {} was made", seal.flushed);
            self.damages.push(Damage::of(&journal_file(database, number), what));
        }
    }

    /// Finds journals that should be there and are not: one between two others, the one that was being written, and
    /// one whose items may not all be in tables.
    fn look_for_missing(&mut self, database: &Path, seal: &Seal, numbers: &BTreeSet<u64>) {
        let is_written_out = |keyspaces: &BTreeMap<u64, u64>| {
            keyspaces.iter().all(|(keyspace, last)| {
                let Some(sealed) = seal.keyspaces.get(keyspace) else { return true };
                let manifest = self.keyspaces.get(keyspace).map(|manifest| manifest.number);
                // Since then, it was if tables were written.
                sealed.persisted >= Some(*last) || manifest > Some(sealed.manifest)
            })
        };
        let mut needed: BTreeSet<u64> = match (numbers.first(), numbers.last()) {
            (Some(first), Some(last)) => (*first..=*last).collect(),
            _ => BTreeSet::new(),
        };
        for (number, journal) in &seal.journals {
            if seal.stage == Stage::Closed || !is_written_out(&journal.keyspaces) {
                needed.insert(*number);
            }
        }
        if let Some(active) = seal.active {
            let written = seal.keyspaces.iter().filter_map(|(number, keyspace)| Some((*number, keyspace.highest?)));
            if numbers.range(active..).next().is_none() || !is_written_out(&written.collect()) {
                needed.insert(active);
            }
        }
        let missing = needed.difference(numbers).map(|number| Damage::missing(&journal_file(database, *number)));
        self.damages.extend(missing);
    }
}
