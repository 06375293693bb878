//! The store on disk, in an LSM database ([`fjall`]).
//!
//! | keyspace | key | value |
//! | --- | --- | --- |
//! | `live` | job id | a stored job that has not ended, or has notices to hand on |
//! | `done` | job id | any other stored job: a finished one |
//! | `recent` | number of the write, rising | the id of a finished job that is in no block yet |
//! | `blocks` | column, number of the block | a column of a block of finished jobs |
//! | `bodies` | body id | a payload or result that is kept apart |
//! | `records` | kind, name | a record |
//! | `meta` | see [`MetaKey`] | one number |
//!
//! A job is in exactly one of `live` and `done`, and exactly while it is in `done`, it is either in `recent` or alive
//! in one block. Opening reads `live`, `recent` with its jobs, which has a bound, what is kept in memory of the blocks,
//! and `meta`: it takes as long as the live jobs do, however many have finished.
//!
//! A batch is one entry of the database's journal, with a checksum: after a crash it is there whole or not at all.
//! [`Disk::commit`] returns when the journal is synced. The journal's files are synced, and so is their directory,
//! when they are created, before the first batch is written to them; `fdatasync` then suffices for each batch, since
//! it brings the file's new length with it.

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fjall::{
    Database, Keyspace, KeyspaceCreateOptions, KvSeparationOptions, OwnedWriteBatch, PersistMode, Readable, Snapshot,
};

use super::block::{Block, Blocks, Column, Leaving, NewBlock};
use super::directory::Directory;
use super::error::{Corrupt, OpenError};
use super::live::Live;
use super::machine::{Change, Effects};
use super::state::{Finished, FinishedCount, Published, Recent};
use super::{records, stored};
use crate::job::{BodyRef, JobId, JobState, Json, QueueName};
use crate::store::record::too_many;
use crate::store::{MAX_RECORDS, Place, Record, RecordKey, RecordKind, StoreError, Version, Versioned};

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

/// The options that a store is opened with.
#[derive(Clone, Debug)]
pub struct EmbeddedOptions {
    /// The size of the read cache, in bytes.
    pub cache_bytes: u64,
    /// The number of finished jobs in a block of their index. Up to twice as many are kept in memory.
    pub block_jobs: usize,
    /// The longest time that a search, a count or statistics may wait for its turn, and the longest that it may then
    /// take.
    pub query_time: Duration,
}

impl Default for EmbeddedOptions {
    fn default() -> Self {
        Self { cache_bytes: 64 << 20, block_jobs: 4_096, query_time: Duration::from_secs(30) }
    }
}

/// An open database, in a directory that this process holds.
pub(super) struct Disk {
    live: Keyspace,
    done: Keyspace,
    recent: Keyspace,
    blocks: Keyspace,
    bodies: Keyspace,
    records: Keyspace,
    meta: Keyspace,
    /// The number of finished stored jobs that were read since the store was opened.
    jobs_read: AtomicU64,
    db: Database,
    /// The hold on the data directory. It is the last field, so that it is released after the database is closed.
    _directory: Directory,
}

/// The keys of the numbers in `meta`.
enum MetaKey<'a> {
    /// How many times the directory was opened.
    PrimaryTerm,
    /// The number of the last write.
    SeqNo,
    /// How many finished jobs there are in a state and queue.
    Finished(JobState, &'a QueueName),
}

const FINISHED_PREFIX: &[u8] = b"finished/";

impl MetaKey<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::PrimaryTerm => b"primary_term".to_vec(),
            Self::SeqNo => b"seq_no".to_vec(),
            Self::Finished(state, queue) => {
                [FINISHED_PREFIX, &[stored::state_code(*state)], queue.as_str().as_bytes()].concat()
            }
        }
    }
}

impl Disk {
    /// Opens the store in a directory, and begins its next term.
    pub(super) fn open(directory: Directory, options: &EmbeddedOptions) -> Result<(Self, Published), OpenError> {
        let path = directory.path().to_owned();
        let broken = |source| OpenError::Database { directory: path.clone(), source };
        let database = directory.database(|path| {
            let db = open_database(path, options)?;
            open_keyspaces(&db)?;
            db.persist(PersistMode::SyncAll)
        })?;
        let db = open_database(&database, options).map_err(broken)?;
        let [live, done, recent, blocks, bodies, records, meta] = open_keyspaces(&db).map_err(broken)?;
        let disk = Self {
            live,
            done,
            recent,
            blocks,
            bodies,
            records,
            meta,
            jobs_read: AtomicU64::new(0),
            db,
            _directory: directory,
        };
        let published = disk.recover().map_err(|failure| match failure {
            RecoverError::Database(source) => broken(source),
            RecoverError::Corrupt(Corrupt(what)) => OpenError::Corrupt { directory: path.clone(), what },
        })?;
        Ok((disk, published))
    }

    /// Makes a batch durable, with the counts that it changes and the jobs that it takes out of blocks. When this
    /// fails, whether the batch is on disk is unknown, and so is what a later batch would be written after: an `fsync`
    /// that failed once may have dropped what it could not write, and the next one would not report it. The caller must
    /// stop.
    pub(super) fn commit(
        &self,
        effects: &Effects,
        counts: &[FinishedCount],
        leaving: &[Leaving],
    ) -> Result<(), StoreError> {
        let items = 3 * effects.heads.len() + effects.bodies.len() + effects.records.len() + counts.len() + 1;
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), items).durability(Some(PersistMode::SyncData));
        let mut buffer = Vec::new();
        for (id, change) in &effects.heads {
            self.put_head(&mut batch, id, change, &mut buffer)?;
        }
        for (id, body) in &effects.bodies {
            match body {
                Some(json) => batch.insert(&self.bodies, *id.0.as_bytes(), json.as_str()),
                None => batch.remove(&self.bodies, *id.0.as_bytes()),
            }
        }
        for (key, change) in &effects.records {
            let place = records::key(key);
            match &change.after {
                Some(record) => {
                    records::encode(record, &mut buffer)?;
                    batch.insert(&self.records, place, buffer.as_slice());
                }
                None => batch.remove(&self.records, place),
            }
        }
        for (state, queue, count) in counts {
            let key = MetaKey::Finished(*state, queue).bytes();
            match count {
                0 => batch.remove(&self.meta, key),
                count => batch.insert(&self.meta, key, count.to_be_bytes()),
            }
        }
        for Leaving { block, dead } in leaving {
            match dead {
                Some(dead) => {
                    batch.insert(&self.blocks, column_key(Column::Head as u8, block.number), block.encode());
                    batch.insert(&self.blocks, column_key(Column::Dead as u8, block.number), dead.as_slice());
                }
                None => {
                    Column::NUMBERS.for_each(|column| batch.remove(&self.blocks, column_key(column, block.number)));
                }
            }
        }
        batch.insert(&self.meta, MetaKey::SeqNo.bytes(), effects.last.seq_no.to_be_bytes());
        batch.commit().map_err(failed)
    }

    /// Puts the jobs of these writes, which are in `recent`, in a block instead. It is durable with the next batch:
    /// until then a crash leaves them where they were.
    pub(super) fn put_block(&self, new: &NewBlock, writes: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), new.block.rows as usize + new.columns.len());
        for (column, bytes) in &new.columns {
            batch.insert(&self.blocks, column_key(*column as u8, new.block.number), bytes.as_slice());
        }
        writes.for_each(|seq_no| batch.remove(&self.recent, seq_no.to_be_bytes()));
        batch.commit().map_err(failed)
    }

    /// Reads a column of a block.
    pub(super) fn column(
        &self,
        snapshot: &Snapshot,
        column: Column,
        number: u32,
    ) -> Result<Option<fjall::Slice>, StoreError> {
        snapshot.get(&self.blocks, column_key(column as u8, number)).map_err(failed)
    }

    /// Returns a snapshot of the disk, which later commits do not change.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::new(self.db.snapshot())
    }

    /// Reads a finished job.
    pub(super) fn finished(&self, snapshot: &Snapshot, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        let Some(bytes) = snapshot.get(&self.done, id.as_str()).map_err(failed)? else { return Ok(None) };
        self.has_read(1);
        Ok(Some(stored::decode(id, &bytes)?))
    }

    /// Reads a body that is kept apart.
    pub(super) fn body(&self, snapshot: &Snapshot, reference: &BodyRef) -> Result<Option<Json>, StoreError> {
        let Some(bytes) = snapshot.get(&self.bodies, reference.id.0.as_bytes()).map_err(failed)? else {
            return Ok(None);
        };
        let broken = |why: String| Corrupt(format!("the body {}: {why}", reference.id.0));
        let text = String::from_utf8(bytes.to_vec()).map_err(|error| broken(error.to_string()))?;
        Ok(Some(Json::parse(text).map_err(|error| broken(error.to_string()))?))
    }

    /// Reads a record.
    pub(super) fn record(&self, snapshot: &Snapshot, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        let Some(bytes) = snapshot.get(&self.records, records::key(key)).map_err(failed)? else { return Ok(None) };
        Ok(Some(records::decode(key, &bytes)?))
    }

    /// Reads the records of a kind, by name.
    pub(super) fn records(&self, snapshot: &Snapshot, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        let mut found = Vec::new();
        for entry in snapshot.prefix(&self.records, records::key_prefix(kind)) {
            if found.len() == MAX_RECORDS {
                return Err(too_many(kind));
            }
            let (key, value) = entry.into_inner().map_err(failed)?;
            found.push(records::decode(&records::key_of(&key)?, &value)?);
        }
        Ok(found)
    }

    /// Adds to the number of finished jobs read.
    pub(super) fn has_read(&self, jobs: u64) {
        self.jobs_read.fetch_add(jobs, Ordering::Relaxed);
    }

    /// Returns how many finished jobs were read since the store was opened.
    pub(super) fn jobs_read(&self) -> u64 {
        self.jobs_read.load(Ordering::Relaxed)
    }

    /// Reads the finished jobs with ids in `range`.
    pub(super) fn all_finished(
        &self,
        snapshot: &Snapshot,
        range: (Bound<&str>, Bound<&str>),
    ) -> impl Iterator<Item = Result<fjall::KvPair, StoreError>> {
        snapshot.range::<&str, _>(&self.done, range).map(|entry| entry.into_inner().map_err(failed))
    }

    /// Checks that the database still takes writes.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::Buffer).map_err(failed)
    }

    /// Writes everything out before the database is closed.
    pub(super) fn flush(&self) -> Result<(), StoreError> {
        self.db.persist(PersistMode::SyncAll).map_err(failed)
    }

    fn put_head(
        &self,
        batch: &mut OwnedWriteBatch,
        id: &JobId,
        change: &Change<Versioned>,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let id = id.as_str();
        let is_settled = |head: &Versioned| head.job.is_settled();
        // Out of where it was, unless it is written to the same place: one key twice in a batch has no order.
        if let Some(before) = &change.before {
            let after_is_settled = change.after.as_ref().map(is_settled);
            if !is_settled(before) {
                if after_is_settled != Some(false) {
                    batch.remove(&self.live, id);
                }
            } else {
                if after_is_settled != Some(true) {
                    batch.remove(&self.done, id);
                }
                batch.remove(&self.recent, before.version.seq_no.to_be_bytes());
            }
        }
        let Some(after) = &change.after else { return Ok(()) };
        stored::encode(after, buffer)?;
        if is_settled(after) {
            batch.insert(&self.done, id, buffer.as_slice());
            batch.insert(&self.recent, after.version.seq_no.to_be_bytes(), id);
        } else {
            batch.insert(&self.live, id, buffer.as_slice());
        }
        Ok(())
    }

    fn recover(&self) -> Result<Published, RecoverError> {
        let primary_term = self.number(&MetaKey::PrimaryTerm)?.unwrap_or(0) + 1;
        let seq_no = self.number(&MetaKey::SeqNo)?.unwrap_or(0);
        // Durable before any version of this term is given out, so that none is ever given twice.
        let mut batch = self.db.batch().durability(Some(PersistMode::SyncAll));
        batch.insert(&self.meta, MetaKey::PrimaryTerm.bytes(), primary_term.to_be_bytes());
        batch.commit()?;

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

/// Column by column, so that a search reads what lies together.
fn column_key(column: u8, number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_be_bytes();
    [column, a, b, c, d]
}

fn number(bytes: &[u8]) -> Result<u64, String> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| format!("it has {} bytes, not 8", bytes.len()))?;
    Ok(u64::from_be_bytes(bytes))
}

fn failed(error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            StoreError::Unavailable(format!("the disk: {error}"))
        }
        fjall::Error::Poisoned => StoreError::Unavailable("the database stopped after an earlier failure".to_owned()),
        other => StoreError::Corrupt(format!("the database: {other}")),
    }
}
