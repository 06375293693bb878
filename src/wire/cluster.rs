//! Where a member stands in its cluster.

use std::fmt;
use std::time::Duration;

use http::HeaderName;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{ClocksSeen, in_words};
use crate::store::{Hindrance, Role};

/// The header of a call and of an answer that has the identity of the cluster which the call is for, or which answers.
pub const CLUSTER: HeaderName = HeaderName::from_static("leasehold-cluster");

/// Where a member stands in its cluster, as the member itself knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    /// The name of the cluster.
    #[schema(example = "jobs")]
    pub cluster: String,
    /// What tells the cluster from every other one, also from one of the same name; null until all members have a
    /// version that knows identities, and have agreed on one. `force-alone` makes a new one.
    #[serde(default)]
    #[schema(example = "5f0c1d2e3a4b5c6d")]
    pub identity: Option<String>,
    /// The version of the messages between members that all members have agreed on; 0 before that.
    #[serde(default)]
    #[schema(example = 3)]
    pub version: u32,
    /// The number of the member that answers.
    #[schema(example = 1)]
    pub member: u64,
    /// The term that the member knows of. It never goes down, and has at most one leader.
    #[schema(example = 4)]
    pub term: u64,
    /// The number of the member that leads in this term; null while it is not known.
    #[schema(example = 2)]
    pub leader: Option<u64>,
    /// The URL of the leader; null while it is not known.
    #[schema(example = "http://10.0.0.6:7400")]
    pub leader_address: Option<String>,
    /// Whether the member that answers leads and takes writes.
    pub leads: bool,
    /// What the member that answers is in its cluster.
    #[serde(default)]
    pub role: ClusterRole,
    /// How many bytes of another member's state the member has received, while it receives it; null otherwise.
    #[serde(default)]
    #[schema(example = 734_003_200)]
    pub receives: Option<u64>,
    /// The number of the last entry of the log that the member has applied.
    #[schema(example = 1_204_311)]
    pub applied: u64,
    /// The number of the last entry of the log that the member knows most members to have.
    #[schema(example = 1_204_311)]
    pub committed: u64,
    /// All members, in the order of their numbers.
    pub members: Vec<ClusterMember>,
    /// The others from which the member that answers takes nothing, or for which it waits, in the order of their
    /// numbers.
    #[serde(default)]
    pub hindrances: Vec<ClusterHindrance>,
    /// The members whose data directories went back in time, as restored copies do: they lack what these members have
    /// acknowledged, and nothing is taken from them.
    #[serde(default)]
    #[schema(example = json!([]))]
    pub went_back: Vec<u64>,
    /// The members whose states differ, as the member that answers knows.
    #[serde(default)]
    #[schema(example = json!([]))]
    pub unequal: Vec<u64>,
    /// Whether it is not certain which of these have the right state, so that none is to be replaced yet. Otherwise
    /// that of the others is right.
    #[serde(default)]
    #[schema(example = false)]
    pub uncertain: bool,
}

/// A change of a cluster's members, or of who leads. Changes are made by the leader, whichever member is asked, and one
/// that was made already is no error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "action", rename_all = "snake_case", deny_unknown_fields)]
pub enum ChangeCluster {
    /// Adds a member, which runs already and was started to join. It votes once it has all that the others have.
    Add {
        /// The number of the member.
        #[schema(example = 4)]
        member: u64,
        /// The URL by which the other members reach it.
        #[schema(example = "http://10.0.0.8:7400")]
        address: String,
    },
    /// Removes a member that runs.
    Remove {
        /// The number of the member.
        #[schema(example = 2)]
        member: u64,
    },
    /// Removes a member that is gone for good and is not heard of any more.
    Forget {
        /// The number of the member.
        #[schema(example = 2)]
        member: u64,
    },
    /// Lets a member that has lost its data directory, and was started with an empty one, begin again.
    Replace {
        /// The number of the member.
        #[schema(example = 2)]
        member: u64,
    },
    /// Hands the lead over, to this member or to the one that has come furthest.
    Transfer {
        /// The number of the member; null for the one that has come furthest.
        #[serde(default)]
        #[schema(example = 3)]
        member: Option<u64>,
    },
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// The number of the member.
    #[schema(example = 2)]
    pub member: u64,
    /// The URL by which the other members reach it.
    #[schema(example = "http://10.0.0.6:7400")]
    pub address: String,
    /// Whether it votes. A member that was added votes once it has all that the others have.
    #[serde(default = "yes")]
    pub votes: bool,
    /// How many milliseconds ago the member that answers heard of it; null for that one itself, and when it was not
    /// heard of since that one was started.
    #[serde(default)]
    #[schema(example = 640)]
    pub heard_ms: Option<u64>,
    /// The version of the messages between members that it knows; null for the member that answers, and when it was not
    /// heard of since that one was started.
    #[serde(default)]
    #[schema(example = 3)]
    pub version: Option<u32>,
    /// How many entries of the log it lacked a second ago at most, as the leader knows; null for others.
    #[serde(default)]
    #[schema(example = 0)]
    pub lag: Option<u64>,
    /// By how many milliseconds its clock is ahead of that of the member that answers, at the middle of what a round
    /// trip leaves open; less than 0 when it is behind, and null when the two were not compared within a minute.
    #[serde(default)]
    #[schema(example = -12)]
    pub clock_ahead_ms: Option<i64>,
    /// How far that may be off in either direction, in milliseconds.
    #[serde(default)]
    #[schema(example = 3)]
    pub clock_uncertain_ms: Option<u64>,
    /// What the member that answers knows of its clock.
    #[serde(default)]
    pub clock: MemberClockState,
}

/// What is known of a member's clock. Clocks of members may differ by two seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum MemberClockState {
    /// Nothing is certain.
    #[default]
    Unknown,
    /// It is not off from that of the member that answers, as far as a round trip can tell.
    Near,
    /// It is certainly off from those of most members, which agree with each other.
    Off,
    /// It is certainly too far from that of the member that answers, and no majority says which of the two is wrong.
    Apart,
}

impl MemberClockState {
    /// Every state, in the order of the declaration.
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Near, Self::Off, Self::Apart];

    /// Returns what is known of the clock of this member.
    #[must_use]
    pub fn of(clocks: &ClocksSeen, member: u64) -> Self {
        if clocks.off.contains_key(&member) {
            Self::Off
        } else if clocks.apart.contains_key(&member) {
            Self::Apart
        } else if clocks.ahead.contains_key(&member) {
            Self::Near
        } else {
            Self::Unknown
        }
    }
}

/// A member from which another one takes nothing, or for which it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterHindrance {
    /// The number of the member.
    #[schema(example = 3)]
    pub member: u64,
    /// Why nothing is taken from it, or what is waited for.
    pub reason: HindranceReason,
    /// The identity of the cluster that it is of, where that is another one and has one.
    #[serde(default)]
    #[schema(example = "5f0c1d2e3a4b5c6d")]
    pub identity: Option<String>,
}

/// Why a member takes nothing from another one, or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HindranceReason {
    /// It is of another cluster.
    OtherCluster,
    /// It is silent, and the cluster is founded only once all its founders have said that their data directories are
    /// new.
    Silent,
    /// It is of a cluster already, and the member that answers was started with a new data directory to found one with
    /// it.
    Founded,
}

impl HindranceReason {
    /// Every reason, in the order of the declaration.
    pub const ALL: [Self; 3] = [Self::OtherCluster, Self::Silent, Self::Founded];
}

impl ClusterHindrance {
    /// Returns what hinders a member about another one, of this number; `None` where that stands in
    /// [`ClusterStatus::went_back`].
    #[must_use]
    pub fn of(member: u64, hindrance: Hindrance) -> Option<Self> {
        let (reason, identity) = match hindrance {
            Hindrance::OtherGroup(identity) => (HindranceReason::OtherCluster, identity),
            Hindrance::Silent => (HindranceReason::Silent, None),
            Hindrance::Founded => (HindranceReason::Founded, None),
            Hindrance::WentBack => return None,
        };
        Some(Self { member, reason, identity: identity.map(|identity| identity.to_string()) })
    }
}

impl fmt::Display for ClusterHindrance {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { member, reason, identity } = self;
        match (reason, identity) {
            (HindranceReason::OtherCluster, Some(identity)) => {
                write!(formatter, "member {member} is of another cluster, with the identity {identity}")
            }
            (HindranceReason::OtherCluster, None) => {
                write!(formatter, "member {member} is of another cluster, or was removed from this one")
            }
            (HindranceReason::Silent, _) => write!(
                formatter,
                "member {member} is silent: the cluster is founded once all its founders have said that their data \
                 directories are new"
            ),
            (HindranceReason::Founded, _) => write!(
                formatter,
                "member {member} is of a cluster already, and this one was started with a new data directory as a \
                 founder: if its former one is lost, see `leasehold cluster replace --help`"
            ),
        }
    }
}

/// Returns what is to be said of a member whose data directory went back in time.
#[must_use]
pub fn went_back(member: u64) -> String {
    format!(
        "the data directory of member {member} went back in time, as a restored copy does, and nothing is taken from \
         it: while another member leads, see `leasehold cluster --help`"
    )
}

/// Returns what is to be said of a member's clock, as member `by` sees it; `None` where nothing is certainly wrong.
#[must_use]
pub fn clock_trouble(by: u64, of: &ClusterMember) -> Option<String> {
    let ClusterMember { member, clock_ahead_ms, .. } = of;
    let ahead = clock_ahead_ms.unwrap_or_default();
    let distance = in_words(Duration::from_millis(ahead.unsigned_abs()));
    let way = if ahead < 0 { "behind" } else { "ahead of" };
    match of.clock {
        MemberClockState::Unknown | MemberClockState::Near => None,
        MemberClockState::Off if *member == by => {
            Some(format!("the clock of member {member} is off from those of most members"))
        }
        MemberClockState::Off => Some(format!(
            "the clock of member {member} is off from those of most members: it is {distance} {way} that of member {by}"
        )),
        MemberClockState::Apart => Some(format!(
            "the clock of member {member} is {distance} {way} that of member {by}, and no majority says which of them \
             is wrong"
        )),
    }
}

/// The members of earlier versions all vote.
fn yes() -> bool {
    true
}

/// What a member is in its cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClusterRole {
    /// It votes.
    #[default]
    Voter,
    /// It is a member, and votes once it has all that the others have.
    Learner,
    /// It waits to be added to the cluster.
    Joining,
    /// It was removed from the cluster.
    Removed,
    /// Its data directory is not the one that the cluster knows this member by.
    Disowned,
}

impl From<Role> for ClusterRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Voter => Self::Voter,
            Role::Learner => Self::Learner,
            Role::Joining => Self::Joining,
            Role::Removed => Self::Removed,
            Role::Disowned => Self::Disowned,
        }
    }
}
