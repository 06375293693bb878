//! The disk of a simulated member: its vote, its log, and the database as of its last flush.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use raft::eraftpb::{Entry, Message};
use rand::RngExt as _;
use rand::rngs::StdRng;
use xxhash_rust::xxh3::xxh3_64;

use super::super::super::entry::{self, has_members};
use super::super::super::equality::compared::SumAt;
use super::super::super::equality::sum::Sum;
use super::super::super::kept::{Earlier, Last, Offered, entry_of, term_of};
use super::super::super::log::AppendError;
use super::super::super::opened::OpeningsFile;
use super::super::super::progress::{Committed, Durable, Entries};
use super::super::super::seal::{SealedGroup, Vote};
use super::super::super::words::{Ask, Offer, Piece, Word};
use crate::store::Membership;

/// The most frames that are read from the log at once.
const READ_FRAMES: usize = 16;

/// The most pieces that a state has.
const MOST_PIECES: u8 = 4;

/// What a member has made of the entries that it has applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) last: Last,
    /// The hash over all frames up to the last.
    pub(super) hash: u64,
    pub(super) members: Arc<Membership>,
}

impl State {
    /// Returns the state before the first entry.
    pub(super) fn of(founders: &[u64]) -> Self {
        Self { members: Arc::new(Membership::founded(founders)), ..Self::default() }
    }

    /// Applies the entry that follows the last.
    pub(super) fn apply(&mut self, committed: &Committed) {
        let Committed { number, term, frame } = committed;
        assert_eq!(*number, self.last.number + 1, "an entry is left out");
        self.last = Last { number: *number, term: *term };
        self.hash = xxh3_64(&[&self.hash.to_le_bytes()[..], frame].concat());
        if has_members(frame) {
            let members = entry::Entry::decode(frame).expect("an entry").members;
            self.members = Arc::new(members.expect("it has members"));
        }
    }

    /// Returns what a leader says of the sum over its state.
    pub(super) fn sum(&self) -> SumAt {
        SumAt::of(self.last.number, Sum(self.hash.into()))
    }

    /// Writes the state as it is sent to another member.
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(&(self.last, self.hash, &*self.members)).expect("writable")
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        let (last, hash, members) = serde_json::from_slice::<(_, _, Membership)>(bytes).expect("a state");
        Self { last, hash, members: Arc::new(members) }
    }
}

/// What is to go wrong with an operation of a disk.
enum Fault {
    None,
    /// It fails, and was not done.
    Undone,
    /// It fails, and was done.
    Done,
}

/// A frame of the log, and the number of the last one that was durable when it was written.
#[derive(Clone)]
struct Frame {
    bytes: Bytes,
    durable: u64,
}

/// A disk, and what its member keeps in memory about it.
#[derive(Clone)]
pub(super) struct Files {
    pub(super) group: SealedGroup,
    pub(super) openings: OpeningsFile,
    pub(super) vote: Vote,
    pub(super) flushed: State,
    /// The number of the entry before the first of the log.
    before: u64,
    log: VecDeque<Frame>,
    /// The number of the last entry that a crash does not lose.
    synced: u64,
    /// The number of the last entry that the member has applied, which is not replaced any more.
    pub(super) applied: u64,
    /// How many frames were put in the place of others.
    pub(super) replaced: u64,
    /// The operation that fails, counted from the next, and whether it is done nevertheless.
    pub(super) fails: Option<(u32, bool)>,
    pub(super) is_full: bool,
    pub(super) outbox: Vec<Message>,
    /// The states that other members are offered, with the number of the offer and the tick of its last use.
    pub(super) offers: BTreeMap<u64, (u64, State, u64)>,
    offered: u64,
}

impl Files {
    /// Returns the number of the last entry of the log.
    pub(super) fn last(&self) -> u64 {
        self.before + self.log.len() as u64
    }

    /// Returns the place of an entry of the log.
    fn place(&self, number: u64) -> usize {
        usize::try_from(number - self.before - 1).expect("it fits in memory")
    }

    /// Returns the frames behind this entry.
    pub(super) fn behind(&self, number: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        let first = number.max(self.before) + 1;
        (first..).zip(self.log.range(self.place(first).min(self.log.len())..).map(|frame| &frame.bytes))
    }

    /// Returns the members of the group as its member knows them when it is started.
    pub(super) fn known_members(&self) -> Arc<Membership> {
        let changes: Vec<&Bytes> =
            self.behind(self.flushed.last.number).map(|(_, frame)| frame).filter(|frame| has_members(frame)).collect();
        // The last one may not be committed.
        match changes.len().checked_sub(2).and_then(|before| changes.get(before)) {
            None => Arc::clone(&self.flushed.members),
            Some(frame) => Arc::new(entry::Entry::decode(frame).expect("an entry").members.expect("it has members")),
        }
    }

    /// Takes over what was applied into the database, and cuts the log off in front, but for so many entries and those
    /// that somebody needs who was offered a state.
    pub(super) fn flush(&mut self, state: State, kept: u64) {
        let needed = self.offers.values().map(|(_, state, _)| state.last.number).min();
        let before = needed.unwrap_or(u64::MAX).min(state.last.number.saturating_sub(kept));
        self.flushed = state;
        while self.before < before {
            assert!(self.before < self.synced, "an entry was applied that is not synced");
            self.log.pop_front();
            self.before += 1;
        }
    }

    /// Loses what a crash may lose: any of the frames that are not synced. Those behind the first that is lost are cut
    /// off, which none of them says to have been durable.
    pub(super) fn crash(&mut self, random: &mut StdRng) {
        let lost = random.random_range(0..=100);
        let left = (self.synced + 1..=self.last()).map(|_| random.random_range(0..100) >= lost);
        let left: Vec<bool> = left.collect();
        let last = self.synced + left.iter().take_while(|is_left| **is_left).count() as u64;
        let unsynced = self.log.range(self.place(self.synced + 1).min(self.log.len())..).zip(left);
        let shows_damage = unsynced.filter(|(_, is_left)| *is_left).any(|(frame, _)| frame.durable > last);
        assert!(!shows_damage, "a frame that is lost was durable");
        self.log.truncate(self.place(last + 1));
        self.synced = last;
        assert!(last >= self.flushed.last.number, "the log ends before the database");
        (self.fails, self.is_full) = (None, false);
        self.outbox.clear();
        self.offers.clear();
    }

    /// Begins with the state of another member in the place of its own, and an empty log behind it.
    pub(super) fn begin_with(&mut self, state: State) {
        (self.before, self.synced) = (state.last.number, state.last.number);
        self.log.clear();
        self.flushed = state;
    }

    fn fault(&mut self) -> Fault {
        match &mut self.fails {
            None => Fault::None,
            Some((0, true)) => Fault::Done,
            Some((0, false)) => Fault::Undone,
            Some((left, _)) => {
                *left -= 1;
                Fault::None
            }
        }
    }

    /// Does what is to be done, unless it fails.
    fn operate(&mut self, operation: impl FnOnce(&mut Self)) -> io::Result<()> {
        let fault = self.fault();
        if !matches!(fault, Fault::Undone) {
            operation(self);
        }
        if matches!(fault, Fault::None) { Ok(()) } else { Err(io::Error::other("the disk fails")) }
    }
}

/// A disk that a member and its log share.
#[derive(Clone)]
pub(super) struct Disk(Arc<Mutex<Files>>);

impl Disk {
    /// Creates the directory of a member, which was started in a group with these founders, or joins one.
    pub(super) fn new(member: u64, directory: u64, founders: &[u64], is_admitted: bool) -> Self {
        let (founders, flushed) = (founders.to_vec(), State::of(founders));
        let cluster = "simulation".to_owned();
        let awaits_founders = !founders.is_empty();
        let group = SealedGroup {
            cluster,
            member,
            directory,
            is_admitted,
            founders,
            awaits_founders,
            ..SealedGroup::default()
        };
        Self(Arc::new(Mutex::new(Files {
            group,
            openings: OpeningsFile::default(),
            vote: Vote::default(),
            flushed,
            before: 0,
            log: VecDeque::new(),
            synced: 0,
            applied: 0,
            replaced: 0,
            fails: None,
            is_full: false,
            outbox: Vec::new(),
            offers: BTreeMap::new(),
            offered: 0,
        })))
    }

    /// Returns a copy of the disk.
    pub(super) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.files().clone())))
    }

    pub(super) fn files(&self) -> MutexGuard<'_, Files> {
        self.0.lock()
    }

    /// Returns what a member is started with that finds this disk, which is opened with this number.
    pub(super) fn open(&self, opening: u64) -> (Vote, State, Vec<Entry>) {
        let mut files = self.files();
        files.openings.open(opening);
        files.applied = files.flushed.last.number;
        let entry = |(number, frame): (u64, &Bytes)| entry_of(number, frame.clone()).expect("an entry");
        let entries: Vec<Entry> = files.behind(files.flushed.last.number).map(entry).collect();
        let term = entries.last().map_or(files.flushed.last.term, |entry| entry.term);
        assert!(files.vote.term >= term, "the vote is of an earlier term than the log");
        (files.vote, files.flushed.clone(), entries)
    }

    /// Answers a question of a member for a piece of a state, at this tick.
    pub(super) fn answer(&self, from: u64, ask: Ask, ticks: u64) -> Word {
        let mut files = self.files();
        let Some((_, state, used)) = files.offers.get_mut(&from).filter(|(number, _, _)| *number == ask.offer) else {
            return Word::Gone(ask.offer);
        };
        *used = ticks;
        let pieces = u8::try_from(ask.offer % u64::from(MOST_PIECES)).expect("small");
        let is_last = ask.at.keyspace >= pieces;
        Word::Piece(Piece::of(ask.offer, ask.at, state.encode(), is_last))
    }

    /// Returns the word that offers a state, which the library has asked for before.
    pub(super) fn offer_word(&self, member: u64, term: u64) -> Option<Word> {
        let files = self.files();
        let (number, state, _) = files.offers.get(&member)?;
        Some(Word::Offer(Offer { term, number: *number, last: state.last }))
    }
}

impl Durable for Disk {
    fn write_vote(&mut self, vote: Vote) -> io::Result<()> {
        let mut files = self.files();
        let before = files.vote;
        assert!(vote.term >= before.term, "a member goes back to an earlier term");
        let is_second = vote.term == before.term && before.member != 0;
        assert!(!is_second || vote.member == before.member, "a member votes twice in a term");
        files.operate(|files| files.vote = vote)
    }

    fn send(&mut self, messages: Vec<Message>) {
        self.files().outbox.extend(messages);
    }
}

impl Entries for Disk {
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError> {
        let mut files = self.files();
        assert!(term_of(frame).expect("a term") <= files.vote.term, "an entry is of a term that the vote is not of");
        assert!(number > files.applied, "entry {number} was applied, and another is to be in its place");
        assert!(number <= files.last() + 1, "an entry is left out");
        if files.is_full {
            return Err(AppendError::Full(io::ErrorKind::StorageFull.into()));
        }
        let written = files.operate(|files| {
            if number <= files.last() {
                files.replaced += files.last() + 1 - number;
                files.log.truncate(files.place(number));
                // What is left is synced before the others are cut off.
                files.synced = number - 1;
            }
            let durable = files.synced;
            files.log.push_back(Frame { bytes: Bytes::copy_from_slice(frame), durable });
        });
        written.map_err(AppendError::Failed)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.files().operate(|files| files.synced = files.last())
    }
}

impl Earlier for Disk {
    fn first(&self) -> u64 {
        self.files().before + 1
    }

    fn frames(&self, number: u64, last: u64) -> io::Result<(u64, Vec<Bytes>)> {
        let files = self.files();
        if number <= files.before || number > last {
            return Err(io::ErrorKind::NotFound.into());
        }
        // As the log does, which reads from the beginning of a part.
        let first = (number - number % 4).max(files.before + 1);
        assert!(last <= files.synced, "an entry that was applied is not synced");
        let frames = files.behind(first - 1).take_while(|(number, _)| *number <= last).take(READ_FRAMES);
        Ok((first, frames.map(|(_, frame)| frame.clone()).collect()))
    }

    fn offer(&self, member: u64, _: u64) -> Option<Offered> {
        let mut files = self.files();
        if files.flushed.last.number == 0 {
            return None;
        }
        files.offered += 1;
        let (number, flushed) = (files.group.directory << 32 | files.offered, files.flushed.clone());
        let (_, state, _) = files.offers.entry(member).or_insert((number, flushed, u64::MAX));
        Some(Offered { last: state.last, members: Arc::clone(&state.members) })
    }
}
