//! The threads of a store that is one of several members.
//!
//! One takes the messages of other members and the ticks of the clock to the library, which says what is committed;
//! another applies that. Two more write entries to the log and read entries from it that others lack; one reads the
//! state for others, and one receives it from another. What the writer of a leader has proposed is not applied but
//! shown by the writer, which has decided it.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::Mutex;

use super::audit::CopiedAudit;
use super::copied::CopiedOutputs;
use super::engine::Engine;
use super::exchange::Exchange;
use super::exits::Exits;
use super::flush::Flusher;
use super::incoming;
use super::mailbox::Next;
use super::options::EmbeddedOptions;
use super::writer::{LeaveOnExit, Queue, stop_after};
use crate::store::StoreError;

/// The threads of a member, which end when this is dropped.
pub(super) struct Threads {
    engine: Arc<Engine>,
    queue: Arc<Queue>,
    exits: Arc<Exits>,
    threads: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts the threads that take messages to the group and apply what it commits.
    ///
    /// # Errors
    /// An error when one cannot be started.
    pub(super) fn start(
        engine: &Arc<Engine>,
        exchange: &Arc<Exchange>,
        queue: &Arc<Queue>,
        flusher: &Arc<Mutex<Flusher>>,
        exits: &Arc<Exits>,
        options: &EmbeddedOptions,
    ) -> io::Result<Self> {
        let shared = || (Arc::clone(engine), Arc::clone(exchange));
        let (engine_of, queue, exits) = (Arc::clone(engine), Arc::clone(queue), Arc::clone(exits));
        let mut started = Self { engine: engine_of, queue, exits, threads: Vec::new() };
        let (of, by) = shared();
        started.spawn("store-member", move || take_part(&of, &by))?;
        let (of, _) = shared();
        started.spawn("store-entries", move || write(&of))?;
        let (of, _) = shared();
        started.spawn("store-read", move || read(&of))?;
        let ((of, by), flusher) = (shared(), Arc::clone(flusher));
        started.spawn("store-apply", move || apply(&of, &by, &flusher))?;
        let (of, by) = shared();
        started.spawn("store-offer", move || {
            answer(&of, &by);
            Ok(())
        })?;
        let ((of, by), options) = (shared(), options.clone());
        started.spawn("store-receive", move || incoming::receive(&of, &by, &options))?;
        Ok(started)
    }

    /// Starts the threads that copy output and the audit to other members, and theirs.
    ///
    /// # Errors
    /// An error when one cannot be started.
    pub(super) fn copy(&mut self, copied: Arc<CopiedOutputs>, audit: Arc<CopiedAudit>) -> io::Result<()> {
        self.spawn("store-audit", move || {
            audit.run();
            Ok(())
        })?;
        let engine = Arc::clone(&self.engine);
        self.spawn("store-output", move || {
            copied.run(&engine);
            Ok(())
        })
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() -> Result<(), StoreError> + Send + 'static) -> io::Result<()> {
        let (queue, engine, exits) = (Arc::clone(&self.queue), Arc::clone(&self.engine), Arc::clone(&self.exits));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // It ends by itself where the store begins with a state that was received.
            let (_guard, _leaving) = (exits.guard_of_panics(), LeaveOnExit(engine));
            if let Err(failure) = work() {
                stop_after(&failure, &queue);
            }
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.engine.leave();
        for thread in self.threads.drain(..) {
            drop(thread.join());
        }
    }
}

/// Takes messages and ticks to the group, until the exchange is closed.
fn take_part(engine: &Engine, exchange: &Exchange) -> Result<(), StoreError> {
    let tick = exchange.tick();
    let mut next = Instant::now() + tick;
    while let Some(work) = exchange.next(next) {
        if work.is_tick {
            // Not the ticks that were missed: a machine that stood still has not heard of its leader for no longer.
            next = Instant::now() + tick;
        }
        engine.take_part(work)?;
    }
    Ok(())
}

/// Writes the entries of the member, until it leaves the group.
fn write(engine: &Engine) -> Result<(), StoreError> {
    while engine.unwritten.wait() {
        engine.write_entries()?;
    }
    Ok(())
}

/// Reads entries that other members lack, until the member leaves the group.
fn read(engine: &Engine) -> Result<(), StoreError> {
    while let Next::One(()) = engine.to_read.next(None) {
        engine.read_entries()?;
    }
    Ok(())
}

/// Applies what the group commits, until the member leaves it.
fn apply(engine: &Engine, exchange: &Exchange, flusher: &Mutex<Flusher>) -> Result<(), StoreError> {
    while let Some(committed) = engine.committed() {
        let begun = Instant::now();
        for entry in &committed {
            let is_batch = engine.apply(entry)?;
            exchange.asked.lock().has_shown(entry.number);
            if is_batch {
                // After each, so that all members put the same finished jobs in blocks.
                flusher.lock().begin_if_due(engine)?;
            } else if let Some(mut flusher) = flusher.try_lock() {
                // Not later than the next batch. A flush that is under way may wait for the writer's turn, and the
                // writer of a leader for the next entry that this thread shows.
                flusher.begin_if_free(engine)?;
            }
        }
        engine.has_applied();
        metrics::histogram!("leasehold_member_apply_seconds").record(begun.elapsed());
    }
    Ok(())
}

/// Answers the questions of other members for pieces of the state, until the exchange is closed.
fn answer(engine: &Engine, exchange: &Exchange) {
    while let Next::One((from, ask)) = exchange.asks.next(None) {
        match exchange.offers.answer(&engine.disk, from, ask) {
            Ok(word) => exchange.say(from, &word),
            // Where it is damaged, it is so for this store as well. The member asks again.
            Err(error) => tracing::error!(%error, member = from, "a piece of the state cannot be read"),
        }
    }
}
