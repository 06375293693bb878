use std::mem;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

use super::super::kept::{SENT_BYTES, entry_of};
use super::super::stored;
use super::*;
use crate::store::{Role, Seat};
use memory::{BROKEN, Log, Memory};

mod memory;
mod writing;

fn frame(term: u64, what: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    stored::append(&(term, what), &mut frame).expect("writable");
    frame
}

fn founded(members: &[u64]) -> Arc<Membership> {
    Arc::new(Membership::founded(members))
}

/// A member as its process starts with what its disk has.
fn start(id: u64, members: &[u64], disk: &Memory) -> Member {
    let entry = |(frame, number): (&Vec<u8>, u64)| entry_of(number, Bytes::copy_from_slice(frame)).expect("an entry");
    let entries = disk.synced.iter().zip(1..).map(entry).collect();
    Member::new(id, founded(members), disk.vote, Last::default(), entries, None).expect("it fits together")
}

fn committed(number: u64, term: u64, frame: Vec<u8>) -> Committed {
    Committed { number, term, frame: frame.into() }
}

#[test]
fn a_group_of_one_commits_what_it_has_synced_and_keeps_none_of_it() {
    let mut disk = Memory::default();
    let mut member = start(ALONE, &[ALONE], &disk);
    let began = member.begin(&mut disk).expect("written").committed;
    assert_eq!(began, [committed(1, 1, vec![1])]);
    assert_eq!(disk.vote, Vote { term: 1, member: ALONE });
    for number in 2..100 {
        let proposed = frame(1, u32::try_from(number).expect("a small number"));
        let (as_number, progress) = member.append(1, proposed.clone(), &mut disk).expect("written");
        assert_eq!((as_number, progress.committed), (number, vec![committed(number, 1, proposed)]));
        assert_eq!(disk.synced.len() as u64, number);
    }
    assert!(disk.outbox.is_empty() && member.node.store().in_memory() == 0);
    let last = Last { number: 99, term: 1 };
    let mut member =
        Member::new(ALONE, founded(&[ALONE]), disk.vote, last, Vec::new(), None).expect("it fits together");
    assert_eq!(member.begin(&mut disk).expect("written").committed, [committed(100, 2, vec![2])]);
    assert_eq!(disk.vote, Vote { term: 2, member: ALONE });
}

#[test]
fn an_entry_for_which_there_is_no_room_was_never_proposed() {
    let mut disk = Memory::default();
    let mut member = start(ALONE, &[ALONE], &disk);
    member.begin(&mut disk).expect("written");
    disk.is_full = true;
    for _ in 0..3 {
        let refused = member.append(1, frame(1, 7), &mut disk);
        assert!(matches!(refused, Err(ProposeError::Append(AppendError::Full(_)))), "{refused:?}");
    }
    disk.is_full = false;
    let (_, progress) = member.append(1, frame(1, 8), &mut disk).expect("written");
    assert_eq!(progress.committed, [committed(2, 1, frame(1, 8))]);
    assert_eq!(disk.synced, [vec![1], frame(1, 8)]);
}

#[test]
fn an_entry_of_an_earlier_term_is_not_proposed() {
    let mut disk = Memory { vote: Vote { term: 6, member: ALONE }, ..Memory::default() };
    let mut member = start(ALONE, &[ALONE], &disk);
    assert!(matches!(member.append(6, frame(6, 1), &mut disk), Err(ProposeError::Deposed)), "it leads in no term yet");
    member.begin(&mut disk).expect("written");
    assert!(matches!(member.append(6, frame(6, 1), &mut disk), Err(ProposeError::Deposed)), "term 7 has begun");
    assert_eq!(disk.frames, [vec![7]]);
    member.append(7, frame(7, 1), &mut disk).expect("written");
}

/// Carries messages between two members until there are none.
fn exchange(members: &mut [(Member, Memory); 2]) {
    loop {
        let messages: Vec<Message> = members.iter_mut().flat_map(|(_, disk)| mem::take(&mut disk.outbox)).collect();
        if messages.is_empty() {
            return;
        }
        for message in messages {
            // A member that is not there is sent to as well.
            if let Some((member, disk)) = members.get_mut(usize::try_from(message.to).expect("small") - 1) {
                member.step(message);
                member.go_on(disk).expect("written");
            }
        }
    }
}

#[test]
fn a_member_that_lags_is_sent_what_its_leader_has_in_its_log_only() {
    const ENTRIES: u32 = 3_000;
    let mut leader = Memory::default();
    for number in 0..ENTRIES {
        leader.frames.push([frame(1, number), vec![7; 512]].concat());
    }
    leader.synced.clone_from(&leader.frames);
    leader.vote = Vote { term: 1, member: 1 };
    let (last, log) = (Last { number: u64::from(ENTRIES), term: 1 }, Log(leader.synced.clone(), Arc::default()));
    let member =
        Member::new(1, founded(&[1, 2]), leader.vote, last, Vec::new(), Some(Arc::new(log))).expect("it fits together");
    let behind = Memory { vote: leader.vote, ..Memory::default() };
    let mut members = [(member, leader), (start(2, &[1, 2], &behind), behind)];
    let (member, disk) = &mut members[0];
    member.begin(disk).expect("written");
    exchange(&mut members);
    // What has no room in one message comes with the answers to the heartbeats.
    for _ in 0..20 {
        members[0].0.tick();
        let (member, disk) = &mut members[0];
        member.go_on(disk).expect("written");
        exchange(&mut members);
    }
    let [(_, leader), (_, behind)] = &members;
    assert_eq!(behind.synced.len(), ENTRIES as usize + 1);
    assert!(behind.synced == leader.synced, "they are the same");
}

/// What a leader whose log has entries of these lengths sends to a member that has none of them, while time passes.
struct Lagging {
    members: [(Member, Memory); 2],
    /// The last entry of the state that there is to offer.
    flushed: Arc<AtomicU64>,
    /// The last entries of the states that were offered.
    offered: Vec<u64>,
    /// The most bytes that were sent at a time.
    most: usize,
}

impl Lagging {
    /// The leader has applied so many of its entries.
    fn behind(lengths: &[usize], applied: usize) -> Self {
        let frames: Vec<_> =
            (0..).zip(lengths).map(|(number, length)| [frame(1, number), vec![7; *length]].concat()).collect();
        let leader =
            Memory { frames: frames.clone(), synced: frames, vote: Vote { term: 1, member: 1 }, ..Memory::default() };
        let flushed = Arc::default();
        let (last, log) = (Last { number: applied as u64, term: 1 }, Log(leader.synced.clone(), Arc::clone(&flushed)));
        let entries = (1..).zip(&leader.synced).skip(applied);
        let entries = entries.map(|(number, frame)| entry_of(number, Bytes::copy_from_slice(frame)).expect("an entry"));
        let member = Member::new(1, founded(&[1, 2]), leader.vote, last, entries.collect(), Some(Arc::new(log)));
        let mut member = member.expect("it fits together");
        let (mut leader, behind) = (leader, Memory { vote: Vote { term: 1, member: 1 }, ..Memory::default() });
        member.begin(&mut leader).expect("written");
        let members = [(member, leader), (start(2, &[1, 2], &behind), behind)];
        Self { members, flushed, offered: Vec::new(), most: 0 }
    }

    fn pass(&mut self, ticks: usize) {
        for _ in 0..ticks {
            let (member, disk) = &mut self.members[0];
            member.tick();
            member.go_on(disk).expect("written");
            self.carry();
        }
    }

    /// Carries messages until there are none, but for a state that is offered: nobody takes it.
    fn carry(&mut self) {
        loop {
            let sent = |message: &Message| message.entries.iter().map(|entry| entry.data.len()).sum::<usize>();
            self.most = self.most.max(self.members[0].1.outbox.iter().map(sent).sum());
            let outbox = |(_, disk): &mut (Member, Memory)| mem::take(&mut disk.outbox);
            let messages: Vec<Message> = self.members.iter_mut().flat_map(outbox).collect();
            if messages.is_empty() {
                return;
            }
            for message in messages {
                if message.msg_type == MessageType::MsgSnapshot {
                    self.offered.push(message.get_snapshot().get_metadata().index);
                    continue;
                }
                let (member, disk) = &mut self.members[usize::try_from(message.to).expect("small") - 1];
                member.step(message);
                member.go_on(disk).expect("written");
                self.most = self.most.max(self.members[0].1.outbox.iter().map(sent).sum());
            }
        }
    }

    /// How many entries the member has that lags.
    fn has(&self) -> usize {
        self.members[1].1.synced.len()
    }
}

#[test]
fn a_member_that_lags_is_sent_a_few_long_entries_at_a_time() {
    const LENGTH: usize = 3 << 20;
    let mut lagging = Lagging::behind(&[LENGTH; 20], 20);
    lagging.pass(60);
    assert_eq!(lagging.has(), 21);
    assert!(lagging.most < 4 * LENGTH, "{}", lagging.most);
    assert!(lagging.members[0].1.synced == lagging.members[1].1.synced, "they are the same");
}

#[test]
fn a_member_that_lacks_an_entry_which_is_too_long_to_be_sent_is_offered_a_state_that_has_it() {
    let mut lagging = Lagging::behind(&[10, 10, SENT_BYTES + 1, 10, 10], 5);
    lagging.flushed.store(2, Ordering::Relaxed);
    lagging.pass(20);
    assert_eq!((lagging.has(), lagging.offered.as_slice()), (2, &[][..]), "a state without the entry is of no use");
    lagging.flushed.store(4, Ordering::Relaxed);
    lagging.pass(20);
    assert_eq!((lagging.has(), lagging.offered.as_slice()), (2, &[4][..]));
    assert!(lagging.most < SENT_BYTES);
}

#[test]
fn a_member_that_lacks_an_entry_which_cannot_be_read_is_offered_a_state_that_has_it() {
    let mut lagging = Lagging::behind(&[10; 5], 5);
    lagging.members[0].1.synced[2] = BROKEN.to_vec();
    let log = Log(lagging.members[0].1.synced.clone(), Arc::clone(&lagging.flushed));
    lagging.members[0].0.node.mut_store().read_before(Arc::new(log));
    lagging.flushed.store(2, Ordering::Relaxed);
    lagging.pass(20);
    assert_eq!((lagging.has(), lagging.offered.as_slice()), (2, &[][..]), "a state without the entry is of no use");
    lagging.flushed.store(4, Ordering::Relaxed);
    lagging.pass(20);
    assert_eq!((lagging.has(), lagging.offered.as_slice()), (2, &[4][..]));
}

#[test]
fn an_entry_that_is_too_long_to_be_sent_is_sent_where_it_is_not_agreed_on() {
    let mut lagging = Lagging::behind(&[10, 10, SENT_BYTES + 1, 10, 10], 2);
    lagging.pass(20);
    assert_eq!(lagging.has(), 6, "the leader's log could not go on without it");
}

/// Brings what the first member has sent to the second, and its answers back, and no more.
fn ask_the_other(members: &mut [(Member, Memory)]) {
    let asked = mem::take(&mut members[0].1.outbox);
    let (other, others) = &mut members[1];
    asked.into_iter().for_each(|message| other.step(message));
    other.go_on(others).expect("written");
    let answers = mem::take(&mut others.outbox);
    answers.into_iter().for_each(|message| members[0].0.step(message));
}

#[test]
fn most_members_say_whether_one_leads() {
    let mut members = [1, 2].map(|id| (start(id, &[1, 2], &Memory::default()), Memory::default()));
    let (member, disk) = &mut members[0];
    member.begin(disk).expect("written");
    exchange(&mut members);
    let (member, disk) = &mut members[0];
    assert_eq!(
        member.position(),
        Position { term: 1, leader: Some(1), is_leader: true, committed: 1, role: Role::Voter }
    );
    member.ask(1);
    assert_eq!(member.go_on(disk).expect("written").confirmed, None, "the other has not said so");
    ask_the_other(&mut members);
    let (member, disk) = &mut members[0];
    assert_eq!(member.go_on(disk).expect("written").confirmed, Some((1, 1)));
}

/// Two members, of which the first leads.
fn two() -> [(Member, Memory); 2] {
    let mut members = [1, 2].map(|id| (start(id, &[1, 2], &Memory::default()), Memory::default()));
    let (member, disk) = &mut members[0];
    member.begin(disk).expect("written");
    exchange(&mut members);
    members
}

#[test]
fn a_leader_that_hands_over_is_followed_in_the_next_term_by_one_that_has_all_it_has() {
    let mut members = two();
    let (member, disk) = &mut members[0];
    // The other one has not heard of it yet.
    member.append(1, frame(1, 7), disk).expect("written");
    assert!(member.hand_over(Successor::Furthest, |_| true));
    member.go_on(disk).expect("written");
    let refused = member.append(1, frame(1, 8), disk);
    assert!(matches!(refused, Err(ProposeError::Deposed)), "{refused:?}");
    exchange(&mut members);
    let position = Position { term: 2, leader: Some(2), is_leader: true, committed: 3, role: Role::Voter };
    assert_eq!(members[1].0.position(), position);
    assert_eq!(members[0].0.position(), Position { is_leader: false, ..position });
    assert_eq!(members[1].1.synced, [vec![1], frame(1, 7), vec![2]]);
    // It is nothing to a member that does not lead.
    let (member, disk) = &mut members[0];
    assert!(!member.hand_over(Successor::Member(1), |_| true));
    member.go_on(disk).expect("written");
    exchange(&mut members);
    assert_eq!(members[1].0.position(), position);
}

#[test]
fn a_leader_that_nobody_takes_the_lead_from_goes_on_after_a_while() {
    let mut members = two();
    let (member, disk) = &mut members[0];
    for nobody in [Successor::Member(1), Successor::Member(3)] {
        assert!(!member.hand_over(nobody, |_| true));
        member.append(1, frame(1, 7), disk).expect("it hands over nothing");
    }
    exchange(&mut members);
    let (member, disk) = &mut members[0];
    assert!(member.hand_over(Successor::Member(2), |_| true));
    member.go_on(disk).expect("written");
    disk.outbox.retain(|message| message.msg_type != MessageType::MsgTimeoutNow);
    exchange(&mut members);
    for tick in 0..ELECTION_TICKS {
        let (member, disk) = &mut members[0];
        let refused = member.append(1, frame(1, 8), disk);
        assert!(matches!(refused, Err(ProposeError::Deposed)), "{refused:?} after {tick} ticks");
        member.tick();
        member.go_on(disk).expect("written");
        exchange(&mut members);
    }
    let (member, disk) = &mut members[0];
    member.append(1, frame(1, 9), disk).expect("it leads on");
    assert_eq!(member.position().term, 1);
}

#[test]
fn a_leader_goes_on_at_once_when_the_one_that_it_hands_over_to_declines() {
    let mut members = two();
    let (member, disk) = &mut members[0];
    for nobody in [Successor::Furthest, Successor::Member(2)] {
        assert!(!member.hand_over(nobody, |_| false), "it has said before that it does not stand");
        member.append(1, frame(1, 7), disk).expect("it hands over nothing");
    }
    exchange(&mut members);
    let (member, disk) = &mut members[0];
    assert!(member.hand_over(Successor::Member(2), |_| true));
    member.go_on(disk).expect("written");
    disk.outbox.retain(|message| message.msg_type != MessageType::MsgTimeoutNow);
    member.keep_lead(3);
    assert!(member.hands_over(), "another one was not to take the lead");
    member.keep_lead(2);
    member.append(1, frame(1, 8), disk).expect("it leads on");
    exchange(&mut members);
    assert_eq!((members[0].0.position().term, members[1].1.synced.len()), (1, 4));
}

#[test]
fn a_member_that_lags_far_behind_is_not_given_the_lead() {
    let mut members = two();
    let (member, disk) = &mut members[0];
    for number in 0..=u32::try_from(NEARLY).expect("few") {
        member.append(1, frame(1, number), disk).expect("written");
    }
    disk.outbox.clear();
    // Most of them are one that has everything.
    let last = member.last();
    member.node.raft.raft_log.commit_to(last);
    assert!(!member.hand_over(Successor::Furthest, |_| true) && !member.hands_over());
}

#[test]
fn one_that_joins_learns_of_members_of_which_the_first_has_no_vote() {
    let mut members = Membership::founded(&[1, 2, 3]);
    members.seats.insert(1, Seat { votes: false, directory: 7, address: None });
    let frame = encode_members(1, &members, &Note::default()).expect("writable");
    let entry = entry_of(1, frame.into()).expect("an entry");
    let append = Message { msg_type: MessageType::MsgAppend, from: 2, to: 4, term: 1, commit: 1, ..Message::default() };
    let (mut disk, mut member) = (Memory::default(), start(4, &[], &Memory::default()));
    member.step(Message { entries: vec![entry].into(), ..append });
    assert_eq!(member.go_on(&mut disk).expect("it fits").committed.len(), 1);
    assert_eq!(**member.members(), members);
}

fn candidacy(term: u64) -> Message {
    Message { msg_type: MessageType::MsgRequestVote, from: 1, to: 2, term, ..Message::default() }
}

#[test]
fn one_that_joins_and_knows_nothing_of_its_group_does_not_vote() {
    for (founders, answers) in [(&[][..], 0), (&[1, 2][..], 1)] {
        let (mut disk, mut member) = (Memory::default(), start(2, founders, &Memory::default()));
        member.step(candidacy(1));
        member.go_on(&mut disk).expect("written");
        assert_eq!(disk.outbox.len(), answers, "founded by {founders:?}");
    }
}

#[test]
fn one_that_may_not_stand_for_election_votes_for_others() {
    let mut members = two();
    let (member, disk) = &mut members[1];
    member.let_take_part(true, false);
    member.step(Message { msg_type: MessageType::MsgTimeoutNow, from: 1, to: 2, term: 1, ..Message::default() });
    for _ in 0..ELECTION_TICKS * 5 {
        member.tick();
        member.go_on(disk).expect("written");
    }
    assert!(disk.outbox.is_empty() && disk.vote.term == 1, "it does not stand");
    member.step(Message { index: 1, log_term: 1, ..candidacy(2) });
    member.go_on(disk).expect("written");
    assert_eq!(disk.vote, Vote { term: 2, member: 1 });
    member.let_take_part(true, true);
    for _ in 0..ELECTION_TICKS * 2 {
        member.tick();
    }
    member.go_on(disk).expect("written");
    assert!(disk.outbox.iter().any(|message| message.msg_type == MessageType::MsgRequestPreVote));
}

#[test]
fn a_leader_that_was_removed_leads_no_more_and_hands_over() {
    let mut members = two();
    let (member, disk) = &mut members[0];
    member.append_members(&Membership::founded(&[2]), disk).expect("it leads");
    // What the other one has written, and not that it is committed with that.
    ask_the_other(&mut members);
    let (member, disk) = &mut members[0];
    member.go_on(disk).expect("written");
    disk.outbox.clear();
    let Position { role, is_leader, .. } = member.position();
    assert_eq!((role, is_leader), (Role::Removed, false));
    assert!(matches!(member.append(1, frame(1, 7), disk), Err(ProposeError::Deposed)));
    assert_eq!(disk.frames.len(), 2, "nothing was written");
    member.tick();
    member.go_on(disk).expect("written");
    exchange(&mut members);
    assert!(members[1].0.position().is_leader && !members[0].0.position().is_leader);
}
