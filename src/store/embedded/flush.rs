//! Flushes: what has changed is written to the database in the background, so that the log stays short.
//!
//! A flush writes the state as of one entry of the log, in one batch of the database that is synced, and the number of
//! that entry with it. So the database always is the state as of an entry: opening reads it, and then the entries after
//! it. Only then the segments of the log that only have earlier entries are removed.

use std::io;
use std::mem;
use std::sync::Arc;

use super::background::Background;
use super::engine::Engine;
use super::unflushed::Flush;
use crate::store::StoreError;

/// The thread that writes flushes, until it is dropped.
pub(super) struct Flusher {
    thread: Background<Flush, Result<(), StoreError>>,
    is_busy: bool,
    /// Why one has failed. No other one may begin: it would not have what that one had.
    failed: Option<StoreError>,
}

impl Flusher {
    /// Starts the thread, which writes one flush after the other.
    pub(super) fn start(engine: &Arc<Engine>) -> io::Result<Self> {
        let engine = Arc::clone(engine);
        let thread = Background::start("store-flush", move |flush| engine.write_flush(&flush))?;
        Ok(Self { thread, is_busy: false, failed: None })
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
    pub(super) fn finish(&mut self, engine: &Engine) -> Result<(), StoreError> {
        self.end()?;
        if engine.has_room_to_flush() {
            self.begin(engine)?;
        }
        self.end()
    }

    fn begin(&mut self, engine: &Engine) -> Result<(), StoreError> {
        self.is_busy = true;
        self.thread.begin(engine.begin_flush())
    }

    /// Waits until no flush is under way.
    fn end(&mut self) -> Result<(), StoreError> {
        if mem::take(&mut self.is_busy) {
            self.failed = self.thread.end().and_then(|flushed| flushed).err();
        }
        self.failed.clone().map_or(Ok(()), Err)
    }
}
