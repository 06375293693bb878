//! What a simulated member answers without writing anything, and how it proves that it led.

use std::collections::{BTreeMap, VecDeque};

use super::super::super::asked::Asked;
use super::super::super::progress::Committed;
use super::Counts;
use crate::store::{LeadershipMark, StoreError};

/// The calls that a member has taken and that write nothing.
#[derive(Default)]
pub(super) struct Calls {
    asked: Asked,
    /// The rounds of questions whether it leads, with the number of the last entry that anybody had applied then.
    rounds: VecDeque<(u64, u64)>,
    /// The proposals of entries by their numbers.
    proposals: BTreeMap<u64, u64>,
    /// Those that are not answered yet.
    open: Vec<Call>,
}

struct Call {
    came: LeadershipMark,
    /// The number of the last entry that was acknowledged when it came, which its answer must know.
    known: u64,
    /// The number of the last entry that its answer knows.
    seen: u64,
}

impl Calls {
    /// Takes a call whose answer rests on the entries up to `seen`, while those up to `known` were acknowledged.
    pub(super) fn take(&mut self, known: u64, seen: u64) {
        let came = self.asked.mark();
        self.asked.ask(&came, Box::new(drop), not_leading);
        self.open.push(Call { came, known, seen });
    }

    /// Begins a round of questions, where a call waits for one.
    pub(super) fn begin_round(&mut self, known: u64) -> Option<u64> {
        self.asked.begin().inspect(|round| self.rounds.push_back((*round, known)))
    }

    /// Takes note of the entry of this number, which the member is about to propose.
    pub(super) fn proposes(&mut self, number: u64) {
        self.proposals.insert(number, self.asked.proposes());
    }

    /// Takes note of entries that were committed, and of the round that most members have answered.
    pub(super) fn progress(&mut self, committed: &[Committed], confirmed: Option<(u64, u64)>, counts: &mut Counts) {
        for entry in committed {
            if let Some(proposal) = self.proposals.remove(&entry.number) {
                self.asked.has_committed(proposal, entry.term);
            }
        }
        let Some((round, number)) = confirmed else { return };
        self.asked.confirm(round, number);
        while let Some((_, known)) = self.rounds.pop_front_if(|(of, _)| *of <= round) {
            assert!(number >= known, "a leader that is none says so: {number} of {known} entries are committed");
            counts.confirmed += 1;
        }
    }

    /// Answers the calls for which the lead is proved, and refuses those of a lead that is over. The member leads in
    /// this term.
    pub(super) fn answer(&mut self, term: Option<u64>, counts: &mut Counts) {
        self.asked.lead_in(term, &not_leading());
        self.open.retain(|Call { came, known, seen }| {
            let is_proved = came.is_proved();
            if is_proved {
                assert!(seen >= known, "it rests on entry {seen}, and {known} was acknowledged before");
                counts.answered += 1;
            }
            !is_proved && !came.is_over()
        });
    }
}

fn not_leading() -> StoreError {
    StoreError::NotLeading("it does not lead".to_owned())
}
