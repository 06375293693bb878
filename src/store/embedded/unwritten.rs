//! The entries of a member that wait to be written to its log, in their order.

use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};

use super::agreed::GLANCE;
use super::progress::Unwritten;

/// The entries that wait for the thread that writes them.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    arrived: Condvar,
    /// How many entries were written.
    written: AtomicU64,
}

/// What is to be written, and how far that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ToWrite {
    /// How many entries were written so far.
    pub(super) written: u64,
    /// The bytes of those that are not written yet.
    pub(super) bytes: usize,
}

#[derive(Default)]
struct State {
    waiting: Option<Unwritten>,
    /// The bytes of those that wait, and of those that were taken and are not written yet.
    bytes: usize,
    /// How many entries were written when it was asked last whether that stands still; `None` where none waited.
    seen: Option<u64>,
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

    /// Takes note of that one of the entries which were taken is written, and is to be synced.
    pub(super) fn goes_on(&self) {
        self.written.fetch_add(1, Ordering::Relaxed);
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

    /// Returns what is to be written; `None` where nothing is, or where that cannot be seen at a glance.
    pub(super) fn to_write(&self) -> Option<ToWrite> {
        let bytes = self.state.try_lock_for(GLANCE)?.bytes;
        (bytes > 0).then(|| ToWrite { written: self.written.load(Ordering::Relaxed), bytes })
    }

    /// Returns whether entries are to be written, and none was since it was asked last.
    pub(super) fn stands_still(&self) -> bool {
        let mut state = self.state.lock();
        let now = (state.bytes > 0).then(|| self.written.load(Ordering::Relaxed));
        let before = mem::replace(&mut state.seen, now);
        now.is_some() && now == before
    }

    /// Has all threads wait that put entries into the queue or take some.
    #[cfg(test)]
    pub(super) fn hold(&self, wait: impl FnOnce()) {
        let _state = self.state.lock();
        wait();
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
    #[test]
    fn what_is_to_be_written_stands_still_unless_an_entry_was_written_since_the_last_look() {
        let queue = Queue::default();
        assert!(!queue.stands_still() && !queue.stands_still() && queue.to_write().is_none());
        let entries = (1..4).map(|number| (number, vec![7; 10].into())).collect();
        queue.put(Unwritten { entries, step: 1 });
        assert!(!queue.stands_still() && queue.stands_still());
        let taken = queue.take().expect("they wait");
        queue.goes_on();
        assert!(!queue.stands_still() && queue.stands_still());
        assert_eq!(queue.to_write(), Some(ToWrite { written: 1, bytes: 30 }));
        queue.has_written(&taken);
        assert!(!queue.stands_still() && !queue.stands_still());
    }
}
