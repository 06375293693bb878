//! What a store that is one member of a group does with the other members.
//!
//! A group is one store: its members agree on every write, and one of them, the leader, decides what is written.
//! Whoever carries the messages from member to member knows nothing of what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::StoreError;
use crate::clock::Timestamp;
use crate::job::shell::leasehold;

/// The version of the exchange ([`Heard::knows`], [`Membership::version`]) from which on members read signed heads of
/// calls.
pub const SIGNED_HEADS: u32 = 4;

/// The version of the exchange from which on a member proves with its answers to messages that it has the secret.
pub const PROVED_ANSWERS: u32 = 7;

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

/// The members of a group by their numbers, as they have agreed on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// The members.
    pub seats: BTreeMap<u64, Seat>,
    /// The identity of the group; `None` until all members have a version that knows identities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<Identity>,
    /// The version of the exchange that all members know; 0 before that is agreed on. It never goes down.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub version: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over a reference")]
fn is_zero(version: &u32) -> bool {
    *version == 0
}

/// What tells a group from every other one, also from one of the same name with the same members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Identity(pub NonZeroU64);

impl Identity {
    /// Makes up the identity of a group that has none yet.
    #[must_use]
    pub fn random() -> Self {
        Self(rand::random())
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

/// What a group has agreed on about a member.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// Whether it votes. One that was added votes once it has all that the others have.
    pub votes: bool,
    /// The URL at which it is reached; `None` for one that the group was founded with, whose URL the settings have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The number of its data directory; 0 while that is not agreed on. What comes from another directory is not taken
    /// for this member's: that one has forgotten what the member has promised.
    #[serde(default)]
    pub directory: u64,
}

impl Membership {
    /// Returns the members that a group is founded with, all of which vote.
    #[must_use]
    pub fn founded(members: &[u64]) -> Self {
        let seat = Seat { votes: true, ..Seat::default() };
        Self { seats: members.iter().map(|member| (*member, seat.clone())).collect(), ..Self::default() }
    }

    /// Returns the numbers of the members that vote, or of those that do not.
    pub fn that_vote(&self, vote: bool) -> impl Iterator<Item = u64> {
        self.seats.iter().filter(move |(_, seat)| seat.votes == vote).map(|(number, _)| *number)
    }
}

/// A change of the members of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberChange {
    /// A new member, which runs already, is added; it votes once it has all that the others have.
    Add {
        /// The number of the member.
        member: u64,
        /// The URL at which the others reach it.
        address: String,
    },
    /// A member leaves.
    Remove {
        /// The number of the member.
        member: u64,
        /// Whether it may be one that is not heard of any more.
        is_gone: bool,
    },
    /// The others are gone for good, and this member goes on without them. It is made only by one whose store was
    /// opened for that.
    Alone,
    /// The member has lost its data directory, and begins again with an empty one.
    Replace {
        /// The number of the member.
        member: u64,
    },
}

/// Why the members of a group were not changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ChangeError {
    /// The change makes no sense, or not now: the text says what to do.
    #[error("{0}")]
    Refused(String),
    /// Whether it was made is unknown, or this member does not lead: it can be asked for again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What a member knows of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// How long ago it was heard of.
    pub ago: Duration,
    /// The version of the exchange that it knows, which rises with what members say to each other.
    pub knows: u32,
    /// The number of the last entry that its log has.
    pub last: u64,
    /// Whether it has said lately that it does not stand for election. Versions before 7 do not say it.
    pub declines: bool,
}

/// Why a member takes nothing from another one, or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// It is of another group, which has this identity; `None` when that group has none, or it was removed before this
    /// one had its own.
    OtherGroup(Option<Identity>),
    /// It is silent, and the group is founded only once all founders have said that their directories are new.
    Silent,
    /// It is a founder of the group that is to be founded, and has a log already or knows another directory of this
    /// member: this one was started with a new directory in a group that exists.
    Founded,
    /// Its data directory went back in time: it lacks what the member has acknowledged.
    WentBack,
}

/// The members whose states differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unequal {
    /// The numbers of the members that differ; empty where the states are equal or were not compared.
    pub members: BTreeSet<u64>,
    /// Whether the state of the others is known to be right. Otherwise some of these members may have the right one.
    pub is_certain: bool,
}

impl Unequal {
    /// Returns what is wrong, and what to do; `None` when no states differ.
    #[must_use]
    pub fn reason(&self) -> Option<String> {
        let first = self.members.first()?;
        let numbers: Vec<String> = self.members.iter().map(u64::to_string).collect();
        let numbers = numbers.join(", ");
        let replace = leasehold("cluster replace").operand(&first.to_string());
        Some(match (self.is_certain, self.members.len()) {
            (false, _) => format!("the states of members {numbers} differ, and it is not certain which is right"),
            (true, 1) => {
                format!(
                    "the state of member {numbers} is not that of the others: where it does not get theirs by itself \
                     within minutes, `{replace}`"
                )
            }
            (true, _) => format!(
                "the states of members {numbers} are not those of the others: `{replace}`, and then the same for the \
                 next"
            ),
        })
    }
}

/// What a member is in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// It votes.
    #[default]
    Voter,
    /// It is a member, and votes once it has all that the others have.
    Learner,
    /// It waits to be added to the group.
    Joining,
    /// It was removed from the group.
    Removed,
    /// Its data directory is not the one that the group knows this member by.
    Disowned,
}

/// Where a member stands in its group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// What it is in its group.
    pub role: Role,
    /// The identity of its group, as far as it knows that.
    pub identity: Option<Identity>,
    /// How many bytes of another member's state it has received, while it does.
    pub receives: Option<u64>,
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
    /// The latest time at which a job or schedule was changed, as far as it has applied that.
    pub time: Timestamp,
}

/// One member of a group.
#[async_trait]
pub trait Member: Send + Sync {
    /// Returns its number, which no other member has.
    fn number(&self) -> u64;

    /// Returns the members, as this one knows them, and tells of changes.
    fn members(&self) -> watch::Receiver<Arc<Membership>>;

    /// Returns what is known of the other members by their numbers, and of those that would be members.
    fn heard(&self) -> BTreeMap<u64, Heard>;

    /// Returns from which others this member takes nothing, or for which it waits, by their numbers.
    fn hindrances(&self) -> BTreeMap<u64, Hindrance>;

    /// Returns the members whose states differ.
    fn unequal(&self) -> Unequal;

    /// Changes the members, at the one that leads. Returns once the group has agreed on it; that a change was made
    /// already is no error.
    ///
    /// # Errors
    /// [`ChangeError`] says why it was not made, as far as that is known.
    async fn change(&self, change: MemberChange) -> Result<(), ChangeError>;

    /// Waits for messages to other members, and returns them in the order in which they are to be sent; none once the
    /// store is closed.
    async fn outgoing(&self) -> Vec<MemberMessage>;

    /// Returns whether a message of this member is bulk: what is lost of that is sent again, and is late without harm.
    /// So it is dropped before others are ([`waiting`](super::waiting)).
    fn is_bulk(&self, message: &Bytes) -> bool;

    /// Takes a message of another member. One that makes no sense is dropped, and so is bulk when too much waits.
    fn receive(&self, message: MemberMessage);

    /// Has the leader hand over the lead to this member, or to the one that can take it whose log has come furthest; a
    /// member that does not lead does nothing. The leader takes no writes until another leads, or until it gives that
    /// up: at once where the other one says that it does not stand for election, and else after the time in which a
    /// silent leader is noticed. Returns once this member leads no longer, with `true`, or leads on, with `false`.
    async fn hand_over(&self, to: Option<u64>) -> bool;

    /// Returns where it stands, and tells of changes.
    fn standing(&self) -> watch::Receiver<Standing>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_said_which_members_differ_and_whether_that_is_certain() {
        let said = |members: &[u64], is_certain| {
            Unequal { members: members.iter().copied().collect(), is_certain }.reason().unwrap_or_default()
        };
        assert_eq!(said(&[], true), "");
        assert_eq!(
            said(&[2], true),
            "the state of member 2 is not that of the others: where it does not get theirs by itself within minutes, \
             `leasehold cluster replace 2`"
        );
        assert_eq!(
            said(&[1, 2], true),
            "the states of members 1, 2 are not those of the others: `leasehold cluster replace 1`, and then the same \
             for the next"
        );
        assert_eq!(said(&[1, 3], false), "the states of members 1, 3 differ, and it is not certain which is right");
    }
}
