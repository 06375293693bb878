//! What a member of a group asks of the engine around it, and what comes of what it did.

use std::collections::BTreeMap;
use std::io;

use bytes::Bytes;
use raft::eraftpb::Message;

use super::log::AppendError;
use super::opened::Acknowledged;
use super::seal::Vote;
use crate::store::Role;

/// What a member must not forget beside its log, and its way to the others.
pub(super) trait Durable {
    /// Writes what the member has voted, durably.
    fn write_vote(&mut self, vote: Vote) -> io::Result<()>;

    /// Sends messages to other members.
    fn send(&mut self, messages: Vec<Message>);
}

/// The log of a member.
pub(super) trait Entries {
    /// Writes an entry in the place of all that the log has from this number on. It is durable after the next `sync`.
    fn write(&mut self, number: u64, frame: &[u8]) -> Result<(), AppendError>;

    /// Makes what was written durable.
    fn sync(&mut self) -> io::Result<()>;
}

/// An entry that the group has committed, and that is to be applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Committed {
    pub(super) number: u64,
    pub(super) term: u64,
    pub(super) frame: Bytes,
}

/// Entries that a member has in memory and that are to be written to its log, one after the other, and synced then. An
/// entry takes the place of those that have its number or a later one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Unwritten {
    pub(super) entries: Vec<(u64, Bytes)>,
    /// What to tell the member once they are durable.
    pub(super) step: u64,
}

impl Unwritten {
    /// Adds those that follow.
    pub(super) fn extend(&mut self, next: Self) {
        self.entries.extend(next.entries);
        self.step = self.step.max(next.step);
    }

    /// Returns the bytes of the entries.
    pub(super) fn bytes(&self) -> usize {
        self.entries.iter().map(|(_, frame)| frame.len()).sum()
    }
}

/// What has come of what a member did.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The entries that are committed with it, in order.
    pub(super) committed: Vec<Committed>,
    /// Until which round of questions most members have said that this one led, and the number of the last entry that
    /// was committed when that round began.
    pub(super) confirmed: Option<(u64, u64)>,
    /// What members have acknowledged, as these entries say.
    pub(super) acknowledged: Vec<BTreeMap<u64, Acknowledged>>,
    /// What is to be made durable next, before the member goes on with it.
    pub(super) unwritten: Option<Unwritten>,
}

/// Why an entry was not proposed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ProposeError {
    /// This member does not lead in the term of the entry. Nothing was written.
    #[error("this member does not lead any more")]
    Deposed,
    /// Another change of the members has not ended. Nothing was written.
    #[error("another change of the members is under way")]
    Changing,
    #[error(transparent)]
    Append(#[from] AppendError),
}

/// The member that is to lead next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Successor {
    /// The one whose log has come furthest.
    Furthest,
    /// The one of this number.
    Member(u64),
}

/// Where a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) term: u64,
    /// The member that leads in this term; `None` while that is not known.
    pub(super) leader: Option<u64>,
    pub(super) is_leader: bool,
    /// The number of the last entry that is known to be committed.
    pub(super) committed: u64,
    pub(super) role: Role,
}
