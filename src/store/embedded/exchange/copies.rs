//! What is known of the other members where something is copied that the log does not have.

use std::collections::{BTreeMap, BTreeSet};

use super::Exchange;

impl Exchange {
    /// Returns the number of the last entry of the leader's log, as it was said lately.
    pub(crate) fn last_of_leader(&self) -> Option<u64> {
        let leader = self.standing.borrow().leader?;
        self.others(|others| others.lately(leader).map(|hello| hello.last)).flatten()
    }

    /// Returns the numbers of the other members that keep copies of what the log does not have, and were heard of
    /// lately.
    pub(crate) fn that_keep_copies(&self) -> BTreeSet<u64> {
        self.others(|others| others.that_keep_copies()).unwrap_or_default()
    }

    /// Returns the number of this member's data directory, once the store is open.
    pub(crate) fn directory(&self) -> Option<u64> {
        self.others(|others| others.directory)
    }

    /// Returns the numbers of the data directories of the other members, as far as they are known.
    pub(crate) fn other_directories(&self) -> BTreeMap<u64, u64> {
        self.others(|others| others.seated_directories().collect()).unwrap_or_default()
    }
}
