use std::collections::{BTreeMap, VecDeque};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

/// How many groups are made up, and the steps of each.
const SEEDS: u64 = 200;
const STEPS: usize = 2_000;
const MEMBERS: [u64; 3] = [1, 2, 3];

/// A disk whose sync is a sync.
#[derive(Clone, Debug, Default)]
struct Memory {
    vote: Vote,
    frames: Vec<Vec<u8>>,
    /// The frames as they were when they were synced.
    synced: Vec<Vec<u8>>,
    is_full: bool,
    /// How many frames were put in the place of others.
    replaced: usize,
}

impl Durable for Memory {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        assert!(vote.term >= self.vote.term, "a member goes back to an earlier term");
        let is_second = vote.term == self.vote.term && self.vote.member != 0;
        assert!(!is_second || vote.member == self.vote.member, "a member votes twice in a term");
        self.vote = vote;
        Ok(())
    }

    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        if self.is_full {
            return Err(AppendError::Full(io::ErrorKind::StorageFull.into()));
        }
        let place = usize::try_from(number).expect("it fits in memory") - 1;
        assert!(place <= self.frames.len(), "an entry is left out");
        self.replaced += self.frames.len() - place;
        self.frames.truncate(place);
        self.frames.push(frame.to_vec());
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.synced.clone_from(&self.frames);
        Ok(())
    }
}

fn term_of(frame: &[u8]) -> u64 {
    postcard::take_from_bytes(frame).expect("a frame begins with a term").0
}

fn entry_of(number: usize, frame: &[u8]) -> Entry {
    let data = if frame.len() == 1 { Vec::new() } else { frame.to_vec() };
    Entry { index: number as u64, term: term_of(frame), data: data.into(), ..Entry::default() }
}

fn frame(term: u64, what: u32) -> Vec<u8> {
    let mut frame = Vec::new();
    stored::append(&(term, what), &mut frame).expect("writable");
    frame
}

/// A member as its process starts with what its disk has.
fn start(id: u64, members: &[u64], disk: &Memory) -> Member {
    let entries = disk.synced.iter().zip(1..).map(|(frame, number)| entry_of(number, frame)).collect();
    Member::new(id, members, disk.vote, Last::default(), entries).expect("it fits together")
}

#[test]
fn a_group_of_one_commits_what_it_has_synced_and_keeps_none_of_it() {
    let mut disk = Memory::default();
    let mut member = start(ALONE, &[ALONE], &disk);
    let began = member.campaign(&mut disk).expect("written");
    assert_eq!(began, [Committed { number: 1, frame: vec![1].into() }]);
    assert_eq!(disk.vote, Vote { term: 1, member: ALONE });
    for number in 2..100 {
        let proposed = frame(1, u32::try_from(number).expect("a small number"));
        let committed = member.propose(proposed.clone(), &mut disk).expect("written");
        assert_eq!(committed, [Committed { number, frame: proposed.into() }]);
        assert_eq!(disk.synced.len() as u64, number);
    }
    assert!(member.outbox.is_empty() && member.node.store().entries.is_empty());
    let mut member =
        Member::new(ALONE, &[ALONE], disk.vote, Last { number: 99, term: 1 }, Vec::new()).expect("it fits together");
    assert_eq!(member.campaign(&mut disk).expect("written"), [Committed { number: 100, frame: vec![2].into() }]);
    assert_eq!(disk.vote, Vote { term: 2, member: ALONE });
}

#[test]
fn an_entry_for_which_there_is_no_room_was_never_proposed() {
    let mut disk = Memory::default();
    let mut member = start(ALONE, &[ALONE], &disk);
    member.campaign(&mut disk).expect("written");
    disk.is_full = true;
    for _ in 0..3 {
        let refused = member.propose(frame(1, 7), &mut disk);
        assert!(matches!(refused, Err(AppendError::Full(_))), "{refused:?}");
    }
    disk.is_full = false;
    let committed = member.propose(frame(1, 8), &mut disk).expect("written");
    assert_eq!(committed, [Committed { number: 2, frame: frame(1, 8).into() }]);
    assert_eq!(disk.synced, [vec![1], frame(1, 8)]);
}

/// Three members in one thread: time and the network are numbers that a seed makes up.
struct Group {
    random: StdRng,
    members: BTreeMap<u64, (Member, Memory)>,
    network: VecDeque<Message>,
    /// What each member has applied since it was started.
    applied: BTreeMap<u64, Vec<Bytes>>,
    /// What any member has applied at each number.
    history: Vec<Bytes>,
    next: u32,
}

impl Group {
    fn new(seed: u64) -> Self {
        let members = MEMBERS.map(|id| (id, (start(id, &MEMBERS, &Memory::default()), Memory::default()))).into();
        let (network, applied) = (VecDeque::new(), MEMBERS.map(|id| (id, Vec::new())).into());
        let random = StdRng::seed_from_u64(seed);
        Self { random, members, network, applied, history: Vec::new(), next: 0 }
    }

    fn step(&mut self, is_calm: bool) {
        let id = self.random.random_range(1..=3);
        let (member, disk) = self.members.get_mut(&id).expect("a member");
        match self.random.random_range(0..100) {
            0..30 => drop(member.node.tick()),
            30..40 if member.node.raft.state == StateRole::Leader => {
                self.next += 1;
                let proposed = frame(member.node.raft.term, self.next);
                let committed = member.propose(proposed, disk).expect("written");
                self.apply(id, committed);
            }
            40..41 if !is_calm => {
                // Its process dies with what it has not synced, and what it was to send.
                disk.frames.clone_from(&disk.synced);
                *member = start(id, &MEMBERS, disk);
                self.applied.insert(id, Vec::new());
            }
            41..46 if !is_calm => drop(self.network.pop_front()),
            46..50 if !is_calm && !self.network.is_empty() => {
                let place = self.random.random_range(0..self.network.len());
                self.network.swap(0, place);
            }
            _ => self.deliver(),
        }
        let (member, disk) = self.members.get_mut(&id).expect("a member");
        let committed = member.advance(None, disk).expect("written");
        self.network.extend(member.outbox.drain(..));
        self.apply(id, committed);
    }

    fn deliver(&mut self) {
        let Some(message) = self.network.pop_front() else { return };
        let id = message.to;
        let (member, disk) = self.members.get_mut(&id).expect("a member");
        // An error says that the message is of no use here.
        drop(member.node.step(message));
        let committed = member.advance(None, disk).expect("written");
        self.network.extend(member.outbox.drain(..));
        self.apply(id, committed);
    }

    /// Each applies the same in the same order, and none what another one has applied otherwise.
    fn apply(&mut self, id: u64, committed: Vec<Committed>) {
        let applied = self.applied.get_mut(&id).expect("a member");
        for Committed { number, frame } in committed {
            assert_eq!(number, applied.len() as u64 + 1, "member {id} leaves an entry out");
            match self.history.get(applied.len()) {
                Some(there) => assert_eq!(*there, frame, "member {id} applies another entry {number}"),
                None => self.history.push(frame.clone()),
            }
            applied.push(frame);
        }
    }
}

#[test]
fn three_members_apply_the_same_whatever_is_lost_and_whoever_dies() {
    let first = std::env::var("LEASEHOLD_TEST_SEED").ok().map(|text| text.parse().expect("a number"));
    let first = first.unwrap_or_else(|| rand::rng().random_range(0..1 << 40));
    println!("LEASEHOLD_TEST_SEED={first} makes up the same again");
    let (mut committed, mut replaced) = (0, 0);
    for seed in first..first + SEEDS {
        let mut group = Group::new(seed);
        (0..STEPS).for_each(|_| group.step(false));
        // Once nothing is lost any more, all come to the same state.
        (0..STEPS).for_each(|_| group.step(true));
        let longest = group.history.len();
        for (id, applied) in &group.applied {
            assert!(
                applied.len() + 20 > longest,
                "seed {seed}: member {id} lags behind: {} of {longest}",
                applied.len()
            );
        }
        committed += longest;
        replaced += group.members.values().map(|(_, disk)| disk.replaced).sum::<usize>();
    }
    assert!(committed as u64 > SEEDS * 20, "hardly anything was committed: {committed}");
    assert!(replaced > 0, "no leader was deposed with entries that nobody else had");
}
