//! The available jobs of a queue by owner, but for held ones, for searches in the order of dispatch that name owners.
//!
//! Only queues that were searched so have this index: it is made by the first such search and kept up to date from then
//! on, until no job of the queue is available. So it costs nothing for all other queues.

use std::collections::HashMap;

use super::available::{QueueJobs, count_due, insert, remove};
use crate::clock::Timestamp;
use crate::job::{Job, JobState, Owner, QueueName};
use crate::query::{Filter, Group, GroupField, Sort};
use crate::store::Versioned;

/// The indexes of the queues that have one.
#[derive(Debug, Default)]
pub(super) struct ByOwner {
    queues: HashMap<QueueName, HashMap<Option<Owner>, QueueJobs>>,
}

/// Returns the queue whose index by owner a search needs, if it needs one.
pub(super) fn needed_for(filter: &Filter, sort: Sort) -> Option<&QueueName> {
    of_owners(filter).filter(|_| sort == Sort::Dispatch)
}

fn of_owners(filter: &Filter) -> Option<&QueueName> {
    queue_of(filter).filter(|_| filter.without_owner || !filter.owners.is_empty())
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

impl ByOwner {
    pub(super) fn has(&self, queue: &QueueName) -> bool {
        self.queues.contains_key(queue)
    }

    /// Makes the index of a queue that has these available jobs.
    pub(super) fn make(&mut self, queue: &QueueName, jobs: Option<&QueueJobs>) {
        let mut owners: HashMap<Option<Owner>, QueueJobs> = HashMap::new();
        for head in jobs.into_iter().flat_map(QueueJobs::values).flat_map(|due| due.values()) {
            insert(owners.entry(head.job.spec.owner.clone()).or_default(), head);
        }
        self.queues.insert(queue.clone(), owners);
    }

    /// Returns the jobs of the owners that the filter names, of its one queue; `None` without an index.
    pub(super) fn of(&self, filter: &Filter) -> Option<Vec<&QueueJobs>> {
        let owners = self.queues.get(of_owners(filter)?)?;
        if filter.without_owner {
            return Some(owners.get(&None).into_iter().collect());
        }
        let mut named: Vec<Option<Owner>> = filter.owners.iter().cloned().map(Some).collect();
        named.sort_unstable();
        named.dedup();
        Some(named.iter().filter_map(|owner| owners.get(owner)).collect())
    }

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

    pub(super) fn insert(&mut self, head: &Versioned) {
        if let Some(owners) = self.of_queue(&head.job.spec.queue) {
            insert(owners.entry(head.job.spec.owner.clone()).or_default(), head);
        }
    }

    pub(super) fn remove(&mut self, job: &Job) {
        let Some(owners) = self.of_queue(&job.spec.queue) else { return };
        if let Some(jobs) = owners.get_mut(&job.spec.owner) {
            remove(jobs, job);
            if jobs.is_empty() {
                owners.remove(&job.spec.owner);
            }
        }
        if owners.is_empty() {
            self.queues.remove(&job.spec.queue);
        }
    }

    fn of_queue(&mut self, queue: &QueueName) -> Option<&mut HashMap<Option<Owner>, QueueJobs>> {
        // Most stores have no such index.
        if self.queues.is_empty() { None } else { self.queues.get_mut(queue) }
    }
}
