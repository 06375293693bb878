//! What the others have said of themselves, and which of them can take the lead.

use std::collections::BTreeMap;
use std::time::Instant;

use super::Others;
use crate::store::Heard;
use crate::store::embedded::words::Hello;

impl Others {
    /// Takes note of that a member does not stand for election for now.
    pub(crate) fn decline(&mut self, from: u64) {
        if self.lately(from).is_some() {
            self.declined.insert(from, Instant::now());
        }
    }

    /// Takes note of that a member greets this one: while it does not stand, it says so with that.
    pub(crate) fn may_stand_again(&mut self, from: u64) {
        self.declined.remove(&from);
    }

    /// Returns whether a member has said lately that it does not stand for election.
    pub(crate) fn has_declined(&self, member: u64) -> bool {
        self.declined.get(&member).is_some_and(|at| at.elapsed() <= self.silence)
    }

    /// Returns whether a member can take the lead, as far as it has said: it is there, takes entries, and stands for
    /// election. One with a version that says no words may.
    pub(crate) fn may_take_lead(&self, member: u64) -> bool {
        let takes_entries = self.lately(member).map(|hello| !hello.receives);
        let is_there = takes_entries.unwrap_or_else(|| self.is_of_old(member));
        is_there && !self.has_declined(member) && !self.has_gone_back(member)
    }

    /// Returns what is known of the members that were heard of.
    pub(crate) fn heard(&self) -> BTreeMap<u64, Heard> {
        let heard = |number: u64, at: &Instant, said: &Hello| {
            let declines = self.has_declined(number);
            Heard { ago: at.elapsed(), knows: said.knows, last: said.last, declines }
        };
        self.heard.iter().map(|(number, (at, said))| (*number, heard(*number, at, said))).collect()
    }
}
