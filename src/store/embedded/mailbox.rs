//! A mailbox for one thread: what is put into it waits until the thread takes it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

/// A mailbox that holds so many things at most; the oldest are dropped.
pub(super) struct Mailbox<T> {
    most: usize,
    state: Mutex<State<T>>,
    arrived: Condvar,
}

struct State<T> {
    waiting: VecDeque<T>,
    is_woken: bool,
    is_closed: bool,
}

/// What has come of waiting.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    One(T),
    /// The time is over, or the thread was woken.
    None,
    /// The mailbox is closed.
    Closed,
}

impl<T> Mailbox<T> {
    pub(super) fn new(most: usize) -> Self {
        let state = State { waiting: VecDeque::new(), is_woken: false, is_closed: false };
        Self { most, state: Mutex::new(state), arrived: Condvar::new() }
    }

    /// Puts something into it.
    pub(super) fn put(&self, one: T) {
        let mut state = self.state.lock();
        state.waiting.push_back(one);
        if state.waiting.len() > self.most {
            state.waiting.pop_front();
        }
        drop(state);
        self.arrived.notify_one();
    }

    /// Has the thread go on without waiting, once.
    pub(super) fn wake(&self) {
        self.state.lock().is_woken = true;
        self.arrived.notify_one();
    }

    /// Waits for the oldest that is in it, until `until`, if that is given.
    pub(super) fn next(&self, until: Option<Instant>) -> Next<T> {
        let mut state = self.state.lock();
        loop {
            if state.is_closed {
                return Next::Closed;
            }
            if let Some(one) = state.waiting.pop_front() {
                return Next::One(one);
            }
            if std::mem::take(&mut state.is_woken) {
                return Next::None;
            }
            match until {
                None => self.arrived.wait(&mut state),
                Some(until) => {
                    if self.arrived.wait_until(&mut state, until).timed_out() && state.waiting.is_empty() {
                        return if state.is_closed { Next::Closed } else { Next::None };
                    }
                }
            }
        }
    }

    /// Works until it is closed: a `turn` with each that is put into it, and one with none when the thread is woken and
    /// when it is `due`, which each turn sees to. A panic costs what was under way, and `recover` sees to the rest.
    pub(super) fn work(
        &self,
        mut turn: impl FnMut(Option<T>),
        mut recover: impl FnMut(),
        mut due: impl FnMut() -> Instant,
    ) {
        let mut until = Instant::now();
        loop {
            let heard = match self.next(Some(until)) {
                Next::One(heard) => Some(heard),
                Next::None => None,
                Next::Closed => return,
            };
            if catch_unwind(AssertUnwindSafe(|| turn(heard))).is_err() {
                recover();
            }
            until = due();
        }
    }

    /// Closes it, and drops what is in it.
    pub(super) fn close(&self) {
        *self.state.lock() = State { waiting: VecDeque::new(), is_woken: false, is_closed: true };
        self.arrived.notify_all();
    }

    /// Opens it again.
    pub(super) fn open(&self) {
        self.state.lock().is_closed = false;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn work_goes_on_after_a_panic_until_the_mailbox_is_closed() {
        let mailbox = Mailbox::new(8);
        [1, 2, 3].into_iter().for_each(|number| mailbox.put(number));
        let (mut heard, mut recovered) = (Vec::new(), 0);
        let turn = |one: Option<i32>| {
            heard.push(one);
            match one {
                // It is due.
                None => mailbox.close(),
                Some(2) => panic!("this is to be so"),
                Some(_) => {}
            }
        };
        mailbox.work(turn, || recovered += 1, || Instant::now() + Duration::from_millis(1));
        assert_eq!((heard, recovered), (vec![Some(1), Some(2), Some(3), None], 1));
    }
}
