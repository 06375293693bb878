//! Commits: each batch is decided, made durable, shown to readers and answered, in this order.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::block::{Block, Leaving, NewBlock};
use super::disk::Disk;
use super::machine::{self, Applied, Command, Effects, Heads, Outcomes, Row};
use super::reader::Reader;
use super::state::{FinishedCount, Published};
use crate::job::{Job, JobId};
use crate::store::{Record, RecordKey, StoreError, Versioned, WriteError};

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
    /// An error when the batch could not be made durable. Then none of its answers holds, and the caller must stop.
    pub(super) fn commit(&self, commands: Vec<Command>) -> Result<Committed, StoreError> {
        let (Applied { outcomes, effects }, counts, leaving) = {
            let published = self.published.read();
            let known = Known { published: &published, disk: &self.disk };
            let applied = machine::apply(&known, published.last, commands);
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
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for left in &effects.left {
            rows.entry(left.block).or_default().push(left.row);
        }
        let blocks = rows.into_iter().filter_map(|(number, rows)| Some((published.blocks.get(number)?, rows)));
        let leave = |(block, rows): (&Block, Vec<u32>)| {
            Reader { disk: &self.disk, snapshot: &published.snapshot, block }.without(&rows)
        };
        blocks.map(leave).collect()
    }

    /// Writes the seal of the store anew, where it has changed.
    pub(super) fn checkpoint(&self) -> io::Result<()> {
        self.disk.checkpoint(self.last_write())
    }

    /// Returns the number of the last write.
    pub(super) fn last_write(&self) -> u64 {
        self.published.read().last.seq_no
    }

    /// Closes the database and seals it as it is then.
    ///
    /// # Errors
    /// The errors of [`Disk::close`].
    pub(super) fn close(self) -> Result<(), StoreError> {
        let seq_no = self.published.into_inner().last.seq_no;
        self.disk.close(seq_no)
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

    /// Moves the jobs that ended first to a block when two blocks of finished jobs are in memory. Only the writer calls
    /// this.
    ///
    /// # Errors
    /// An error when the block could not be written. Then the caller must stop, as after a failed batch.
    pub(super) fn put_in_block(&self) -> Result<(), StoreError> {
        let (heads, number) = {
            let published = self.published.read();
            if published.recent.len() < 2 * self.block_jobs {
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
    /// The batch's changes with the documents that they replaced, which the caller frees once it has answered.
    _effects: Effects,
}

struct Known<'a> {
    published: &'a Published,
    disk: &'a Disk,
}

impl Heads for Known<'_> {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        match self.published.in_memory(id) {
            Some(head) => Ok(Some(head.clone())),
            None => self.disk.finished(&self.published.snapshot, id),
        }
    }

    fn row(&self, job: &Versioned) -> Result<Option<Row>, StoreError> {
        let Job { id, created_at, .. } = &*job.job;
        if !job.job.is_settled() || self.published.recent.get(id).is_some() {
            return Ok(None);
        }
        let mut unreadable = None;
        for block in self.published.blocks.created_at(*created_at) {
            let reader = Reader { disk: self.disk, snapshot: &self.published.snapshot, block };
            match reader.row_of(id.as_str(), *created_at) {
                Ok(Some(row)) => return Ok(Some(Row { block: block.number, row })),
                Ok(None) => {}
                // The job may be in another block that can be read.
                Err(error) => unreadable = Some(error),
            }
        }
        if let Some(error) = unreadable {
            return Err(error);
        }
        // No reason to refuse the change: searches did not find the job either.
        tracing::error!(job = %id, "a finished job that leaves is in no block");
        Ok(None)
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.disk.record(&self.published.snapshot, key)
    }
}

/// Returns the answer to every command of a batch that could not be made durable.
pub(super) fn undecided<T>(failure: &StoreError) -> WriteError<T> {
    WriteError::Unknown(failure.to_string())
}
