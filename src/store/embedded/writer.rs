//! The one writer: takes everything that waits, commits it as one batch, answers, and begins again.
//!
//! It never waits for more to come. While a batch is being synced the next one gathers by itself, so batches are as
//! large as the load makes them and a single write on an idle store goes out at once.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::engine::{CommitError, Engine, undecided};
use super::flush::Flusher;
use super::machine::{Command, Outcomes};
use crate::job::Json;
use crate::store::{Record, RecordWrite, StoreError, Write, WriteResult};

/// The most writes that may wait.
const WAITING_ITEMS: usize = 65_536;

/// The most bytes that waiting writes may have.
const WAITING_BYTES: usize = 64 << 20;

/// A batch takes no further request beyond this many writes: about what a disk syncs in the time it takes anyway.
const BATCH_ITEMS: usize = 4_096;

/// A batch takes no further request beyond this many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// How long a refused caller should wait before it tries again: several batches.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// About how many bytes a job takes without its bodies, or a record.
const HEAD_BYTES: usize = 512;

/// The writes of one caller.
pub(super) struct Request {
    commands: Vec<Command>,
    bytes: usize,
    caller: Caller,
}

/// The caller that waits for an answer.
enum Caller {
    Jobs { count: usize, answer: oneshot::Sender<Vec<WriteResult>> },
    Record(oneshot::Sender<WriteResult<Record>>),
}

/// Sends each of `callers` its own of the outcomes. A caller may have gone; its answer is no use to anyone else then.
fn answer(callers: Vec<Caller>, outcomes: Outcomes) {
    let (mut jobs, mut records) = (outcomes.jobs.into_iter(), outcomes.records.into_iter());
    for caller in callers {
        match caller {
            Caller::Jobs { count, answer } => drop(answer.send(jobs.by_ref().take(count).collect())),
            // Without an outcome there would be nothing to send, and the caller would hear that it is unknown.
            Caller::Record(answer) => drop(records.next().map(|outcome| answer.send(outcome))),
        }
    }
}

impl Caller {
    /// Answers every write of the caller with a failure.
    fn fail(self, failure: &Failure<'_>) {
        match self {
            Self::Jobs { count, answer } => drop(answer.send((0..count).map(|_| failure.answer()).collect())),
            Self::Record(answer) => drop(answer.send(failure.answer())),
        }
    }
}

/// Why writes are not acknowledged.
enum Failure<'a> {
    /// The writes were not written.
    Refused(&'a StoreError),
    /// The writes' batch could not be made durable.
    Undecided(&'a StoreError),
}

impl Failure<'_> {
    fn answer<T>(&self) -> WriteResult<T> {
        match self {
            Self::Refused(reason) => Err((*reason).clone().into()),
            Self::Undecided(failure) => Err(undecided(failure)),
        }
    }
}

/// The bounded queue of writes to the writer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Backlog>,
    arrived: Condvar,
}

#[derive(Default)]
struct Backlog {
    requests: Vec<Request>,
    items: usize,
    bytes: usize,
    /// The reason why the queue is closed; `None` while it is open.
    closed: Option<StoreError>,
    /// The reason why new jobs are refused; `None` while they are taken.
    no_new_jobs: Option<StoreError>,
}

impl Queue {
    /// Puts writes of jobs into the queue.
    ///
    /// # Errors
    /// [`StoreError`] when too much waits, or the queue is closed. A request that is too large for the bounds by itself
    /// is taken when nothing else waits: it could never be otherwise.
    pub(super) fn push(&self, writes: Vec<Write>) -> Result<oneshot::Receiver<Vec<WriteResult>>, StoreError> {
        let (bytes, count) = (writes.iter().map(bytes_of).sum(), writes.len());
        let has_new = writes.iter().any(|write| matches!(write, Write::Create { .. }));
        let (answer, receiver) = oneshot::channel();
        let commands = writes.into_iter().map(Command::Job).collect();
        self.put(Request { commands, bytes, caller: Caller::Jobs { count, answer } }, has_new)?;
        Ok(receiver)
    }

    /// Puts a write of a record into the queue.
    ///
    /// # Errors
    /// The errors of [`Queue::push`].
    pub(super) fn push_record(&self, write: RecordWrite) -> Result<oneshot::Receiver<WriteResult<Record>>, StoreError> {
        let bytes = HEAD_BYTES + write.body().map_or(0, Json::bytes);
        let (answer, receiver) = oneshot::channel();
        self.put(Request { commands: vec![Command::Record(write)], bytes, caller: Caller::Record(answer) }, false)?;
        Ok(receiver)
    }

    fn put(&self, request: Request, has_new: bool) -> Result<(), StoreError> {
        let (items, bytes) = (request.commands.len(), request.bytes);
        let mut waiting = self.waiting.lock();
        if let Some(reason) = waiting.no_new_jobs.as_ref().filter(|_| has_new) {
            return Err(reason.clone());
        }
        if let Some(reason) = &waiting.closed {
            return Err(reason.clone());
        }
        let too_much = waiting.items + items > WAITING_ITEMS || waiting.bytes + bytes > WAITING_BYTES;
        if too_much && !waiting.requests.is_empty() {
            return Err(StoreError::Overloaded { retry_after: RETRY_AFTER });
        }
        waiting.items += items;
        waiting.bytes += bytes;
        waiting.requests.push(request);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Closes the queue; waiting writes are still written. The first reason is kept.
    pub(super) fn close(&self, reason: StoreError) {
        self.waiting.lock().closed.get_or_insert(reason);
        self.arrived.notify_all();
    }

    /// Refuses new jobs for this reason; takes them again when there is none.
    pub(super) fn refuse_new_jobs(&self, reason: Option<StoreError>) {
        self.waiting.lock().no_new_jobs = reason;
    }

    /// Returns the reason why new jobs are refused; `None` while they are taken.
    pub(super) fn new_jobs_refused(&self) -> Option<StoreError> {
        self.waiting.lock().no_new_jobs.clone()
    }

    /// Returns the reason why the queue is closed; `None` while it is open.
    pub(super) fn closed(&self) -> Option<StoreError> {
        self.waiting.lock().closed.clone()
    }

    /// Waits for the next batch and returns it; `None` when the queue is closed and empty.
    fn take(&self) -> Option<Vec<Request>> {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() {
            if waiting.closed.is_some() {
                return None;
            }
            self.arrived.wait(&mut waiting);
        }
        let (mut items, mut bytes) = (0, 0);
        let taken = waiting.requests.iter().take_while(|request| {
            let fits = items < BATCH_ITEMS && bytes < BATCH_BYTES;
            items += request.commands.len();
            bytes += request.bytes;
            fits
        });
        let taken = taken.count();
        let rest = waiting.requests.split_off(taken);
        let batch = mem::replace(&mut waiting.requests, rest);
        waiting.items -= batch.iter().map(|request| request.commands.len()).sum::<usize>();
        waiting.bytes -= batch.iter().map(|request| request.bytes).sum::<usize>();
        Some(batch)
    }

    /// Closes the queue and refuses all waiting and later writes.
    fn fail(&self, reason: &StoreError) {
        self.close(reason.clone());
        let refused = mem::take(&mut self.waiting.lock().requests);
        for request in refused {
            request.caller.fail(&Failure::Refused(reason));
        }
    }
}

/// Writes until the queue is closed and empty, or a batch could not be made durable. At the end it flushes.
pub(super) fn run(engine: &Arc<Engine>, queue: &Arc<Queue>, mut flusher: Flusher) {
    let _guard = FailOnExit(Arc::clone(queue));
    while let Some(requests) = queue.take() {
        let mut commands = Vec::with_capacity(requests.iter().map(|request| request.commands.len()).sum());
        let mut callers = Vec::with_capacity(requests.len());
        for request in requests {
            commands.extend(request.commands);
            callers.push(request.caller);
        }
        metrics::histogram!("leasehold_store_bulk_items").record(commands.len() as f64);
        match engine.commit(commands) {
            Ok(committed) => answer(callers, committed.outcomes),
            Err(CommitError::Refused(reason)) => {
                if matches!(reason, StoreError::OutOfOrder(_)) {
                    queue.refuse_new_jobs(Some(reason.clone()));
                }
                callers.into_iter().for_each(|caller| caller.fail(&Failure::Refused(&reason)));
            }
            Err(CommitError::Failed(failure)) => {
                stop_after(&failure, queue);
                callers.into_iter().for_each(|caller| caller.fail(&Failure::Undecided(&failure)));
                return;
            }
        }
        // After all callers are answered: only the next batch waits for it.
        if let Err(failure) = flusher.begin_if_due(engine) {
            return stop_after(&failure, queue);
        }
    }
    if let Err(failure) = flusher.finish(engine) {
        stop_after(&failure, queue);
    }
}

fn stop_after(failure: &StoreError, queue: &Queue) {
    // Once for all the writes that are refused from now on.
    tracing::error!(%failure, "a batch could not be made durable");
    queue.fail(&match failure {
        StoreError::Stopped(_) => failure.clone(),
        other => StoreError::Stopped(format!("{other}; look at the log, and restart the server")),
    });
}

/// Closes the queue however the writer ends, so that nobody waits for one that has panicked.
struct FailOnExit(Arc<Queue>);

impl Drop for FailOnExit {
    fn drop(&mut self) {
        let why = "its writer has ended; look at the log, and restart the server";
        self.0.fail(&StoreError::Stopped(why.to_owned()));
    }
}

fn bytes_of(write: &Write) -> usize {
    let job = write.job();
    let bodies: usize = write.bodies().iter().map(|body| body.json.bytes()).sum();
    HEAD_BYTES + job.payload.bytes() + job.result().bytes() + bodies
}

#[cfg(test)]
mod tests;
