//! A mailbox for one thread: what is put into it waits until the thread takes it.

use std::collections::VecDeque;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A mailbox that holds so many things at most; the oldest are dropped.
pub(super) struct Mailbox<T> {
    most: usize,
    state: Mutex<(VecDeque<T>, bool)>,
    arrived: Condvar,
}

/// What has come of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    One(T),
    /// The time is over.
    None,
    /// The mailbox is closed.
    Closed,
}

impl<T> Mailbox<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, state: Mutex::new((VecDeque::new(), false)), arrived: Condvar::new() }
    }

    /// Puts something into it.
    pub(super) fn put(&self, one: T) {
        let mut state = self.state.lock();
        state.0.push_back(one);
        if state.0.len() > self.most {
            state.0.pop_front();
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Waits for the oldest that is in it, until `until`, if that is given.
    pub(super) fn next(&self, until: Option<Instant>) -> Next<T> {
        let mut state = self.state.lock();
        loop {
            if state.1 {
                return Next::Closed;
            }
            if let Some(one) = state.0.pop_front() {
                return Next::One(one);
            }
            match until {
                None => self.arrived.wait(&mut state),
                Some(until) => {
                    if self.arrived.wait_until(&mut state, until).timed_out() && state.0.is_empty() {
                        return if state.1 { Next::Closed } else { Next::None };
                    }
                }
            }
        }
    }

    /// Closes it, and drops what is in it.
    pub(super) fn close(&self) {
        *self.state.lock() = (VecDeque::new(), true);
        self.arrived.notify_all();
    }

    /// Opens it again.
    pub(super) fn open(&self) {
        self.state.lock().1 = false;
    }
}
