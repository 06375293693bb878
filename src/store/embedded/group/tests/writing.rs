//! What a member says while its entries are written, and after that.

use std::collections::BTreeMap;

use super::super::super::steps::MOST_UNSENT;
use super::*;

/// Two entries of term 1, as their leader sends them.
fn entries_of_leader() -> Message {
    let entry = |number| entry_of(number, frame(1, 7).into()).expect("an entry");
    let append = Message { msg_type: MessageType::MsgAppend, from: 1, to: 2, term: 1, ..Message::default() };
    Message { entries: vec![entry(1), entry(2)].into(), ..append }
}

#[test]
fn one_that_writes_answers_and_says_only_what_is_durable() {
    let kinds = |disk: &mut Memory| -> Vec<_> { disk.outbox.drain(..).map(|message| message.msg_type).collect() };
    let (mut disk, mut member) = (Memory::default(), start(2, &[1, 2], &Memory::default()));
    member.step(entries_of_leader());
    let unwritten = member.advance(&mut disk).expect("it goes on").unwritten.expect("entries");
    assert_eq!(unwritten.entries.len(), 2);
    let heartbeat = Message { msg_type: MessageType::MsgHeartbeat, from: 1, to: 2, term: 1, ..Message::default() };
    member.step(heartbeat);
    assert_eq!(member.advance(&mut disk).expect("it goes on").unwritten, None);
    assert_eq!(kinds(&mut disk), [MessageType::MsgHeartbeatResponse]);
    // Nor does it stand for election, or say that it has what it was sent again.
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    member.step(Message { msg_type: MessageType::MsgTimeoutNow, ..candidacy(1) });
    member.step(entries_of_leader());
    member.advance(&mut disk).expect("it goes on");
    assert_eq!(kinds(&mut disk), []);
    let mut asked = start(2, &[1, 2], &Memory::default());
    asked.step(entries_of_leader());
    asked.advance(&mut disk).expect("it goes on");
    // It has not heard of its leader for long enough to vote for another one.
    for _ in 0..ELECTION_TICKS * 3 {
        asked.tick();
    }
    let unwritten_of_asked = asked.advance(&mut disk).expect("it goes on").unwritten;
    assert_eq!(unwritten_of_asked, None);
    asked.step(Message { index: 2, log_term: 1, ..candidacy(2) });
    asked.advance(&mut disk).expect("it goes on");
    assert_eq!(disk.vote, Vote { term: 2, member: 1 }, "its vote is durable");
    assert_eq!(kinds(&mut disk), [], "it has not written what it votes by");
    asked.has_written(unwritten.step, &mut disk).expect("it goes on");
    assert_eq!(kinds(&mut disk), [MessageType::MsgAppendResponse, MessageType::MsgRequestVoteResponse]);
    let (mut disk, step) = (Memory { vote: Vote { term: 1, member: 0 }, ..Memory::default() }, unwritten.step);
    member.has_written(step, &mut disk).expect("it goes on");
    assert_eq!(kinds(&mut disk), [MessageType::MsgAppendResponse, MessageType::MsgAppendResponse]);
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    member.advance(&mut disk).expect("it goes on");
    let asks = kinds(&mut disk);
    assert!(asks.contains(&MessageType::MsgRequestPreVote), "it has written all, and says only {asks:?}");
}

#[test]
fn of_what_waits_for_a_disk_the_latest_is_kept_and_the_leader_learns_of_all_that_is_durable() {
    let (mut disk, mut member) = (Memory::default(), start(2, &[1, 2], &Memory::default()));
    member.step(entries_of_leader());
    let unwritten = member.advance(&mut disk).expect("it goes on").unwritten.expect("entries");
    // The leader, which hears nothing, sends them again and again, and then says how far all have come.
    for commit in std::iter::repeat_n(0, MOST_UNSENT + 300).chain([2]) {
        member.step(Message { commit, ..entries_of_leader() });
        member.advance(&mut disk).expect("it goes on");
    }
    assert_eq!(disk.outbox.len(), 0, "nothing of it is durable");
    unwritten.entries.iter().try_for_each(|(number, frame)| disk.write(*number, frame)).expect("written");
    disk.sync().expect("synced");
    let progress = member.has_written(unwritten.step, &mut disk).expect("it goes on");
    assert_eq!(progress.committed.len(), 2, "it goes on with what is durable");
    let answers: Vec<_> = disk.outbox.drain(..).map(|message| (message.msg_type, message.index)).collect();
    assert_eq!(answers.len(), MOST_UNSENT);
    assert!(answers.iter().all(|answer| *answer == (MessageType::MsgAppendResponse, 2)), "{answers:?}");
    member.step(Message {
        entries: vec![entry_of(3, frame(1, 7).into()).expect("an entry")].into(),
        index: 2,
        log_term: 1,
        ..entries_of_leader()
    });
    let next = member.advance(&mut disk).expect("it goes on").unwritten.expect("the next entry");
    member.has_written(next.step, &mut disk).expect("it goes on");
    assert_eq!(disk.outbox.last().map(|message| message.index), Some(3));
}

#[test]
fn entries_that_others_replace_while_they_are_written_are_not_said_to_be_durable() {
    let (mut disk, mut member) = (Memory::default(), start(2, &[1, 2, 3], &Memory::default()));
    member.step(entries_of_leader());
    let first = member.advance(&mut disk).expect("it goes on").unwritten.expect("entries");
    let other = Message { from: 3, term: 2, ..entries_of_leader() };
    let entry = |number| entry_of(number, frame(2, 8).into()).expect("an entry");
    member.step(Message { entries: vec![entry(1), entry(2), entry(3)].into(), commit: 3, ..other });
    let second = member.advance(&mut disk).expect("it goes on").unwritten.expect("entries");
    disk.outbox.clear();
    let progress = member.has_written(first.step, &mut disk).expect("it goes on");
    assert_eq!(progress.committed, []);
    let said: Vec<_> = disk.outbox.drain(..).map(|message| (message.to, message.term)).collect();
    assert!(said.iter().all(|said| *said == (1, 1)), "{said:?}");
    let progress = member.has_written(second.step, &mut disk).expect("it goes on");
    assert_eq!(progress.committed.len(), 3);
    let said: Vec<_> = disk.outbox.iter().map(|message| (message.to, message.term, message.index)).collect();
    assert_eq!(said, [(3, 2, 3)]);
}

/// Entries of these terms from the first on, all of which are committed, as a leader sends them.
fn append_of(leader: u64, term: u64, terms: &[u64]) -> Message {
    let entry = |(number, of): (u64, &u64)| entry_of(number, frame(*of, 7).into()).expect("an entry");
    let entries: Vec<_> = (1..).zip(terms).map(entry).collect();
    let commit = entries.len() as u64;
    Message { from: leader, term, entries: entries.into(), commit, ..entries_of_leader() }
}

#[test]
fn entries_that_are_replaced_twice_by_others_and_themselves_are_applied_once_all_of_that_is_written() {
    let (mut disk, mut member) = (Memory::default(), start(2, &[1, 2, 3], &Memory::default()));
    let mut steps = Vec::new();
    for sent in [Message { commit: 0, ..append_of(1, 1, &[1, 1]) }, Message { commit: 0, ..append_of(3, 2, &[2]) }] {
        member.step(sent);
        steps.push(member.advance(&mut disk).expect("it goes on").unwritten.expect("entries"));
    }
    member.step(append_of(1, 3, &[1, 1]));
    steps.push(member.advance(&mut disk).expect("it goes on").unwritten.expect("entries"));
    for (place, Unwritten { entries, step }) in steps.into_iter().enumerate() {
        entries.iter().try_for_each(|(number, frame)| disk.write(*number, frame)).expect("written");
        disk.sync().expect("synced");
        let applied = member.has_written(step, &mut disk).expect("it goes on").committed.len();
        assert_eq!(applied, if place == 2 { 2 } else { 0 }, "after the part {place} of what is written");
    }
    assert_eq!(disk.synced, [frame(1, 7), frame(1, 7)]);
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    disk.outbox.clear();
    member.advance(&mut disk).expect("it goes on");
    assert!(disk.outbox.iter().any(|message| message.msg_type == MessageType::MsgRequestPreVote), "it stands again");
}

#[test]
fn one_does_not_stand_for_election_with_what_has_come_just_before() {
    let (mut disk, mut member) = (Memory::default(), start(2, &[1, 2, 3], &Memory::default()));
    member.step(entries_of_leader());
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    member.step(Message { msg_type: MessageType::MsgTimeoutNow, ..candidacy(1) });
    let unwritten = member.advance(&mut disk).expect("it goes on").unwritten.expect("entries");
    let stands =
        |message: &Message| matches!(message.msg_type, MessageType::MsgRequestVote | MessageType::MsgRequestPreVote);
    assert!(!disk.outbox.iter().any(stands), "{:?}", disk.outbox);
    assert_eq!(disk.vote, Vote { term: 1, member: 0 }, "it does not vote for itself");
    member.has_written(unwritten.step, &mut disk).expect("it goes on");
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    member.advance(&mut disk).expect("it goes on");
    assert!(disk.outbox.iter().any(stands), "{:?}", disk.outbox);
}

/// What a member asks of the engine around it, in order.
#[derive(Default)]
struct Order(Vec<String>);

impl Durable for Order {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        self.0.push(format!("votes for {} in term {}", vote.member, vote.term));
        Ok(())
    }

    fn send(&mut self, messages: Vec<Message>) {
        self.0.extend(messages.iter().map(|message| format!("sends {:?} to {}", message.msg_type, message.to)));
    }
}

/// The first of two members, of which only this one votes.
fn only_voter() -> Member {
    let seats = [(1, true), (2, false)].map(|(number, votes)| (number, Seat { votes, ..Seat::default() }));
    let members = Arc::new(Membership { seats: BTreeMap::from(seats), ..Membership::default() });
    Member::new(1, members, Vote::default(), Last::default(), Vec::new(), None).expect("it fits together")
}

#[test]
fn a_leader_that_was_removed_goes_on_once_its_first_entry_is_written() {
    let removal = encode_members(1, &Membership::founded(&[2, 3]), &Note::default()).expect("writable");
    let (frames, vote) = (vec![vec![1], removal], Vote { term: 1, member: 2 });
    let mut disk = Memory { synced: frames.clone(), frames, vote, ..Memory::default() };
    let mut member = start(1, &[1, 2, 3], &disk);
    for _ in 0..ELECTION_TICKS * 3 {
        member.tick();
    }
    let from = |from, msg_type| Message { msg_type, from, to: 1, term: 2, ..Message::default() };
    let mut unwritten = None;
    for msg_type in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
        member.step(from(2, msg_type));
        unwritten = member.advance(&mut disk).expect("it goes on").unwritten;
    }
    assert!(member.position().is_leader, "it does not know that it is removed");
    for other in [2, 3] {
        member.step(Message { index: 3, ..from(other, MessageType::MsgAppendResponse) });
    }
    assert_eq!(member.advance(&mut disk).expect("it goes on").committed.len(), 2);
    assert_eq!((member.position().role, member.position().is_leader), (Role::Removed, false));
    member.has_written(unwritten.expect("what begins its term").step, &mut disk).expect("it goes on");
    member.tick();
    disk.outbox.clear();
    member.advance(&mut disk).expect("it goes on");
    assert!(disk.outbox.iter().any(|message| message.msg_type == MessageType::MsgTimeoutNow), "{:?}", disk.outbox);
    member.step(Message { term: 3, commit: 3, ..from(2, MessageType::MsgHeartbeat) });
    let committed = member.advance(&mut disk).expect("it goes on").committed;
    assert_eq!(committed, [committed_of(3, 2)]);
}

/// The entry that begins a term, once it is committed.
fn committed_of(number: u64, term: u8) -> Committed {
    committed(number, term.into(), vec![term])
}

#[test]
fn the_only_voter_sends_what_begins_its_term_once_its_vote_is_durable() {
    let mut member = only_voter();
    let mut order = Order::default();
    member.campaign(&mut order).expect("it goes on");
    assert_eq!(order.0, ["votes for 1 in term 1", "sends MsgAppend to 2"]);
}
