//! The available jobs of a queue by owner or by kind, but for held ones, for searches in the order of dispatch that
//! name owners or kinds.
//!
//! Only queues that were searched so have this index: it is made by the first such search and kept up to date from then
//! on, until no job of the queue is available. So it costs nothing for all other queues.

use std::collections::HashMap;
use std::hash::Hash;

use super::available::{QueueJobs, count_due, insert, remove};
use crate::clock::Timestamp;
use crate::job::{Job, JobState, Kind, Owner, QueueName};
use crate::query::{Filter, Group, GroupField, Sort};
use crate::store::Versioned;

/// What the jobs of an index are grouped by.
pub(super) trait Grouping: Clone + Eq + Hash + Ord + 'static {
    /// Returns the group of a job.
    fn of(job: &Job) -> &Self;

    /// Returns the groups that a filter names; none if it names none.
    fn named(filter: &Filter) -> Vec<Self>;
}

impl Grouping for Option<Owner> {
    fn of(job: &Job) -> &Self {
        &job.spec.owner
    }

    fn named(filter: &Filter) -> Vec<Self> {
        match filter.without_owner {
            true => vec![None],
            false => filter.owners.iter().cloned().map(Some).collect(),
        }
    }
}

impl Grouping for Kind {
    fn of(job: &Job) -> &Self {
        &job.spec.kind
    }

    fn named(filter: &Filter) -> Vec<Self> {
        filter.kinds.clone()
    }
}

/// The indexes of the queues that have one.
#[derive(Debug)]
pub(super) struct Grouped<G> {
    queues: HashMap<QueueName, HashMap<G, QueueJobs>>,
}

impl<G> Default for Grouped<G> {
    fn default() -> Self {
        Self { queues: HashMap::new() }
    }
}

/// The indexes by owner.
pub(super) type ByOwner = Grouped<Option<Owner>>;

/// The indexes by kind.
pub(super) type ByKind = Grouped<Kind>;

/// An index of a queue's available jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    /// The index has a part for each owner of jobs.
    Owner,
    /// The index has a part for each kind of jobs.
    Kind,
}

/// Returns the index that a search needs, and the queue, if it needs one.
pub(super) fn needed_for(filter: &Filter, sort: Sort) -> Option<(Index, &QueueName)> {
    let queue = queue_of(filter).filter(|_| sort == Sort::Dispatch)?;
    let names_owners = filter.without_owner || !filter.owners.is_empty();
    match (names_owners, filter.kinds.is_empty()) {
        (true, _) => Some((Index::Owner, queue)),
        (false, false) => Some((Index::Kind, queue)),
        (false, true) => None,
    }
}

/// Returns the queue whose index by owner answers a count alone, if one does.
pub(super) fn counted_for<'f>(filter: &'f Filter, by: &[GroupField]) -> Option<&'f QueueName> {
    let only_due = Filter {
        states: filter.states.clone(),
        held: filter.held,
        queues: filter.queues.clone(),
        run_at_most: filter.run_at_most,
        ..Filter::default()
    };
    queue_of(filter).filter(|_| *by == [GroupField::Owner] && *filter == only_due)
}

fn queue_of(filter: &Filter) -> Option<&QueueName> {
    // Held jobs are not in the index.
    match (filter.states.as_slice(), filter.queues.as_slice(), filter.held) {
        ([JobState::Available], [queue], Some(false)) => Some(queue),
        _ => None,
    }
}

impl<G: Grouping> Grouped<G> {
    pub(super) fn has(&self, queue: &QueueName) -> bool {
        self.queues.contains_key(queue)
    }

    /// Makes the index of a queue that has these available jobs.
    pub(super) fn make(&mut self, queue: &QueueName, jobs: Option<&QueueJobs>) {
        let mut groups: HashMap<G, QueueJobs> = HashMap::new();
        for head in jobs.into_iter().flat_map(QueueJobs::values).flat_map(|due| due.values()) {
            insert(groups.entry(G::of(&head.job).clone()).or_default(), head);
        }
        self.queues.insert(queue.clone(), groups);
    }

    /// Returns the jobs of the groups that the filter names, of its one queue; `None` without an index.
    pub(super) fn of(&self, filter: &Filter) -> Option<Vec<&QueueJobs>> {
        let mut named = G::named(filter);
        let groups = self.queues.get(queue_of(filter)?).filter(|_| !named.is_empty())?;
        named.sort_unstable();
        named.dedup();
        Some(named.iter().filter_map(|group| groups.get(group)).collect())
    }

    pub(super) fn insert(&mut self, head: &Versioned) {
        if let Some(groups) = self.of_queue(&head.job.spec.queue) {
            insert(groups.entry(G::of(&head.job).clone()).or_default(), head);
        }
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let Some(groups) = self.of_queue(&job.spec.queue) else { return };
        if let Some(jobs) = groups.get_mut(G::of(job)) {
            remove(jobs, job);
            if jobs.is_empty() {
                groups.remove(G::of(job));
            }
        }
        if groups.is_empty() {
            self.queues.remove(&job.spec.queue);
        }
    }

    fn of_queue(&mut self, queue: &QueueName) -> Option<&mut HashMap<G, QueueJobs>> {
        // Most stores have no such index.
        if self.queues.is_empty() { None } else { self.queues.get_mut(queue) }
    }
}

impl ByOwner {
    /// Counts the jobs of a queue by owner that are due at `latest`, the owner with the most first.
    pub(super) fn count(&self, queue: &QueueName, latest: Option<Timestamp>) -> Option<Vec<Group>> {
        let latest = latest.unwrap_or(Timestamp::MAX);
        let count = |jobs: &QueueJobs| -> usize { jobs.values().map(|due| count_due(due, latest)).sum() };
        let group = |(owner, jobs): (&Option<Owner>, &QueueJobs)| {
            let values = vec![owner.as_ref().map(ToString::to_string)];
            Some(Group { values, count: count(jobs) as u64 }).filter(|group| group.count > 0)
        };
        let mut groups: Vec<Group> = self.queues.get(queue)?.iter().filter_map(group).collect();
        groups.sort_by(Group::most_first);
        Some(groups)
    }
}
