//! Which of the steps of a member are durable, and what it says once they are.
//!
//! A step is what the library hands out at a time. The entries of the steps are written in the order of these.

use std::collections::VecDeque;

use raft::eraftpb::{Message, MessageType};

/// The most messages that wait until a step is durable. The others repeat what they get no answer to.
pub(super) const MOST_UNSENT: usize = 1_000;

/// The steps of a member, as far as they are not durable.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// The last step with entries, and the last one that is durable.
    begun: u64,
    durable: u64,
    /// The last step with entries that took the place of others.
    replaced: u64,
    /// What the member says, by the steps that are to be durable before.
    unsent: VecDeque<(u64, Message)>,
}

impl Steps {
    /// Takes note of a step with entries that are to be written, in the place of others where it `replaces` those.
    pub(super) fn begin(&mut self, step: u64, replaces: bool) {
        self.begun = step;
        if replaces {
            self.replaced = step;
        }
    }

    /// Returns whether all that was begun is durable.
    pub(super) fn are_durable(&self) -> bool {
        self.begun <= self.durable
    }

    /// Returns those of the messages of a step that may be sent now. The others count on what the member has.
    pub(super) fn hold(&mut self, step: u64, messages: Vec<Message>) -> Vec<Message> {
        if self.are_durable() {
            return messages;
        }
        let (later, now): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|message| says_what_it_has(message.msg_type));
        self.unsent.extend(later.into_iter().map(|message| (step, message)));
        let too_many = self.unsent.len().saturating_sub(MOST_UNSENT);
        self.unsent.drain(..too_many);
        now
    }

    /// Takes note of that all is durable up to a step, and returns what may be sent with that.
    pub(super) fn end(&mut self, step: u64) -> Vec<Message> {
        self.durable = self.durable.max(step);
        let (is_all, durable) = (self.are_durable(), self.durable);
        let count = self.unsent.iter().take_while(|(of, _)| is_all || *of <= durable).count();
        self.unsent.drain(..count).map(|(_, message)| message).collect()
    }

    /// Returns whether what was written by a step that is durable stays in the log.
    ///
    /// Where a later step takes the place of some of it, that is about to be cut off. The library does not see that
    /// where a third step brings the same entries again: it compares the terms of the entries that it has.
    pub(super) fn stays(&self, step: u64) -> bool {
        step >= self.replaced
    }
}

/// Returns whether others count on what the member has when it sends a message of this kind.
fn says_what_it_has(kind: MessageType) -> bool {
    matches!(
        kind,
        MessageType::MsgAppendResponse
            | MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
    )
}
