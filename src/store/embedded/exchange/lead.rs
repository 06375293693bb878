//! How a member gives the lead up: to another one in good order, or by silence where its store hangs.

use std::mem;

use tokio::sync::oneshot;

use super::Exchange;
use super::work::LeadCaller;
use crate::store::embedded::progress::Successor;
use crate::store::embedded::versions;
use crate::store::embedded::words::Word;

impl Exchange {
    /// Has the member give the lead up, and not take it, while its store `hangs`, where another one may lead. It asks
    /// none of its threads: the others elect a leader as they hear of none, and what it proposes is not agreed on.
    pub(crate) fn give_up_lead(&self, hangs: bool) {
        let (own, others) = (self.group.member, self.members.borrow().that_vote(true).count() > 1);
        // What hangs may be answered as the lead is given up, which is not done until then.
        let is_leader = self.standing.borrow().leader == Some(own);
        let gives_up = others && (hangs || is_leader && self.gives_up_lead());
        self.given_up.set(gives_up);
        if gives_up && self.standing.send_if_modified(|now| mem::take(&mut now.leads)) {
            self.given_up.has_deposed();
        }
    }

    /// Returns whether the member is not to lead, since its store hangs.
    pub(crate) fn gives_up_lead(&self) -> bool {
        self.given_up.is_given_up()
    }

    /// Says to a member that this one does not stand for election, where that member understands it.
    pub(crate) fn decline(&self, to: u64) {
        if self.others(|others| others.reads(to, versions::DECLINES)).unwrap_or_default() {
            self.say(to, &Word::Declines);
        }
    }

    /// Has the leader hand over the lead, and does not wait for it.
    pub(crate) fn begin_to_hand_over(&self, to: Option<u64>) {
        self.ask_to_hand_over(to, None);
    }

    /// Has the leader hand over the lead. Returns once this member leads no longer, with `true`, or leads on.
    pub(super) async fn has_handed_over(&self, to: Option<u64>) -> bool {
        let (caller, answer) = oneshot::channel();
        self.ask_to_hand_over(to, Some(caller));
        // A store that is closed leads no longer.
        answer.await.unwrap_or(true)
    }

    fn ask_to_hand_over(&self, to: Option<u64>, caller: Option<LeadCaller>) {
        let to = to.map_or(Successor::Furthest, Successor::Member);
        let mut inbox = self.inbox.lock();
        if !inbox.is_closed {
            let (next, callers) = inbox.hand_over.get_or_insert_with(|| (to, Vec::new()));
            *next = to;
            callers.extend(caller);
        }
        drop(inbox);
        self.arrived.notify_one();
    }

    /// Takes note of who waits until the lead was handed over.
    pub(crate) fn hands_over(&self, callers: Vec<LeadCaller>) {
        self.handing_over.lock().extend(callers);
    }

    /// Answers those who wait until the lead was handed over, as this member `leads` on or does not.
    pub(crate) fn answer_hand_over(&self, leads: bool) {
        for caller in self.handing_over.lock().drain(..) {
            // A caller may have gone.
            let _gone = caller.send(!leads);
        }
    }
}
