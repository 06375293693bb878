//! The state that readers see: everything acknowledged and nothing else.
//!
//! [`Published`] holds the live jobs, the records, the counts, what is not in the database yet, and a view of the
//! database, and is moved on as one. A reader who takes all it needs under one lock sees one moment, however it then
//! reads the disk.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::mem;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use fjall::Snapshot;
use foldhash::quality::RandomState;
use parking_lot::Mutex;

use super::block::{Block, Blocks};
use super::equality::sum::Sum;
use super::equality::summed::Summed;
use super::error::Corrupt;
use super::live::Live;
use super::machine::Effects;
use super::schedules::Index;
use super::unflushed::{Cut, Flush, Unflushed};
use crate::clock::Timestamp;
use crate::job::{BodyId, JobId, JobState, Json, QueueName, RecordName, ScheduleId};
use crate::store::record::too_many;
use crate::store::{
    MAX_RECORDS, Membership, Record, RecordKey, RecordKind, StoreError, StoredSchedule, Version, Versioned,
};

/// Finished jobs are put in blocks once there are enough of them in memory for so many blocks.
const CUT_AT_BLOCKS: usize = 4;

/// When what has changed is written to the database.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlushLimits {
    /// How many finished jobs make a block of their index.
    pub(super) block_jobs: usize,
    /// After so many changes of documents.
    pub(super) changes: u64,
    /// After so many bytes of the log.
    pub(super) bytes: u64,
    /// How long ago the first of them may be.
    pub(super) after: Duration,
}

/// The store's state as of the last durable batch.
pub(super) struct Published {
    /// The live jobs.
    pub(super) live: Live,
    /// The finished jobs that are in no block yet.
    pub(super) recent: Recent,
    /// The blocks of all other finished jobs.
    pub(super) blocks: Arc<Blocks>,
    /// How many jobs have finished.
    pub(super) finished: Finished,
    /// All records, which are few.
    pub(super) records: Records,
    /// The version assigned last.
    pub(super) last: Version,
    /// The number of the last entry of the log.
    pub(super) entry: u64,
    /// The latest time at which a job or schedule was changed.
    pub(super) time: Timestamp,
    /// The members of the group; `None` while they are those that it was founded with.
    pub(super) members: Option<Arc<Membership>>,
    /// The hash of these members.
    pub(super) members_sum: Sum,
    /// The sum over all of this.
    pub(super) summed: Arc<Summed>,
    /// What has changed since the last flush began.
    pub(super) unflushed: Unflushed,
    /// What the flush under way writes.
    pub(super) flushing: Option<Arc<Unflushed>>,
    /// The database at the end of the last flush.
    pub(super) view: View,
    /// The key before which the database has no schedule as due that is not in memory. Reads begin there: before it is
    /// what schedules that have fired left behind, more than the page that is read.
    pub(super) due_from: Mutex<Vec<u8>>,
}

/// The database at the end of a flush, and what of it is not current any more.
#[derive(Clone)]
pub(super) struct View {
    pub(super) snapshot: Arc<Snapshot>,
    /// The jobs that the database has as finished in a version that is not current.
    pub(super) stale: Arc<HashSet<JobId>>,
    /// By how much the sum over the documents had changed when the flush began.
    pub(super) moved: Sum,
}

impl Published {
    /// Returns a job that is in memory.
    pub(super) fn in_memory(&self, id: &JobId) -> Option<&Versioned> {
        self.live.get(id).or_else(|| self.recent.get(id))
    }

    /// Returns what has become of a body that the database does not have as it is now: `Some(None)` when it was
    /// dropped.
    pub(super) fn body(&self, id: BodyId) -> Option<&Option<Json>> {
        let flushing = || self.flushing.as_ref().and_then(|flushing| flushing.bodies.get(&id));
        self.unflushed.bodies.get(&id).or_else(flushing)
    }

    /// Returns what has become of a schedule that the database does not have as it is now: `Some(None)` when it was
    /// removed.
    pub(super) fn schedule(&self, id: &ScheduleId) -> Option<&Option<StoredSchedule>> {
        let flushing = || self.flushing.as_ref().and_then(|flushing| flushing.schedules.get(id));
        self.unflushed.schedules.get(id).or_else(flushing)
    }

    /// Returns whether it is time to write what has changed to the database.
    pub(super) fn is_flush_due(&self, limits: &FlushLimits) -> bool {
        let Unflushed { changes, bytes, since, .. } = self.unflushed;
        let is_over = since.is_some_and(|since| since.elapsed() >= limits.after);
        self.is_cut_due(limits, 0) || changes >= limits.changes || bytes >= limits.bytes || is_over
    }

    /// Returns whether there are enough finished jobs to be cut, once so many more have finished.
    pub(super) fn is_cut_due(&self, limits: &FlushLimits, more: usize) -> bool {
        self.recent.uncut() + more >= CUT_AT_BLOCKS * limits.block_jobs
    }

    /// Takes what has changed, for the one flush that may be under way. Finished jobs that are enough for some blocks
    /// are put in blocks, those first that ended first: what is in a block follows from the entries of the log alone.
    pub(super) fn begin_flush(&mut self, limits: &FlushLimits) -> Flush {
        let count = if self.is_cut_due(limits, 0) { self.recent.uncut() / limits.block_jobs } else { 0 };
        let numbers = (self.blocks.next()..).take(count);
        let cut = numbers.map(|number| Cut { number, heads: self.recent.cut(limits.block_jobs) }).collect();
        let changes = Arc::new(mem::take(&mut self.unflushed));
        self.flushing = Some(Arc::clone(&changes));
        let counts = changes.counts.iter().map(|group| (group.clone(), self.finished.of(group))).collect();
        let (blocks, members) = (Arc::clone(&self.blocks), self.members.clone());
        let (sum, moved) = (self.summed.documents(), self.summed.moved());
        let (entry, last, time) = (self.entry, self.last, self.time);
        Flush { entry, last, time, changes, cut, blocks, counts, members, sum, moved }
    }

    /// Takes over the database as it is after a flush, which began when so much had changed in the sum.
    pub(super) fn end_flush(&mut self, snapshot: Arc<Snapshot>, moved: Sum) {
        self.view = View { snapshot, stale: self.unflushed.stale(), moved };
        let flushed = self.flushing.take();
        if let Some(first) = flushed.as_ref().and_then(|flushed| flushed.schedules.first(Index::Due)) {
            let due_from = self.due_from.get_mut();
            if due_from.as_slice() > first {
                *due_from = first.to_vec();
            }
        }
    }

    /// Puts a block that a flush has written in the place of its jobs in memory, which were cut as `heads`. No batch
    /// may have been decided and not taken over.
    pub(super) fn put_block(&mut self, block: Block, heads: &[Versioned]) {
        // Those that have changed since they were cut left before the block was there.
        let mut left = Vec::new();
        for (row, head) in (0..).zip(heads) {
            // The flush still holds what this takes out, so nothing is freed under the lock.
            match self.recent.get(&head.job.id) {
                Some(now) if now.version == head.version => drop(self.recent.remove(&head.job.id)),
                _ => left.push(row),
            }
        }
        let block = if left.is_empty() {
            block
        } else {
            self.unflushed.blocks.insert(block.number);
            block.without(left, &[])
        };
        Arc::make_mut(&mut self.blocks).put(block);
    }

    /// Takes over the members of the group.
    pub(super) fn take_over_members(&mut self, members: Arc<Membership>) {
        self.members_sum = Sum::of_members(&members);
        self.members = Some(members);
    }

    /// Takes over a batch that is durable as the entry `entry` of the log, in so many bytes. `left` are the blocks that
    /// jobs leave with it, as they are then.
    pub(super) fn take_over(&mut self, (entry, bytes): (u64, usize), effects: Effects, left: Vec<Block>) {
        (self.entry, self.last) = (entry, effects.last);
        self.time = effects.time().map_or(self.time, |time| time.max(self.time));
        let stale = self.unflushed.add(&effects, bytes);
        if !stale.is_empty() {
            Arc::make_mut(&mut self.view.stale).extend(stale);
        }
        for block in left {
            self.unflushed.blocks.insert(block.number);
            Arc::make_mut(&mut self.blocks).put(block);
        }
        for (group, by) in effects.finished_deltas() {
            self.finished.add(group.clone(), by);
            self.unflushed.counts.insert(group);
        }
        for (key, change) in &effects.records {
            match &change.after {
                Some(record) => self.records.readable.insert(key.clone(), record.clone()),
                None => self.records.readable.remove(key),
            };
        }
        for (id, change) in &effects.heads {
            // `effects` still holds what this displaces, so nothing is freed under the lock.
            let is_settled = |head: &Versioned| head.job.is_settled();
            let (was_settled, is_settled) =
                (change.before.as_ref().map(is_settled), change.after.as_ref().map(is_settled));
            if was_settled == Some(true) && is_settled != Some(true) {
                self.recent.remove(id);
            } else if was_settled == Some(false) && is_settled != Some(false) {
                self.live.remove(id);
            }
            match &change.after {
                Some(head) if head.job.is_settled() => drop(self.recent.put(head.clone())),
                Some(head) => drop(self.live.put(head.clone())),
                None => {}
            }
        }
        let rest = self.finished.sum + Sum::of_last(self.last, self.time) + self.members_sum;
        self.summed.has_applied(entry, effects, rest);
    }
}

/// How many records are listed at once where there may be any number.
const RECORDS_PAGE: usize = 1_000;

/// All records, by kind and name.
#[derive(Debug, Default)]
pub(super) struct Records {
    readable: BTreeMap<RecordKey, Record>,
    /// Why a record could not be read when the store was opened. The others are served.
    unreadable: BTreeMap<RecordKey, String>,
}

impl Records {
    /// Adds a record, or why it cannot be read.
    pub(super) fn add(&mut self, key: RecordKey, read: Result<Record, Corrupt>) {
        match read {
            Ok(record) => drop(self.readable.insert(key, record)),
            Err(Corrupt(why)) => drop(self.unreadable.insert(key, why)),
        }
    }

    /// Returns a record, if it exists.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when it cannot be read.
    pub(super) fn get(&self, key: &RecordKey) -> Result<Option<&Record>, StoreError> {
        match self.unreadable.get(key) {
            Some(why) => Err(StoreError::Corrupt(why.clone())),
            None => Ok(self.readable.get(key)),
        }
    }

    /// Returns the records of a kind, by name.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when one of them cannot be read, or there are more than can be listed.
    pub(super) fn of(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        if let Some((_, why)) = self.unreadable.iter().find(|(key, _)| key.kind == kind) {
            return Err(StoreError::Corrupt(why.clone()));
        }
        let found: Vec<Record> = self.from(kind, Bound::Unbounded).take(MAX_RECORDS + 1).cloned().collect();
        if found.len() > MAX_RECORDS { Err(too_many(kind)) } else { Ok(found) }
    }

    /// Returns a page of the readable records of a kind, by name.
    pub(super) fn after(&self, kind: RecordKind, after: Option<&RecordName>) -> Vec<Record> {
        let first = after.map_or(Bound::Unbounded, |after| Bound::Excluded(RecordKey::new(kind, after.clone())));
        self.from(kind, first).take(RECORDS_PAGE).cloned().collect()
    }

    /// Returns the readable records of a kind from a bound on, by name.
    fn from(&self, kind: RecordKind, first: Bound<RecordKey>) -> impl Iterator<Item = &Record> {
        let first = match first {
            Bound::Unbounded => Bound::Included(RecordKey::new(kind, RecordName::first())),
            bound => bound,
        };
        self.readable.range((first, Bound::Unbounded)).take_while(move |(key, _)| key.kind == kind).map(|(_, one)| one)
    }
}

/// The jobs that have ended lately, by the number of the write that ended them. Those that ended first are cut: they
/// are being put in blocks, and stay here until the blocks are written.
#[derive(Debug, Default)]
pub(super) struct Recent {
    by_write: BTreeMap<u64, Versioned>,
    by_id: HashMap<JobId, u64, RandomState>,
    /// The write from which on the jobs are not cut.
    first_uncut: u64,
    /// How many jobs are not cut.
    uncut: usize,
}

impl Recent {
    /// Returns the job, if it has ended lately.
    pub(super) fn get(&self, id: &JobId) -> Option<&Versioned> {
        self.by_write.get(self.by_id.get(id)?)
    }

    /// Returns the number of these jobs that are not cut.
    pub(super) fn uncut(&self) -> usize {
        self.uncut
    }

    /// Returns all of these jobs, in the order in which they ended.
    pub(super) fn heads(&self) -> impl Iterator<Item = &Versioned> {
        self.by_write.values()
    }

    /// Puts a job in the place of its former version, and returns that.
    pub(super) fn put(&mut self, head: Versioned) -> Option<Versioned> {
        let former = self.remove(&head.job.id);
        self.uncut += usize::from(head.version.seq_no >= self.first_uncut);
        self.by_id.insert(head.job.id.clone(), head.version.seq_no);
        self.by_write.insert(head.version.seq_no, head);
        former
    }

    /// Takes a job out, and returns it.
    pub(super) fn remove(&mut self, id: &JobId) -> Option<Versioned> {
        let write = self.by_id.remove(id)?;
        self.uncut -= usize::from(write >= self.first_uncut);
        self.by_write.remove(&write)
    }

    /// Cuts the first jobs that are not cut yet, and returns them.
    pub(super) fn cut(&mut self, count: usize) -> Vec<Versioned> {
        let heads: Vec<Versioned> =
            self.by_write.range(self.first_uncut..).take(count).map(|(_, head)| head.clone()).collect();
        self.first_uncut = heads.last().map_or(self.first_uncut, |head| head.version.seq_no + 1);
        self.uncut -= heads.len();
        heads
    }
}

/// How many finished jobs there are by state and queue.
#[derive(Debug, Default)]
pub(super) struct Finished {
    counts: HashMap<(JobState, QueueName), u64>,
    /// The sum over these counts.
    pub(super) sum: Sum,
}

impl Finished {
    /// Adds to the number of finished jobs in a state and queue.
    pub(super) fn add(&mut self, group: (JobState, QueueName), by: i64) {
        let before = self.of(&group);
        let count = before.saturating_add_signed(by);
        self.sum += Sum::of_finished(&group, count) - Sum::of_finished(&group, before);
        if count == 0 {
            self.counts.remove(&group);
        } else {
            self.counts.insert(group, count);
        }
    }

    /// Returns the number of finished jobs in a state and queue.
    pub(super) fn of(&self, group: &(JobState, QueueName)) -> u64 {
        self.counts.get(group).copied().unwrap_or(0)
    }

    /// Returns all counts that are not zero.
    pub(super) fn counts(&self) -> impl Iterator<Item = (JobState, &QueueName, u64)> {
        self.counts.iter().map(|((state, queue), count)| (*state, queue, *count))
    }
}
