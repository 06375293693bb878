//! The one writer: takes everything that waits, commits it as one batch, answers, and begins again.
//!
//! It never waits for more to come. While a batch is being synced the next one gathers by itself, so batches are as
//! large as the load makes them and a single write on an idle store goes out at once. When much has gathered by the
//! time a batch is to be synced, another thread does that, and the writer decides the next batch meanwhile.

use std::collections::BTreeMap;
use std::io;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::background::Background;
use super::engine::{CommitError, Decided, Engine, undecided};
use super::exchange::not_leading;
use super::flush::Flusher;
use super::machine::{Batch, Command, Outcomes};
use crate::job::Json;
use crate::schedule::{DatesText, Definition};
use crate::store::{
    Record, RecordWrite, ScheduleWrite, StoreError, StoredSchedule, Versioned, Write, WriteError, WriteResult,
};

/// The most writes that may wait.
const WAITING_ITEMS: usize = 65_536;

/// The most bytes that waiting writes may have.
const WAITING_BYTES: usize = 64 << 20;

/// A batch takes no further request beyond this many writes: about what a disk syncs in the time it takes anyway.
const BATCH_ITEMS: usize = 4_096;

/// A batch takes no further request beyond this many bytes.
const BATCH_BYTES: usize = 8 << 20;

/// The next batch is decided while one is synced when so many writes wait: it takes longer than to wake two threads.
const AHEAD_ITEMS: usize = 64;

/// How long a refused caller should wait before it tries again: several batches.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// About how many bytes a job takes without its bodies, or a record, or a schedule without its action and labels.
const HEAD_BYTES: usize = 512;

/// The writes of one caller.
pub(super) struct Request {
    commands: Vec<Command>,
    bytes: usize,
    caller: Caller,
}

/// The caller that waits for an answer.
enum Caller {
    Jobs(Answer<Versioned>),
    Records(Answer<Record>),
    Schedules(Answer<StoredSchedule>),
}

/// The answer to the writes of one caller, which may have gone: it is no use to anyone else then.
struct Answer<T> {
    count: usize,
    sender: oneshot::Sender<Vec<WriteResult<T>>>,
}

/// An answer that is waited for.
type Awaited<T> = oneshot::Receiver<Vec<WriteResult<T>>>;

impl<T> Answer<T> {
    fn to(count: usize) -> (Self, Awaited<T>) {
        let (sender, receiver) = oneshot::channel();
        (Self { count, sender }, receiver)
    }

    /// Sends the caller its own of the outcomes, which are the next.
    fn send(self, outcomes: &mut impl Iterator<Item = WriteResult<T>>) {
        drop(self.sender.send(outcomes.take(self.count).collect()));
    }

    fn fail(self, failure: &Failure<'_>) {
        drop(self.sender.send((0..self.count).map(|_| failure.answer()).collect()));
    }
}

/// Sends each of `callers` its own of the outcomes.
fn answer(callers: Vec<Caller>, outcomes: Outcomes) {
    let Outcomes { jobs, records, schedules } = outcomes;
    let (mut jobs, mut records, mut schedules) = (jobs.into_iter(), records.into_iter(), schedules.into_iter());
    for caller in callers {
        match caller {
            Caller::Jobs(answer) => answer.send(&mut jobs),
            Caller::Records(answer) => answer.send(&mut records),
            Caller::Schedules(answer) => answer.send(&mut schedules),
        }
    }
}

fn fail(callers: impl IntoIterator<Item = Caller>, failure: &Failure<'_>) {
    callers.into_iter().for_each(|caller| caller.fail(failure));
}

impl Caller {
    /// Answers every write of the caller with a failure.
    fn fail(self, failure: &Failure<'_>) {
        match self {
            Self::Jobs(answer) => answer.fail(failure),
            Self::Records(answer) => answer.fail(failure),
            Self::Schedules(answer) => answer.fail(failure),
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
    /// The reason why nothing is taken for now; `None` while writes are taken.
    standing_by: Option<StoreError>,
}

impl Queue {
    /// Puts writes of jobs into the queue.
    ///
    /// # Errors
    /// [`StoreError`] when too much waits, or the queue is closed. A request that is too large for the bounds by itself
    /// is taken when nothing else waits: it could never be otherwise.
    pub(super) fn push(&self, writes: Vec<Write>) -> Result<Awaited<Versioned>, StoreError> {
        let (bytes, (answer, awaited)) = (writes.iter().map(bytes_of).sum(), Answer::to(writes.len()));
        let has_new = writes.iter().any(|write| matches!(write, Write::Create { .. }));
        let commands = writes.into_iter().map(Command::Job).collect();
        self.put(Request { commands, bytes, caller: Caller::Jobs(answer) }, has_new)?;
        Ok(awaited)
    }

    /// Puts writes of records into the queue.
    ///
    /// # Errors
    /// The errors of [`Queue::push`].
    pub(super) fn push_records(&self, writes: Vec<RecordWrite>) -> Result<Awaited<Record>, StoreError> {
        let bytes = writes.iter().map(|write| HEAD_BYTES + write.body().map_or(0, Json::bytes)).sum();
        let (answer, awaited) = Answer::to(writes.len());
        let commands = writes.into_iter().map(Command::Record).collect();
        self.put(Request { commands, bytes, caller: Caller::Records(answer) }, false)?;
        Ok(awaited)
    }

    /// Puts writes of schedules into the queue. A new schedule is new work, as a new job is.
    ///
    /// # Errors
    /// The errors of [`Queue::push`].
    pub(super) fn push_schedules(&self, writes: Vec<ScheduleWrite>) -> Result<Awaited<StoredSchedule>, StoreError> {
        let (bytes, (answer, awaited)) = (writes.iter().map(bytes_of_schedule).sum(), Answer::to(writes.len()));
        let has_new = writes.iter().any(|write| matches!(write, ScheduleWrite::Create { .. }));
        let commands = writes.into_iter().map(Command::Schedule).collect();
        self.put(Request { commands, bytes, caller: Caller::Schedules(answer) }, has_new)?;
        Ok(awaited)
    }

    fn put(&self, request: Request, has_new: bool) -> Result<(), StoreError> {
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
        waiting.requests.push(request);
        drop(waiting);
        self.arrived.notify_one();
        Ok(())
    }

    /// Refuses all writes for this reason, also those that wait; takes them again when there is none.
    pub(super) fn stand_by(&self, reason: Option<StoreError>) {
        let mut waiting = self.waiting.lock();
        waiting.standing_by = reason.clone();
        let Some(reason) = reason else { return };
        let refused = mem::take(&mut waiting.requests);
        (waiting.items, waiting.bytes) = (0, 0);
        drop(waiting);
        fail(refused.into_iter().map(|request| request.caller), &Failure::Refused(&reason));
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

    /// Waits until something waits. Returns whether it does, which is not so once the queue is closed and empty.
    fn wait(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.requests.is_empty() && waiting.closed.is_none() {
            self.arrived.wait(&mut waiting);
        }
        !waiting.requests.is_empty()
    }

    /// Returns how many writes wait.
    fn items(&self) -> usize {
        self.waiting.lock().items
    }

    /// Takes the requests for which a batch has room that has so many writes and bytes.
    fn take(&self, mut items: usize, mut bytes: usize) -> Vec<Request> {
        let mut waiting = self.waiting.lock();
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
        batch
    }

    /// Closes the queue and refuses all waiting and later writes.
    fn fail(&self, reason: &StoreError) {
        self.close(reason.clone());
        let refused = mem::take(&mut self.waiting.lock().requests);
        fail(refused.into_iter().map(|request| request.caller), &Failure::Refused(reason));
    }
}

/// The thread that makes entries durable while the next batch is decided.
type Appender = Background<Vec<u8>, Result<u64, CommitError>>;

/// What the writer works with.
pub(super) struct Writer {
    engine: Arc<Engine>,
    queue: Arc<Queue>,
    appender: Appender,
    flusher: Arc<Mutex<Flusher>>,
}

impl Writer {
    /// Creates the writer of an engine, with the threads that it needs beside its own.
    ///
    /// # Errors
    /// An error when one of these cannot be started.
    pub(super) fn new(engine: Arc<Engine>, queue: Arc<Queue>, flusher: Arc<Mutex<Flusher>>) -> io::Result<Self> {
        let appender = Background::start("store-log", {
            let engine = Arc::clone(&engine);
            move |entry| engine.append(entry)
        });
        Ok(Self { engine, queue, appender: appender?, flusher })
    }

    /// Writes until the queue is closed and empty, or a batch could not be made durable. At the end it flushes.
    pub(super) fn run(mut self) {
        let (guard, _leaving) = (FailOnExit(Arc::clone(&self.queue)), LeaveOnExit(Arc::clone(&self.engine)));
        if let Err(failure) = self.write_all().and_then(|()| self.flusher.lock().finish(&self.engine)) {
            stop_after(&failure, &guard.0);
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
        let Some(exchange) = &self.engine.exchange else { return answer(callers, outcomes) };
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
        match self.engine.end(open.batch) {
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
        mut decided: Decided,
        callers: Vec<Caller>,
    ) -> Result<(), CommitError> {
        match &appended {
            Ok(entry) => {
                self.engine.show(*entry, &mut decided);
                answer(callers, decided.outcomes);
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
    bytes: usize,
}

impl Open {
    fn new(engine: &Engine, ahead: Option<&Decided>) -> Self {
        Self { batch: engine.begin(ahead), callers: Vec::new(), items: 0, bytes: 0 }
    }

    /// Adds and decides the requests that wait, as far as there is room for them.
    fn gather(&mut self, engine: &Engine, queue: &Queue, ahead: Option<&Decided>) {
        let requests = queue.take(self.items, self.bytes);
        let mut commands = Vec::with_capacity(requests.iter().map(|request| request.commands.len()).sum());
        for request in requests {
            self.bytes += request.bytes;
            commands.extend(request.commands);
            self.callers.push(request.caller);
        }
        self.items += commands.len();
        engine.decide(&mut self.batch, ahead, commands);
    }
}

/// Stops the store after a failure: nothing more is written.
pub(super) fn stop_after(failure: &StoreError, queue: &Queue) {
    // Once for all the writes that are refused from now on.
    tracing::error!(%failure, "a batch could not be made durable");
    queue.fail(&match failure {
        StoreError::Stopped(_) => failure.clone(),
        other => StoreError::Stopped(format!("{other}; look at the log, and restart the server")),
    });
}

/// Closes the queue however a thread of the store ends, so that nobody waits for one that has panicked.
pub(super) struct FailOnExit(pub(super) Arc<Queue>);

impl Drop for FailOnExit {
    fn drop(&mut self) {
        let why = "one of its threads has ended; look at the log, and restart the server";
        self.0.fail(&StoreError::Stopped(why.to_owned()));
    }
}

/// Leaves the group however a thread of the store ends, so that a leader that cannot write any more does not stay one.
pub(super) struct LeaveOnExit(pub(super) Arc<Engine>);

impl Drop for LeaveOnExit {
    fn drop(&mut self) {
        self.0.leave();
    }
}

fn bytes_of(write: &Write) -> usize {
    let job = write.job();
    let bodies: usize = write.bodies().iter().map(|body| body.json.bytes()).sum();
    HEAD_BYTES + job.payload.bytes() + job.result().bytes() + bodies
}

fn bytes_of_schedule(write: &ScheduleWrite) -> usize {
    let Some(schedule) = write.schedule() else { return HEAD_BYTES };
    let Definition { action, labels, exclude, .. } = &*schedule.definition;
    let bodies = [&action.job, &action.body].into_iter().flatten().map(Json::bytes).sum::<usize>();
    let texts =
        |texts: &BTreeMap<String, String>| texts.iter().map(|(key, text)| key.len() + text.len()).sum::<usize>();
    let url = action.url.as_ref().map_or(0, String::len);
    let excluded = exclude.len() * size_of::<DatesText>();
    HEAD_BYTES + bodies + url + action.headers.as_ref().map_or(0, texts) + texts(labels) + excluded
}

/// Returns the error of a write whose answer never came.
pub(super) fn writer_ended<T>() -> WriteError<T> {
    WriteError::Unknown("the store's writer ended".to_owned())
}

/// Waits for the answers to writes that were handed to the writer, if they were.
pub(super) async fn answers<T>(
    count: usize,
    pushed: Result<oneshot::Receiver<Vec<WriteResult<T>>>, StoreError>,
) -> Vec<WriteResult<T>> {
    match pushed {
        Ok(answers) => answers.await.unwrap_or_else(|_| (0..count).map(|_| Err(writer_ended())).collect()),
        Err(refusal) => (0..count).map(|_| Err(refusal.clone().into())).collect(),
    }
}

#[cfg(test)]
mod tests;
