//! How the entries of a member get to its log, and old ones from there to members that lag.
//!
//! A disk may take long, and a member that does not answer is taken to be gone. So the member is not locked while
//! entries are written and synced, nor while old ones are read: messages, votes and ticks go on. A thread that locks
//! both the log and the member locks the log first, and no thread waits for the log while it has the member locked.

use std::io;
use std::mem;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;

use super::at::is_at;
use super::durable::{OnDisk, OnLog};
use super::engine::{CommitError, Engine};
use super::group::Member;
use super::kept::{read_from, term_of};
use super::log::AppendError;
use super::opening::log_format;
use super::progress::{Committed, Entries, ProposeError, Unwritten};
use super::unflushed::UnderWay;
use crate::store::StoreError;

/// The writing of an entry of the own writer, which is known to the watchdog until this is dropped.
struct Appending<'e>(&'e Engine);

impl<'e> Appending<'e> {
    fn begin(engine: &'e Engine, entry: UnderWay) -> Self {
        *engine.awaited.append.lock() = Some(entry);
        Self(engine)
    }
}

impl Drop for Appending<'_> {
    fn drop(&mut self) {
        *self.0.awaited.append.lock() = None;
    }
}

impl Engine {
    /// Does what [`append`](Self::append) says.
    ///
    /// # Errors
    /// The errors of that.
    pub(super) fn try_append(&self, entry: Vec<u8>) -> Result<u64, CommitError> {
        let term = term_of(&entry).map_err(|why| CommitError::Failed(self.disk.stopped(io::Error::other(why))))?;
        let (mut log, mut member) = self.lock_to_append()?;
        // Known before it counts as begun: nothing becomes of it.
        if self.gives_way.load(Ordering::Acquire) || !member.may_propose(term) {
            return Err(self.not_written(ProposeError::Deposed));
        }
        is_at(member.last() + 1, term);
        let appending = Appending::begin(self, UnderWay { entry: member.last() + 1, bytes: entry.len() as u64 });
        let proposal = self.exchange.as_ref().map(|exchange| exchange.asked.lock().proposes());
        let proposed = member.propose(term, entry, &mut log, &mut self.durable());
        let (number, mut progress) = proposed.map_err(|error| self.not_written(error))?;
        self.is_out_of_room.store(false, Ordering::Relaxed);
        self.agreed.propose(number, term);
        let step = progress.unwritten.take().map_or(0, |unwritten| unwritten.step);
        self.hand_on(&member, progress);
        drop(member);
        let synced = log.sync();
        drop((log, appending));
        synced.map_err(|error| CommitError::Failed(self.disk.stopped(error)))?;
        self.has_written(step).map_err(CommitError::Failed)?;
        match self.agreed.is_committed() {
            true => {
                if let (Some(exchange), Some(proposal)) = (&self.exchange, proposal) {
                    exchange.asked.lock().has_committed(proposal, term);
                }
                Ok(number)
            }
            false => Err(CommitError::Lost(StoreError::Unavailable(
                "another member leads since, and what was not agreed on by then may be lost".to_owned(),
            ))),
        }
    }

    /// Locks the log and the member to append to both, once the log has all entries that the member has.
    fn lock_to_append(&self) -> Result<(OnLog<'_>, MutexGuard<'_, Member>), CommitError> {
        loop {
            let mut log = self.log_to_write();
            // One that does not lead appends nothing, and needs no room for that.
            self.check_lead(&self.member.lock())?;
            log.log.prepare().map_err(|error| self.not_written(error.into()))?;
            let member = self.member.lock();
            self.check_lead(&member)?;
            if self.unwritten.is_empty() {
                log.check_last(member.last()).map_err(|error| self.not_written(error.into()))?;
                return Ok((log, member));
            }
            drop((member, log));
            self.write_entries().map_err(CommitError::Failed)?;
        }
    }

    /// Checks that this member leads, and that what is appended would be written.
    fn check_lead(&self, member: &Member) -> Result<(), CommitError> {
        match member.position().is_leader && !self.unwritten.is_closed() {
            true => Ok(()),
            false => Err(self.not_written(ProposeError::Deposed)),
        }
    }

    fn log_to_write(&self) -> OnLog<'_> {
        let mut log = self.log.lock();
        let members = self.exchange.as_ref().map(|exchange| exchange.agreed());
        log.write_as(log_format(members.as_deref()));
        OnLog { log, applied: self.applied().0 }
    }

    /// Returns what a member must not forget beside its log.
    pub(super) fn durable(&self) -> OnDisk<'_> {
        OnDisk { disk: &self.disk, exchange: self.exchange.as_deref() }
    }

    /// Writes the entries that wait to be written, and syncs them together.
    ///
    /// # Errors
    /// [`StoreError`] when they are not durable. Then the store must stop.
    pub(super) fn write_entries(&self) -> Result<(), StoreError> {
        let mut log = self.log_to_write();
        let Some(unwritten) = self.unwritten.take() else { return Ok(()) };
        // What follows must not take the place of what is missing.
        let written = self.write_to(&mut log, &unwritten).inspect_err(|_| log.log.fail());
        drop(log);
        written?;
        self.unwritten.has_written(&unwritten);
        self.has_written(unwritten.step)
    }

    fn write_to(&self, log: &mut OnLog<'_>, unwritten: &Unwritten) -> Result<(), StoreError> {
        for (number, frame) in &unwritten.entries {
            is_at(*number, term_of(frame).unwrap_or_default());
            let written = log.write(*number, frame).or_else(|error| match error {
                AppendError::Full(error) => {
                    // What is kept for that may do. Nothing else can be done with an entry that others rely on.
                    drop(self.disk.give_room(&error));
                    log.write(*number, frame)
                }
                failed @ AppendError::Failed(_) => Err(failed),
            });
            written.map_err(|error| self.stopped(error.into()))?;
            self.unwritten.goes_on();
        }
        log.sync().map_err(|error| self.disk.stopped(error))
    }

    /// Goes on with what is durable now.
    fn has_written(&self, step: u64) -> Result<(), StoreError> {
        let mut member = self.member.lock();
        // What it would promise with that is not in the state that the store begins with.
        if self.gives_way.load(Ordering::Acquire) {
            return Ok(());
        }
        let progress = member.has_written(step, &mut self.durable());
        let progress = progress.map_err(|error| self.disk.stopped(error.into()))?;
        self.hand_on(&member, progress);
        Ok(())
    }

    /// Begins the term of a group of one. Returns what is committed with that.
    pub(super) fn campaign(&self) -> Result<Vec<Committed>, AppendError> {
        let mut progress = self.member.lock().campaign(&mut self.durable())?;
        let mut committed = mem::take(&mut progress.committed);
        while let Some(Unwritten { entries, step }) = progress.unwritten.take() {
            let mut log = self.log_to_write();
            entries.iter().try_for_each(|(number, frame)| log.write(*number, frame))?;
            log.sync().map_err(AppendError::Failed)?;
            drop(log);
            progress = self.member.lock().has_written(step, &mut self.durable())?;
            committed.append(&mut progress.committed);
        }
        Ok(committed)
    }

    /// Reads the entries that the member needs for others, until it needs no more.
    ///
    /// # Errors
    /// [`StoreError`] when what must be durable is not. Then the store must stop.
    pub(super) fn read_entries(&self) -> Result<(), StoreError> {
        loop {
            let wanted = self.member.lock().to_read();
            let Some(((number, last), earlier)) = wanted else { return Ok(()) };
            let read = read_from(&*earlier, number, last);
            let mut member = self.member.lock();
            if self.gives_way.load(Ordering::Acquire) {
                return Ok(());
            }
            let progress = member.has_read(number, read, &mut self.durable());
            let progress = progress.map_err(|error| self.disk.stopped(error.into()))?;
            self.hand_on(&member, progress);
        }
    }
}

#[cfg(test)]
mod tests;
