//! A thread that carries out one order after the other.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};

use super::exits::FailOnExit;
use crate::store::StoreError;

/// A thread, which ends when this is dropped.
pub(super) struct Background<O, T> {
    name: &'static str,
    orders: Option<SyncSender<O>>,
    /// What each order came to.
    done: Receiver<T>,
    thread: Option<JoinHandle<()>>,
}

impl<O: Send + 'static, T: Send + 'static> Background<O, T> {
    /// Starts the thread, which carries out each order with `work`.
    pub(super) fn start(
        name: &'static str,
        guard: FailOnExit,
        mut work: impl FnMut(O) -> T + Send + 'static,
    ) -> io::Result<Self> {
        let ((orders, ordered), (end, done)) = (sync_channel(1), sync_channel(1));
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _guard = guard;
            for order in ordered {
                if end.send(work(order)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { name, orders: Some(orders), done, thread: Some(thread) })
    }

    /// Gives an order. The one before must have ended.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] when the thread has ended.
    pub(super) fn begin(&self, order: O) -> Result<(), StoreError> {
        self.orders.as_ref().and_then(|orders| orders.send(order).ok()).ok_or_else(|| self.ended())
    }

    /// Waits until the order that was given has ended, and returns what it came to.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] when the thread has ended.
    pub(super) fn end(&self) -> Result<T, StoreError> {
        self.done.recv().map_err(|_| self.ended())
    }

    /// Returns what the order that was given came to, if it has ended.
    ///
    /// # Errors
    /// [`StoreError::Stopped`] when the thread has ended.
    pub(super) fn try_end(&self) -> Option<Result<T, StoreError>> {
        match self.done.try_recv() {
            Err(TryRecvError::Empty) => None,
            ended => Some(ended.map_err(|_| self.ended())),
        }
    }

    fn ended(&self) -> StoreError {
        StoreError::Stopped(format!("the thread {} has ended; look at the log, and restart the server", self.name))
    }
}

impl<O, T> Drop for Background<O, T> {
    fn drop(&mut self) {
        self.orders.take();
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}
