//! How the database is opened and closed, and its seal kept.
//!
//! Opening first compares what is on disk with the seal, and refuses what is damaged: the database itself cuts journals
//! and deletes tables that it does not understand. Only then is the database let at its files.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use fjall::{Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, PersistMode};
use parking_lot::Mutex;

use super::block::{Block, Blocks, Column};
use super::directory::Directory;
use super::disk::{Disk, EmbeddedOptions, FINISHED_PREFIX, MetaKey, failed, number};
use super::error::{Corrupt, Damage, OpenError, is_full};
use super::inspect::{Inspected, inspect, seal_closed, seal_open};
use super::live::Live;
use super::seal::Stage;
use super::state::{Finished, Published, Recent};
use super::stored;
use crate::job::QueueName;
use crate::store::{Place, StoreError, Version};

/// Journals beyond this make the database write out what still needs the oldest one. It bounds how long it takes to
/// open the store after a crash.
const JOURNAL_BYTES: u64 = 128 << 20;

/// The most bytes that a keyspace gathers in memory before it writes them out. This bounds memory, with up to five of
/// these for each keyspace while writing out falls behind.
const MEMTABLE_BYTES: u64 = 32 << 20;

/// The same bound for the keyspaces with few writes.
const SMALL_MEMTABLE_BYTES: u64 = 8 << 20;

/// Bodies from this size on are not moved when their keyspace is compacted.
const SEPARATE_BODY_BYTES: u32 = 4 << 10;

/// The keyspaces that opening reads whole, so that their tables can be checked first at little cost.
const READ_AT_OPENING: [&str; 3] = ["live", "recent", "meta"];

impl Disk {
    /// Opens the store in a directory, and begins its next term.
    pub(super) fn open(directory: Directory, options: &EmbeddedOptions) -> Result<(Self, Published), OpenError> {
        let root = directory.path().to_owned();
        let root = root.as_path();
        let broken = |source| OpenError::Database { directory: root.to_owned(), source };
        let failed = |doing| move |source| OpenError::Io { doing, directory: root.to_owned(), source };
        directory.try_room().map_err(|source| match is_full(&source) {
            true => OpenError::Full { directory: root.to_owned(), source },
            false => failed("write to")(source),
        })?;
        let damaged = |damages| OpenError::Damaged { directory: root.to_owned(), damages };
        let (path, seal) = directory.database(|path| {
            let db = open_database(path, options)?;
            open_keyspaces(&db)?;
            db.persist(PersistMode::SyncAll)
        })?;
        // Before the database may: it cuts and deletes what it does not understand.
        let found = (seal.stage != Stage::Creating)
            .then(|| inspect(&path, &seal, |keyspace| READ_AT_OPENING.contains(&keyspace)));
        if let Some(found) = &found {
            if !found.damages.is_empty() {
                return Err(damaged(found.damages.clone()));
            }
            found.cut_torn(&path).map_err(failed("repair"))?;
        }
        // The database does not say which file it cannot read.
        let unreadable = |source| match found.as_ref().map(Inspected::damaged_tables) {
            Some(damages) if !damages.is_empty() => damaged(damages),
            _ => broken(source),
        };
        let opened = seal.clone().opened();
        directory.write_seal(&opened).map_err(failed("write the seal of"))?;
        let db = match open_database(&path, options) {
            Ok(db) => db,
            Err(source) => {
                // It changes nothing before it has opened all its tables.
                directory.write_seal(&seal).map_err(failed("write the seal of"))?;
                return Err(unreadable(source));
            }
        };
        let [live, done, recent, blocks, bodies, records, meta] = open_keyspaces(&db).map_err(broken)?;
        let (jobs_read, seal) = (AtomicU64::new(0), Mutex::new(opened));
        let disk = Self { live, done, recent, blocks, bodies, records, meta, jobs_read, db, path, seal, directory };
        let published = disk.recover().map_err(|failure| match failure {
            RecoverError::Database(source) => unreadable(source),
            RecoverError::Corrupt(Corrupt(what)) => OpenError::Corrupt { directory: root.to_owned(), what },
            RecoverError::Damaged(damage) => damaged(vec![damage]),
        })?;
        disk.checkpoint(published.last.seq_no).map_err(failed("write the seal of"))?;
        Ok((disk, published))
    }

    /// Writes the seal anew, unless it is as it was. `seq_no` is the number of a durable write.
    pub(super) fn checkpoint(&self, seq_no: u64) -> io::Result<()> {
        let mut seal = self.seal.lock();
        let next = seal_open(&self.path, &self.keyspaces(), &seal, seq_no)?;
        if next != *seal {
            self.directory.write_seal(&next)?;
            *seal = next;
        }
        Ok(())
    }

    /// Closes the database, and seals it as it is then. `seq_no` is the number of the last write.
    ///
    /// # Errors
    /// An error when not everything could be written, or what was written cannot be read. Then the seal says no more
    /// than at the last checkpoint.
    pub(super) fn close(self, seq_no: u64) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)?;
        let sealing = |error: io::Error| StoreError::Unavailable(format!("the seal: {error}"));
        self.checkpoint(seq_no).map_err(sealing)?;
        let Self { live, done, recent, blocks, bodies, records, meta, db, path, seal, directory, .. } = self;
        drop(([live, done, recent, blocks, bodies, records, meta], db));
        let seal = seal_closed(&path, seal.into_inner()).map_err(|damage| StoreError::Corrupt(damage.to_string()))?;
        directory.write_seal(&seal).map_err(sealing)
    }

    fn keyspaces(&self) -> [&Keyspace; 7] {
        [&self.live, &self.done, &self.recent, &self.blocks, &self.bodies, &self.records, &self.meta]
    }

    fn recover(&self) -> Result<Published, RecoverError> {
        let primary_term = self.number(&MetaKey::PrimaryTerm)?.unwrap_or(0) + 1;
        let seq_no = self.number(&MetaKey::SeqNo)?.unwrap_or(0);
        let sealed = self.seal.lock().seq_no;
        if seq_no < sealed {
            let what = format!("it ends with write {seq_no}, and write {sealed} was made");
            return Err(Damage::of(&self.path, what).into());
        }
        let mut live = Live::default();
        for entry in self.live.iter() {
            let (key, value) = entry.into_inner()?;
            live.put(stored::decode(&stored::id_of(&key)?, &value)?);
        }
        let mut finished = Finished::default();
        for entry in self.meta.prefix(FINISHED_PREFIX) {
            let (key, value) = entry.into_inner()?;
            let broken = |why: String| Corrupt(format!("the count {:?}: {why}", key.escape_ascii().to_string()));
            let rest = &key[FINISHED_PREFIX.len()..];
            let (state, queue) = rest.split_first().ok_or_else(|| broken("its key is too short".to_owned()))?;
            let state = stored::state_of(*state).map_err(broken)?;
            let queue = std::str::from_utf8(queue).map_err(|error| broken(error.to_string()))?;
            let queue = QueueName::new(queue).map_err(|error| broken(error.to_string()))?;
            finished.set(state, queue, number(&value).map_err(broken)?);
        }
        let last = Version { place: Place::Main, primary_term, seq_no };
        let (recent, blocks) = (self.recover_recent()?, Arc::new(self.recover_blocks()?));

        // Durable before any version of this term is given out, so that none is ever given twice. After all is read, so
        // that a store that is refused is left as it is.
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&self.meta, MetaKey::PrimaryTerm.bytes(), primary_term.to_be_bytes());
        batch.commit()?;
        Ok(Published { live, recent, blocks, finished, last, snapshot: self.snapshot() })
    }

    fn recover_recent(&self) -> Result<Recent, RecoverError> {
        let mut recent = Recent::default();
        for entry in self.recent.iter() {
            let (_, id) = entry.into_inner()?;
            let id = stored::id_of(&id)?;
            let read = self.done.get(id.as_str())?.map(|bytes| stored::decode(&id, &bytes));
            match read {
                Some(Ok(head)) => drop(recent.put(head)),
                // A read of this job fails; the other jobs are served.
                Some(Err(Corrupt(what))) => tracing::error!(what, "a finished job cannot be read"),
                None => tracing::error!(%id, "a job that has finished lately is not stored"),
            }
        }
        Ok(recent)
    }

    fn recover_blocks(&self) -> Result<Blocks, RecoverError> {
        let mut blocks = Blocks::default();
        for entry in self.blocks.prefix([Column::Head as u8]) {
            let (key, head) = entry.into_inner()?;
            let number = key.get(1..).and_then(|number| number.try_into().ok()).map(u32::from_be_bytes);
            let number = number.ok_or_else(|| Corrupt("the number of a block is cut short".to_owned()))?;
            blocks.put(Block::decode(number, &head)?);
        }
        Ok(blocks)
    }

    fn number(&self, key: &MetaKey<'_>) -> Result<Option<u64>, RecoverError> {
        let key = key.bytes();
        let Some(bytes) = self.meta.get(&key)? else { return Ok(None) };
        let broken = |why: String| Corrupt(format!("the number {}: {why}", key.escape_ascii()));
        Ok(Some(number(&bytes).map_err(broken)?))
    }
}

#[derive(Debug, thiserror::Error)]
enum RecoverError {
    #[error(transparent)]
    Database(#[from] fjall::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("{0}")]
    Damaged(Damage),
}

impl From<Damage> for RecoverError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}

fn open_database(path: &Path, options: &EmbeddedOptions) -> Result<Database, fjall::Error> {
    Database::builder(path).cache_size(options.cache_bytes).max_journaling_size(JOURNAL_BYTES).open()
}

/// The keyspaces, created where they are missing. Their options are kept by the database from then on. Filters, on
/// by default, let the creation of a job with a fresh id pass `done` without reading from it.
fn open_keyspaces(db: &Database) -> Result<[Keyspace; 7], fjall::Error> {
    let options = |memtable| move || KeyspaceCreateOptions::default().max_memtable_size(memtable);
    let separate = KvSeparationOptions::default().separation_threshold(SEPARATE_BODY_BYTES);
    Ok([
        db.keyspace("live", options(MEMTABLE_BYTES))?,
        db.keyspace("done", options(MEMTABLE_BYTES))?,
        db.keyspace("recent", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("blocks", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("bodies", || options(MEMTABLE_BYTES)().with_kv_separation(Some(separate)))?,
        db.keyspace("records", options(SMALL_MEMTABLE_BYTES))?,
        db.keyspace("meta", options(SMALL_MEMTABLE_BYTES))?,
    ])
}
