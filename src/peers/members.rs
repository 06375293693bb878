//! The members of a group, and where each is reached.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::Membership;

/// A cluster: a group of processes that are one store, as its members know it from their settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterMap {
    /// The name of the cluster, of at most [`super::MAX_CLUSTER_BYTES`].
    pub cluster: Arc<str>,
    /// The number of this member.
    pub member: u64,
    /// The URL of each member that the settings name by its number, this one's too, without a slash at the end.
    pub addresses: BTreeMap<u64, Arc<str>>,
}

impl ClusterMap {
    /// Returns where a member is reached: as the settings say, or else as the members have agreed on.
    #[must_use]
    pub fn address(&self, member: u64, members: &Membership) -> Option<Arc<str>> {
        let agreed = || members.seats.get(&member).and_then(|seat| seat.address.as_deref()).map(Arc::from);
        self.addresses.get(&member).cloned().or_else(agreed)
    }
}
