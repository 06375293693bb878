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
//! it brings the file's new length with it. Every batch is synced before the next one begins, which tells a batch that
//! a crash cut short from a damaged one.

use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, Readable, Snapshot};
use parking_lot::Mutex;

use super::block::{Column, Leaving, NewBlock};
use super::directory::Directory;
use super::error::{Corrupt, is_full};
use super::journal::SEQ_NO;
use super::machine::{Change, Effects};
use super::seal::Seal;
use super::state::FinishedCount;
use super::{records, stored};
use crate::job::{BodyRef, JobId, JobState, Json, QueueName};
use crate::store::record::too_many;
use crate::store::{MAX_RECORDS, QUERY_TIME, Record, RecordKey, RecordKind, StoreError, Versioned};

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
        Self { cache_bytes: 64 << 20, block_jobs: 4_096, query_time: QUERY_TIME }
    }
}

/// An open database, in a directory that this process holds.
pub(super) struct Disk {
    pub(super) live: Keyspace,
    pub(super) done: Keyspace,
    pub(super) recent: Keyspace,
    pub(super) blocks: Keyspace,
    pub(super) bodies: Keyspace,
    pub(super) records: Keyspace,
    pub(super) meta: Keyspace,
    /// The number of finished stored jobs that were read since the store was opened.
    pub(super) jobs_read: AtomicU64,
    pub(super) db: Database,
    /// The path of the database, and its seal as it was written last.
    pub(super) path: PathBuf,
    pub(super) seal: Mutex<Seal>,
    /// The hold on the data directory. It is the last field, so that it is released after the database is closed.
    pub(super) directory: Directory,
}

/// The keys of the numbers in `meta`.
pub(super) enum MetaKey<'a> {
    /// How many times the directory was opened.
    PrimaryTerm,
    /// The number of the last write.
    SeqNo,
    /// How many finished jobs there are in a state and queue.
    Finished(JobState, &'a QueueName),
}

/// What the keys of counts of finished jobs begin with.
pub(super) const FINISHED_PREFIX: &[u8] = b"finished/";

impl MetaKey<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::PrimaryTerm => b"primary_term".to_vec(),
            Self::SeqNo => SEQ_NO.to_vec(),
            Self::Finished(state, queue) => {
                [FINISHED_PREFIX, &[stored::state_code(*state)], queue.as_str().as_bytes()].concat()
            }
        }
    }
}

impl Disk {
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
        batch.commit().map_err(|error| self.stopped(error))
    }

    /// Puts the jobs of these writes, which are in `recent`, in a block instead.
    pub(super) fn put_block(&self, new: &NewBlock, writes: impl Iterator<Item = u64>) -> Result<(), StoreError> {
        let items = new.block.rows as usize + new.columns.len();
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), items).durability(Some(PersistMode::SyncData));
        for (column, bytes) in &new.columns {
            batch.insert(&self.blocks, column_key(*column as u8, new.block.number), bytes.as_slice());
        }
        writes.for_each(|seq_no| batch.remove(&self.recent, seq_no.to_be_bytes()));
        batch.commit().map_err(|error| self.stopped(error))
    }

    /// Returns the failure after which nothing more is written.
    fn stopped(&self, error: fjall::Error) -> StoreError {
        let cause = match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => error,
            // Something has failed before in one of its threads. Why, may show again.
            fjall::Error::Poisoned => match self.directory.try_room() {
                Ok(()) => io::Error::other("the database stopped after an earlier failure"),
                Err(error) => error,
            },
            other => io::Error::other(other),
        };
        StoreError::Stopped(match is_full(&cause) {
            true => format!("the disk is full ({cause}): free space on it, and restart the server"),
            false => format!("the disk failed ({cause}): look at the log and the disk, and restart the server"),
        })
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
}

/// Column by column, so that a search reads what lies together.
fn column_key(column: u8, number: u32) -> [u8; 5] {
    let [a, b, c, d] = number.to_be_bytes();
    [column, a, b, c, d]
}

/// Reads a number of `meta`.
pub(super) fn number(bytes: &[u8]) -> Result<u64, String> {
    let bytes: [u8; 8] = bytes.try_into().map_err(|_| format!("it has {} bytes, not 8", bytes.len()))?;
    Ok(u64::from_be_bytes(bytes))
}

/// Returns what an error of the database means for the store.
pub(super) fn failed(error: fjall::Error) -> StoreError {
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => {
            StoreError::Unavailable(format!("the disk: {error}"))
        }
        fjall::Error::Poisoned => StoreError::Unavailable("the database stopped after an earlier failure".to_owned()),
        other => StoreError::Corrupt(format!("the database: {other}")),
    }
}
