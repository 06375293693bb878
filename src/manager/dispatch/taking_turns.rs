//! What the dispatch does in queues whose owners take turns ([`super::turns`]): which owners it searches for.

use std::collections::HashMap;

use super::order::Group;
use super::turns::{OwnerSearch, Rule};
use super::{Dispatch, Lookup};
use crate::job::QueueName;
use crate::query::SortKey;
use crate::store::Versioned;

/// What a look for the due jobs of a queue has found, owner by owner.
pub(in crate::manager) struct FoundByOwner {
    /// The owners that have due jobs, with how many.
    pub(in crate::manager) waiting: Vec<(Group, usize)>,
    /// The owners that were searched for, with the key after which the search was cut off.
    pub(in crate::manager) ends: Vec<(Group, Option<SortKey>)>,
    /// The jobs that the searches have found.
    pub(in crate::manager) due: Vec<Versioned>,
}

impl Dispatch {
    /// Lets these rules say who is next, in exactly these queues.
    pub(in crate::manager) fn go_by(&self, rules: HashMap<QueueName, Rule>) {
        if self.shared.board.lock().set_rules(rules) {
            self.shared.sooner.notify_one();
        }
    }

    /// Returns the owners to search for, of those that have so many due jobs; `None` if one search finds all jobs.
    pub(super) fn begin_look_by_owner(
        &self,
        queue: &QueueName,
        lookup: &Lookup,
        waiting: &[(Group, usize)],
    ) -> Option<Vec<OwnerSearch>> {
        let config = &self.shared.config;
        let mut board = self.shared.board.lock();
        let turns = board.lane(queue).turns.as_mut().filter(|turns| turns.is_fair())?;
        let due = waiting.iter().fold(0_usize, |sum, (_, count)| sum.saturating_add(*count));
        if due < lookup.limit {
            turns.unknown();
            return None;
        }
        Some(turns.choose(waiting, config.capacity, config.page, lookup.now, config.poll_interval.is_some()))
    }

    /// Ends a look for due jobs owner by owner, and for `later` ones, and adds what it has found, apart from what
    /// `fresh` rejects as outdated.
    pub(super) fn end_look_by_owner(
        &self,
        queue: &QueueName,
        lookup: &Lookup,
        found: FoundByOwner,
        later: Vec<Versioned>,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let last_later = later.last().map(|last| last.job.run_at).filter(|_| later.len() >= lookup.limit);
        self.add(found.due.into_iter().chain(later).filter(fresh));
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        lane.ends_later(last_later, lookup.later);
        if let Some(turns) = &mut lane.turns {
            lane.incomplete |= turns.end_look(&found.waiting, found.ends);
        }
        lane.end_search();
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }
}
