//! Commits: each batch is decided, made durable, shown to readers and answered, in this order. And flushes: what has
//! changed is written to the database in the background.

use std::collections::BTreeMap;
use std::fs;
use std::io;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::block::Block;
use super::disk::Disk;
use super::entry::{self, Entry};
use super::group::{Committed, Durable, Member};
use super::log::{AppendError, Log};
use super::machine::{self, Applied, Command, Effects, Heads, Outcomes, Row};
use super::reader::Reader;
use super::seal::{LogSeal, Vote};
use super::state::{FlushLimits, Published};
use super::unflushed::Flush;
use crate::job::{Job, JobId};
use crate::store::{Record, RecordKey, StoreError, Versioned, WriteError};

/// The disk, the log, and the state that readers see.
pub(super) struct Engine {
    pub(super) published: RwLock<Published>,
    pub(super) disk: Disk,
    pub(super) log: Mutex<Log>,
    /// Held from when a batch is decided until it is shown to readers: what a flush moves from memory to blocks is not
    /// moved meanwhile.
    committing: Mutex<Member>,
    limits: FlushLimits,
    /// What a crash has cut short at the end of the log, and opening has cut off.
    pub(super) dropped: Option<String>,
}

/// A batch that is durable and is to be answered.
pub(super) struct Answered {
    /// The answers to its commands.
    pub(super) outcomes: Outcomes,
    /// The batch's changes with the documents that they replaced, which the caller frees once it has answered.
    _effects: Effects,
}

impl Engine {
    pub(super) fn new(
        disk: Disk,
        (log, dropped): (Log, Option<String>),
        member: Member,
        published: Published,
        limits: FlushLimits,
    ) -> Self {
        let (published, log, committing) = (RwLock::new(published), Mutex::new(log), Mutex::new(member));
        Self { published, disk, log, committing, limits, dropped }
    }

    /// Begins the next term: durable before any version of it is given out, so that none is ever given twice.
    ///
    /// # Errors
    /// [`AppendError`] when it is not durable.
    pub(super) fn begin_term(&self) -> Result<(), AppendError> {
        let committed = self.committing.lock().campaign(&mut self.durable())?;
        for Committed { number, frame } in committed {
            let replayed = replay(&self.disk, &mut self.published.write(), number, &frame);
            replayed.map_err(|why| AppendError::Failed(io::Error::other(why)))?;
        }
        Ok(())
    }

    fn durable(&self) -> OnDisk<'_> {
        OnDisk { disk: &self.disk, log: self.log.lock() }
    }

    /// Decides a batch, makes it durable, shows it to readers, and returns the answers. Only the writer calls this, one
    /// batch after the other. No lock that readers need is held while the log is written to.
    ///
    /// # Errors
    /// [`CommitError`] when the batch was not made durable. Then none of its answers holds.
    pub(super) fn commit(&self, commands: Vec<Command>) -> Result<Answered, CommitError> {
        let mut member = self.committing.lock();
        let (Applied { outcomes, effects }, left) = {
            let published = self.published.read();
            let known = Known { published: &published, disk: &self.disk };
            let applied = machine::apply(&known, published.last, commands);
            if applied.effects.last == published.last {
                return Ok(Answered { outcomes: applied.outcomes, _effects: applied.effects });
            }
            let left = known.left(&applied.effects)?;
            (applied, left)
        };
        let frame = entry::encode(&effects).map_err(StoreError::from)?;
        let bytes = frame.len();
        let committed = member.propose(frame, &mut self.durable()).map_err(|error| self.not_written(error))?;
        let [Committed { number, .. }] = committed.as_slice() else {
            return Err(CommitError::Failed(self.disk.stopped(io::Error::other("a group of one did not commit"))));
        };
        self.published.write().take_over(*number, bytes, &effects, left);
        Ok(Answered { outcomes, _effects: effects })
    }

    /// Returns whether it is time to write what has changed to the database, and there is room for that.
    pub(super) fn is_flush_due(&self) -> bool {
        self.published.read().is_flush_due(&self.limits) && self.has_room_to_flush()
    }

    /// Returns whether there is room to write what has changed to the database.
    pub(super) fn has_room_to_flush(&self) -> bool {
        self.disk.has_room_to_flush(&self.published.read())
    }

    /// Takes what has changed, for the one flush that may be under way.
    pub(super) fn begin_flush(&self) -> Flush {
        self.published.write().begin_flush(&self.limits)
    }

    /// Writes what has changed to the database, shows readers the database as it is then, and shortens the log. Only
    /// the next flush waits for this.
    ///
    /// # Errors
    /// An error when it could not be written. Then the caller must stop: the log would grow without end.
    pub(super) fn write_flush(&self, flush: &Flush) -> Result<(), StoreError> {
        let blocks = self.disk.flush(flush)?;
        let snapshot = self.disk.snapshot();
        self.published.write().end_flush(snapshot);
        for (block, cut) in blocks.into_iter().zip(&flush.cut) {
            let _order = self.committing.lock();
            self.published.write().put_block(block, &cut.heads);
        }
        let outdated = self.log.lock().forget_before(flush.entry + 1);
        for segment in outdated {
            if let Err(error) = fs::remove_file(&segment) {
                tracing::warn!(%error, segment = %segment.display(), "a segment of the log that is not needed is left");
            }
        }
        Ok(())
    }

    fn not_written(&self, error: AppendError) -> CommitError {
        match error {
            AppendError::Full(error) => CommitError::Refused(self.disk.give_room(&error)),
            AppendError::Failed(error) => CommitError::Failed(self.disk.stopped(error)),
        }
    }

    /// Returns the number of the last write.
    pub(super) fn last_write(&self) -> u64 {
        self.published.read().last.seq_no
    }

    /// Writes the seal of the store anew, where it has changed.
    pub(super) fn checkpoint(&self) -> io::Result<()> {
        let segment = self.log.lock().segment();
        let (write, last) = {
            let published = self.published.read();
            (published.last.seq_no, published.entry)
        };
        self.disk.checkpoint(write, LogSeal { last, segment, is_closed: false })
    }

    /// Closes the log and the database, and seals them as they are then. All has been flushed.
    ///
    /// # Errors
    /// The errors of [`Disk::close`].
    pub(super) fn close(self) -> Result<(), StoreError> {
        let Self { published, log, disk, .. } = self;
        let log = log.into_inner();
        let segment = log.segment();
        let last = log.close();
        let last = last.map_err(|error| StoreError::Unavailable(format!("the log: {error}")))?;
        disk.close(published.into_inner().last.seq_no, LogSeal { last, segment, is_closed: true })
    }
}

/// The log, and the vote in the seal.
struct OnDisk<'e> {
    disk: &'e Disk,
    log: MutexGuard<'e, Log>,
}

impl Durable for OnDisk<'_> {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        self.disk.write_vote(vote)
    }

    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        // A group of one never writes an entry in the place of another.
        match self.log.write(frame)? {
            written if written == number => Ok(()),
            written => {
                let what = format!("entry {number} was written as {written}");
                Err(AppendError::Failed(io::Error::other(what)))
            }
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log.sync()
    }
}

/// Why a batch was not made durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommitError {
    /// Nothing was written, and later batches may be.
    #[error(transparent)]
    Refused(#[from] StoreError),
    /// Whether it is durable is unknown, and so is what a later one would be written after: the caller must stop.
    #[error("{0}")]
    Failed(StoreError),
}

/// Takes over an entry of the log that is read again.
///
/// # Errors
/// Why it cannot be the next one.
pub(super) fn replay(disk: &Disk, published: &mut Published, number: u64, bytes: &[u8]) -> Result<(), String> {
    let entry = Entry::decode(bytes)?;
    let known = Known { published, disk };
    let effects = entry.effects(&known, published.last.seq_no)?;
    let left = known.left(&effects).map_err(|error| error.to_string())?;
    published.take_over(number, bytes.len(), &effects, left);
    Ok(())
}

struct Known<'a> {
    published: &'a Published,
    disk: &'a Disk,
}

impl Known<'_> {
    /// Returns the blocks that a batch's jobs leave, as they are then.
    fn left(&self, effects: &Effects) -> Result<Vec<Block>, StoreError> {
        let mut rows: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for left in &effects.left {
            rows.entry(left.block).or_default().push(left.row);
        }
        let blocks = rows.into_iter().filter_map(|(number, rows)| Some((self.published.blocks.get(number)?, rows)));
        blocks.map(|(block, rows)| self.reader(block).without(&rows)).collect()
    }

    fn reader<'b>(&'b self, block: &'b Block) -> Reader<'b> {
        Reader { disk: self.disk, snapshot: &self.published.view.snapshot, block }
    }
}

impl Heads for Known<'_> {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        match self.published.in_memory(id) {
            Some(head) => Ok(Some(head.clone())),
            None => self.disk.finished(&self.published.view, id),
        }
    }

    fn row(&self, job: &Versioned) -> Result<Option<Row>, StoreError> {
        let Job { id, created_at, .. } = &*job.job;
        if !job.job.is_settled() || self.published.recent.get(id).is_some() {
            return Ok(None);
        }
        let mut unreadable = None;
        for block in self.published.blocks.created_at(*created_at) {
            match self.reader(block).row_of(id.as_str(), *created_at) {
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
        Ok(self.published.records.get(key)?.cloned())
    }
}

/// Returns the answer to every command of a batch that could not be made durable.
pub(super) fn undecided<T>(failure: &StoreError) -> WriteError<T> {
    WriteError::Unknown(failure.to_string())
}

#[cfg(test)]
mod tests;
