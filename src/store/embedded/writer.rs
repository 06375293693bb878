//! The one writer: takes everything that waits, commits it as one batch, answers, and begins again.
//!
//! It never waits for more to come. While a batch is being synced the next one gathers by itself, so batches are as
//! large as the load makes them and a single write on an idle store goes out at once. When much has gathered by the
//! time a batch is to be synced, another thread does that, and the writer decides the next batch meanwhile.

use std::io;
use std::sync::Arc;

use parking_lot::Mutex;

use super::background::Background;
use super::engine::{CommitError, Decided, Engine};
use super::entry;
use super::exchange::not_leading;
use super::exits::Exits;
use super::flush::Flusher;
use super::machine::{Batch, Command};
use super::weight::{BATCH_BYTES, ENTRY_BYTES, Key, MEASURED_FROM, Weighed, measured};
use crate::store::StoreError;

mod answer;
mod queue;

use answer::{Caller, Failure, answer, fail};
use queue::Request;

pub(super) use answer::answers;
pub(super) use queue::Queue;

/// The next batch is decided while one is synced when so many writes wait: it takes longer than to wake two threads.
const AHEAD_ITEMS: usize = 64;

/// The thread that makes entries durable while the next batch is decided.
type Appender = Background<Vec<u8>, Result<u64, CommitError>>;

/// What the writer works with.
pub(super) struct Writer {
    engine: Arc<Engine>,
    queue: Arc<Queue>,
    appender: Appender,
    flusher: Arc<Mutex<Flusher>>,
    exits: Arc<Exits>,
}

impl Writer {
    /// Creates the writer of an engine, with the threads that it needs beside its own.
    ///
    /// # Errors
    /// An error when one of these cannot be started.
    pub(super) fn new(
        engine: Arc<Engine>,
        queue: Arc<Queue>,
        flusher: Arc<Mutex<Flusher>>,
        exits: Arc<Exits>,
    ) -> io::Result<Self> {
        let appender = Background::start("store-log", exits.guard(), {
            let engine = Arc::clone(&engine);
            move |entry| engine.append(entry)
        });
        Ok(Self { engine, queue, appender: appender?, flusher, exits })
    }

    /// Writes until the queue is closed and empty, or a batch could not be made durable. At the end it flushes.
    pub(super) fn run(mut self) {
        let (_guard, _leaving) = (self.exits.guard(), LeaveOnExit(Arc::clone(&self.engine)));
        if let Err(failure) = self.write_all().and_then(|()| self.flusher.lock().finish(&self.engine)) {
            stop_after(&failure, &self.queue);
        }
    }

    fn write_all(&mut self) -> Result<(), StoreError> {
        while self.queue.wait() {
            self.write_waiting()?;
            // After all callers are answered: only the next batch waits for it.
            self.flusher.lock().begin_if_due(&self.engine)?;
        }
        Ok(())
    }

    /// Writes what waits as one batch, and what comes meanwhile as further ones for as long as that is much.
    fn write_waiting(&mut self) -> Result<(), StoreError> {
        let engine = Arc::clone(&self.engine);
        let _turn = engine.turn();
        let mut open = Open::new(&engine, None);
        open.gather(&engine, &self.queue, None);
        while let Some((mut decided, callers)) = self.end(open) {
            let Some(entry) = decided.entry.take() else {
                self.answer_once_proved(decided, callers);
                break;
            };
            let bytes = entry.len();
            if self.queue.items() < AHEAD_ITEMS || engine.must_show_first(&decided) {
                let appended = engine.append(entry).map(|number| (number, bytes));
                return self.conclude(appended, decided, callers).or_else(CommitError::failed);
            }
            self.appender.begin(entry)?;
            open = Open::new(&engine, Some(&decided));
            open.gather(&engine, &self.queue, Some(&decided));
            let appended = self.appender.end()?.map(|number| (number, bytes));
            if let Err(error) = self.conclude(appended, decided, callers) {
                // It was decided on what was not written.
                fail(open.callers, &Failure::Refused(error.reason()));
                return error.failed();
            }
            open.gather(&engine, &self.queue, None);
        }
        Ok(())
    }

    /// Answers a batch that changes nothing, once it is known that this member led when it was decided: one that was
    /// paused decides on what another leader has changed since, and no entry tells it so.
    fn answer_once_proved(&self, Decided { outcomes, effects, .. }: Decided, callers: Vec<Caller>) {
        // Nobody may have come for the batch that was opened while the one before was synced.
        let Some(exchange) = self.engine.exchange.as_ref().filter(|_| !callers.is_empty()) else {
            return answer(callers, outcomes);
        };
        let mark = exchange.asked.lock().mark();
        if !mark.is_in(effects.last.primary_term) {
            return fail(callers, &Failure::Refused(&not_leading(None)));
        }
        let answer = move |led: Result<(), StoreError>| match led {
            Ok(()) => answer(callers, outcomes),
            Err(reason) => fail(callers, &Failure::Refused(&reason)),
        };
        exchange.ask(&mark, Box::new(answer));
    }

    /// Ends the deciding of a batch; `None` when it was refused.
    fn end(&self, open: Open) -> Option<(Decided, Vec<Caller>)> {
        metrics::histogram!("leasehold_store_bulk_items").record(open.items as f64);
        let decided = self.engine.end(open.batch).and_then(|mut decided| {
            if open.is_tried && decided.entry.is_none() {
                decided.entry = Some(entry::encode(&decided.effects)?);
            }
            Ok(decided)
        });
        match decided {
            Ok(decided) => Some((decided, open.callers)),
            Err(reason) => {
                fail(open.callers, &Failure::Refused(&reason));
                None
            }
        }
    }

    /// Shows and answers a batch that is durable as the entry of this number and length; fails it when it is not.
    fn conclude(
        &self,
        appended: Result<(u64, usize), CommitError>,
        decided: Decided,
        callers: Vec<Caller>,
    ) -> Result<(), CommitError> {
        match &appended {
            Ok(entry) => {
                answer(callers, self.engine.show(*entry, decided));
                self.engine.summed.keep_up();
            }
            Err(CommitError::Refused(reason)) => {
                if matches!(reason, StoreError::OutOfOrder(_)) {
                    self.queue.refuse_new_jobs(Some(reason.clone()));
                }
                fail(callers, &Failure::Refused(reason));
            }
            Err(CommitError::Lost(failure)) => fail(callers, &Failure::Undecided(failure)),
            Err(CommitError::Failed(failure)) => {
                stop_after(failure, &self.queue);
                fail(callers, &Failure::Undecided(failure));
            }
        }
        appended.map(drop)
    }
}

/// A batch to which requests are added.
struct Open {
    batch: Batch,
    callers: Vec<Caller>,
    items: usize,
    /// Whether it is written also where it changes nothing.
    is_tried: bool,
    /// The most bytes that its entry has.
    bytes: usize,
    scratch: Vec<u8>,
}

impl Open {
    fn new(engine: &Engine, ahead: Option<&Decided>) -> Self {
        let (batch, callers, scratch) = (engine.begin(ahead), Vec::new(), Vec::new());
        Self { batch, callers, items: 0, is_tried: false, bytes: ENTRY_BYTES, scratch }
    }

    /// Adds and decides the requests that wait, as far as there is room for them.
    fn gather(&mut self, engine: &Engine, queue: &Queue, ahead: Option<&Decided>) {
        loop {
            let requests = queue.take(self.items, self.bytes);
            let most = self.bytes + requests.iter().map(|request| request.bytes).sum::<usize>();
            self.add(engine, queue, requests, ahead);
            // What is left did not fit by what it has at most, and may by what the batch has become.
            if most < BATCH_BYTES || self.bytes >= BATCH_BYTES {
                return;
            }
        }
    }

    /// Adds and decides requests, and counts what they add to the entry.
    fn add(&mut self, engine: &Engine, queue: &Queue, requests: Vec<Request>, ahead: Option<&Decided>) {
        // Each may have to be looked up on disk.
        let moves = |_: &Command| queue.unanswered().moves();
        let mut small = Vec::with_capacity(requests.iter().map(|request| request.commands.len()).sum());
        for Request { commands, caller, .. } in requests {
            self.items += commands.len();
            self.is_tried |= commands.is_empty();
            for Weighed { command, most } in commands {
                if most <= MEASURED_FROM {
                    self.bytes += most;
                    small.push(command);
                    continue;
                }
                let key = Key::of(&command);
                engine.decide(&mut self.batch, ahead, small.drain(..).chain([command]).inspect(moves));
                self.bytes += measured(self.batch.effects(), &key, &mut self.scratch).min(most);
            }
            self.callers.push(caller);
        }
        engine.decide(&mut self.batch, ahead, small.into_iter().inspect(moves));
    }
}

/// Stops the store after a failure: nothing more is written.
pub(super) fn stop_after(failure: &StoreError, queue: &Queue) {
    // Once for all the writes that are refused from now on.
    tracing::error!(%failure, "a batch could not be made durable");
    queue.fail(&match failure {
        StoreError::Stopped(_) | StoreError::OutOfOrder(_) => failure.clone(),
        other => StoreError::Stopped(format!("{other}; look at the log, and restart the server")),
    });
}

/// Leaves the group however a thread of the store ends, so that a leader that cannot write any more does not stay one.
pub(super) struct LeaveOnExit(pub(super) Arc<Engine>);

impl Drop for LeaveOnExit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(test)]
mod tests;
