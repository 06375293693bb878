//! The one writer: takes everything that waits, commits it as one batch, answers, and looks again.
//!
//! It never waits for more to come. While a batch is being synced the next one gathers by itself, so batches are as
//! large as the load makes them and a single write on an idle store goes out at once.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use super::state::{Engine, undecided};
use crate::store::{StoreError, Write, WriteResult};

/// How many writes may wait.
const WAITING_ITEMS: usize = 65_536;

/// How many bytes they may have.
const WAITING_BYTES: usize = 64 << 20;

/// A batch takes no further request beyond this many writes: about what a disk syncs in the time it takes anyway.
const BATCH_ITEMS: usize = 4_096;

/// The same in bytes.
const BATCH_BYTES: usize = 8 << 20;

/// When to come again after a refusal: several batches later.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// What a job takes without its bodies, roughly.
const HEAD_BYTES: usize = 512;

/// The writes of one caller.
pub(super) struct Request {
    writes: Vec<Write>,
    bytes: usize,
    answer: oneshot::Sender<Vec<WriteResult>>,
}

/// Writes on their way to the writer, bounded.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Default)]
struct Waiting {
    requests: Vec<Request>,
    items: usize,
    bytes: usize,
    /// Why nothing more is taken.
    closed: Option<String>,
}

impl Queue {
    /// Hands writes over.
    ///
    /// # Errors
    /// When too much waits, or the queue is closed. A request that is too large for the bounds by itself is taken when
    /// nothing else waits: it could never be otherwise.
    pub(super) fn push(&self, writes: Vec<Write>) -> Result<oneshot::Receiver<Vec<WriteResult>>, StoreError> {
        let bytes = writes.iter().map(bytes_of).sum();
        let mut waiting = self.waiting.lock();
        if let Some(reason) = &waiting.closed {
            return Err(StoreError::Unavailable(reason.clone()));
        }
        let too_much = waiting.items + writes.len() > WAITING_ITEMS || waiting.bytes + bytes > WAITING_BYTES;
        if too_much && !waiting.requests.is_empty() {
            return Err(StoreError::Overloaded { retry_after: RETRY_AFTER });
        }
        let (answer, receiver) = oneshot::channel();
        waiting.items += writes.len();
        waiting.bytes += bytes;
        waiting.requests.push(Request { writes, bytes, answer });
        drop(waiting);
        self.arrived.notify_one();
        Ok(receiver)
    }

    /// Takes no more; what waits is still written. The first reason stays.
    pub(super) fn close(&self, reason: &str) {
        self.waiting.lock().closed.get_or_insert_with(|| reason.to_owned());
        self.arrived.notify_all();
    }

    /// Why nothing more is taken, if so.
    pub(super) fn closed(&self) -> Option<String> {
        self.waiting.lock().closed.clone()
    }

    /// The next batch, as soon as there is one; none when the queue is closed and empty.
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
            items += request.writes.len();
            bytes += request.bytes;
            fits
        });
        let taken = taken.count();
        let rest = waiting.requests.split_off(taken);
        let batch = mem::replace(&mut waiting.requests, rest);
        waiting.items -= batch.iter().map(|request| request.writes.len()).sum::<usize>();
        waiting.bytes -= batch.iter().map(|request| request.bytes).sum::<usize>();
        Some(batch)
    }

    /// Refuses everything that waits and all that comes.
    fn fail(&self, reason: &str) {
        self.close(reason);
        let refused = mem::take(&mut self.waiting.lock().requests);
        for request in refused {
            let refusal = || Err(StoreError::Unavailable(reason.to_owned()).into());
            let answers = request.writes.iter().map(|_| refusal()).collect();
            // The caller may have gone; it is no use to anyone else then.
            drop(request.answer.send(answers));
        }
    }
}

/// Writes until the queue is closed and empty, or a batch could not be made durable.
pub(super) fn run(engine: &Engine, queue: &Arc<Queue>) {
    let _guard = FailOnExit(Arc::clone(queue));
    while let Some(requests) = queue.take() {
        let mut commands = Vec::with_capacity(requests.iter().map(|request| request.writes.len()).sum());
        let mut callers = Vec::with_capacity(requests.len());
        for request in requests {
            callers.push((request.writes.len(), request.answer));
            commands.extend(request.writes);
        }
        match engine.commit(commands) {
            Ok(committed) => {
                let mut outcomes = committed.outcomes.into_iter();
                for (count, answer) in callers {
                    drop(answer.send(outcomes.by_ref().take(count).collect()));
                }
            }
            Err(failure) => {
                tracing::error!(%failure, "a batch could not be made durable; the store takes no more writes");
                queue.fail(&format!("an earlier write could not be made durable ({failure}); restart to recover"));
                for (count, answer) in callers {
                    drop(answer.send((0..count).map(|_| Err(undecided(&failure))).collect()));
                }
                return;
            }
        }
    }
}

/// Closes the queue however the writer ends, so that nobody waits for one that has panicked.
struct FailOnExit(Arc<Queue>);

impl Drop for FailOnExit {
    fn drop(&mut self) {
        self.0.fail("the store's writer has ended");
    }
}

fn bytes_of(write: &Write) -> usize {
    let job = write.job();
    let bodies: usize = write.bodies().iter().map(|body| body.json.bytes()).sum();
    HEAD_BYTES + job.payload.bytes() + job.result().bytes() + bodies
}

#[cfg(test)]
mod tests;
