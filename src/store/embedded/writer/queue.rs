//! The queue of writes to the writer, which is bounded.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::super::machine::Command;
use super::super::unanswered::Unanswered;
use super::super::weight::{BATCH_BYTES, Weighed};
use super::answer::{Answer, Awaited, Caller, Failure, fail};
use crate::store::{Record, RecordWrite, ScheduleWrite, StoreError, StoredSchedule, Versioned, Write};

/// The most writes that may wait.
pub(super) const WAITING_ITEMS: usize = 65_536;

/// The most bytes that waiting writes may have.
pub(super) const WAITING_BYTES: usize = 64 << 20;

/// A batch takes no further request beyond this many writes: about what a disk syncs in the time it takes anyway.
const BATCH_ITEMS: usize = 4_096;

/// How long a refused caller should wait before it tries again: several batches.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The writes of one caller, or those of them that are not in a batch yet.
pub(super) struct Request {
    pub(super) commands: VecDeque<Weighed>,
    /// The most bytes that they take in an entry.
    pub(super) bytes: usize,
    pub(super) caller: Caller,
}

impl Request {
    /// Takes off the first writes, up to the one with which so many bytes are full; `None` when that is the last one.
    fn split_off(&mut self, room: usize) -> Option<Self> {
        if self.bytes <= room {
            return None;
        }
        let mut bytes = 0;
        let fit = self.commands.iter().take_while(|command| {
            let fits = bytes < room;
            bytes += if fits { command.most } else { 0 };
            fits
        });
        let count = fit.count();
        if count == self.commands.len() {
            return None;
        }
        let commands = self.commands.drain(..count).collect();
        self.bytes -= bytes;
        Some(Self { commands, bytes, caller: self.caller.split_off(count) })
    }
}

/// The bounded queue of writes to the writer.
#[derive(Default)]
pub(crate) struct Queue {
    pub(super) waiting: Mutex<Backlog>,
    arrived: Condvar,
    unanswered: Arc<Unanswered>,
}

#[derive(Default)]
pub(super) struct Backlog {
    pub(super) requests: VecDeque<Request>,
    items: usize,
    bytes: usize,
    /// The reason why the queue is closed; `None` while it is open.
    closed: Option<StoreError>,
    /// The reason why new jobs are refused; `None` while they are taken.
    no_new_jobs: Option<StoreError>,
    /// The reason why nothing is taken for now; `None` while writes are taken.
    standing_by: Option<StoreError>,
}

impl Queue {
    /// Puts writes of jobs into the queue.
    ///
    /// # Errors
    /// [`StoreError`] when too much waits, or the queue is closed. A request that is too large for the bounds by itself
    /// is taken when nothing else waits: it could never be otherwise.
    pub(crate) fn push(&self, writes: Vec<Write>) -> Result<Awaited<Versioned>, StoreError> {
        let has_new = writes.iter().any(|write| matches!(write, Write::Create { .. }));
        self.put_all(writes.into_iter().map(Command::Job), Caller::Jobs, has_new)
    }

    /// Puts writes of records into the queue.
    ///
    /// # Errors
    /// The errors of [`Queue::push`].
    pub(crate) fn push_records(&self, writes: Vec<RecordWrite>) -> Result<Awaited<Record>, StoreError> {
        self.put_all(writes.into_iter().map(Command::Record), Caller::Records, false)
    }

    /// Puts writes of schedules into the queue. A new schedule is new work, as a new job is.
    ///
    /// # Errors
    /// The errors of [`Queue::push`].
    pub(crate) fn push_schedules(&self, writes: Vec<ScheduleWrite>) -> Result<Awaited<StoredSchedule>, StoreError> {
        let has_new = writes.iter().any(|write| matches!(write, ScheduleWrite::Create { .. }));
        self.put_all(writes.into_iter().map(Command::Schedule), Caller::Schedules, has_new)
    }

    /// Puts a write into the queue that changes nothing, and is written all the same. Nobody waits for its answer.
    pub(crate) fn try_a_write(&self) {
        // While nothing is taken there is nothing to find out.
        drop(self.push_records(Vec::new()));
    }

    /// Returns the writes that were taken and are not answered yet.
    pub(crate) fn unanswered(&self) -> &Unanswered {
        &self.unanswered
    }

    fn put_all<T>(
        &self,
        commands: impl ExactSizeIterator<Item = Command>,
        caller: impl FnOnce(Answer<T>) -> Caller,
        has_new: bool,
    ) -> Result<Awaited<T>, StoreError> {
        let (answer, awaited) = Answer::to(commands.len());
        // Here and not by the writer, of which there is one.
        let commands: VecDeque<Weighed> = commands.map(Weighed::of).collect();
        let bytes = commands.iter().map(|command| command.most).sum();
        self.put(Request { commands, bytes, caller: caller(answer) }, has_new)?;
        Ok(awaited)
    }

    fn put(&self, mut request: Request, has_new: bool) -> Result<(), StoreError> {
        let (items, bytes) = (request.commands.len(), request.bytes);
        let mut waiting = self.waiting.lock();
        if let Some(reason) = waiting.no_new_jobs.as_ref().filter(|_| has_new) {
            return Err(reason.clone());
        }
        if let Some(reason) = waiting.closed.as_ref().or(waiting.standing_by.as_ref()) {
            return Err(reason.clone());
        }
        let too_much = waiting.items + items > WAITING_ITEMS || waiting.bytes + bytes > WAITING_BYTES;
        if too_much && !waiting.requests.is_empty() {
            return Err(StoreError::Overloaded { retry_after: RETRY_AFTER });
        }
        waiting.items += items;
        waiting.bytes += bytes;
        request.caller.waits(self.unanswered.accept());
        waiting.requests.push_back(request);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Refuses all writes for this reason, also those that wait; takes them again when there is none.
    pub(crate) fn stand_by(&self, reason: Option<StoreError>) {
        let mut waiting = self.waiting.lock();
        waiting.standing_by = reason.clone();
        let Some(reason) = reason else { return };
        let refused = mem::take(&mut waiting.requests);
        (waiting.items, waiting.bytes) = (0, 0);
        drop(waiting);
        fail(refused.into_iter().map(|request| request.caller), &Failure::Refused(&reason));
    }

    /// Closes the queue; waiting writes are still written. The first reason is kept.
    pub(crate) fn close(&self, reason: StoreError) {
        self.waiting.lock().closed.get_or_insert(reason);
        self.arrived.notify_all();
    }

    /// Refuses new jobs for this reason; takes them again when there is none.
    pub(crate) fn refuse_new_jobs(&self, reason: Option<StoreError>) {
        self.waiting.lock().no_new_jobs = reason;
    }

    /// Returns the reason why new jobs are refused for now; `None` while they are taken.
    pub(crate) fn new_jobs_refused(&self) -> Option<StoreError> {
        self.waits_for_room().or_else(|| self.waiting.lock().no_new_jobs.clone())
    }

    /// Returns the reason why nothing is written until there is room on the disk; `None` while that is not so.
    pub(crate) fn waits_for_room(&self) -> Option<StoreError> {
        self.closed().filter(|reason| matches!(reason, StoreError::OutOfOrder(_)))
    }

    /// Returns the reason why the queue is closed; `None` while it is open.
    pub(crate) fn closed(&self) -> Option<StoreError> {
        self.waiting.lock().closed.clone()
    }

    /// Waits until something waits. Returns whether it does, which is not so once the queue is closed and empty.
    pub(super) fn wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() && waiting.closed.is_none() {
            self.arrived.wait(&mut waiting);
        }
        !waiting.requests.is_empty()
    }

    /// Returns how many writes wait.
    pub(super) fn items(&self) -> usize {
        self.waiting.lock().items
    }

    /// Takes the requests for which a batch has room that has so many writes and bytes. The last one is taken in part
    /// where it has more bytes than there is room for: that part ends with the write with which the batch is full.
    pub(super) fn take(&self, mut items: usize, mut bytes: usize) -> Vec<Request> {
        let mut waiting = self.waiting.lock();
        let mut taken = Vec::new();
        while items < BATCH_ITEMS
            && bytes < BATCH_BYTES
            && let Some(mut request) = waiting.requests.pop_front()
        {
            if let Some(part) = request.split_off(BATCH_BYTES - bytes) {
                waiting.requests.push_front(request);
                request = part;
            }
            items += request.commands.len();
            bytes += request.bytes;
            waiting.items -= request.commands.len();
            waiting.bytes -= request.bytes;
            taken.push(request);
        }
        taken
    }

    /// Closes the queue and refuses all waiting and later writes.
    pub(crate) fn fail(&self, reason: &StoreError) {
        self.close(reason.clone());
        let refused = mem::take(&mut self.waiting.lock().requests);
        fail(refused.into_iter().map(|request| request.caller), &Failure::Refused(reason));
    }
}

#[cfg(test)]
mod tests;
