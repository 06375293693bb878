//! The threads of an open store.

use std::io;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;

use super::engine::Engine;
use super::error::closed;
use super::exchange::Exchange;
use super::flush::Flusher;
use super::member::Threads;
use super::options::EmbeddedOptions;
use super::output::Outputs;
use super::periodic::Periodic;
use super::writer::{Queue, Writer, stop_after};
use super::{checkpoint, output, watch};
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
        outputs: &Arc<Outputs>,
        options: &EmbeddedOptions,
    ) -> io::Result<Self> {
        let flusher = Arc::new(Mutex::new(Flusher::start(engine)?));
        let writer = Writer::new(Arc::clone(engine), Arc::clone(queue), Arc::clone(&flusher))?;
        let writer = thread::Builder::new().name("store-writer".to_owned()).spawn(move || writer.run())?;
        let mut running = Self { queue: Arc::clone(queue), writer: Some(writer), threads: None, periodic: Vec::new() };
        let threads = exchange.map(|exchange| Threads::start(engine, &exchange, queue, &flusher, options));
        running.threads = threads.transpose()?;
        running.periodic.push(flush_when_due(Arc::downgrade(engine), Arc::clone(queue), flusher)?);
        running.periodic.push(checkpoint::start(Arc::downgrade(engine))?);
        running.periodic.push(watch::start(Arc::downgrade(engine), Arc::clone(queue), options.memory_limit)?);
        running.periodic.push(output::start_sweep(Arc::downgrade(engine), Arc::clone(outputs))?);
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
fn flush_when_due(engine: Weak<Engine>, queue: Arc<Queue>, flusher: Arc<Mutex<Flusher>>) -> io::Result<Periodic> {
    Periodic::start("store-flush-due", LOOK_EVERY, move || {
        let Some(engine) = engine.upgrade() else { return false };
        let begun = flusher.lock().begin_if_due(&engine);
        if let Err(failure) = &begun {
            stop_after(failure, &queue);
            engine.leave();
        }
        begun.is_ok()
    })
}

/// Returns what lets a queue refuse all writes for a reason, and take them again without one.
pub(super) fn standing_by(queue: &Arc<Queue>) -> impl Fn(Option<StoreError>) + Send + 'static {
    let queue = Arc::clone(queue);
    move |reason| queue.stand_by(reason)
}

#[cfg(test)]
mod tests;
