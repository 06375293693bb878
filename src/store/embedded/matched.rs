//! Up to which entry the log of a member is known to be that of its leader.

use raft::eraftpb::{Message, MessageType};
use raft::{Raft, Storage};

/// The entry up to which the messages of a leader have shown that the log is as the leader's, in the leader's term.
///
/// A leader says with each heartbeat how much is committed of what the member has acknowledged. A directory that went
/// back in time may have had other entries of the same numbers, which were replaced before they were acknowledged. So
/// what a heartbeat says counts only as far as an append has met with the same entries since the member was started.
#[derive(Debug, Default)]
pub(super) struct Matched {
    term: u64,
    number: u64,
}

impl Matched {
    /// Takes note of what a message shows, before the member takes it, and bounds what it says to be committed.
    pub(super) fn bound<S: Storage>(&mut self, message: &mut Message, raft: &Raft<S>) {
        match message.msg_type {
            MessageType::MsgHeartbeat => {
                let known = if self.term == message.term { self.number } else { 0 };
                message.commit = message.commit.min(known);
            }
            // Of what is committed here already, the entries that come with it are left out.
            MessageType::MsgAppend
                if message.term >= raft.term
                    && message.index >= raft.raft_log.committed
                    && raft.raft_log.match_term(message.index, message.log_term) =>
            {
                let number = message.index + message.entries.len() as u64;
                self.number = if self.term == message.term { self.number.max(number) } else { number };
                self.term = message.term;
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use raft::eraftpb::Entry;
    use raft::storage::MemStorage;
    use raft::{Config, RawNode};
    use slog::Logger;

    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        Entry { index, term, ..Entry::default() }
    }

    fn of_leader(msg_type: MessageType, term: u64) -> Message {
        Message { msg_type, from: 2, to: 1, term, ..Message::default() }
    }

    #[test]
    fn what_a_leader_says_to_be_committed_counts_as_far_as_the_log_is_known_to_be_its_own() {
        let storage = MemStorage::new_with_conf_state((vec![1, 2], vec![]));
        storage.wl().append(&[entry(1, 1), entry(2, 1), entry(3, 2)]).expect("appended");
        let config = Config { id: 1, ..Config::default() };
        let mut node = RawNode::new(&config, storage, &Logger::root(slog::Discard, slog::o!())).expect("a member");
        let mut matched = Matched::default();
        let mut step = |message: Message| {
            let mut message = message;
            matched.bound(&mut message, &node.raft);
            node.step(message).expect("it is of use");
            node.raft.raft_log.committed
        };
        let heartbeat = |term| Message { commit: 3, ..of_leader(MessageType::MsgHeartbeat, term) };
        // The leader has another entry 3.
        assert_eq!(step(heartbeat(3)), 0);
        let append = |index, log_term, entries: Vec<Entry>| Message {
            index,
            log_term,
            entries: entries.into(),
            ..of_leader(MessageType::MsgAppend, 3)
        };
        let other = Message { commit: 3, ..append(3, 3, vec![]) };
        assert_eq!((step(other), step(heartbeat(3))), (0, 0));
        let same = append(1, 1, vec![entry(2, 1)]);
        assert_eq!((step(same), step(heartbeat(3))), (0, 2));
        let replaced = append(2, 1, vec![entry(3, 3)]);
        assert_eq!((step(replaced), step(heartbeat(3))), (2, 3));
        let next = Message { commit: 4, ..of_leader(MessageType::MsgHeartbeat, 4) };
        assert_eq!(step(next), 3, "another leader has shown nothing");
    }
}
