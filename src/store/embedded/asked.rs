//! Who waits until it is known that this member leads, or until an entry is shown.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::store::leadership::{Begun, Leadership};
use crate::store::{LeadershipMark, StoreError};

/// Who is answered, by whichever thread finds the answer.
pub(super) type Caller = Box<dyn FnOnce(Result<(), StoreError>) + Send>;

/// The leadership of a member, and the callers who wait for something of it.
pub(super) struct Asked {
    /// The present leadership, or the last one.
    leadership: Arc<Leadership>,
    begun: Arc<Begun>,
    /// Those of no round yet.
    new: Vec<Caller>,
    /// Those whose round is under way, in the order of rounds.
    rounds: VecDeque<(u64, Vec<Caller>)>,
    /// Those who wait until the entry of this number is shown.
    confirmed: Vec<(u64, Caller)>,
}

impl Default for Asked {
    fn default() -> Self {
        let (new, rounds, confirmed) = (Vec::new(), VecDeque::new(), Vec::new());
        let begun = Arc::default();
        Self { leadership: Leadership::none(&begun), begun, new, rounds, confirmed }
    }
}

impl Asked {
    /// Begins the leadership of this term, if there is one, and ends any other: whoever waits is refused with `why`.
    pub(super) fn lead_in(&mut self, term: Option<u64>, why: &StoreError) {
        if Some(self.leadership.term()) != term {
            self.leadership.end();
            self.refuse(why);
        }
        if let Some(term) = term.filter(|_| self.leadership.is_over()) {
            self.leadership = Leadership::of(term, &self.begun);
        }
    }

    /// Returns the mark of this moment.
    pub(super) fn mark(&self) -> LeadershipMark {
        self.leadership.mark()
    }

    /// Returns the number of the proposal that is about to be made.
    pub(super) fn proposes(&self) -> u64 {
        self.begun.proposes()
    }

    /// Takes note of that a proposal that this member has made in this term was committed. It is not shown yet, so
    /// that the member cannot lead in a later term.
    pub(super) fn has_committed(&self, proposal: u64, term: u64) {
        if self.leadership.term() == term {
            self.leadership.has_committed(proposal);
        }
    }

    /// Has a caller answered once most members have said that this one leads, to a question that is still to be put,
    /// and everything from before is shown. It is refused at once when the leadership of the mark is over, with `why`.
    pub(super) fn ask(&mut self, mark: &LeadershipMark, caller: Caller, why: impl FnOnce() -> StoreError) {
        if mark.is_over() { caller(Err(why())) } else { self.new.push(caller) }
    }

    /// Begins a round for those who have asked since the last one began; `None` when there are none.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if self.new.is_empty() {
            return None;
        }
        let (round, callers) = (self.begun.asks(), mem::take(&mut self.new));
        self.rounds.push_back((round, callers));
        Some(round)
    }

    /// Takes note of that most members have answered all rounds up to this one, which began when the entry of this
    /// number was committed.
    pub(super) fn confirm(&mut self, round: u64, committed: u64) {
        self.leadership.is_answered(round);
        while let Some((_, callers)) = self.rounds.pop_front_if(|(of, _)| *of <= round) {
            self.confirmed.extend(callers.into_iter().map(|caller| (committed, caller)));
        }
    }

    /// Has a caller answered once the entry of this number is shown.
    pub(super) fn wait_for(&mut self, number: u64, caller: Caller) {
        self.confirmed.push((number, caller));
    }

    /// Answers those who wait until the entry of this number is shown.
    pub(super) fn has_shown(&mut self, number: u64) {
        for (_, caller) in self.confirmed.extract_if(.., |(of, _)| *of <= number) {
            caller(Ok(()));
        }
    }

    /// Refuses all who wait.
    pub(super) fn refuse(&mut self, why: &StoreError) {
        let new = mem::take(&mut self.new);
        let rounds = mem::take(&mut self.rounds).into_iter().flat_map(|(_, callers)| callers);
        let confirmed = mem::take(&mut self.confirmed).into_iter().map(|(_, caller)| caller);
        for caller in new.into_iter().chain(rounds).chain(confirmed) {
            caller(Err(why.clone()));
        }
    }
}
