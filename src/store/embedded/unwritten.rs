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
    /// The bytes of those that wait, and of those that were taken and are not written yet.
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
        state.bytes += next.bytes();
        match &mut state.waiting {
            Some(waiting) => waiting.extend(next),
            none => *none = Some(next),
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Takes all that wait. The caller has the log locked, so that they are written in their order, and says so once
    /// they are.
    pub(super) fn take(&self) -> Option<Unwritten> {
        self.state.lock().waiting.take()
    }

    /// Takes note of that entries which were taken are written.
    pub(super) fn has_written(&self, taken: &Unwritten) {
        let mut state = self.state.lock();
        // None are left once the queue is closed.
        state.bytes = state.bytes.saturating_sub(taken.bytes());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.lock().waiting.is_none()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Returns the bytes of those that are not written yet.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_taken_counts_until_it_is_written() {
        let queue = Queue::default();
        let of = |number, length| Unwritten { entries: vec![(number, vec![7; length].into())], step: number };
        queue.put(of(1, 100));
        let taken = queue.take().expect("they wait");
        assert_eq!((queue.bytes(), queue.is_empty()), (100, true));
        queue.put(of(2, 30));
        queue.has_written(&taken);
        assert_eq!(queue.bytes(), 30);
        let taken = queue.take().expect("they wait");
        queue.close();
        queue.has_written(&taken);
        assert_eq!(queue.bytes(), 0);
    }
}
