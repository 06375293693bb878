//! The thread that opens a store again while its process goes on: once it has received the state of another member,
//! which it begins with then, and once there is room where it has stopped for want of it.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::Inner;
use super::directory::{Directory, has_room};
use super::disk::waits_for_room;
use super::engine::Engine;
use super::error::OpenError;
use super::mailbox::{Mailbox, Next};
use super::options::{EmbeddedOptions, GroupOptions};
use super::running::{Running, exits_by, standing_by};
use super::writer::Queue;
use crate::store::StoreError;

/// The pause between two looks at whether reads have ended.
const PAUSE: Duration = Duration::from_millis(2);

/// The time between two looks at whether a store waits for room, and there is some.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// How long after a store was opened again it is so next for that reason: what is left may be enough for that only.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

impl Inner {
    /// Starts the thread, which ends once the mailbox is closed that says that a state was received.
    ///
    /// # Errors
    /// An error when it cannot be started.
    pub(super) fn start_renewing(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        let (inner, received) = (Arc::downgrade(self), Arc::clone(&self.received));
        let fail = {
            let inner = Weak::clone(&inner);
            // The queue as it is then: each state that the store begins with has its own.
            move |why: &StoreError| inner.upgrade().iter().for_each(|inner| inner.queue.read().fail(why))
        };
        let exits = exits_by(fail, &self.path, &self.options);
        let thread = thread::Builder::new().name("store-renew".to_owned());
        thread.spawn(move || {
            // It ends first as the store is closed, which still writes what waits.
            let _guard = exits.guard_of_panics();
            let mut last = None;
            while wait(&inner, &received, last) && renew(&inner) {
                last = Some(Instant::now());
            }
        })
    }

    /// Returns whether nothing is written for want of room, and there is room now.
    fn may_go_on(&self) -> bool {
        let waits = self.queue.read().waits_for_room().is_some();
        // Reads go on with the former state meanwhile, and a disk without room may say that it has some.
        let may_write = || self.engine.read().as_ref().is_none_or(|engine| engine.disk.directory.try_room().is_ok());
        waits && has_room(&self.path, self.options.reserve_bytes) && may_write()
    }
}

/// Waits until the store is to be opened again, which it was last at `last`. Returns whether it is: not once the
/// mailbox is closed.
fn wait(inner: &Weak<Inner>, received: &Mailbox<()>, last: Option<Instant>) -> bool {
    loop {
        match received.next(Some(Instant::now() + LOOK_EVERY)) {
            Next::One(()) => return true,
            Next::Closed => return false,
            Next::None if last.is_some_and(|last| last.elapsed() < AGAIN_AFTER) => {}
            Next::None => match inner.upgrade() {
                None => return false,
                Some(inner) if inner.may_go_on() => {
                    tracing::info!("there is room on the disk again: the store is opened again");
                    return true;
                }
                Some(_) => {}
            },
        }
    }
}

/// Opens the store again. Returns whether that may be done once more: it is open, or waits for room.
fn renew(inner: &Weak<Inner>) -> bool {
    let Some(inner) = inner.upgrade() else { return false };
    let mut running = inner.running.lock();
    if inner.is_closed.load(Ordering::Acquire) {
        return false;
    }
    let exchange = inner.exchange.as_ref();
    exchange.inspect(|exchange| exchange.pause());
    // The threads before the engine, which they have. The state that they leave is not used any more.
    *running = None;
    let mut engine = inner.engine.write().take();
    if let Some(engine) = &engine {
        // The state may begin before entries that this member had applied: jobs are unknown until they are so again.
        drop(inner.beside.outputs.keep(&[], Some(engine.applied().0)));
    }
    while let Some(shared) = engine.take() {
        match Arc::try_unwrap(shared) {
            Ok(last) => {
                if let Err(failure) = last.close() {
                    tracing::warn!(%failure, "the former state was not closed in good order");
                }
            }
            Err(shared) => {
                // Reads are under way. No further ones begin.
                engine = Some(shared);
                thread::sleep(PAUSE);
            }
        }
    }
    let queue = Arc::new(Queue::default());
    exchange.inspect(|exchange| exchange.resume(standing_by(&queue)));
    let opened = open(&inner, &queue);
    *inner.queue.write() = Arc::clone(&queue);
    match opened {
        Ok((engine, threads)) => {
            *inner.engine.write() = Some(engine);
            *running = Some(threads);
            // Not before: to the leader, a member that receives nothing and lacks what it was offered has given up.
            exchange.inspect(|exchange| exchange.receives(None));
            true
        }
        Err(error) => {
            let is_full = error.is_full();
            tracing::error!(%error, "the store cannot be opened again");
            queue.close(match is_full {
                true => waits_for_room(&error.to_string()),
                false => StoreError::Stopped(format!("{error}; look at the log, and restart the server")),
            });
            is_full
        }
    }
}

fn open(inner: &Inner, queue: &Arc<Queue>) -> Result<(Arc<Engine>, Running), OpenError> {
    let directory = Directory::hold(&inner.path, inner.options.reserve_bytes)?;
    // One that was to go on alone does.
    let group = inner.options.group.clone().map(|group| GroupOptions { goes_on_alone: false, ..group });
    let options = EmbeddedOptions { group, ..inner.options.clone() };
    let engine = Arc::new(Engine::open(directory, &options, inner.exchange.clone())?);
    let no_thread = |source| OpenError::Io { doing: "start a thread for", directory: inner.path.clone(), source };
    let running = Running::start(&engine, queue, inner.exchange.clone(), &inner.beside, &options);
    Ok((engine, running.map_err(no_thread)?))
}
