//! The thread that opens a store anew once it has received the state of another member, which it begins with then.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::Inner;
use super::directory::Directory;
use super::engine::Engine;
use super::error::OpenError;
use super::exchange::Exchange;
use super::mailbox::Next;
use super::running::{Running, standing_by};
use super::writer::Queue;
use crate::store::StoreError;

/// The pause between two looks at whether reads have ended.
const PAUSE: Duration = Duration::from_millis(2);

impl Inner {
    /// Starts the thread for a store that is one of several members.
    ///
    /// # Errors
    /// An error when it cannot be started.
    pub(super) fn start_renewing(self: &Arc<Self>) -> io::Result<Option<JoinHandle<()>>> {
        let Some(exchange) = self.exchange.clone() else { return Ok(None) };
        let inner = Arc::downgrade(self);
        let thread = thread::Builder::new().name("store-renew".to_owned());
        thread.spawn(move || while wait(&exchange) && renew(&inner, &exchange) {}).map(Some)
    }
}

fn wait(exchange: &Exchange) -> bool {
    matches!(exchange.received.next(None), Next::One(()))
}

/// Opens the store anew. Returns whether it is open.
fn renew(inner: &Weak<Inner>, exchange: &Arc<Exchange>) -> bool {
    let Some(inner) = inner.upgrade() else { return false };
    let mut running = inner.running.lock();
    if inner.is_closed.load(Ordering::Acquire) {
        return false;
    }
    exchange.pause();
    // The threads before the engine, which they have. The state that they leave is not used any more.
    *running = None;
    let mut engine = inner.engine.write().take();
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
    exchange.resume(standing_by(&queue));
    let opened = open(&inner, exchange, &queue);
    *inner.queue.write() = Arc::clone(&queue);
    match opened {
        Ok((engine, threads)) => {
            *inner.engine.write() = Some(engine);
            *running = Some(threads);
            // Not before: to the leader, a member that receives nothing and lacks what it was offered has given up.
            exchange.receives(None);
            true
        }
        Err(error) => {
            tracing::error!(%error, "the store cannot be opened with the state that was received");
            queue.close(StoreError::Stopped(format!("{error}; look at the log, and restart the server")));
            false
        }
    }
}

fn open(inner: &Inner, exchange: &Arc<Exchange>, queue: &Arc<Queue>) -> Result<(Arc<Engine>, Running), OpenError> {
    let directory = Directory::hold(&inner.path, inner.options.reserve_bytes)?;
    let engine = Arc::new(Engine::open(directory, &inner.options, Some(Arc::clone(exchange)))?);
    let no_thread = |source| OpenError::Io { doing: "start a thread for", directory: inner.path.clone(), source };
    let running = Running::start(&engine, queue, Some(Arc::clone(exchange)), &inner.outputs, &inner.options)
        .map_err(no_thread)?;
    Ok((engine, running))
}
