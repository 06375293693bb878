//! Batches: each is decided, made durable, shown to readers and answered, in this order. While one is made durable, the
//! next may be decided on what that one changes; readers see neither, and when the first one is not written, both are
//! dropped. And flushes: what has changed is written to the database in the background.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::agreed::Agreed;
use super::at::is_at;
use super::block::Block;
use super::disk::Disk;
use super::durable::Contradiction;
use super::entry::{self, Entry};
use super::equality::compared::SumAt;
use super::equality::summed::Summed;
use super::exchange::Exchange;
use super::exits::what_to_do;
use super::group::Member;
use super::kept::Last;
use super::log::{AppendError, Log};
use super::machine::{Applied, Batch, Command, Effects, Heads, Outcomes, Row};
use super::mailbox::Mailbox;
use super::offer::Flushed;
use super::progress::{Committed, ProposeError};
use super::reader::Reader;
use super::seal::LogSeal;
use super::state::{FlushLimits, Published};
use super::unflushed::{Awaited, Flush};
use super::unwritten;
use crate::job::{Fence, Job, JobId, ScheduleId};
use crate::store::{Member as _, Membership, Record, RecordKey, StoreError, StoredSchedule, Versioned, WriteError};

/// The disk, the log, and the state that readers see.
pub(super) struct Engine {
    pub(super) published: RwLock<Published>,
    /// The sum over what is published.
    pub(super) summed: Arc<Summed>,
    pub(super) disk: Disk,
    pub(super) log: Mutex<Log>,
    pub(super) member: Mutex<Member>,
    /// The entries of the member that are to be written to the log.
    pub(super) unwritten: unwritten::Queue,
    /// Filled when the member needs entries that are to be read from the log.
    pub(super) to_read: Mailbox<()>,
    /// The mailbox of the member; `None` in a group of one.
    pub(super) exchange: Option<Arc<Exchange>>,
    pub(super) agreed: Agreed,
    /// Whether the store is about to begin with the state of another member, and takes part in nothing until then.
    pub(super) gives_way: AtomicBool,
    /// How many ticks there were.
    pub(super) ticks: AtomicU64,
    /// The number of the last entry with what the others have acknowledged that this one wrote.
    pub(super) noted: AtomicU64,
    /// The number of the last entry after which it said its sum there.
    pub(super) noted_sum: AtomicU64,
    /// Whether documents at rest cannot be read, by the last scrub or the one under way.
    pub(super) is_unreadable_at_rest: AtomicBool,
    /// The number of the first entry that the log has.
    first: Arc<AtomicU64>,
    /// Whether there was no room for the last entry.
    pub(super) is_out_of_room: AtomicBool,
    /// What is written and flushed that others wait for.
    pub(super) awaited: Awaited,
    turn: Mutex<()>,
    limits: FlushLimits,
    /// What a crash has cut short at the end of the log, and opening has cut off.
    pub(super) dropped: Option<String>,
}

/// A batch that is decided.
pub(super) struct Decided {
    /// The answers to its commands, which hold once it is shown.
    pub(super) outcomes: Outcomes,
    /// Its changes with the documents that they replace.
    pub(super) effects: Effects,
    /// The blocks that jobs leave with it, as they are then.
    left: Vec<Block>,
    /// Its entry of the log; `None` when it changes nothing.
    pub(super) entry: Option<Vec<u8>>,
}

impl Engine {
    pub(super) fn new(
        disk: Disk,
        (log, dropped): (Log, Option<String>),
        (member, exchange, first): (Member, Option<Arc<Exchange>>, Arc<AtomicU64>),
        published: Published,
        limits: FlushLimits,
    ) -> Self {
        let summed = Arc::clone(&published.summed);
        let (published, log, member) = (RwLock::new(published), Mutex::new(log), Mutex::new(member));
        let (agreed, turn) = (Agreed::default(), Mutex::new(()));
        let (unwritten, to_read) = (unwritten::Queue::default(), Mailbox::new(1));
        let (gives_way, is_out_of_room) = (AtomicBool::new(false), AtomicBool::new(false));
        let (ticks, noted) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            published,
            summed,
            disk,
            log,
            member,
            unwritten,
            to_read,
            exchange,
            agreed,
            gives_way,
            ticks,
            noted,
            noted_sum: AtomicU64::new(0),
            is_unreadable_at_rest: AtomicBool::new(false),
            first,
            is_out_of_room,
            awaited: Awaited::default(),
            turn,
            limits,
            dropped,
        }
    }

    /// Begins the next term of a group of one: durable before any version of it is given out, so that none is ever
    /// given twice.
    ///
    /// # Errors
    /// [`AppendError`] when it is not durable.
    pub(super) fn begin_term(&self) -> Result<(), AppendError> {
        for Committed { number, frame, .. } in self.campaign()? {
            let replayed = replay(&self.disk, &self.published.read(), number, &frame);
            replayed.map_err(|why| AppendError::Failed(io::Error::other(why)))?.show(&mut self.published.write());
        }
        Ok(())
    }

    /// Waits for a lock that is held from when a batch is begun until all that were decided are shown, or dropped: what
    /// a flush moves from memory to blocks is not moved meanwhile.
    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Begins a batch, which is decided behind the batch `ahead` if there is one.
    pub(super) fn begin(&self, ahead: Option<&Decided>) -> Batch {
        Batch::new(ahead.map_or_else(|| self.published.read().last, |ahead| ahead.effects.last))
    }

    /// Decides commands of a batch, behind the batch `ahead` if that is not shown yet.
    pub(super) fn decide(
        &self,
        batch: &mut Batch,
        ahead: Option<&Decided>,
        commands: impl IntoIterator<Item = Command>,
    ) {
        let ahead = ahead.map(|ahead| &ahead.effects);
        batch.decide(&Known { published: &self.published.read(), disk: &self.disk, ahead }, commands);
    }

    /// Returns what was decided, once every batch before is shown.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub(super) fn end(&self, batch: Batch) -> Result<Decided, StoreError> {
        let Applied { outcomes, effects } = batch.end();
        let published = self.published.read();
        if effects.last == published.last {
            return Ok(Decided { outcomes, effects, left: Vec::new(), entry: None });
        }
        let left = Known { published: &published, disk: &self.disk, ahead: None }.left(&effects)?;
        drop(published);
        let entry = entry::encode(&effects)?;
        Ok(Decided { outcomes, effects, left, entry: Some(entry) })
    }

    /// Makes an entry durable, at most of the members, and returns its number. No lock that readers need is held
    /// meanwhile.
    ///
    /// # Errors
    /// [`CommitError`] when it was not made durable. Then no answer of its batch holds, nor of one behind it.
    pub(super) fn append(&self, entry: Vec<u8>) -> Result<u64, CommitError> {
        let begun = Instant::now();
        let appended = self.try_append(entry);
        metrics::histogram!("leasehold_store_sync_duration_seconds").record(begun.elapsed());
        appended
    }

    /// Shows a batch to readers that is durable as the entry `number`, in so many bytes, and returns the answers to its
    /// commands.
    pub(super) fn show(&self, (number, bytes): (u64, usize), decided: Decided) -> Outcomes {
        let Decided { outcomes, effects, left, .. } = decided;
        // A change of the members may be before it, which another thread shows.
        if self.exchange.is_some() && !self.agreed.wait_until(|| self.applied().0 + 1 >= number) {
            return outcomes;
        }
        let begun = Instant::now();
        self.published.write().take_over((number, bytes), effects, left);
        if let Some(exchange) = &self.exchange {
            metrics::histogram!("leasehold_member_apply_seconds").record(begun.elapsed());
            self.agreed.has_moved();
            exchange.asked.lock().has_shown(number);
        }
        outcomes
    }

    /// Returns whether it is time to write what has changed to the database, and there is room for that.
    pub(super) fn is_flush_due(&self) -> bool {
        let published = self.published.read();
        let is_needed = self.exchange.as_ref().is_some_and(|exchange| exchange.offers.need_flush(published.entry));
        let is_due = is_needed || published.is_flush_due(&self.limits);
        drop(published);
        is_due && self.has_room_to_flush()
    }

    /// Returns whether nothing may be decided before a batch is shown: a flush could be due then, which cuts finished
    /// jobs behind the entry at which there are enough of them, so that every machine with the same log cuts the same
    /// ones.
    pub(super) fn must_show_first(&self, decided: &Decided) -> bool {
        let published = self.published.read();
        published.is_flush_due(&self.limits) || published.is_cut_due(&self.limits, decided.effects.heads.len())
    }

    /// Returns whether there is room to write what has changed to the database.
    pub(super) fn has_room_to_flush(&self) -> bool {
        self.disk.has_room_to_flush(&self.published.read())
    }

    /// Takes what has changed, for the one flush that may be under way.
    pub(super) fn begin_flush(&self) -> Flush {
        let flush = self.published.write().begin_flush(&self.limits);
        if let Some(exchange) = &self.exchange {
            exchange.offers.begin_flush(flush.entry);
        }
        flush
    }

    /// Writes what has changed to the database, shows readers the database as it is then, and shortens the log. Only
    /// the next flush waits for this.
    ///
    /// # Errors
    /// An error when it could not be written. Then the caller must stop: the log would grow without end.
    pub(super) fn write_flush(&self, flush: &Flush) -> Result<(), StoreError> {
        let begun = Instant::now();
        is_at(flush.entry, flush.last.primary_term);
        let blocks = self.disk.flush(flush)?;
        metrics::histogram!("leasehold_store_flush_duration_seconds").record(begun.elapsed());
        let snapshot = self.disk.snapshot();
        if let Some(exchange) = &self.exchange {
            let last = Last { number: flush.entry, term: flush.last.primary_term };
            let members = flush.members.clone().unwrap_or_else(|| exchange.founded());
            exchange.offers.flushed(Flushed { last, members, snapshot: Arc::clone(&snapshot) });
        }
        self.published.write().end_flush(snapshot, flush.moved);
        for (block, cut) in blocks.into_iter().zip(&flush.cut) {
            let _turn = self.turn();
            self.published.write().put_block(block, &cut.heads);
        }
        let kept = self.exchange.as_ref().map_or(0, |exchange| exchange.keeps_log_bytes());
        let outdated = {
            let offered = self.exchange.as_ref().and_then(|exchange| exchange.offers.oldest());
            let before = offered.map_or(flush.entry, |offered| offered.min(flush.entry)) + 1;
            let mut log = self.log.lock();
            let outdated = log.forget_before(before, kept);
            self.first.store(log.first(), Ordering::Release);
            outdated
        };
        for segment in outdated {
            if let Err(error) = fs::remove_file(&segment) {
                tracing::warn!(%error, segment = %segment.display(), "a segment of the log that is not needed is left");
            }
        }
        Ok(())
    }

    pub(super) fn not_written(&self, error: ProposeError) -> CommitError {
        match error {
            ProposeError::Deposed | ProposeError::Changing => {
                CommitError::Refused(StoreError::NotLeading(error.to_string()))
            }
            // What was kept did not help, and another member may have room: it leads once this one has left.
            ProposeError::Append(AppendError::Full(error))
                if self.is_out_of_room.swap(true, Ordering::Relaxed) && self.exchange.is_some() =>
            {
                CommitError::Failed(self.disk.stopped(error))
            }
            ProposeError::Append(AppendError::Full(error)) => CommitError::Refused(self.disk.give_room(&error)),
            ProposeError::Append(AppendError::Failed(error)) => CommitError::Failed(self.stopped(error)),
        }
    }

    /// Returns the failure of the log after which nothing more is written.
    pub(super) fn stopped(&self, error: io::Error) -> StoreError {
        match error.get_ref().is_some_and(|cause| cause.is::<Contradiction>()) {
            true => self.contradicts(&error.to_string()),
            false => self.disk.stopped(error),
        }
    }

    /// Returns the failure after which nothing more is written, since this member is not as the others are.
    pub(super) fn contradicts(&self, why: &str) -> StoreError {
        let own = self.exchange.as_ref().map(|exchange| exchange.number());
        let of = own.map_or_else(String::new, |own| format!("member {own}: "));
        StoreError::Stopped(format!("{of}{why}: {}", what_to_do(own, self.disk.directory.path())))
    }

    /// Returns the fence of a job; `None` where there is no such job. It may read the disk.
    pub(super) fn fence_of(&self, id: &JobId) -> Result<Option<Fence>, StoreError> {
        let view = {
            let published = self.published.read();
            if let Some(found) = published.in_memory(id) {
                return Ok(Some(found.job.fence));
            }
            published.view.clone()
        };
        Ok(self.disk.finished(&view, id)?.map(|found| found.job.fence))
    }

    /// Returns the number of the last write.
    pub(super) fn last_write(&self) -> u64 {
        self.published.read().last.seq_no
    }

    /// Writes the seal of the store anew, where it has changed.
    pub(super) fn checkpoint(&self) -> io::Result<()> {
        let (write, last) = {
            let published = self.published.read();
            (published.last.seq_no, published.entry)
        };
        // What is behind the last entry that was applied may still be cut off.
        let segment = self.log.lock().segment_of(last);
        self.disk.checkpoint(write, LogSeal { last, segment, is_closed: false })
    }

    /// Closes the log and the database, and seals them as they are then. All has been flushed.
    ///
    /// # Errors
    /// The errors of [`Disk::close`].
    pub(super) fn close(self) -> Result<(), StoreError> {
        let Self { published, log, disk, .. } = self;
        let (log, published) = (log.into_inner(), published.into_inner());
        let segment = log.segment_of(published.entry);
        let last = log.close();
        let last = last.map_err(|error| StoreError::Unavailable(format!("the log: {error}")))?;
        disk.close(published.last.seq_no, LogSeal { last, segment, is_closed: true })
    }
}

/// Why a batch was not made durable.
#[derive(Debug, thiserror::Error)]
pub(super) enum CommitError {
    /// Nothing was written, and later batches may be.
    #[error(transparent)]
    Refused(#[from] StoreError),
    /// Whether it is durable is unknown, since this member does not lead any more. Later ones may be written once it
    /// does again.
    #[error("{0}")]
    Lost(StoreError),
    /// Whether it is durable is unknown, and so is what a later one would be written after: the caller must stop.
    #[error("{0}")]
    Failed(StoreError),
}

impl CommitError {
    /// Returns why.
    pub(super) fn reason(&self) -> &StoreError {
        let (Self::Refused(reason) | Self::Lost(reason) | Self::Failed(reason)) = self;
        reason
    }

    /// Returns the failure after which the caller must stop, if it is one.
    pub(super) fn failed(self) -> Result<(), StoreError> {
        match self {
            Self::Refused(_) | Self::Lost(_) => Ok(()),
            Self::Failed(failure) => Err(failure),
        }
    }
}

/// What an entry of the log makes of the state, which was looked up and is not shown yet.
pub(super) struct Replayed {
    /// The number of the entry, and its length.
    entry: (u64, usize),
    members: Option<Membership>,
    effects: Effects,
    left: Vec<Block>,
    /// Whether it is a batch: what a member writes by itself is none, and changes no document.
    pub(super) is_batch: bool,
    /// The sum that the leader had, where the entry says it.
    pub(super) said: Option<SumAt>,
}

impl Replayed {
    /// Shows what the entry makes of the state in which it was looked up.
    pub(super) fn show(self, published: &mut Published) {
        if let Some(members) = self.members {
            published.take_over_members(Arc::new(members));
        }
        published.take_over(self.entry, self.effects, self.left);
    }
}

/// Looks up what the next entry of the log makes of a state.
///
/// # Errors
/// Why it cannot be the next one.
pub(super) fn replay(disk: &Disk, published: &Published, number: u64, bytes: &[u8]) -> Result<Replayed, String> {
    let mut read = Entry::decode(bytes)?;
    is_at(number, read.term);
    let (is_batch, said, members) = (read.last.is_some(), read.note.sum, read.members.take());
    let known = Known { published, disk, ahead: None };
    let effects = read.effects(&known, published.last.seq_no)?;
    let left = known.left(&effects).map_err(|error| error.to_string())?;
    Ok(Replayed { entry: (number, bytes.len()), members, effects, left, is_batch, said })
}

/// What a batch is decided on.
struct Known<'a> {
    published: &'a Published,
    disk: &'a Disk,
    /// What the batch before changes, while it is not shown.
    ahead: Option<&'a Effects>,
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
        if let Some(change) = self.ahead.and_then(|ahead| ahead.heads.get(id)) {
            return Ok(change.after.clone());
        }
        match self.published.in_memory(id) {
            Some(head) => Ok(Some(head.clone())),
            None => self.disk.finished(&self.published.view, id),
        }
    }

    fn row(&self, job: &Versioned) -> Result<Option<Row>, StoreError> {
        let Job { id, created_at, .. } = &*job.job;
        // What the batch before has written is in memory once it is shown.
        let is_ahead = self.ahead.is_some_and(|ahead| ahead.heads.contains_key(id));
        if !job.job.is_settled() || is_ahead || self.published.recent.get(id).is_some() {
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
        if let Some(change) = self.ahead.and_then(|ahead| ahead.records.get(key)) {
            return Ok(change.after.clone());
        }
        Ok(self.published.records.get(key)?.cloned())
    }

    fn schedule(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>, StoreError> {
        if let Some(change) = self.ahead.and_then(|ahead| ahead.schedules.get(id)) {
            return Ok(change.after.clone());
        }
        match self.published.schedule(id) {
            Some(now) => Ok(now.clone()),
            None => self.disk.schedule(&self.published.view.snapshot, id),
        }
    }
}

/// Returns the answer to every command of a batch that could not be made durable.
pub(super) fn undecided<T>(failure: &StoreError) -> WriteError<T> {
    WriteError::Unknown(failure.to_string())
}

#[cfg(test)]
mod tests;
