//! The group of members that have the log in common, by the Raft algorithm (Ongaro and Ousterhout, "In Search of an
//! Understandable Consensus Algorithm", USENIX ATC 2014) as the library [`raft`] has it.
//!
//! A store on one machine is a group of one, which votes for itself and has committed what its log has durably. Its
//! entries go the way that those of a larger group go: proposed by the leader of a term, written and synced, committed,
//! applied.
//!
//! The number of a frame of the log is the index of its entry. Each frame begins with the term of its entry; the one
//! that begins a term has nothing else. How far the group has committed is not kept: what the log of a group of one
//! has was committed.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use raft::eraftpb::{ConfState, Entry, HardState, Message, Snapshot};
use raft::{Config, GetEntriesContext, RaftState, RawNode, StateRole, Storage, StorageError};
use slog::Logger;

use super::log::AppendError;
use super::seal::Vote;
use super::stored;

/// This member, which is alone in its group.
pub(super) const ALONE: u64 = 1;

/// What a member must not forget.
pub(super) trait Durable {
    /// Writes what the member has voted, durably.
    fn write_vote(&mut self, vote: Vote) -> io::Result<()>;

    /// Writes an entry in the place of all that the log has from this number on. It is durable after the next `sync`.
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError>;

    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// An entry that the group has committed, and that is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) number: u64,
    pub(super) frame: Bytes,
}

/// A member of a group.
pub(super) struct Member {
    node: RawNode<Kept>,
    /// What is to be sent to the others, of whom a group of one has none.
    outbox: Vec<Message>,
}

impl Member {
    /// Creates the member `id` of the group `members`, as its process starts. All entries up to `applied` are committed
    /// and were applied; `entries` are those of its log behind it.
    ///
    /// # Errors
    /// [`AppendError::Failed`] when these do not fit together.
    pub(super) fn new(
        id: u64,
        members: &[u64],
        vote: Vote,
        applied: Last,
        entries: Vec<Entry>,
    ) -> Result<Self, AppendError> {
        let hard = HardState { term: vote.term, vote: vote.member, commit: applied.number, ..HardState::default() };
        let group = ConfState::from((members.to_vec(), Vec::new()));
        let kept = Kept { hard, group, before: applied, entries: entries.into() };
        let config = Config { id, applied: applied.number, check_quorum: true, pre_vote: true, ..Config::default() };
        let node = RawNode::new(&config, kept, &Logger::root(slog::Discard, slog::o!())).map_err(failed)?;
        Ok(Self { node, outbox: Vec::new() })
    }

    /// Stands for election to the leader of the next term. Returns what is committed with that: in a group of one, the
    /// entry that begins the term.
    ///
    /// # Errors
    /// [`AppendError`] when what must be durable is not. Then this member must not be used any more.
    pub(super) fn campaign(&mut self, durable: &mut impl Durable) -> Result<Vec<Committed>, AppendError> {
        self.node.campaign().map_err(failed)?;
        self.advance(None, durable)
    }

    /// Proposes an entry, which begins with the term of this member, and returns what is committed with that: in a
    /// group of one, that entry.
    ///
    /// # Errors
    /// [`AppendError::Full`] when there was no room for it: then nothing was proposed. After any other this member
    /// must not be used any more.
    pub(super) fn propose(
        &mut self,
        frame: Vec<u8>,
        durable: &mut impl Durable,
    ) -> Result<Vec<Committed>, AppendError> {
        if self.node.raft.state != StateRole::Leader {
            return Err(failed("it does not lead"));
        }
        // Before it is proposed: the library knows no entry that was not written for want of room.
        let number = self.node.raft.raft_log.last_index() + 1;
        durable.write(number, &frame)?;
        self.node.propose(Vec::new(), frame).map_err(failed)?;
        self.advance(Some(number), durable)
    }

    /// Does what there is to do. The entry `written` is written and not synced.
    fn advance(&mut self, written: Option<u64>, durable: &mut impl Durable) -> Result<Vec<Committed>, AppendError> {
        let mut committed = Vec::new();
        while self.node.has_ready() {
            let mut ready = self.node.ready();
            self.outbox.extend(ready.take_messages());
            if let Some(hard) = ready.hs() {
                let kept = self.node.mut_store();
                if (hard.term, hard.vote) != (kept.hard.term, kept.hard.vote) {
                    let vote = Vote { term: hard.term, member: hard.vote };
                    durable.write_vote(vote).map_err(AppendError::Failed)?;
                }
                kept.hard = hard.clone();
            }
            let entries = ready.take_entries();
            for entry in entries.iter().filter(|entry| written != Some(entry.index)) {
                durable.write(entry.index, &frame_of(entry)?)?;
            }
            if !entries.is_empty() {
                durable.sync().map_err(AppendError::Failed)?;
                self.node.mut_store().put(entries);
            }
            self.outbox.extend(ready.take_persisted_messages());
            let mut newly = ready.take_committed_entries();
            let mut light = self.node.advance(ready);
            self.outbox.extend(light.take_messages());
            newly.extend(light.take_committed_entries());
            for entry in newly {
                self.node.mut_store().forget(&entry);
                committed.push(Committed { number: entry.index, frame: frame_of(&entry)? });
            }
            self.node.advance_apply();
        }
        Ok(committed)
    }
}

/// Returns the frame of an entry.
fn frame_of(entry: &Entry) -> Result<Bytes, AppendError> {
    if !entry.data.is_empty() {
        return Ok(entry.data.clone());
    }
    let mut frame = Vec::new();
    stored::append(&entry.term, &mut frame).map_err(|error| failed(error.0))?;
    Ok(frame.into())
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> AppendError {
    AppendError::Failed(io::Error::other(error))
}

/// An entry of the log by its number and term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Last {
    pub(super) number: u64,
    pub(super) term: u64,
}

/// What the library reads again: the end of the log.
struct Kept {
    hard: HardState,
    group: ConfState,
    /// The entry before the first of `entries`.
    before: Last,
    entries: VecDeque<Entry>,
}

impl Kept {
    /// Puts entries in the place of all from the first of them on.
    fn put(&mut self, entries: Vec<Entry>) {
        if let Some(first) = entries.first() {
            self.entries.truncate(self.place(first.index).unwrap_or(0));
        }
        self.entries.extend(entries);
    }

    /// Forgets the entries up to one that is handed out to be applied: a group of one has nobody who lacks them.
    fn forget(&mut self, applied: &Entry) {
        if self.group.voters.len() == 1 {
            self.entries.drain(..self.place(applied.index + 1).unwrap_or(0));
            self.before = Last { number: applied.index, term: applied.term };
        }
    }

    /// Returns the place of an entry in `entries`; `None` when it is before them.
    fn place(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.before.number + 1)?).ok()
    }
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
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        let compacted = || raft::Error::Store(StorageError::Compacted);
        let (low, high) = (self.place(low).ok_or_else(compacted)?, self.place(high).ok_or_else(compacted)?);
        let mut entries: Vec<Entry> = self.entries.range(low..high).cloned().collect();
        raft::util::limit_size(&mut entries, max_size.into());
        Ok(entries)
    }

    fn term(&self, number: u64) -> raft::Result<u64> {
        if number == self.before.number {
            return Ok(self.before.term);
        }
        let place = self.place(number).ok_or(raft::Error::Store(StorageError::Compacted))?;
        self.entries.get(place).map(|entry| entry.term).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.before.number + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.before.number + self.entries.len() as u64)
    }

    fn snapshot(&self, _: u64, _: u64) -> raft::Result<Snapshot> {
        // Nobody asks for one in a group of one.
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

#[cfg(test)]
mod tests;
