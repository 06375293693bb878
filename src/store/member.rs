//! What a store that is one member of a group does with the other members.
//!
//! A group is one store: its members agree on every write, and one of them, the leader, decides what is written.
//! Whoever carries the messages from member to member knows nothing of what is in them.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::watch;

/// A message of this member to another one, or of another one to this. Messages may be lost, doubled, late, and in
/// another order: that makes a group slower, and never wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberMessage {
    /// The number of the member that it comes from.
    pub from: u64,
    /// The number of the member that it is for.
    pub to: u64,
    /// The message itself, in the form of the store that made it, which no other part reads.
    pub bytes: Bytes,
}

/// Where a member stands in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The term that it knows of; it never goes down.
    pub term: u64,
    /// The number of the member that leads in that term, once it is known.
    pub leader: Option<u64>,
    /// Whether this member leads and has applied everything that was committed before its term: then it takes writes.
    pub leads: bool,
    /// The number of the last entry that it has applied.
    pub applied: u64,
    /// The number of the last entry that it knows to be committed.
    pub committed: u64,
}

/// One member of a group.
#[async_trait]
pub trait Member: Send + Sync {
    /// Returns its number, which no other member has.
    fn number(&self) -> u64;

    /// Returns the numbers of all members, this one among them.
    fn members(&self) -> Vec<u64>;

    /// Waits for messages to other members, and returns them in the order in which they are to be sent; none once the
    /// store is closed.
    async fn outgoing(&self) -> Vec<MemberMessage>;

    /// Takes a message of another member. One that makes no sense is dropped.
    fn receive(&self, message: MemberMessage);

    /// Returns where it stands, and tells of changes.
    fn standing(&self) -> watch::Receiver<Standing>;
}
