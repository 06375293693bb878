//! Whether this member founds the group, and whether the group knows it by another directory.

use raft::eraftpb::Message;

use super::Others;
use super::way::is_candidacy;

impl Others {
    /// Takes this directory for one that the group knows when the group is being founded by a member with an earlier
    /// version, which knows of no directories: it stands for election with an empty log. In a group that has a log
    /// already, this member may have had another directory, which has promised something.
    pub(super) fn found_with(&mut self, from: u64, message: &Message) {
        let is_founding = is_candidacy(message.msg_type) && message.index == 0 && self.is_of_old(from);
        if is_founding && !self.founders.is_empty() && !self.is_admitted {
            (self.is_admitted, self.is_new) = (true, true);
        }
    }

    /// Takes note of that this member's log ends with the entry `last`. Returns whether the member takes part in
    /// elections: not before its group is founded, and what it knows of the other founders is sealed.
    pub(crate) fn take_part(&mut self, own: u64, last: u64) -> bool {
        if self.awaits_founders && (last > 0 || self.may_found(own)) {
            (self.awaits_founders, self.is_new) = (false, true);
        }
        !self.openings.went_back() && !self.awaits_founders && (last > 0 || !self.is_new)
    }

    /// Returns whether all other founders than this member, of the number `own`, have said to this directory that
    /// theirs are new. What was said before it was there may be late.
    fn may_found(&self, own: u64) -> bool {
        let is_new = |founder: &u64| match self.lately(*founder) {
            Some(hello) => hello.last == 0 && hello.yours == self.directory,
            // One with an earlier version was heard to found the group, see `found_with`.
            None => self.is_admitted && self.is_of_old(*founder),
        };
        // One that is disowned founds nothing.
        !self.founders.is_empty() && self.founders.iter().all(|founder| *founder == own || is_new(founder))
    }

    /// Returns whether another member knows this one by another directory.
    pub(crate) fn is_disowned(&self) -> bool {
        !self.disowned_by.is_empty()
    }

    /// Takes note of that a member knows this one by another directory. Such a directory founds nothing, also not
    /// once the group has forgotten the other one.
    pub(super) fn disown(&mut self, from: u64) {
        if !self.is_disowned() {
            tracing::error!(
                member = from,
                "the group knows this member by another data directory: this one was not part of it. If that one is \
                 lost, `leasehold cluster replace` lets this member begin again"
            );
        }
        self.disowned_by.insert(from);
        self.is_new |= !self.founders.is_empty();
        self.founders.clear();
    }
}
