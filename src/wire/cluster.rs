//! Where a member stands in its cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where a member stands in its cluster, as the member itself knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterStatus {
    /// The name of the cluster.
    #[schema(example = "jobs")]
    pub cluster: String,
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
    /// The number of the last entry of the log that the member has applied.
    #[schema(example = 1_204_311)]
    pub applied: u64,
    /// The number of the last entry of the log that the member knows most members to have.
    #[schema(example = 1_204_311)]
    pub committed: u64,
    /// All members, in the order of their numbers.
    pub members: Vec<ClusterMember>,
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
}
