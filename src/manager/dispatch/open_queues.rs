//! Which queues somebody takes jobs from.

use std::collections::{HashMap, HashSet};

use foldhash::quality::RandomState;

use super::lane::Lane;
use super::offers::LaneOffers;
use crate::clock::Timestamp;
use crate::job::QueueName;

/// The queues with what claims offer that take jobs from them, at one time.
pub(super) struct OpenQueues<'a> {
    pub(super) lanes: &'a HashMap<QueueName, Lane, RandomState>,
    pub(super) paused: &'a HashSet<QueueName>,
    pub(super) now: Timestamp,
}

impl<'a> OpenQueues<'a> {
    /// Returns what claims offer that take jobs from a queue; `None` for one that is held back, or that nobody takes
    /// from.
    pub(super) fn offers(&self, queue: &QueueName) -> Option<&'a LaneOffers> {
        let offers = self.lanes.get(queue).map(|lane| &lane.offers)?;
        (offers.is_live(self.now) && !self.paused.contains(queue)).then_some(offers)
    }

    /// Returns whether no claim has come for a queue lately.
    pub(super) fn is_deserted(&self, queue: &QueueName) -> bool {
        !self.lanes.get(queue).is_some_and(|lane| lane.offers.is_live(self.now))
    }
}
