//! The writes that were accepted and are not answered yet, and how long the oldest of them has waited.

use std::collections::BTreeMap;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::store::{Hang, StoreError};

/// Why no write is answered while too few voters are there.
const LACKS_MAJORITY: &str =
    "no write is answered before most of the voting members run and have caught up: start or mend those that do not";

/// The writes without an answer, and what the watchdog has found. Nothing is done under its lock but to count.
#[derive(Default)]
pub(crate) struct Unanswered(Mutex<State>);

#[derive(Default)]
struct State {
    /// How much awake time has passed, as far as the watchdog has counted it.
    awake: Duration,
    last: u64,
    accepted_at: Duration,
    /// When each was accepted, by their numbers.
    open: BTreeMap<u64, Duration>,
    /// When the oldest became that, or a part of it was written.
    moved_at: Duration,
    hang: Option<Hang>,
    lacks_majority: bool,
}

/// How long the oldest write without an answer has waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Oldest {
    /// Since it was accepted.
    pub(super) age: Duration,
    /// Since it was accepted, and neither it nor one before it has come any further.
    pub(super) still: Duration,
}

impl Unanswered {
    /// Takes note of a write that is accepted, until what is returned is dropped.
    pub(super) fn accept(self: &Arc<Self>) -> Ticket {
        let mut state = self.0.lock();
        state.last += 1;
        let (number, now) = (state.last, state.awake);
        state.accepted_at = now;
        state.open.insert(number, now);
        Ticket { number, of: Arc::clone(self) }
    }

    /// Takes note of that so much awake time has passed.
    pub(super) fn go_on(&self, awake: Duration) {
        self.0.lock().awake += awake;
    }

    /// Returns how long the oldest write has waited; `None` when all are answered.
    pub(super) fn oldest(&self) -> Option<Oldest> {
        let state = self.0.lock();
        let (_, accepted_at) = state.open.first_key_value()?;
        let age = state.awake.saturating_sub(*accepted_at);
        Some(Oldest { age, still: age.min(state.awake.saturating_sub(state.moved_at)) })
    }

    /// Returns how long ago a write was accepted last, while there is none without an answer.
    pub(super) fn idle_for(&self) -> Option<Duration> {
        let state = self.0.lock();
        state.open.is_empty().then(|| state.awake.saturating_sub(state.accepted_at))
    }

    /// Keeps what the watchdog has found. Returns whether that begins or ends a hang.
    pub(super) fn note_hang(&self, hang: Option<Hang>) -> bool {
        let mut state = self.0.lock();
        let is_change = state.hang.is_some() != hang.is_some();
        state.hang = hang;
        is_change
    }

    /// Returns what the watchdog has found.
    pub(super) fn hang(&self) -> Option<Hang> {
        self.0.lock().hang.clone()
    }

    /// Keeps whether the oldest write has waited long for most of the voters. Returns whether that is new.
    pub(super) fn note_majority(&self, is_lacking: bool) -> bool {
        mem::replace(&mut self.0.lock().lacks_majority, is_lacking) != is_lacking
    }

    /// Returns why no write is answered, where that is for want of a majority.
    pub(super) fn want(&self) -> Option<String> {
        self.0.lock().lacks_majority.then(|| LACKS_MAJORITY.to_owned())
    }

    /// Returns whether writes are answered.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] when the store hangs, or lacks a majority.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        let hangs = self.hang().map(StoreError::from);
        hangs.or_else(|| self.want().map(StoreError::Unavailable)).map_or(Ok(()), Err)
    }

    /// Takes note of that what writes wait for goes on.
    pub(super) fn moves(&self) {
        let mut state = self.0.lock();
        state.moved_at = state.awake;
    }
}

/// A write that was accepted. It is answered when this is dropped.
pub(super) struct Ticket {
    number: u64,
    of: Arc<Unanswered>,
}

impl Ticket {
    /// Takes note of that a part of the write goes on.
    pub(super) fn moves(&self) {
        let mut state = self.of.0.lock();
        if state.open.first_key_value().is_some_and(|(first, _)| *first == self.number) {
            state.moved_at = state.awake;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.moves();
        self.of.0.lock().open.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn oldest(age: u32, still: u32) -> Option<Oldest> {
        Some(Oldest { age: SECOND * age, still: SECOND * still })
    }

    #[test]
    fn the_oldest_counts_from_its_acceptance_to_its_answer() {
        let all = Arc::new(Unanswered::default());
        assert_eq!((all.oldest(), all.idle_for()), (None, Some(Duration::ZERO)));
        all.go_on(SECOND);
        let first = all.accept();
        all.go_on(SECOND);
        let second = all.accept();
        assert_eq!((all.oldest(), all.idle_for()), (oldest(1, 1), None));
        all.go_on(SECOND);
        drop(second);
        assert_eq!(all.oldest(), oldest(2, 2), "one that was accepted later does not matter");
        drop(first);
        assert_eq!((all.oldest(), all.idle_for()), (None, Some(SECOND)));
    }

    #[test]
    fn one_that_waits_for_those_before_it_stands_still_only_while_they_do() {
        let all = Arc::new(Unanswered::default());
        let (first, second) = (all.accept(), all.accept());
        all.go_on(SECOND * 8);
        second.moves();
        assert_eq!(all.oldest(), oldest(8, 8), "the first has not moved");
        first.moves();
        all.go_on(SECOND * 3);
        assert_eq!(all.oldest(), oldest(11, 3), "a part of it was written");
        drop(first);
        assert_eq!(all.oldest(), oldest(11, 0), "it is its turn");
        all.go_on(SECOND * 9);
        assert_eq!(all.oldest(), oldest(20, 9));
        all.moves();
        all.go_on(SECOND);
        assert_eq!(all.oldest(), oldest(21, 1), "what it waits for goes on");
    }

    #[test]
    fn want_of_a_majority_is_said_unless_there_is_a_hang() {
        let all = Unanswered::default();
        assert!(all.check().is_ok() && all.want().is_none());
        assert!(all.note_majority(true) && !all.note_majority(true), "it is new once");
        let said = |of: &Unanswered| of.check().expect_err("nothing is answered").to_string();
        assert!(said(&all).contains("most of the voting members"), "{}", said(&all));
        all.note_hang(Some(Hang { why: "as a test has it".to_owned(), is_lasting: false }));
        assert!(said(&all).contains("it hangs: "), "{}", said(&all));
        assert!(all.note_hang(None) && all.note_majority(false) && all.check().is_ok());
    }
}
