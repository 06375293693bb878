//! Flushes: what has changed is written to the database in the background, so that the log stays short.
//!
//! A flush writes the state as of one entry of the log, in one batch of the database that is synced, and the number of
//! that entry with it. So the database always is the state as of an entry: opening reads it, and then the entries after
//! it. Only then the segments of the log that only have earlier entries are removed.

use std::io;
use std::sync::Arc;

use super::background::Background;
use super::engine::Engine;
use super::exits::Exits;
use super::unflushed::{Flush, UnderWay};
use crate::store::StoreError;

/// The thread that writes flushes, until it is dropped.
pub(super) struct Flusher {
    thread: Background<Flush, Result<(), StoreError>>,
    under_way: Option<UnderWay>,
    /// Why one has failed. No other one may begin: it would not have what that one had.
    failed: Option<StoreError>,
}

impl Flusher {
    /// Starts the thread, which writes one flush after the other.
    pub(super) fn start(engine: &Arc<Engine>, exits: &Arc<Exits>) -> io::Result<Self> {
        let engine = Arc::clone(engine);
        let thread = Background::start("store-flush", exits.guard(), move |flush| engine.write_flush(&flush))?;
        Ok(Self { thread, under_way: None, failed: None })
    }

    /// Begins a flush when one is due. It waits for the one before: jobs could end faster than they are written.
    ///
    /// # Errors
    /// Why the one before failed.
    pub(super) fn begin_if_due(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if !engine.is_flush_due() {
            return Ok(());
        }
        self.end(engine)?;
        self.begin(engine)
    }

    /// Begins a flush when one is due and none is under way.
    ///
    /// # Errors
    /// Why the one before failed.
    pub(super) fn begin_if_free(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if !engine.is_flush_due() {
            return Ok(());
        }
        if self.under_way.is_some() {
            let Some(ended) = self.thread.try_end() else { return Ok(()) };
            self.under_way = None;
            self.has_ended(ended)?;
        }
        self.begin(engine)
    }

    /// Writes all that has changed, where there is room. The log has it in any case.
    ///
    /// # Errors
    /// Why a flush failed.
    pub(super) fn finish(&mut self, engine: &Engine) -> Result<(), StoreError> {
        self.end(engine)?;
        if engine.has_room_to_flush() {
            self.begin(engine)?;
        }
        self.end(engine)
    }

    fn begin(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if let Some(failure) = &self.failed {
            return Err(failure.clone());
        }
        let flush = engine.begin_flush();
        self.under_way = Some(flush.under_way());
        self.thread.begin(flush)
    }

    /// Waits until no flush is under way.
    fn end(&mut self, engine: &Engine) -> Result<(), StoreError> {
        if let Some(under_way) = self.under_way.take() {
            *engine.awaited.flush.lock() = Some(under_way);
            let ended = self.thread.end();
            *engine.awaited.flush.lock() = None;
            return self.has_ended(ended);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn has_ended(&mut self, ended: Result<Result<(), StoreError>, StoreError>) -> Result<(), StoreError> {
        self.failed = ended.and_then(|flushed| flushed).err();
        self.failed.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests;
