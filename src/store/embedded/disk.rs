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
//! | `schedules` | id | a stored schedule |
//! | `schedules_due` | when it has to be looked at, id | nothing |
//! | `schedules_owners` | owner, id | nothing |
//! | `meta` | see [`MetaKey`] | one number, or the members of the group |
//!
//! The database is the state as of one entry of the log, which `meta` says; what came after it is in the log.
//!
//! A job is in exactly one of `live` and `done`, and exactly while it is in `done`, it is either in `recent` or alive
//! in one block. Opening reads `live`, `recent` with its jobs, which has a bound, what is kept in memory of the blocks,
//! `records` and `meta`: it takes as long as the live jobs do, however many have finished and however many schedules
//! there are.
//!
//! A flush is one entry of the database's journal, with a checksum: after a crash it is there whole or not at all.
//! [`Disk::flush`] returns when the journal is synced. The journal's files are synced, and so is their directory,
//! when they are created, before the first batch is written to them; `fdatasync` then suffices for each flush, since
//! it brings the file's new length with it. Every flush is synced before the next one begins, which tells one that a
//! crash cut short from a damaged one.

use std::io;
use std::ops::Bound;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fjall::{Database, Keyspace, OwnedWriteBatch, PersistMode, Readable, Snapshot};
use parking_lot::Mutex;

use super::block::{Block, Column, NewBlock};
use super::changed::ChangedSchedules;
use super::directory::Directory;
use super::error::{Corrupt, is_full};
use super::journal::SEQ_NO;
use super::schedules::{Index, keys};
use super::seal::{Seal, SealedGroup, Vote};
use super::state::{Published, View};
use super::unflushed::{Changed, Flush, Lies};
use super::{records, schedules, stored};
use crate::job::{BodyRef, JobId, JobState, Json, QueueName, ScheduleId};
use crate::store::{StoreError, StoredSchedule, Versioned};

/// An open database, in a directory that this process holds.
pub(super) struct Disk {
    pub(super) live: Keyspace,
    pub(super) done: Keyspace,
    pub(super) recent: Keyspace,
    pub(super) blocks: Keyspace,
    pub(super) bodies: Keyspace,
    pub(super) records: Keyspace,
    pub(super) schedules: Keyspace,
    pub(super) due: Keyspace,
    pub(super) owners: Keyspace,
    pub(super) meta: Keyspace,
    /// The number of finished stored jobs that were read since the store was opened.
    pub(super) jobs_read: AtomicU64,
    /// The number of stored schedules that were read since the store was opened.
    pub(super) schedules_read: AtomicU64,
    /// The number of the last write that is in the database.
    pub(super) flushed: AtomicU64,
    pub(super) db: Database,
    /// The path of the database, and its seal as it was written last.
    pub(super) path: PathBuf,
    pub(super) seal: Mutex<Seal>,
    /// The hold on the data directory. It is the last field, so that it is released after the database is closed.
    pub(super) directory: Directory,
}

/// The keys in `meta`.
pub(super) enum MetaKey<'a> {
    /// The term of the last entry of the log that the database has.
    PrimaryTerm,
    /// The number of the last write.
    SeqNo,
    /// The number of the last entry of the log that the database has.
    Entry,
    /// The latest time at which a job or schedule was changed, in milliseconds since the epoch.
    Time,
    /// The members of the group, as JSON.
    Members,
    /// How many finished jobs there are in a state and queue.
    Finished(JobState, &'a QueueName),
    /// A part of the sum over the documents, which versions that know none pass over.
    Sum(SumKey),
}

/// The parts of a sum, each of which is one number, as all of `meta`.
#[derive(Clone, Copy)]
pub(super) enum SumKey {
    /// The number of the entry that it is as of: a version that knows no sum leaves an earlier one.
    Entry,
    High,
    Low,
}

/// What the keys of counts of finished jobs begin with.
pub(super) const FINISHED_PREFIX: &[u8] = b"finished/";

/// The keys of the sum over the documents, in the order of its parts. Another form of the sum gets others.
pub(super) const SUM_KEYS: [&[u8]; 3] = [b"sum1/entry", b"sum1/high", b"sum1/low"];

/// The keys of the number of the last entry of the log, and of its term.
pub(super) const ENTRY: &[u8] = b"entry";
pub(super) const PRIMARY_TERM: &[u8] = b"primary_term";

impl MetaKey<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        match self {
            Self::PrimaryTerm => PRIMARY_TERM.to_vec(),
            Self::SeqNo => SEQ_NO.to_vec(),
            Self::Entry => ENTRY.to_vec(),
            Self::Time => b"time".to_vec(),
            Self::Members => b"members".to_vec(),
            Self::Finished(state, queue) => {
                [FINISHED_PREFIX, &[stored::state_code(*state)], queue.as_str().as_bytes()].concat()
            }
            Self::Sum(part) => SUM_KEYS[*part as usize].to_vec(),
        }
    }
}

impl Disk {
    /// Writes a flush, and returns its new blocks.
    pub(super) fn flush(&self, flush: &Flush) -> Result<Vec<Block>, StoreError> {
        let Flush { changes, cut, counts, .. } = flush;
        let items = 2 * changes.jobs.len() + changes.bodies.len() + changes.records.len() + counts.len();
        let items = items + 3 * changes.schedules.len();
        let mut batch = OwnedWriteBatch::with_capacity(self.db.clone(), items).durability(Some(PersistMode::SyncData));
        let mut buffer = Vec::new();
        let new_blocks: Vec<NewBlock> = cut.iter().map(|cut| NewBlock::of(cut.number, &cut.heads)).collect();
        let first_uncut = cut.last().and_then(|cut| cut.heads.last()).map_or(0, |head| head.version.seq_no + 1);
        // In the order of their keys, since the database looks for the place of each from the one before.
        let mut jobs: Vec<_> = changes.jobs.iter().collect();
        jobs.sort_unstable_by_key(|(id, _)| *id);
        for (id, changed) in jobs {
            self.put_job(&mut batch, id, changed, first_uncut, &mut buffer)?;
        }
        for head in cut.iter().flat_map(|cut| &cut.heads).filter(|head| !changes.jobs.contains_key(&head.job.id)) {
            batch.remove(&self.recent, head.version.seq_no.to_be_bytes());
        }
        for (id, body) in &changes.bodies {
            match body {
                Some(json) => batch.insert(&self.bodies, *id.0.as_bytes(), json.as_str()),
                None => batch.remove(&self.bodies, *id.0.as_bytes()),
            }
        }
        for (key, record) in &changes.records {
            let place = records::key(key);
            match record {
                Some(record) => {
                    records::encode(record, &mut buffer)?;
                    batch.insert(&self.records, place, buffer.as_slice());
                }
                None => batch.remove(&self.records, place),
            }
        }
        self.put_schedules(&mut batch, &changes.schedules, &mut buffer)?;
        for ((state, queue), count) in counts {
            let key = MetaKey::Finished(*state, queue).bytes();
            match count {
                0 => batch.remove(&self.meta, key),
                count => batch.insert(&self.meta, key, count.to_be_bytes()),
            }
        }
        // The number of a block that is gone may be that of a new one.
        let is_new = |number: &&u32| new_blocks.iter().any(|new| new.block.number == **number);
        for &number in changes.blocks.iter().filter(|number| !is_new(number)) {
            match flush.blocks.get(number) {
                Some(block) => {
                    batch.insert(&self.blocks, column_key(Column::Head as u8, number), block.encode());
                    if let Some(left) = &block.left {
                        batch.insert(&self.blocks, column_key(Column::Dead as u8, number), &**left);
                    }
                }
                None => Column::NUMBERS.for_each(|column| batch.remove(&self.blocks, column_key(column, number))),
            }
        }
        for new in &new_blocks {
            for (column, bytes) in &new.columns {
                batch.insert(&self.blocks, column_key(*column as u8, new.block.number), bytes.as_slice());
            }
        }
        batch.insert(&self.meta, MetaKey::PrimaryTerm.bytes(), flush.last.primary_term.to_be_bytes());
        batch.insert(&self.meta, MetaKey::SeqNo.bytes(), flush.last.seq_no.to_be_bytes());
        batch.insert(&self.meta, MetaKey::Entry.bytes(), flush.entry.to_be_bytes());
        let time = u64::try_from(flush.time.as_millis()).unwrap_or(0);
        batch.insert(&self.meta, MetaKey::Time.bytes(), time.to_be_bytes());
        if let Some(sum) = flush.sum {
            for (key, number) in SUM_KEYS.iter().zip(sum.as_of(flush.entry)) {
                batch.insert(&self.meta, *key, number.to_be_bytes());
            }
        }
        if let Some(members) = &flush.members {
            let text = serde_json::to_string(&**members).map_err(|error| Corrupt(format!("the members: {error}")))?;
            batch.insert(&self.meta, MetaKey::Members.bytes(), text);
        }
        batch.commit().map_err(|error| self.not_committed(error))?;
        self.flushed.store(flush.last.seq_no, Ordering::Release);
        Ok(new_blocks.into_iter().map(|new| new.block).collect())
    }

    /// Returns whether there is room to write what has changed. The database stops at the first write that fails, while
    /// the log has everything and can go on later.
    pub(super) fn has_room_to_flush(&self, published: &Published) -> bool {
        self.directory.has_room_for(published.unflushed.bytes)
    }

    /// Writes a vote, durably.
    pub(super) fn write_vote(&self, vote: Vote) -> io::Result<()> {
        self.seal_with(|seal| seal.vote = vote)
    }

    /// Writes what this member keeps of the group, durably.
    pub(super) fn write_group(&self, group: SealedGroup) -> io::Result<()> {
        self.seal_with(|seal| seal.group = Some(group))
    }

    fn seal_with(&self, change: impl FnOnce(&mut Seal)) -> io::Result<()> {
        let mut seal = self.seal.lock();
        let mut changed = seal.clone();
        change(&mut changed);
        self.directory.write_seal(&changed)?;
        *seal = changed;
        Ok(())
    }

    fn not_committed(&self, error: fjall::Error) -> StoreError {
        self.stopped(match error {
            fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => error,
            // Something has failed before in one of its threads. Why, may show again.
            fjall::Error::Poisoned => match self.directory.try_room() {
                Ok(()) if self.directory.was_short_of_room() => {
                    io::Error::new(io::ErrorKind::StorageFull, "the database stopped when there was too little room")
                }
                Ok(()) => io::Error::other("the database stopped after an earlier failure"),
                Err(error) => error,
            },
            other => io::Error::other(other),
        })
    }

    /// Gives the room that was kept for when the disk is full, and returns the refusal of the write for which there was
    /// none.
    pub(super) fn give_room(&self, cause: &io::Error) -> StoreError {
        // Each write after that is refused as well, until there is room.
        if self.directory.give_room() {
            tracing::error!(error = %cause, "there is no room for the log, and it gets what was kept for that");
        }
        StoreError::OutOfOrder(is_short_of_room(&cause.to_string()))
    }

    /// Returns why new jobs must not be taken for want of room; `None` when there is enough. It takes the room that is
    /// kept again where it was given and there is some.
    pub(super) fn short_of_room(&self) -> Option<String> {
        self.directory.short_of_room().map(|left| is_short_of_room(&format!("{} MiB are left", left >> 20)))
    }

    /// Returns the failure after which nothing more is written: until the store was opened again, once there is room
    /// where there was none, or, after any other, until the process was started again.
    pub(super) fn stopped(&self, cause: io::Error) -> StoreError {
        match is_full(&cause) {
            true => waits_for_room(&cause.to_string()),
            false => StoreError::Stopped(format!(
                "the disk failed ({cause}): look at the log and the disk, and restart the server"
            )),
        }
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

    /// Reads the column of a block that has this number.
    #[cfg(test)]
    pub(super) fn raw_column(
        &self,
        snapshot: &Snapshot,
        column: u8,
        number: u32,
    ) -> Result<Option<fjall::Slice>, StoreError> {
        snapshot.get(&self.blocks, column_key(column, number)).map_err(failed)
    }

    /// Returns a snapshot of the disk, which later commits do not change.
    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        Arc::new(self.db.snapshot())
    }

    /// Reads a finished job.
    pub(super) fn finished(&self, view: &View, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        if view.stale.contains(id) {
            return Ok(None);
        }
        let Some(bytes) = view.snapshot.get(&self.done, id.as_str()).map_err(failed)? else { return Ok(None) };
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

    /// Reads a schedule.
    pub(super) fn schedule(&self, snapshot: &Snapshot, id: &ScheduleId) -> Result<Option<StoredSchedule>, StoreError> {
        let Some(bytes) = snapshot.get(&self.schedules, id.as_str()).map_err(failed)? else { return Ok(None) };
        self.schedules_read.fetch_add(1, Ordering::Relaxed);
        Ok(Some(schedules::decode(id, &bytes)?))
    }

    /// Reads the keys of schedules in a range of an index.
    pub(super) fn schedule_keys(
        &self,
        snapshot: &Snapshot,
        index: Index,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl Iterator<Item = Result<fjall::Slice, StoreError>> + use<> {
        let keyspace = self.schedules_by(index);
        snapshot.range::<&[u8], _>(keyspace, range).map(|entry| entry.key().map_err(failed))
    }

    fn schedules_by(&self, index: Index) -> &Keyspace {
        match index {
            Index::Id => &self.schedules,
            Index::Due => &self.due,
            Index::Owner => &self.owners,
        }
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

    /// Puts schedules and their keys in the place of the former ones.
    fn put_schedules(
        &self,
        batch: &mut OwnedWriteBatch,
        changed: &ChangedSchedules,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let changed = changed.all();
        for (id, changed) in &changed {
            match &changed.now {
                Some(now) => {
                    schedules::encode(now, buffer)?;
                    batch.insert(&self.schedules, id.as_str(), buffer.as_slice());
                }
                None if changed.was.iter().any(Option::is_some) => batch.remove(&self.schedules, id.as_str()),
                None => {}
            }
        }
        let now = changed.iter().map(|(_, changed)| changed.now.as_ref().map(|now| keys(&now.schedule)));
        let now: Vec<_> = now.map(Option::unwrap_or_default).collect();
        for index in [Index::Due, Index::Owner] {
            let place = index as usize;
            let pairs = changed.iter().zip(&now).map(|((_, changed), now)| (&changed.was[place], &now[place]));
            // A key that stays is not written: one key twice in a batch has no order.
            let pairs = pairs.filter(|(was, now)| was != now);
            let gone_and_new =
                pairs.flat_map(|(was, now)| [was.as_ref().zip(Some(false)), now.as_ref().zip(Some(true))]);
            let mut keys: Vec<_> = gone_and_new.flatten().collect();
            keys.sort_unstable();
            for (key, is_new) in keys {
                match is_new {
                    true => batch.insert(self.schedules_by(index), key.as_slice(), []),
                    false => batch.remove(self.schedules_by(index), key.as_slice()),
                }
            }
        }
        Ok(())
    }

    /// Puts a job where it belongs. Finished ones whose write is before `first_uncut` are in a block.
    fn put_job(
        &self,
        batch: &mut OwnedWriteBatch,
        id: &JobId,
        changed: &Changed,
        first_uncut: u64,
        buffer: &mut Vec<u8>,
    ) -> Result<(), StoreError> {
        let key = id.as_str();
        let is_settled = changed.now.as_ref().map(|head| head.job.is_settled());
        // Out of where it was, unless it is written to the same place: one key twice in a batch has no order.
        match changed.was {
            Lies::Nowhere => {}
            Lies::Live if is_settled != Some(false) => batch.remove(&self.live, key),
            Lies::Live => {}
            Lies::Finished(version) => {
                if is_settled != Some(true) {
                    batch.remove(&self.done, key);
                }
                batch.remove(&self.recent, version.seq_no.to_be_bytes());
            }
        }
        let Some(head) = &changed.now else { return Ok(()) };
        stored::encode(head, buffer)?;
        if !head.job.is_settled() {
            batch.insert(&self.live, key, buffer.as_slice());
            return Ok(());
        }
        batch.insert(&self.done, key, buffer.as_slice());
        if head.version.seq_no >= first_uncut {
            batch.insert(&self.recent, head.version.seq_no.to_be_bytes(), key);
        }
        Ok(())
    }
}

/// Returns the refusal of a store that is opened again once there is room.
pub(super) fn waits_for_room(how: &str) -> StoreError {
    StoreError::OutOfOrder(format!(
        "the disk is full ({how}): nothing is written until there is room again; free space on it"
    ))
}

fn is_short_of_room(how: &str) -> String {
    format!("the disk is full ({how}): new jobs are refused until there is room again; free space on it")
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
