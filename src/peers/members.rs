//! The members of a group, and where each is reached.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A cluster: a group of processes that are one store, as its members know it from their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    /// The name of the cluster, of at most [`super::MAX_CLUSTER_BYTES`].
    pub cluster: Arc<str>,
    /// The number of this member.
    pub member: u64,
    /// The URL of every member by its number, this one's too, without a slash at the end.
    pub addresses: BTreeMap<u64, Arc<str>>,
}

impl ClusterMap {
    /// Returns the numbers and URLs of the other members.
    pub fn others(&self) -> impl Iterator<Item = (u64, &Arc<str>)> {
        let others = self.addresses.iter().filter(|(member, _)| **member != self.member);
        others.map(|(member, address)| (*member, address))
    }
}
