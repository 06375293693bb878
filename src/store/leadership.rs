//! Whether a process has led since a call came: only then does what it has read meanwhile hold.
//!
//! A member that was paused, or cut off from the others, takes itself for the leader until it hears of another one. No
//! clock tells it better, since it may be paused between the look at the clock and the answer. What tells is an answer
//! of most members to a question that was put after the call had come: either the question whether this member leads,
//! or an entry that it has proposed since.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use parking_lot::Mutex;

/// A moment of a process's leadership, with which [`Store::confirm`](super::Store::confirm) begins. The default is that
/// of a store whose process has nobody to ask.
#[derive(Clone, Debug, Default)]
pub struct LeadershipMark(Option<Moment>);

#[derive(Clone, Debug)]
struct Moment {
    leadership: Arc<Leadership>,
    /// How many entries the process had begun to propose, and how many rounds of questions it had begun.
    proposed: u64,
    asked: u64,
}

/// What a process has begun, in whichever of its leaderships. No number is given twice.
#[derive(Debug, Default)]
pub(in crate::store) struct Begun {
    proposed: AtomicU64,
    asked: AtomicU64,
}

/// The time in which one member leads in one term and takes writes.
#[derive(Debug)]
pub(in crate::store) struct Leadership {
    term: u64,
    begun: Arc<Begun>,
    so_far: Mutex<SoFar>,
}

/// How far a leadership has come with what it has begun.
#[derive(Clone, Copy, Debug, Default)]
struct SoFar {
    /// The highest number of a proposal that was committed.
    committed: u64,
    /// The highest number of a round that most members have answered.
    answered: u64,
    is_over: bool,
}

impl Begun {
    /// Returns the number of an entry that is about to be proposed: no other member knows of it yet.
    pub(in crate::store) fn proposes(&self) -> u64 {
        self.proposed.fetch_add(1, SeqCst) + 1
    }

    /// Returns the number of a round of questions that is about to begin.
    pub(in crate::store) fn asks(&self) -> u64 {
        self.asked.fetch_add(1, SeqCst) + 1
    }
}

impl Leadership {
    /// Begins the leadership of a term.
    pub(in crate::store) fn of(term: u64, begun: &Arc<Begun>) -> Arc<Self> {
        Arc::new(Self { term, begun: Arc::clone(begun), so_far: Mutex::default() })
    }

    /// Returns what stands for it before there is one.
    pub(in crate::store) fn none(begun: &Arc<Begun>) -> Arc<Self> {
        let none = Self::of(0, begun);
        none.end();
        none
    }

    pub(in crate::store) const fn term(&self) -> u64 {
        self.term
    }

    /// Returns the mark of this moment.
    pub(in crate::store) fn mark(self: &Arc<Self>) -> LeadershipMark {
        let (proposed, asked) = (self.begun.proposed.load(SeqCst), self.begun.asked.load(SeqCst));
        LeadershipMark(Some(Moment { leadership: Arc::clone(self), proposed, asked }))
    }

    /// Takes note of that a proposal of its was committed.
    pub(in crate::store) fn has_committed(&self, proposal: u64) {
        let mut so_far = self.so_far.lock();
        so_far.committed = so_far.committed.max(proposal);
    }

    /// Takes note of that most members have answered this round.
    pub(in crate::store) fn is_answered(&self, round: u64) {
        let mut so_far = self.so_far.lock();
        so_far.answered = so_far.answered.max(round);
    }

    /// Takes note of that the member does not lead any more.
    pub(in crate::store) fn end(&self) {
        self.so_far.lock().is_over = true;
    }

    pub(in crate::store) fn is_over(&self) -> bool {
        self.so_far.lock().is_over
    }
}

impl LeadershipMark {
    /// Returns the mark of this moment in the same leadership.
    #[must_use]
    pub fn renewed(&self) -> Self {
        self.0.as_ref().map_or_else(Self::default, |then| then.leadership.mark())
    }

    /// Returns whether the process has begun no write since, in whichever leadership. A write that was begun may
    /// become known in the end, whatever is heard of it here.
    #[must_use]
    pub fn has_begun_nothing(&self) -> bool {
        self.0.as_ref().is_none_or(|then| then.leadership.begun.proposed.load(SeqCst) == then.proposed)
    }

    /// Returns whether the process is known to have led at some moment after this one, also when it leads no more.
    pub(in crate::store) fn is_proved(&self) -> bool {
        self.0.as_ref().is_none_or(|then| {
            let now = then.leadership.so_far.lock();
            now.committed > then.proposed || now.answered > then.asked
        })
    }

    /// Returns whether it is of the leadership of this term, which is not over.
    pub(in crate::store) fn is_in(&self, term: u64) -> bool {
        self.0.as_ref().is_none_or(|then| then.leadership.term == term && !then.leadership.is_over())
    }

    /// Returns whether the leadership is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.0.as_ref().is_some_and(|then| then.leadership.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_begun_after_the_mark_proves_the_leadership() {
        let begun = Arc::new(Begun::default());
        let leadership = Leadership::of(3, &begun);
        let (proposal, round) = (begun.proposes(), begun.asks());
        let mark = leadership.mark();
        leadership.has_committed(proposal);
        leadership.is_answered(round);
        assert!(!mark.is_proved() && mark.has_begun_nothing(), "both were under way");
        let (proposal, round) = (begun.proposes(), begun.asks());
        assert!(!mark.is_proved(), "neither is answered");
        let (by_entry, by_round) = (mark.clone(), mark.renewed());
        leadership.has_committed(proposal);
        assert!(by_entry.is_proved() && !by_entry.has_begun_nothing());
        leadership.is_answered(round);
        assert!(!by_round.is_proved() && by_round.has_begun_nothing(), "it is of a moment after both");
        leadership.is_answered(begun.asks());
        assert!(by_round.is_proved() && !by_round.renewed().is_proved());
    }

    #[test]
    fn what_was_proved_stays_so_when_the_leadership_is_over_and_another_proves_nothing_of_it() {
        let begun = Arc::new(Begun::default());
        let leadership = Leadership::of(3, &begun);
        let before = leadership.mark();
        leadership.has_committed(begun.proposes());
        let (after, refused) = (leadership.mark(), begun.proposes());
        leadership.end();
        assert!(before.is_proved() && !before.renewed().is_proved());
        assert!(before.is_over() && !before.is_in(3));
        let next = Leadership::of(5, &begun);
        let mark = next.mark();
        next.has_committed(begun.proposes());
        assert!(mark.is_proved() && !after.is_proved() && !after.has_begun_nothing());
        assert!(!next.mark().is_in(4) && next.mark().is_in(5) && refused > 0);
        assert!(LeadershipMark::default().is_proved() && !Leadership::none(&begun).mark().is_proved());
    }
}
