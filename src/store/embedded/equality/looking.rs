//! What a member does to see that its state is that of the others.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::Inner;
use super::super::engine::Engine;
use super::super::exchange::Exchange;
use super::super::group::Member;
use super::super::versions;
use super::super::words::Word;
use super::compared::{SaidSum, SumAt, Waits};
use crate::store::Member as _;

/// After how many ticks a member says its sum again.
const SAY_TICKS: u64 = 100;

/// How many ticks a member waits for the sums of the others before it judges without those that it lacks.
const PATIENT_TICKS: u32 = 30;

/// What was said more ticks ago does not count.
const SILENT_TICKS: u32 = 300;

impl Engine {
    /// Returns what this leader is to say in the log of its sum; `None` where not all members understand that, or it is
    /// not known.
    pub(crate) fn sum_to_note(&self, member: &Member) -> Option<SumAt> {
        let is_understood = member.members().version >= versions::SUMS;
        let last = is_understood.then(|| self.summed.last())?;
        last.map(|(entry, sum)| SumAt::of(entry, sum))
    }

    /// Returns whether this leader has something to note in the log: what was written since it did so last, or was
    /// being written then and is not in the sum.
    pub(crate) fn has_to_note(&self, member: &Member, sum: Option<SumAt>) -> bool {
        let (noted, of_sum) = (self.noted.load(Ordering::Relaxed), self.noted_sum.load(Ordering::Relaxed));
        let lacks_sum = sum.is_some() && noted > of_sum + 1;
        member.last() > noted || lacks_sum
    }

    /// Takes note of what was noted in the log, in the entry of this number.
    pub(crate) fn has_noted(&self, number: u64, sum: Option<SumAt>) {
        self.noted.store(number, Ordering::Relaxed);
        self.noted_sum.store(sum.map_or(0, |sum| sum.entry), Ordering::Relaxed);
    }

    /// Compares the own sum with the one that the leader said in an entry.
    pub(crate) fn compare(&self, exchange: &Exchange, said: &SumAt) {
        let own = self.summed.at(said.entry);
        let compared = exchange.equality.lock().compare(own, said, Instant::now());
        let outcome = match compared {
            Some(true) => "equal",
            Some(false) => "different",
            None => "unknown",
        };
        metrics::counter!("leasehold_member_comparisons_total", "outcome" => outcome).increment(1);
        if compared == Some(false) {
            tracing::error!(entry = said.entry, "the state of this member is not that of its leader");
        }
    }

    /// Takes the sum that another member says.
    pub(crate) fn hear_sum(&self, member: &Member, exchange: &Exchange, from: u64, said: SaidSum) {
        if !member.members().seats.contains_key(&from) {
            return;
        }
        let is_to_note = exchange.equality.lock().hear(from, said, Instant::now());
        if is_to_note && member.members().version >= versions::SUMS {
            // The leader notes its sum the next time, even where nothing was written: one entry a minute at most.
            self.noted.store(0, Ordering::Relaxed);
        }
    }

    /// Says the own sum to the others, where that is to be done at this tick, and looks at theirs.
    pub(crate) fn look_at_sums(&self, member: &Member, exchange: &Exchange, ticks: u64) {
        let (own, members) = (exchange.number(), member.members());
        let said = exchange.equality.lock().due_word(ticks.is_multiple_of(SAY_TICKS));
        if let Some(said) = said {
            let knows = |to: &u64| exchange.others(|others| others.reads(*to, versions::SUMS)).unwrap_or_default();
            for to in members.seats.keys().filter(|to| **to != own && knows(to)) {
                exchange.say(*to, &Word::Sum(said));
            }
        }
        let waits = Waits { patience: exchange.tick() * PATIENT_TICKS, silence: exchange.tick() * SILENT_TICKS };
        let (before, unequal) = {
            let mut equality = exchange.equality.lock();
            let before = equality.unequal().clone();
            (before, equality.judge(own, members, Instant::now(), waits).clone())
        };
        metrics::gauge!("leasehold_member_unequal").set(unequal.members.len() as f64);
        self.look_at_rebuild(member, exchange);
        if unequal == before {
            return;
        }
        match unequal.reason() {
            None => tracing::info!("the states of all members are equal again"),
            Some(reason) => tracing::error!("{reason}; see `LeaseholdStatesDiffer` in docs/operating.md"),
        }
    }
}

impl Inner {
    /// Returns what is wrong with the documents: at rest, or compared with those of the other members.
    pub(crate) fn unequal(&self) -> Option<String> {
        if let Some(reason) = self.exchange.as_ref().and_then(|exchange| exchange.unequal().reason()) {
            return Some(reason);
        }
        let is_unreadable =
            self.engine.read().as_ref().is_some_and(|engine| engine.is_unreadable_at_rest.load(Ordering::Relaxed));
        is_unreadable.then(|| "documents at rest cannot be read: `leasehold verify` names them".to_owned())
    }
}
