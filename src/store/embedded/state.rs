//! The state that readers see: everything acknowledged and nothing else.
//!
//! [`Published`] holds the live jobs, the counts, and a snapshot of the disk taken right after the last commit, and is
//! moved on as one. A reader who takes all it needs under one lock sees one moment, however it then reads the disk.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fjall::Snapshot;
use parking_lot::RwLock;

use super::block::{self, Block, Blocks, Leaving, NewBlock};
use super::disk::Disk;
use super::live::Live;
use super::machine::{self, Applied, Command, Effects, Heads, Outcomes};
use crate::job::{JobId, JobState, QueueName};
use crate::store::{Record, RecordKey, StoreError, Version, Versioned, WriteError};

/// The store's state as of the last commit.
pub(super) struct Published {
    /// The live jobs.
    pub(super) live: Live,
    /// The finished jobs that are in no block yet.
    pub(super) recent: Recent,
    /// The blocks of all other finished jobs.
    pub(super) blocks: Arc<Blocks>,
    /// How many jobs have finished.
    pub(super) finished: Finished,
    /// The version given last.
    pub(super) last: Version,
    /// The disk at the same moment.
    pub(super) snapshot: Arc<Snapshot>,
}

impl Published {
    /// Returns a job that is in memory.
    pub(super) fn in_memory(&self, id: &JobId) -> Option<&Versioned> {
        self.live.get(id).or_else(|| self.recent.get(id))
    }
}

/// The jobs that have ended lately, by the number of the write that ended them. At most two blocks of them.
#[derive(Debug, Default)]
pub(super) struct Recent {
    by_write: BTreeMap<u64, Versioned>,
    by_id: HashMap<JobId, u64>,
}

impl Recent {
    /// Returns the job, if it has ended lately.
    pub(super) fn get(&self, id: &JobId) -> Option<&Versioned> {
        self.by_write.get(self.by_id.get(id)?)
    }

    /// Returns all of them, those first that ended first.
    pub(super) fn heads(&self) -> impl Iterator<Item = &Versioned> {
        self.by_write.values()
    }

    /// Puts a job in the place of its former version, and returns that.
    pub(super) fn put(&mut self, head: Versioned) -> Option<Versioned> {
        let former = self.remove(&head.job.id);
        self.by_id.insert(head.job.id.clone(), head.version.seq_no);
        self.by_write.insert(head.version.seq_no, head);
        former
    }

    /// Takes a job out, and returns it.
    pub(super) fn remove(&mut self, id: &JobId) -> Option<Versioned> {
        self.by_write.remove(&self.by_id.remove(id)?)
    }
}

/// How many finished jobs there are by state and queue.
#[derive(Debug, Default)]
pub(super) struct Finished(HashMap<(JobState, QueueName), u64>);

/// How many finished jobs there are in one state and queue.
pub(super) type FinishedCount = (JobState, QueueName, u64);

impl Finished {
    /// Returns the counts that a batch changes, as they are after it.
    fn after(&self, effects: &Effects) -> Vec<FinishedCount> {
        let changed = effects.finished_deltas().into_iter();
        let after = changed.map(|(group, by)| {
            let before = self.0.get(&group).copied().unwrap_or(0);
            (group.0, group.1, before.saturating_add_signed(by))
        });
        after.collect()
    }

    /// Sets how many there are.
    pub(super) fn set(&mut self, state: JobState, queue: QueueName, count: u64) {
        if count == 0 {
            self.0.remove(&(state, queue));
        } else {
            self.0.insert((state, queue), count);
        }
    }

    /// Returns all counts that are not zero.
    pub(super) fn counts(&self) -> impl Iterator<Item = (JobState, &QueueName, u64)> {
        self.0.iter().map(|((state, queue), count)| (*state, queue, *count))
    }
}

/// The disk, and the state that readers see.
pub(super) struct Engine {
    pub(super) published: RwLock<Published>,
    pub(super) disk: Disk,
    /// How many finished jobs make a block.
    pub(super) block_jobs: usize,
}

impl Engine {
    /// Decides a batch, makes it durable, shows it to readers, and returns the answers. Only the writer calls this, one
    /// batch after the other. No lock is held while the disk is written to, but a shared one while documents are looked
    /// up.
    ///
    /// # Errors
    /// When the batch could not be made durable: then none of its answers holds, and the caller must stop.
    pub(super) fn commit(&self, commands: Vec<Command>) -> Result<Committed, StoreError> {
        let (Applied { outcomes, effects }, counts, leaving) = {
            let published = self.published.read();
            let heads = Reader { published: &published, disk: &self.disk };
            let applied = machine::apply(&heads, published.last, commands);
            if applied.effects.last == published.last {
                return Ok(Committed { outcomes: applied.outcomes, _effects: applied.effects });
            }
            let counts = published.finished.after(&applied.effects);
            let leaving = self.leaving(&published, &applied.effects)?;
            (applied, counts, leaving)
        };
        self.disk.commit(&effects, &counts, &leaving)?;
        self.publish(&effects, counts, leaving);
        Ok(Committed { outcomes, _effects: effects })
    }

    /// Returns what becomes of the blocks whose jobs a batch removes or starts again.
    fn leaving(&self, published: &Published, effects: &Effects) -> Result<Vec<Leaving>, StoreError> {
        let mut rows: BTreeMap<u32, (&Block, Vec<u32>)> = BTreeMap::new();
        for (id, change) in &effects.heads {
            let Some(before) = change.before.as_ref().filter(|before| before.job.is_settled()) else { continue };
            if published.recent.get(id).is_some() {
                continue;
            }
            let mut found = false;
            for block in published.blocks.created_at(before.job.created_at) {
                let reader = block::Reader { disk: &self.disk, snapshot: &published.snapshot, block };
                if let Some(row) = reader.row_of(id.as_str(), before.job.created_at)? {
                    rows.entry(block.number).or_insert_with(|| (block, Vec::new())).1.push(row);
                    found = true;
                    break;
                }
            }
            if !found {
                // No reason to stop the store: searches did not find the job either.
                tracing::error!(job = %id, "a finished job that leaves is in no block");
            }
        }
        let leave = |(block, rows): (&Block, Vec<u32>)| {
            block::Reader { disk: &self.disk, snapshot: &published.snapshot, block }.without(&rows)
        };
        rows.into_values().map(leave).collect()
    }

    fn publish(&self, effects: &Effects, counts: Vec<FinishedCount>, leaving: Vec<Leaving>) {
        let snapshot = self.disk.snapshot();
        let mut published = self.published.write();
        published.last = effects.last;
        published.snapshot = snapshot;
        if !leaving.is_empty() {
            let blocks = Arc::make_mut(&mut published.blocks);
            leaving.into_iter().for_each(|leaving| blocks.put(leaving.block));
        }
        for (state, queue, count) in counts {
            published.finished.set(state, queue, count);
        }
        for (id, change) in &effects.heads {
            // `effects` still holds what this displaces, so nothing is freed under the lock.
            match &change.after {
                Some(head) if !head.job.is_settled() => {
                    published.recent.remove(id);
                    published.live.put(head.clone());
                }
                Some(head) => {
                    published.live.remove(id);
                    published.recent.put(head.clone());
                }
                None => {
                    published.live.remove(id);
                    published.recent.remove(id);
                }
            }
        }
    }

    /// Puts those that ended first in a block when two blocks of them are in memory. Only the writer calls this.
    ///
    /// # Errors
    /// When the block could not be written: then the caller must stop, as after a batch.
    pub(super) fn put_in_block(&self) -> Result<(), StoreError> {
        let (heads, number) = {
            let published = self.published.read();
            if published.recent.by_write.len() < 2 * self.block_jobs {
                return Ok(());
            }
            let heads: Vec<Versioned> = published.recent.heads().take(self.block_jobs).cloned().collect();
            (heads, published.blocks.next())
        };
        let new = NewBlock::of(number, &heads);
        self.disk.put_block(&new, heads.iter().map(|head| head.version.seq_no))?;
        let snapshot = self.disk.snapshot();
        let mut published = self.published.write();
        published.snapshot = snapshot;
        Arc::make_mut(&mut published.blocks).put(new.block);
        for head in &heads {
            // `heads` still holds what this takes out, so nothing is freed under the lock.
            published.recent.remove(&head.job.id);
        }
        Ok(())
    }
}

/// A durable batch.
pub(super) struct Committed {
    /// The answers to its commands.
    pub(super) outcomes: Outcomes,
    /// Freed by the caller once it has answered.
    _effects: Effects,
}

struct Reader<'a> {
    published: &'a Published,
    disk: &'a Disk,
}

impl Heads for Reader<'_> {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        match self.published.in_memory(id) {
            Some(head) => Ok(Some(head.clone())),
            None => self.disk.finished(&self.published.snapshot, id),
        }
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.disk.record(&self.published.snapshot, key)
    }
}

impl From<super::Corrupt> for StoreError {
    fn from(super::Corrupt(what): super::Corrupt) -> Self {
        Self::Corrupt(what)
    }
}

/// Returns the answer to every command of a batch that could not be made durable.
pub(super) fn undecided<T>(failure: &StoreError) -> WriteError<T> {
    WriteError::Unknown(failure.to_string())
}
