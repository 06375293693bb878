//! Flushes: what has changed is written to the database in the background, so that the log stays short.
//!
//! A flush writes the state as of one entry of the log, in one batch of the database that is synced, and the number of
//! that entry with it. So the database always is the state as of an entry: opening reads it, and then the entries after
//! it. Only then the segments of the log that only have earlier entries are removed.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use super::engine::Engine;
use super::unflushed::Flush;
use crate::store::StoreError;

/// The thread that writes flushes, until it is dropped.
pub(super) struct Flusher {
    orders: Option<SyncSender<Flush>>,
    /// Says for each flush that it has ended.
    done: Receiver<Result<(), StoreError>>,
    is_busy: bool,
    thread: Option<JoinHandle<()>>,
}

impl Flusher {
    /// Starts the thread, which writes one flush after the other.
    pub(super) fn start(engine: &Arc<Engine>) -> std::io::Result<Self> {
        let ((orders, ordered), (end, done)) = (sync_channel::<Flush>(1), sync_channel(1));
        let engine = Arc::clone(engine);
        let thread = thread::Builder::new().name("store-flush".to_owned()).spawn(move || {
            for flush in ordered {
                if end.send(engine.write_flush(&flush)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { orders: Some(orders), done, is_busy: false, thread: Some(thread) })
    }

    /// Begins a flush when one is due. It waits for the one before: jobs could end faster than they are written.
    ///
    /// # Errors
    /// Why the one before failed.
    pub(super) fn begin_if_due(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if !engine.is_flush_due() {
            return Ok(());
        }
        self.end()?;
        self.begin(engine)
    }

    /// Writes all that has changed, where there is room. The log has it in any case.
    ///
    /// # Errors
    /// Why a flush failed.
    pub(super) fn finish(mut self, engine: &Engine) -> Result<(), StoreError> {
        self.end()?;
        if engine.has_room_to_flush() {
            self.begin(engine)?;
        }
        self.end()
    }

    fn begin(&mut self, engine: &Engine) -> Result<(), StoreError> {
        let orders = self.orders.as_ref().ok_or_else(gone)?;
        self.is_busy = true;
        orders.send(engine.begin_flush()).map_err(|_| gone())
    }

    /// Waits until no flush is under way.
    fn end(&mut self) -> Result<(), StoreError> {
        if !std::mem::take(&mut self.is_busy) {
            return Ok(());
        }
        self.done.recv().map_err(|_| gone())?
    }
}

fn gone() -> StoreError {
    StoreError::Stopped(
        "the thread that writes to the database has ended; look at the log, and restart the server".to_owned(),
    )
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
