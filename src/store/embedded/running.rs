//! The threads of an open store.

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::beside::Beside;
use super::engine::Engine;
use super::equality::{scrub, summed};
use super::error::closed;
use super::exchange::Exchange;
use super::exits::{Exits, FailOnExit};
use super::flush::Flusher;
use super::member::Threads;
use super::options::EmbeddedOptions;
use super::periodic::Periodic;
use super::writer::{Queue, Writer, stop_after};
use super::{checkpoint, output, watch, watchdog};
use crate::store::StoreError;

/// The time between two looks at whether a flush is due of a store to which nothing is written.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The threads of an open store, which end when this is dropped.
pub(super) struct Running {
    queue: Arc<Queue>,
    writer: Option<JoinHandle<()>>,
    /// Those of a member of a group. They end after the writer, whose last entries need the other members.
    threads: Option<Threads>,
    /// Those that keep the seal, that watch, and that remove the output of jobs that are gone.
    periodic: Vec<Periodic>,
}

impl Running {
    /// Starts the threads.
    ///
    /// # Errors
    /// An error when one cannot be started.
    pub(super) fn start(
        engine: &Arc<Engine>,
        queue: &Arc<Queue>,
        exchange: Option<Arc<Exchange>>,
        beside: &Beside,
        options: &EmbeddedOptions,
    ) -> io::Result<Self> {
        let exits = exits(queue, engine.disk.directory.path(), options);
        let flusher = Arc::new(Mutex::new(Flusher::start(engine, &exits)?));
        let writer = Writer::new(Arc::clone(engine), Arc::clone(queue), Arc::clone(&flusher), Arc::clone(&exits))?;
        let writer = thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run())?;
        let mut running = Self { queue: Arc::clone(queue), writer: Some(writer), threads: None, periodic: Vec::new() };
        let threads = exchange.map(|exchange| Threads::start(engine, &exchange, queue, &flusher, &exits, options));
        running.threads = threads.transpose()?;
        if let (Some(threads), Some((outputs, audit))) = (&mut running.threads, &beside.copied) {
            threads.copy(Arc::clone(outputs), Arc::clone(audit))?;
        }
        let (of, guard) = (|| Arc::downgrade(engine), || exits.guard());
        running.periodic.push(flush_when_due(of(), Arc::clone(queue), flusher, guard())?);
        running.periodic.push(summed::start(&engine.summed, guard())?);
        running.periodic.push(checkpoint::start(of(), guard())?);
        running.periodic.push(watch::start(of(), Arc::clone(queue), options.memory_limit, guard())?);
        running.periodic.push(scrub::start(of(), options.scrub_pace(), guard())?);
        running.periodic.push(output::start_sweep(of(), Arc::clone(&beside.outputs), guard())?);
        running.periodic.push(watchdog::start(of(), Arc::clone(queue), options.hangs_after, guard())?);
        Ok(running)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.queue.close(closed());
        if let Some(writer) = self.writer.take() {
            // A writer that panicked has printed why; there is nothing left to wait for.
            drop(writer.join());
        }
        self.threads = None;
    }
}

/// Starts the thread that begins a flush when one is due and nothing is written, which would have begun it. It ends by
/// itself when the engine is gone.
fn flush_when_due(
    engine: Weak<Engine>,
    queue: Arc<Queue>,
    flusher: Arc<Mutex<Flusher>>,
    guard: FailOnExit,
) -> io::Result<Periodic> {
    Periodic::start("store-flush-due", LOOK_EVERY, guard, move || {
        let Some(engine) = engine.upgrade() else { return false };
        // Whoever has it begins one.
        let Some(mut flusher) = flusher.try_lock() else { return true };
        let begun = flusher.begin_if_free(&engine);
        if let Err(failure) = &begun {
            stop_after(failure, &queue);
            engine.leave();
        }
        begun.is_ok()
    })
}

/// Returns what the end of a thread of this store is for the rest of it.
pub(super) fn exits(queue: &Arc<Queue>, directory: &Path, options: &EmbeddedOptions) -> Arc<Exits> {
    let queue = Arc::clone(queue);
    exits_by(move |why| queue.fail(why), directory, options)
}

/// The same, where `fail` has the store take no more writes.
pub(super) fn exits_by(
    fail: impl Fn(&StoreError) + Send + Sync + 'static,
    directory: &Path,
    options: &EmbeddedOptions,
) -> Arc<Exits> {
    Arc::new(Exits {
        fail: Box::new(fail),
        member: options.group.as_ref().map(|group| group.member),
        directory: directory.to_owned(),
        ends_process: options.panics_end_process,
    })
}

/// Returns what lets a queue refuse all writes for a reason, and take them again without one.
pub(super) fn standing_by(queue: &Arc<Queue>) -> impl Fn(Option<StoreError>) + Send + 'static {
    let queue = Arc::clone(queue);
    move |reason| queue.stand_by(reason)
}

#[cfg(test)]
mod tests;
