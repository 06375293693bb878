//! The entries of a member that wait to be written to its log, in their order.

use parking_lot::{Condvar, Mutex};

use super::progress::Unwritten;

/// The entries that wait for the thread that writes them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
}

#[derive(Default)]
struct State {
    waiting: Option<Unwritten>,
    bytes: usize,
    is_closed: bool,
}

impl Queue {
    /// Adds entries behind those that wait. Once the queue is closed, they are dropped.
    pub(super) fn put(&self, next: Unwritten) {
        let mut state = self.state.lock();
        if state.is_closed {
            return;
        }
        state.bytes += next.entries.iter().map(|(_, frame)| frame.len()).sum::<usize>();
        match &mut state.waiting {
            Some(waiting) => waiting.extend(next),
            none => *none = Some(next),
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Takes all that wait. The caller has the log locked, so that they are written in their order.
    pub(super) fn take(&self) -> Option<Unwritten> {
        let mut state = self.state.lock();
        state.bytes = 0;
        state.waiting.take()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Returns the bytes of those that wait.
    pub(super) fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Waits until some wait; `false` once the queue is closed.
    pub(super) fn wait(&self) -> bool {
        let mut state = self.state.lock();
        while state.waiting.is_none() && !state.is_closed {
            self.arrived.wait(&mut state);
        }
        !state.is_closed
    }

    /// Closes the queue, and drops what is in it.
    pub(super) fn close(&self) {
        *self.state.lock() = State { is_closed: true, ..State::default() };
        self.arrived.notify_all();
    }
}
