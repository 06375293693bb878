//! What a member says while its entries are written, and after that.

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
    asked.step(Message { index: 2, log_term: 1, ..candidacy(2) });
    asked.advance(&mut disk).expect("it goes on");
    assert_eq!(kinds(&mut disk), [MessageType::MsgRequestVoteResponse]);
    assert_eq!(disk.vote, Vote { term: 2, member: 1 }, "its vote is durable");
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
