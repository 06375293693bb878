//! What a member writes of the entries that its leader sends, and how often it syncs.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::executor::block_on;
use raft::eraftpb::{Entry, Message, MessageType};
use tempfile::TempDir;

use super::super::directory::Directory;
use super::super::entry::{Note, encode_members};
use super::super::exchange::{Exchange, Work};
use super::super::kept::{Last, entry_of};
use super::super::log::faults;
use super::super::options::{EmbeddedOptions, GroupOptions};
use super::super::progress::Successor;
use super::super::taking_part::MOST_UNWRITTEN;
use super::super::words::{self, Hello, Said, Word};
use super::super::{message, stored, versions};
use super::*;
use crate::store::{Member as _, MemberMessage, Membership, Seat};

/// A member that follows, without its threads.
struct Follower {
    engine: Engine,
    directory: TempDir,
}

impl Follower {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        Self { engine: open(&directory, |_| {}), directory }
    }

    /// Takes entries of a term behind the one of `behind`, its number and term, as their leader sends them.
    fn take(&self, term: u64, behind: (u64, u64), frames: impl IntoIterator<Item = Vec<u8>>) {
        let (index, log_term) = behind;
        let entries = (index + 1..).zip(frames);
        let entries: Vec<Entry> = entries.map(|(number, frame)| entry(number, frame)).collect();
        let append = Message { msg_type: MessageType::MsgAppend, from: 3, to: 2, term, ..Message::default() };
        let sent = Message { index, log_term, commit: index + 1, entries: entries.into(), ..append };
        self.turn(Some(&sent));
    }

    /// Takes a message, or lets its clock tick.
    fn turn(&self, message: Option<&Message>) {
        let encode = |message| message::encode(message).expect("writable").expect("it is sent");
        let (messages, changes) = (message.map(encode).into_iter().collect(), Vec::new());
        let work = Work { messages, round: None, changes, hand_over: None, is_tick: message.is_none() };
        self.engine.take_part(work).expect("it goes on");
    }

    /// Is elected in this term, which follows the one that it knows. The entry that begins it waits to be written.
    fn lead(&self, term: u64) {
        (0..20).for_each(|_| self.turn(None));
        for msg_type in [MessageType::MsgRequestPreVoteResponse, MessageType::MsgRequestVoteResponse] {
            self.turn(Some(&Message { msg_type, from: 3, to: 2, term, ..Message::default() }));
        }
        let position = self.engine.member.lock().position();
        assert!(position.is_leader && position.term == term, "{position:?}");
    }

    /// Appends an entry of a term, and says why that is refused.
    fn refusal(&self, term: u64) -> CommitError {
        let entry = frames(term, 1).next().expect("one");
        self.engine.try_append(entry).expect_err("it is refused")
    }

    /// Says who it is, and returns whether it says that it takes no entries.
    fn is_behind(&self) -> bool {
        (0..10).for_each(|_| self.turn(None));
        let sent = block_on(self.engine.exchange.as_ref().expect("it is one of several").outgoing());
        let hellos = sent.iter().filter_map(|message| {
            let (_, bytes) = words::take_identity(&message.bytes).expect("readable");
            match words::decode(&bytes) {
                Ok(Said::Word(Word::Hello(hello))) => Some(hello.receives),
                _ => None,
            }
        });
        hellos.last().expect("it says so every ten ticks")
    }

    /// Hears from the third member who that is.
    fn hears(&self, hello: Hello) {
        let bytes = words::encode(&Word::Hello(hello)).expect("writable");
        let messages = vec![MemberMessage { from: 3, to: 2, bytes }];
        let work = Work { messages, round: None, changes: Vec::new(), hand_over: None, is_tick: false };
        self.engine.take_part(work).expect("it goes on");
    }

    /// Writes what waits. Returns how often that was synced.
    fn write(&self) -> u64 {
        let before = self.engine.log.lock().syncs;
        self.engine.write_entries().expect("it is written");
        self.engine.log.lock().syncs - before
    }

    /// Takes the members of a group of this version as the entry behind the one of `behind`.
    fn agree_on(&self, term: u64, behind: (u64, u64), version: u32) {
        let seats = [2, 3].map(|number| (number, Seat { votes: true, ..Seat::default() }));
        let members = Membership { seats: BTreeMap::from(seats), version, ..Membership::default() };
        self.take(term, behind, [encode_members(term, &members, &Note::default()).expect("writable")]);
        self.write();
        assert_eq!(self.engine.exchange.as_ref().expect("it is one of several").agreed().version, version);
    }

    /// The versions of its segments.
    fn formats(&self) -> Vec<u8> {
        let files = fs::read_dir(self.directory.path().join("log")).expect("a folder");
        let mut files: Vec<_> = files.map(|file| file.expect("a file").path()).collect();
        files.sort();
        files.into_iter().map(|file| fs::read(file).expect("a segment")[7]).collect()
    }

    /// The process ends, and another one opens the directory.
    fn restarted(self) -> Self {
        self.restarted_as(|_| {})
    }

    fn restarted_as(self, set: impl FnOnce(&mut GroupOptions)) -> Self {
        let Self { engine, directory } = self;
        drop(engine);
        Self { engine: open(&directory, set), directory }
    }
}

fn open(directory: &TempDir, set: impl FnOnce(&mut GroupOptions)) -> Engine {
    let mut group = GroupOptions {
        cluster: "test".to_owned(),
        member: 2,
        members: vec![1, 2, 3],
        tick: Duration::from_secs(1),
        ..GroupOptions::default()
    };
    set(&mut group);
    let options = EmbeddedOptions { group: Some(group.clone()), ..EmbeddedOptions::default() };
    let directory = Directory::hold(directory.path(), 0).expect("it is held");
    Engine::open(directory, &options, Some(Arc::new(Exchange::new(group, drop)))).expect("it opens")
}

fn entry(number: u64, frame: Vec<u8>) -> Entry {
    entry_of(number, Bytes::from(frame)).expect("an entry")
}

fn frames(term: u64, count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |number| {
        let mut frame = Vec::new();
        stored::append(&(term, number, "what an entry has"), &mut frame).expect("writable");
        frame
    })
}

/// Returns how often a member says that it does not stand for election.
fn declines(follower: &Follower) -> usize {
    // There is always something to send.
    (0..10).for_each(|_| follower.turn(None));
    let sent = block_on(follower.engine.exchange.as_ref().expect("it is one of several").outgoing());
    let declines = |message: &&MemberMessage| {
        let (_, bytes) = words::take_identity(&message.bytes).expect("readable");
        matches!(words::decode(&bytes), Ok(Said::Word(Word::Declines)))
    };
    sent.iter().filter(declines).count()
}

#[test]
fn a_member_that_does_not_stand_says_so_to_a_leader_that_hands_over_to_it() {
    for (knows, hangs, declined) in [(versions::OWN, true, 2), (versions::OWN, false, 0), (versions::SUMS, true, 0)] {
        let follower = Follower::new();
        follower.agree_on(1, (0, 0), versions::BATCHES);
        follower.write();
        follower.hears(Hello { knows, directory: 5, yours: 0, last: 1, receives: false });
        let exchange = follower.engine.exchange.as_ref().expect("it is one of several");
        // Before any tick: one that has begun to ask for votes by itself is asked for nothing.
        exchange.give_up_lead(hangs);
        let now = Message { msg_type: MessageType::MsgTimeoutNow, from: 3, to: 2, term: 1, ..Message::default() };
        let now = message::encode(&now).expect("writable").expect("it is sent");
        let to = exchange.directory().expect("it is open");
        let bytes = words::between(words::Directories { from: 5, to, opening: None }, &now.bytes);
        let messages = vec![MemberMessage { bytes, ..now }];
        let work = Work { messages, round: None, changes: Vec::new(), hand_over: None, is_tick: false };
        follower.engine.take_part(work).expect("it goes on");
        assert_eq!(follower.engine.member.lock().position().term, if hangs { 1 } else { 2 }, "it stands or does not");
        assert_eq!(declines(&follower), declined, "at once, and with its greeting");
    }
}

#[test]
fn a_leader_goes_on_as_soon_as_the_one_that_is_to_lead_declines() {
    let leader = Follower::new();
    leader.agree_on(1, (0, 0), versions::BATCHES);
    leader.lead(2);
    leader.write();
    let response =
        Message { msg_type: MessageType::MsgAppendResponse, from: 3, to: 2, term: 2, index: 2, ..Message::default() };
    leader.turn(Some(&response));
    leader.hears(Hello { knows: versions::OWN, directory: 5, yours: 0, last: 2, receives: false });
    let hand_over = || {
        let (caller, mut answer) = tokio::sync::oneshot::channel();
        let hand_over = Some((Successor::Furthest, vec![caller]));
        let work = Work { messages: Vec::new(), round: None, changes: Vec::new(), hand_over, is_tick: false };
        leader.engine.take_part(work).expect("it goes on");
        move || answer.try_recv().ok()
    };
    let mut answer = hand_over();
    assert_eq!((answer(), leader.engine.member.lock().may_propose(2)), (None, false), "it hands over");
    let bytes = words::encode(&Word::Declines).expect("writable");
    let messages = vec![MemberMessage { from: 3, to: 2, bytes }];
    let work = Work { messages, round: None, changes: Vec::new(), hand_over: None, is_tick: false };
    leader.engine.take_part(work).expect("it goes on");
    assert_eq!((answer(), leader.engine.member.lock().may_propose(2)), (Some(false), true));
    let mut answer = hand_over();
    assert_eq!((answer(), leader.engine.member.lock().may_propose(2)), (Some(false), true), "it is known by now");
    leader.hears(Hello { knows: versions::OWN, directory: 5, yours: 0, last: 2, receives: false });
    let mut answer = hand_over();
    assert_eq!((answer(), leader.engine.member.lock().may_propose(2)), (None, false), "it stands again");
}

#[test]
fn a_message_of_8000_entries_is_one_sync_once_all_members_read_that() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::IDENTITY);
    follower.take(1, (1, 1), frames(1, 20));
    assert_eq!(follower.write(), 20, "a member may not read more than one frame that is not synced");
    follower.agree_on(1, (21, 1), versions::BATCHES);
    follower.take(1, (22, 1), frames(1, 8_000));
    assert_eq!((follower.write(), follower.engine.log.lock().last()), (1, 8_022));
    assert_eq!(follower.write(), 0);
    let follower = follower.restarted();
    assert_eq!(follower.engine.member.lock().last(), 8_022);
    assert_eq!(follower.formats(), [1, 2, 1], "it has applied nothing that says which version the group has");
}

#[test]
fn messages_that_come_while_one_is_written_are_one_sync() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    for message in 0..5 {
        follower.take(1, (1 + message * 10, 1), frames(1, 10));
    }
    assert_eq!((follower.write(), follower.engine.log.lock().last()), (1, 51));
}

#[test]
fn entries_that_others_replace_are_cut_off_and_those_in_their_place_are_one_sync() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    follower.take(1, (1, 1), frames(1, 300));
    assert_eq!(follower.write(), 1);
    follower.take(2, (101, 1), frames(2, 100));
    assert_eq!((follower.write(), follower.engine.log.lock().last()), (1, 201));
    // Also where those that are replaced wait to be written.
    follower.take(2, (201, 2), frames(2, 50));
    follower.take(3, (221, 2), frames(3, 30));
    assert!(follower.write() > 0);
    assert_eq!(follower.engine.log.lock().last(), 251);
    let follower = follower.restarted();
    let member = follower.engine.member.lock();
    let has =
        [(101, 1), (102, 2), (221, 2), (222, 3), (251, 3)].map(|(number, term)| member.has(Last { number, term }));
    assert_eq!((has, member.last()), ([true; 5], 251));
}

#[test]
fn a_group_that_goes_back_to_an_earlier_version_begins_segments_that_it_reads() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    follower.take(1, (1, 1), frames(1, 10));
    assert_eq!(follower.write(), 1);
    follower.agree_on(1, (11, 1), versions::IDENTITY);
    follower.take(1, (12, 1), frames(1, 10));
    assert_eq!(follower.write(), 10);
    follower.agree_on(1, (22, 1), versions::BATCHES);
    follower.take(1, (23, 1), frames(1, 10));
    assert_eq!((follower.write(), follower.formats()), (1, vec![1, 2, 1, 2]));
    assert_eq!(follower.restarted().engine.member.lock().last(), 33);
}

#[test]
fn no_entry_gets_the_number_of_one_for_which_there_was_no_room() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    follower.lead(2);
    faults::fill(true);
    follower.engine.write_entries().expect_err("there is no room for what begins the term");
    faults::fill(false);
    let refusal = follower.refusal(2);
    assert!(matches!(refusal, CommitError::Failed(_)), "{refusal:?}");
    assert_eq!(follower.engine.log.lock().last(), 1);
    assert_eq!(follower.restarted().engine.member.lock().last(), 1);
}

#[test]
fn nothing_is_written_behind_entries_that_were_dropped_as_the_member_has_left() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    follower.lead(2);
    follower.engine.leave();
    let refusal = follower.refusal(2);
    assert!(matches!(refusal, CommitError::Refused(_)), "{refusal:?}");
    assert_eq!(follower.restarted().engine.member.lock().last(), 1);
}

#[test]
fn a_log_that_does_not_end_as_the_member_does_takes_nothing_any_more() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    follower.lead(2);
    follower.write();
    assert_eq!(follower.engine.log.lock().last(), 2);
    follower.engine.log.lock().cut_back(1).expect("it is cut");
    let refusal = follower.refusal(2).reason().to_string();
    says_what_to_do(&refusal, "the log ends with entry 1, and the member's entries with 2");
    let refusal = follower.refusal(2);
    assert!(matches!(refusal, CommitError::Failed(_)), "{refusal:?}");
    follower.engine.log.lock().write(b"anything").expect_err("it has failed");
    assert_eq!(follower.restarted().engine.member.lock().last(), 1);
}

/// A member that contradicts itself says which one it is, at which entry, and the commands that help.
fn says_what_to_do(said: &str, of: &str) {
    for part in [&format!("member 2: {of}"), "`leasehold verify --data-dir /", "`leasehold cluster replace 2`"] {
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn an_entry_that_contradicts_what_was_applied_stops_the_store_with_what_to_do() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    let cannot = Committed { number: 1, term: 1, frame: vec![1, 2, 200].into() };
    let failure = follower.engine.apply(&cannot).expect_err("there is no such item");
    says_what_to_do(&failure.to_string(), "entry 1 cannot be applied: ");
    follower.engine.published.write().entry = 1;
    let another = frames(1, 1).map(|frame| (1, frame.into())).collect();
    follower.engine.unwritten.put(Unwritten { entries: another, step: 9 });
    let failure = follower.engine.write_entries().expect_err("it is not replaced");
    says_what_to_do(&failure.to_string(), "entry 1 was applied, and another is to be in its place");
}

#[test]
fn an_entry_is_looked_up_while_readers_read() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    let cannot = Committed { number: 1, term: 1, frame: vec![1, 2, 200].into() };
    std::thread::scope(|threads| {
        let reading = follower.engine.published.read();
        let (looked_up, found) = std::sync::mpsc::channel();
        let engine = &follower.engine;
        threads.spawn(move || looked_up.send(engine.apply(&cannot).is_err()));
        let found = found.recv_timeout(std::time::Duration::from_secs(60));
        drop(reading);
        assert_eq!(found, Ok(true), "it waits until nobody reads");
    });
}

#[test]
fn a_member_says_that_it_takes_no_entries_while_those_that_it_has_are_not_written() {
    let follower = Follower::new();
    follower.agree_on(1, (0, 0), versions::BATCHES);
    assert!(!follower.is_behind());
    follower.take(1, (1, 1), frames(1, 10));
    assert!(!follower.is_behind(), "they have come just now");
    assert!(follower.is_behind());
    follower.write();
    assert!(!follower.is_behind());
    for number in 11..60 {
        let mut large = Vec::new();
        stored::append(&(1u64, 0u64, "x".repeat(1 << 20)), &mut large).expect("writable");
        follower.take(1, (number, 1), [large]);
    }
    assert!(follower.is_behind(), "it takes no more");
    let last = || follower.engine.member.lock().last();
    let taken = last();
    assert!(taken < 60 && follower.engine.unwritten.bytes() > MOST_UNWRITTEN);
    // The leader sends the others again.
    follower.take(1, (taken, 1), frames(1, 1));
    assert_eq!(last(), taken);
    follower.write();
    follower.take(1, (taken, 1), frames(1, 1));
    assert_eq!(last(), taken + 1);
    assert!(!follower.is_behind());
}

#[test]
fn a_voter_that_takes_no_entries_is_none_that_a_leader_could_have_a_write_acknowledged_by() {
    let leader = Follower::new();
    leader.agree_on(1, (0, 0), versions::BATCHES);
    leader.lead(2);
    let are_most = || leader.engine.following(&leader.engine.member.lock()).are_most;
    for receives in [true, false, true] {
        leader.hears(Hello { knows: versions::OWN, directory: 5, yours: 0, last: 1, receives });
        assert_eq!(are_most(), !receives);
    }
}

#[test]
fn one_that_goes_on_alone_says_no_earlier_version_than_its_log_has() {
    for (agreed, said) in [(versions::IDENTITY, versions::UNDONE), (versions::BATCHES, versions::BATCHES)] {
        let follower = Follower::new();
        follower.agree_on(1, (0, 0), agreed);
        follower.take(1, (1, 1), frames(1, 10));
        follower.write();
        let alone = follower.restarted_as(|group| group.goes_on_alone = true);
        assert_eq!(alone.engine.exchange.as_ref().expect("it is a member").agreed().version, said);
    }
}

#[test]
fn one_that_does_not_lead_needs_no_room() {
    let follower = Follower::new();
    // The next write begins a segment.
    follower.agree_on(1, (0, 0), versions::BATCHES);
    faults::fill(true);
    let refusals = [follower.refusal(1), follower.refusal(1)];
    faults::fill(false);
    let is_deposed = |refusal: &CommitError| matches!(refusal, CommitError::Refused(StoreError::NotLeading(_)));
    assert!(refusals.iter().all(is_deposed), "{refusals:?}");
    assert!(!follower.engine.is_out_of_room.load(Ordering::Relaxed));
}
