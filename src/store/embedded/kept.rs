//! What of the log the library of [`super::group`] reads again.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use raft::eraftpb::{ConfState, Entry, EntryType, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

pub(super) use super::last::Last;
use super::log::AppendError;
use super::{entry, stored};
use crate::store::Membership;

/// How many bytes of entries that were handed out to be applied are kept in memory for members that lack them. They
/// read those before from the log.
const KEPT_BYTES: usize = 8 << 20;

/// The most bytes that an entry may have to be sent to a member. None that this version makes has more; earlier ones
/// made longer ones, and a member that lacks such a one is offered the state.
pub(super) const SENT_BYTES: usize = 16 << 20;

/// So many bytes of entries are sent to a member for each thing that it answers; the next ones follow with the next
/// answer. So long entries go one by one. Else a member that lags is sent at once what would be dropped on its way, and
/// the same again when it says what it lacks.
const BURST_BYTES: usize = 2 << 20;

/// Reads entries of the log that are not in memory any more.
pub(super) trait Earlier: Send + Sync {
    /// Returns the number of the first entry that the log has.
    fn first(&self) -> u64;

    /// Reads the entry `number` and some that follow it up to `last`: the number of the first that is returned, which
    /// may be before `number`, and their frames. What is behind `last` may change meanwhile.
    fn frames(&self, number: u64, last: u64) -> io::Result<(u64, Vec<Bytes>)>;

    /// Offers a member that lacks entries which the log has no more, or that are too long to be sent, the state as of a
    /// later one, which has at least the entry `at_least`; `None` when there is none to offer yet.
    fn offer(&self, member: u64, at_least: u64) -> Option<Offered>;
}

/// A state that a member is offered: the last entry that it has, and the members as of then.
#[derive(Clone, Debug)]
pub(super) struct Offered {
    pub(super) last: Last,
    pub(super) members: Arc<Membership>,
}

/// Returns the entry of a frame.
///
/// # Errors
/// Why it is none.
pub(super) fn entry_of(number: u64, frame: Bytes) -> Result<Entry, String> {
    let mut rest = &*frame;
    let term = stored::take(&mut rest)?;
    // The entry that begins a term has nothing else, and the library gives it no data.
    let data = if rest.is_empty() { Bytes::new() } else { frame };
    let (entry_type, data) = typed(data);
    Ok(Entry { index: number, term, entry_type, data, ..Entry::default() })
}

/// The first byte of a change of members as the library has it: what follows is the context of such a change.
const CONTEXT: u8 = 4 << 3 | 2;

/// Returns the data of an entry as the library has it, which reads those of a change of members.
pub(super) fn typed(data: Bytes) -> (EntryType, Bytes) {
    if !entry::has_members(&data) {
        return (EntryType::EntryNormal, data);
    }
    let mut change = vec![CONTEXT];
    let length = data.len();
    // The library has numbers in the same form.
    match stored::append(&length, &mut change) {
        Ok(()) => change.extend_from_slice(&data),
        Err(error) => unreachable!("a number can be written: {}", error.0),
    }
    (EntryType::EntryConfChange, change.into())
}

/// Returns the data of an entry of the library as they are in the log and in messages; without any for one that only
/// begins a term.
pub(super) fn data_of(entry: &Entry) -> Bytes {
    if entry.entry_type != EntryType::EntryConfChange {
        return entry.data.clone();
    }
    let mut rest = entry.data.get(1..).unwrap_or_default();
    // What `typed` has made has both.
    let length = stored::take::<usize>(&mut rest).unwrap_or_default();
    entry.data.slice_ref(rest.get(..length).unwrap_or_default())
}

/// Returns the number of the last entry that is committed as far as the entries of the log tell; 0 when they do not. A
/// leader proposes a change of the members only once it has applied the one before.
///
/// Without that a member would begin with the members as of its last flush. Two majorities have a member in common only
/// when they are of groups with at most one change between them.
pub(super) fn certainly_committed(entries: &[Entry]) -> u64 {
    let changes = entries.iter().rev().filter(|entry| entry.entry_type == EntryType::EntryConfChange);
    changes.map(|entry| entry.index).nth(1).unwrap_or(0)
}

/// Returns the frame of an entry.
pub(super) fn frame_of(entry: &Entry) -> Result<Bytes, AppendError> {
    if !entry.data.is_empty() {
        return Ok(data_of(entry));
    }
    let mut frame = Vec::new();
    stored::append(&entry.term, &mut frame).map_err(|error| AppendError::Failed(io::Error::other(error.0)))?;
    Ok(frame.into())
}

/// Returns the term with which a frame begins.
///
/// # Errors
/// Why there is none.
pub(super) fn term_of(frame: &[u8]) -> Result<u64, String> {
    stored::take(&mut &*frame)
}

/// Returns the members of a group as the library has them.
pub(super) fn group_of(members: &Membership) -> ConfState {
    ConfState::from((members.that_vote(true).collect::<Vec<_>>(), members.that_vote(false).collect::<Vec<_>>()))
}

/// The end of the log.
pub(super) struct Kept {
    pub(super) hard: HardState,
    pub(super) group: ConfState,
    /// The entry before the first of `entries`.
    before: Last,
    entries: VecDeque<Entry>,
    /// The bytes of those of them that were handed out to be applied, and the number of the last of these.
    applied_bytes: usize,
    applied: u64,
    earlier: Option<Arc<dyn Earlier>>,
    /// What was read from the log last.
    read: Chunk,
    /// The entries that are to be read from it next, and for what the library needs them.
    wanted: Mutex<BTreeMap<u64, GetEntriesContext>>,
    /// The entries that were handed out to be sent since [`sent`](Self::sent).
    burst: Mutex<Burst>,
    /// The number of the last entry that cannot be sent: it is too long, or cannot be read. Whoever lacks entries needs
    /// a state that has it.
    unsendable: AtomicU64,
}

/// Entries that were read from the log, one after the other.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    entries: VecDeque<Entry>,
    /// The entry before them, if the log has it.
    before: Option<Last>,
}

impl Chunk {
    /// Returns the place of an entry in it.
    fn place(&self, number: u64) -> Option<usize> {
        let place = usize::try_from(number.checked_sub(self.entries.front()?.index)?).ok()?;
        (place < self.entries.len()).then_some(place)
    }

    fn term(&self, number: u64) -> Option<u64> {
        let before = self.before.filter(|before| before.number == number).map(|before| before.term);
        before.or_else(|| self.entries.get(self.place(number)?).map(|entry| entry.term))
    }
}

/// The most that is taken of many entries.
#[derive(Clone, Copy)]
struct Most {
    count: usize,
    bytes: u64,
}

impl Most {
    /// Returns the first of these, at least one, and of their data not much more than so many bytes.
    fn of<'e>(self, entries: impl Iterator<Item = &'e Entry>) -> Vec<Entry> {
        let mut bytes = 0;
        let mut has_room = |entry: &&Entry| {
            let had_room = bytes <= self.bytes;
            bytes += entry.data.len() as u64;
            had_room
        };
        entries.take(self.count).take_while(|entry| has_room(entry)).cloned().collect()
    }
}

/// Entries that are sent one after the other, to the same member.
#[derive(Default)]
struct Burst {
    /// The number of the entry that comes next.
    next: u64,
    bytes: usize,
}

impl Kept {
    pub(super) fn new(
        hard: HardState,
        group: ConfState,
        before: Last,
        entries: Vec<Entry>,
        earlier: Option<Arc<dyn Earlier>>,
    ) -> Self {
        let (applied, entries, read) = (before.number, entries.into(), Chunk::default());
        let (wanted, burst, unsendable) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self { hard, group, before, entries, applied_bytes: 0, applied, earlier, read, wanted, burst, unsendable }
    }

    /// Reads entries that are not in memory from another log.
    #[cfg(test)]
    pub(super) fn read_before(&mut self, earlier: Arc<dyn Earlier>) {
        self.earlier = Some(earlier);
    }

    /// Returns how many entries are in memory.
    #[cfg(test)]
    pub(super) fn in_memory(&self) -> usize {
        self.entries.len()
    }

    /// Puts entries in the place of all from the first of them on. Returns whether there were any.
    pub(super) fn put(&mut self, entries: Vec<Entry>) -> bool {
        let before = self.entries.len();
        if let Some(first) = entries.first() {
            self.entries.truncate(self.place(first.index).unwrap_or(0));
        }
        let replaces = self.entries.len() < before;
        self.entries.extend(entries);
        replaces
    }

    /// Forgets entries, after one was handed out to be applied: those up to it in a group of one, which has nobody who
    /// lacks them, and in a larger one the first, once there are too many of them.
    pub(super) fn forget(&mut self, applied: &Entry) {
        self.applied = applied.index;
        self.applied_bytes += applied.data.len();
        let most = if self.earlier.is_none() { 0 } else { KEPT_BYTES };
        while let Some(first) = self.entries.front().filter(|first| first.index <= self.applied)
            && (self.applied_bytes > most || most == 0)
        {
            self.applied_bytes -= first.data.len();
            self.before = Last { number: first.index, term: first.term };
            self.entries.pop_front();
        }
    }

    /// Returns the term of an entry that is in memory.
    pub(super) fn term_in_memory(&self, number: u64) -> Option<u64> {
        match number.checked_sub(self.before.number)? {
            0 => Some(self.before.term),
            place => self.entries.get(usize::try_from(place - 1).ok()?).map(|entry| entry.term),
        }
    }

    /// Takes note of that all that was handed out to be sent was sent.
    pub(super) fn sent(&mut self) {
        *self.burst.get_mut() = Burst::default();
    }

    /// Checks that these entries can be sent to a member now, in one message.
    fn check_sent(&self, entries: &[Entry]) -> raft::Result<()> {
        let (Some(first), Some(last)) = (entries.first(), entries.last()) else { return Ok(()) };
        // The first one goes in any case, alone. One that is not agreed on is in no state, and has to be sent.
        if first.data.len() > SENT_BYTES && first.index <= self.hard.commit.max(self.applied) {
            self.unsendable.fetch_max(first.index, Ordering::Relaxed);
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        let mut burst = self.burst.lock();
        let bytes = if first.index == burst.next { burst.bytes } else { 0 };
        if bytes >= BURST_BYTES {
            return Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable));
        }
        let length = entries.iter().map(|entry| entry.data.len()).sum::<usize>();
        *burst = Burst { next: last.index + 1, bytes: bytes + length };
        Ok(())
    }

    /// Returns the place of an entry in `entries`; `None` when it is before them.
    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.before.number + 1)?).ok()
    }

    /// Returns the entry `number` and some that follow it, of those before `entries`. Where they are to be read first,
    /// the library asks for them again after that.
    fn earlier(&self, number: u64, most: Most, context: GetEntriesContext) -> raft::Result<Vec<Entry>> {
        let is_readable = self.earlier.is_some() && number > self.unsendable.load(Ordering::Relaxed);
        match self.read.place(number) {
            Some(place) if is_readable => {
                // What is behind may have been replaced since it was read.
                let known = self.read.entries.range(place..).take_while(|entry| entry.index <= self.before.number);
                Ok(most.of(known))
            }
            None if is_readable && context.can_async() => {
                self.wanted.lock().insert(number, context);
                Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable))
            }
            _ => Err(raft::Error::Store(StorageError::Compacted)),
        }
    }

    /// Returns the first entry that is to be read, and the last one that stays as it is in the log.
    pub(super) fn next_to_read(&self) -> Option<(u64, u64)> {
        self.wanted.lock().keys().next().map(|number| (*number, self.before.number))
    }

    /// Returns what reads the log.
    pub(super) fn reads_from(&self) -> Option<Arc<dyn Earlier>> {
        self.earlier.clone()
    }

    /// Takes note of what was read for the entry `number`. Returns for what the library needs entries that are there
    /// now.
    pub(super) fn has_read(&mut self, number: u64, read: io::Result<Chunk>) -> Vec<GetEntriesContext> {
        match read {
            Ok(read) => self.read = read,
            Err(error) => {
                // One that is not there any more was removed since.
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::error!(
                        entry = number,
                        %error,
                        "an old part of the log cannot be read: a member that lacks it is offered the state"
                    );
                }
                self.unsendable.fetch_max(number, Ordering::Relaxed);
            }
        }
        let (read, wanted) = (&self.read, self.wanted.get_mut());
        let found = wanted.extract_if(.., |of, _| *of == number || read.place(*of).is_some());
        found.map(|(_, context)| context).collect()
    }
}

/// Reads the entry `number` and some that follow it up to `last` from the log, with the term of the one before them.
pub(super) fn read_from(earlier: &dyn Earlier, number: u64, last: u64) -> io::Result<Chunk> {
    let (first, frames) = earlier.frames(number, last)?;
    let entries = (first..).zip(frames).map(|(number, frame)| entry_of(number, frame));
    let entries = entries.collect::<Result<_, _>>().map_err(io::Error::other)?;
    if first < number || number == 1 {
        return Ok(Chunk { entries, before: None });
    }
    let before = match earlier.frames(number - 1, number - 1) {
        Ok((_, frames)) => frames.last().map(|frame| term_of(frame)).transpose().map_err(io::Error::other)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    Ok(Chunk { entries, before: before.map(|term| Last { number: number - 1, term }) })
}

impl Storage for Kept {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState { hard_state: self.hard.clone(), conf_state: self.group.clone() })
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        // Only what is to be sent can do without.
        let is_to_send = context.can_async();
        let max_size = max_size.into();
        let count = usize::try_from(high - low).unwrap_or(usize::MAX);
        let most = Most { count, bytes: max_size.unwrap_or(u64::MAX) };
        let mut entries = match self.place(low) {
            Some(low) => {
                let compacted = || raft::Error::Store(StorageError::Compacted);
                most.of(self.entries.range(low..self.place(high).ok_or_else(compacted)?))
            }
            // Fewer than were asked for: the rest is asked for with the next message.
            None => self.earlier(low, most, context)?,
        };
        raft::util::limit_size(&mut entries, max_size);
        if is_to_send {
            self.check_sent(&entries)?;
        }
        Ok(entries)
    }

    fn term(&self, number: u64) -> raft::Result<u64> {
        if number == self.before.number {
            return Ok(self.before.term);
        }
        if number == 0 {
            // Before the first entry of all.
            return Ok(0);
        }
        match self.place(number) {
            Some(place) => {
                self.entries.get(place).map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
            }
            // Where it is not known, neither are the entries behind it, which are read first.
            None => self.read.term(number).ok_or(raft::Error::Store(StorageError::Compacted)),
        }
    }

    fn first_index(&self) -> raft::Result<u64> {
        let kept = self.before.number + 1;
        Ok(self.earlier.as_ref().map_or(kept, |earlier| earlier.first().min(kept)))
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.before.number + self.entries.len() as u64)
    }

    fn snapshot(&self, at_least: u64, member: u64) -> raft::Result<Snapshot> {
        let at_least = at_least.max(self.unsendable.load(Ordering::Relaxed));
        let offered = self.earlier.as_ref().and_then(|earlier| earlier.offer(member, at_least));
        let Some(Offered { last, members }) = offered.filter(|offered| offered.last.number >= at_least) else {
            return Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        };
        let group = group_of(&members);
        let metadata = SnapshotMetadata { index: last.number, term: last.term, ..SnapshotMetadata::default() };
        let mut snapshot = Snapshot::default();
        snapshot.set_metadata(metadata);
        snapshot.mut_metadata().set_conf_state(group);
        Ok(snapshot)
    }
}
