//! Whether a process has led since a call came: only then does what it has read meanwhile hold.
//!
//! A member that was paused, or cut off from the others, takes itself for the leader until it hears of another one. No
//! clock tells it better, since it may be paused between the look at the clock and the answer. What tells is an answer
//! of most members to a question that was put after the call had come: either the question whether this member leads,
//! or an entry that it has proposed since.

use std::sync::Arc;

use parking_lot::Mutex;

/// A moment of a process's leadership, with which [`Store::confirm`](super::Store::confirm) begins. The default is that
/// of a store whose process has nobody to ask.
#[derive(Clone, Debug, Default)]
pub struct LeadershipMark(Option<(Arc<Leadership>, Numbers)>);

/// The time in which one member leads in one term and takes writes.
#[derive(Debug)]
pub(in crate::store) struct Leadership {
    term: u64,
    numbers: Mutex<Numbers>,
}

/// How far a leadership has come.
#[derive(Clone, Copy, Debug, Default)]
struct Numbers {
    /// The number of the last entry that was proposed, or is about to be.
    proposed: u64,
    /// The number of the last proposed entry that was committed.
    committed: u64,
    /// The number of the last round of questions whether the member leads.
    asked: u64,
    /// The number of the last round that most members have answered.
    answered: u64,
    is_over: bool,
}

impl Leadership {
    /// Begins the leadership of a term.
    pub(in crate::store) fn of(term: u64) -> Arc<Self> {
        Arc::new(Self { term, numbers: Mutex::default() })
    }

    /// Returns what stands for it before there is one.
    pub(in crate::store) fn none() -> Arc<Self> {
        let none = Self::of(0);
        none.end();
        none
    }

    pub(in crate::store) const fn term(&self) -> u64 {
        self.term
    }

    /// Returns the mark of this moment.
    pub(in crate::store) fn mark(self: &Arc<Self>) -> LeadershipMark {
        LeadershipMark(Some((Arc::clone(self), *self.numbers.lock())))
    }

    /// Takes note of an entry that is about to be proposed: no other member knows of it yet.
    pub(in crate::store) fn proposes(&self, number: u64) {
        let mut numbers = self.numbers.lock();
        numbers.proposed = numbers.proposed.max(number);
    }

    /// Takes note of that an entry that it has proposed was committed.
    pub(in crate::store) fn has_committed(&self, number: u64) {
        let mut numbers = self.numbers.lock();
        numbers.committed = numbers.committed.max(number);
    }

    /// Takes note of a round of questions that is about to begin.
    pub(in crate::store) fn asks(&self, round: u64) {
        let mut numbers = self.numbers.lock();
        numbers.asked = numbers.asked.max(round);
    }

    /// Takes note of that most members have answered this round.
    pub(in crate::store) fn is_answered(&self, round: u64) {
        let mut numbers = self.numbers.lock();
        numbers.answered = numbers.answered.max(round);
    }

    /// Takes note of that the member does not lead any more.
    pub(in crate::store) fn end(&self) {
        self.numbers.lock().is_over = true;
    }

    pub(in crate::store) fn is_over(&self) -> bool {
        self.numbers.lock().is_over
    }
}

impl LeadershipMark {
    /// Returns the mark of this moment in the same leadership.
    #[must_use]
    pub fn renewed(&self) -> Self {
        self.0.as_ref().map_or_else(Self::default, |(leadership, _)| leadership.mark())
    }

    /// Returns whether the process is known to have led at some moment after this one. What has become of the
    /// leadership since does not matter.
    pub(in crate::store) fn is_proved(&self) -> bool {
        self.0.as_ref().is_none_or(|(leadership, then)| {
            let now = leadership.numbers.lock();
            now.committed > then.proposed || now.answered > then.asked
        })
    }

    /// Returns whether it is of the leadership of this term, which is not over.
    pub(in crate::store) fn is_in(&self, term: u64) -> bool {
        self.0.as_ref().is_none_or(|(leadership, _)| leadership.term == term && !leadership.is_over())
    }

    /// Returns whether the leadership is over.
    pub(in crate::store) fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|(leadership, _)| leadership.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_begun_after_the_mark_proves_the_leadership() {
        let leadership = Leadership::of(3);
        leadership.proposes(7);
        leadership.asks(2);
        let mark = leadership.mark();
        leadership.has_committed(7);
        leadership.is_answered(2);
        assert!(!mark.is_proved(), "both were under way");
        leadership.proposes(8);
        leadership.asks(3);
        assert!(!mark.is_proved(), "neither is answered");
        let (by_entry, by_round) = (mark.clone(), leadership.mark());
        leadership.has_committed(8);
        assert!(by_entry.is_proved() && !by_round.is_proved());
        leadership.asks(4);
        leadership.is_answered(4);
        assert!(by_round.is_proved() && !mark.renewed().is_proved());
    }

    #[test]
    fn what_was_proved_stays_so_when_the_leadership_is_over() {
        let leadership = Leadership::of(3);
        let (before, _) = (leadership.mark(), leadership.proposes(1));
        leadership.has_committed(1);
        leadership.end();
        assert!(before.is_proved() && !before.renewed().is_proved());
        assert!(before.is_over() && !before.is_in(3));
        assert!(!Leadership::of(3).mark().is_in(4) && Leadership::of(3).mark().is_in(3));
        assert!(LeadershipMark::default().is_proved() && !Leadership::none().mark().is_proved());
    }
}
