//! How a member hands over the lead, and gives that up.

use raft::StateRole;

use super::Member;
use crate::store::embedded::progress::Successor;

impl Member {
    /// Begins to hand over the lead, if this member has it, to one that has about everything of the log and of which
    /// `is_able` says that it can take the lead. Returns whether it has begun. Until another leads, or this member
    /// [gives that up](Self::keep_lead), every proposal is refused; the library gives it up after the time in which a
    /// silent leader is noticed. What comes of it [`advance`](Self::advance) does.
    pub(in crate::store::embedded) fn hand_over(&mut self, to: Successor, is_able: impl Fn(u64) -> bool) -> bool {
        let to = match to {
            Successor::Member(id) => Some(id).filter(|id| self.can_lead(*id) && is_able(*id)),
            Successor::Furthest => self.furthest(is_able),
        };
        let Some(to) = to.filter(|_| self.node.raft.state == StateRole::Leader) else { return false };
        tracing::info!(to, "this member hands over the lead");
        self.node.transfer_leader(to);
        self.hands_over()
    }

    /// Returns whether it is handing over the lead.
    pub(in crate::store::embedded) fn hands_over(&self) -> bool {
        self.node.raft.lead_transferee.is_some()
    }

    /// Leads on where it hands over the lead to this member, which does not take it.
    pub(in crate::store::embedded) fn keep_lead(&mut self, declined_by: u64) {
        if self.node.raft.lead_transferee == Some(declined_by) {
            tracing::warn!(member = declined_by, "the member does not stand for election: this one leads on");
            self.node.raft.abort_leader_transfer();
        }
    }

    /// Returns the other voter that has the most of the log, of those that can lead, and that have answered of late if
    /// any has.
    fn furthest(&self, is_able: impl Fn(u64) -> bool) -> Option<u64> {
        let raft = &self.node.raft;
        let others = raft.prs().iter().filter(|(id, _)| **id != raft.id && self.can_lead(**id) && is_able(**id));
        others.max_by_key(|(_, progress)| (progress.recent_active, progress.matched)).map(|(id, _)| *id)
    }

    /// Returns whether a member votes and has about everything of the log.
    fn can_lead(&self, member: u64) -> bool {
        self.node.raft.prs().conf().voters().contains(member) && self.is_caught_up(member)
    }
}
