//! The available jobs of a queue, in the order of dispatch.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use crate::clock::Timestamp;
use crate::job::{Job, JobId};
use crate::store::Versioned;

/// A queue's available jobs: by priority, the most urgent first, and within one by due time and id. Two maps and not
/// one, so that a search for what is due steps over the not yet due of a priority at once, however many they are.
pub(super) type QueueJobs = BTreeMap<Reverse<i8>, DueJobs>;

/// The available jobs of one priority, by due time and id.
type DueJobs = BTreeMap<(Timestamp, JobId), Versioned>;

/// Puts an available job among those of its queue.
pub(super) fn insert(queue: &mut QueueJobs, head: &Versioned) {
    let job = &*head.job;
    let due = queue.entry(Reverse(job.spec.priority.get())).or_default();
    due.insert((job.run_at, job.id.clone()), head.clone());
}

/// Takes an available job from those of its queue.
pub(super) fn remove(queue: &mut QueueJobs, job: &Job) {
    let priority = Reverse(job.spec.priority.get());
    let Some(due) = queue.get_mut(&priority) else { return };
    due.remove(&(job.run_at, job.id.clone()));
    if due.is_empty() {
        queue.remove(&priority);
    }
}

/// Returns how many of these jobs are due at `latest`. Where all are, or none, nothing is counted one by one.
pub(super) fn count_due(jobs: &DueJobs, latest: Timestamp) -> usize {
    match jobs.last_key_value() {
        Some(((last, _), _)) if *last <= latest => jobs.len(),
        _ => jobs.keys().take_while(|(run_at, _)| *run_at <= latest).count(),
    }
}

/// The position of an available job in the order of dispatch.
pub(super) type Position<'a> = (Reverse<i8>, &'a (Timestamp, JobId));

/// Walks the available jobs of one queue that are due until `until` in dispatch order, after the given position. Of
/// each priority it steps over the jobs that are not due yet at once.
pub(super) fn in_dispatch_order(
    queue: &QueueJobs,
    after: Option<(Reverse<i8>, (Timestamp, JobId))>,
    until: Timestamp,
) -> impl Iterator<Item = (Position<'_>, &Versioned)> {
    let highest = after.as_ref().map_or(Bound::Unbounded, |(priority, _)| Bound::Included(*priority));
    queue.range((highest, Bound::Unbounded)).flat_map(move |(priority, due)| {
        let first = match &after {
            Some((level, place)) if level == priority => Bound::Excluded(place),
            _ => Bound::Unbounded,
        };
        due.range((first, Bound::Unbounded))
            .take_while(move |((run_at, _), _)| *run_at <= until)
            .map(|(place, head)| ((*priority, place), head))
    })
}
