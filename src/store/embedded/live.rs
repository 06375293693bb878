//! The jobs that have not ended, in memory, with the indexes that dispatch, leases and the monitor search.
//!
//! Every index is derived from `by_id`: a job is in `available` exactly while it is available, in `by_worker` and
//! `by_request` exactly while it runs under such a lease, in `watched` while time alone can bring the monitor something
//! to do with it. A job that has ended stays here until its notices have been handed on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use itertools::Itertools;

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, QueueName, RequestId, State, WorkerId};
use crate::query::{Filter, SortKey};
use crate::store::Versioned;

/// The finest difference between two times.
const MOMENT: Duration = Duration::from_millis(1);

/// A queue's available jobs: by priority, the most urgent first, and within one by due time and id. Two maps and not
/// one, so that a search for what is due steps over the not yet due of a priority at once, however many they are.
type QueueJobs = BTreeMap<Reverse<i8>, BTreeMap<(Timestamp, JobId), Versioned>>;

/// The number of parts into which the live jobs are divided.
const SHARDS: usize = 4_096;

/// A part of the live jobs.
pub(super) type Shard = HashMap<JobId, Versioned, RandomState>;

/// All live jobs, in parts that can be held on to: a search that goes over all of them takes hold of every part at one
/// moment, and the writer copies a part before it changes it while a search holds it.
#[derive(Debug)]
struct ById {
    shards: Vec<Arc<Shard>>,
    hasher: RandomState,
}

impl Default for ById {
    fn default() -> Self {
        Self { shards: vec![Arc::default(); SHARDS], hasher: RandomState::default() }
    }
}

impl ById {
    fn place(&self, id: &JobId) -> usize {
        self.hasher.hash_one(id) as usize % SHARDS
    }

    fn get(&self, id: &JobId) -> Option<&Versioned> {
        self.shards[self.place(id)].get(id)
    }

    fn insert(&mut self, head: Versioned) {
        let place = self.place(&head.job.id);
        Arc::make_mut(&mut self.shards[place]).insert(head.job.id.clone(), head);
    }

    fn remove(&mut self, id: &JobId) -> Option<Versioned> {
        let place = self.place(id);
        // Checked first, since `make_mut` may copy the shard.
        self.shards[place].get(id)?;
        Arc::make_mut(&mut self.shards[place]).remove(id)
    }
}

/// Live jobs and their indexes.
#[derive(Debug, Default)]
pub(super) struct Live {
    by_id: ById,
    available: HashMap<QueueName, QueueJobs>,
    by_worker: HashMap<WorkerId, BTreeSet<JobId>>,
    by_request: HashMap<RequestId, BTreeSet<JobId>>,
    /// The jobs that the monitor has to check, by the time of the check.
    watched: BTreeSet<(Timestamp, JobId)>,
    /// The jobs with notices to hand on; they include all live jobs that have ended.
    pending_notices: BTreeSet<JobId>,
    counts: HashMap<(JobState, QueueName), u64>,
}

impl Live {
    /// Returns the job, if it is live.
    pub(super) fn get(&self, id: &JobId) -> Option<&Versioned> {
        self.by_id.get(id)
    }

    /// Puts a live job in the place of its former version. Returns the former version, so that the caller can free it
    /// when no lock is held.
    pub(super) fn put(&mut self, head: Versioned) -> Option<Versioned> {
        debug_assert!(!head.job.is_settled(), "settled jobs are not kept here");
        let former = self.remove(&head.job.id);
        self.index(&head);
        self.by_id.insert(head);
        former
    }

    /// Takes a job out, and returns it.
    pub(super) fn remove(&mut self, id: &JobId) -> Option<Versioned> {
        let former = self.by_id.remove(id)?;
        self.unindex(&former.job);
        Some(former)
    }

    /// Returns how many live jobs there are by state and queue.
    pub(super) fn counts(&self) -> impl Iterator<Item = (JobState, &QueueName, u64)> {
        self.counts.iter().map(|((state, queue), count)| (*state, queue, *count))
    }

    /// Returns all live jobs as they are now, however they change afterwards.
    pub(super) fn all(&self) -> Vec<Arc<Shard>> {
        self.by_id.shards.clone()
    }

    /// Returns the jobs that `filter` could match, from the narrowest index; the caller still applies the filter.
    /// `None` when no index serves and all jobs have to be tried.
    pub(super) fn candidates<'a>(&'a self, filter: &Filter) -> Option<Box<dyn Iterator<Item = &'a Versioned> + 'a>> {
        type Candidates<'a> = Box<dyn Iterator<Item = &'a Versioned> + 'a>;
        let by_ids = |ids: Option<&'a BTreeSet<JobId>>| -> Candidates<'a> {
            Box::new(ids.into_iter().flatten().filter_map(|id| self.by_id.get(id)))
        };
        let running = || self.by_worker.values().flatten().filter_map(|id| self.by_id.get(id));
        if let Some(request) = &filter.request_id {
            return Some(by_ids(self.by_request.get(request)));
        }
        if let Some(worker) = &filter.worker_id {
            return Some(by_ids(self.by_worker.get(worker)));
        }
        let only = |wanted: fn(&JobState) -> bool| !filter.states.is_empty() && filter.states.iter().all(wanted);
        if only(|state| *state == JobState::Available) {
            return Some(Box::new(self.waiting(filter)));
        }
        if only(|state| *state == JobState::Running) {
            return Some(Box::new(running()));
        }
        if only(|state| state.is_final()) || filter.pending_notices == Some(true) {
            return Some(by_ids(Some(&self.pending_notices)));
        }
        if let Some(latest) = filter.watch_at_most {
            return Some(Box::new(self.watched(Some(latest), None)));
        }
        if filter.queues.is_empty() {
            return None;
        }
        // Those of a queue that wait, and all others, which are few. A running one may have notices as well.
        let ended = by_ids(Some(&self.pending_notices)).filter(|head| head.job.state.name().is_final());
        Some(Box::new(self.waiting(filter).chain(running()).chain(ended)))
    }

    /// Returns the available jobs of the filter's queues; of each priority only the part that is due between the
    /// filter's times, however many wait before or after.
    fn waiting<'a>(&'a self, filter: &Filter) -> impl Iterator<Item = &'a Versioned> + use<'a> {
        let first = filter.run_after.map(|earliest| (earliest.plus(MOMENT), JobId::first()));
        let first = first.map_or(Bound::Unbounded, Bound::Included);
        let until = filter.run_at_most.unwrap_or(Timestamp::MAX);
        let between = move |due: &'a BTreeMap<(Timestamp, JobId), Versioned>| {
            due.range((first.clone(), Bound::Unbounded))
                .map(|(_, head)| head)
                .take_while(move |head| head.job.run_at <= until)
        };
        self.queues(filter).flat_map(QueueJobs::values).flat_map(between)
    }

    /// Returns the available jobs of the filter's queues in dispatch order, after `after`, and due by the filter's
    /// time. Each step takes O(log n) however many jobs wait, due or not.
    pub(super) fn dispatch<'a>(
        &'a self,
        filter: &Filter,
        after: Option<&SortKey>,
    ) -> impl Iterator<Item = &'a Versioned> + use<'a> {
        let after = after.map(|key| {
            let (rank, run_at) = key.ranks();
            let priority = i8::try_from(-rank).unwrap_or(i8::MIN);
            (Reverse(priority), (Timestamp::from_millis(run_at), key.id().clone()))
        });
        let until = filter.run_at_most.unwrap_or(Timestamp::MAX);
        let queues = self.queues(filter).map(|queue| in_dispatch_order(queue, after.clone(), until));
        queues.kmerge_by(|(one, _), (other, _)| one < other).map(|(_, head)| head)
    }

    /// Returns the jobs that are watched up to `latest`, in the order of time, after `after`.
    pub(super) fn watched<'a>(
        &'a self,
        latest: Option<Timestamp>,
        after: Option<&SortKey>,
    ) -> impl Iterator<Item = &'a Versioned> + use<'a> {
        let after = after.map(|key| (Timestamp::from_millis(key.ranks().0), key.id().clone()));
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let latest = latest.unwrap_or(Timestamp::MAX);
        let due = self.watched.range((first, Bound::Unbounded)).take_while(move |(at, _)| *at <= latest);
        due.filter_map(|(_, id)| self.by_id.get(id))
    }

    fn queues<'a>(&'a self, filter: &Filter) -> impl Iterator<Item = &'a QueueJobs> + use<'a> {
        let named: Vec<&QueueJobs> = if filter.queues.is_empty() {
            self.available.values().collect()
        } else {
            let distinct: BTreeSet<&QueueName> = filter.queues.iter().collect();
            distinct.into_iter().filter_map(|queue| self.available.get(queue)).collect()
        };
        named.into_iter()
    }

    fn index(&mut self, head: &Versioned) {
        let job = &*head.job;
        *self.counts.entry((job.state.name(), job.spec.queue.clone())).or_default() += 1;
        match &job.state {
            State::Available => {
                let queue = self.available.entry(job.spec.queue.clone()).or_default();
                let due = queue.entry(Reverse(job.spec.priority.get())).or_default();
                due.insert((job.run_at, job.id.clone()), head.clone());
            }
            State::Running(running) => {
                self.by_worker.entry(running.lease.worker_id.clone()).or_default().insert(job.id.clone());
                if let Some(request) = &running.lease.request_id {
                    self.by_request.entry(request.clone()).or_default().insert(job.id.clone());
                }
            }
            State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => {}
        }
        if !job.outbox.is_empty() {
            self.pending_notices.insert(job.id.clone());
        }
        if let Some(at) = job.watch_at() {
            self.watched.insert((at, job.id.clone()));
        }
    }

    fn unindex(&mut self, job: &Job) {
        let counted = (job.state.name(), job.spec.queue.clone());
        if let Some(count) = self.counts.get_mut(&counted) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&counted);
            }
        }
        match &job.state {
            State::Available => self.leave_queue(job),
            State::Running(running) => {
                leave_set(&mut self.by_worker, &running.lease.worker_id, &job.id);
                if let Some(request) = &running.lease.request_id {
                    leave_set(&mut self.by_request, request, &job.id);
                }
            }
            State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => {}
        }
        if !job.outbox.is_empty() {
            self.pending_notices.remove(&job.id);
        }
        if let Some(at) = job.watch_at() {
            self.watched.remove(&(at, job.id.clone()));
        }
    }

    fn leave_queue(&mut self, job: &Job) {
        let priority = Reverse(job.spec.priority.get());
        let Some(queue) = self.available.get_mut(&job.spec.queue) else { return };
        let Some(due) = queue.get_mut(&priority) else { return };
        due.remove(&(job.run_at, job.id.clone()));
        if due.is_empty() {
            queue.remove(&priority);
        }
        if queue.is_empty() {
            self.available.remove(&job.spec.queue);
        }
    }
}

fn leave_set<K: Eq + Hash>(map: &mut HashMap<K, BTreeSet<JobId>>, key: &K, id: &JobId) {
    let Some(ids) = map.get_mut(key) else { return };
    ids.remove(id);
    if ids.is_empty() {
        map.remove(key);
    }
}

/// The position of an available job in the order of dispatch.
type Position<'a> = (Reverse<i8>, &'a (Timestamp, JobId));

/// Walks the available jobs of one queue that are due until `until` in dispatch order, after the given position. Of
/// each priority it steps over the jobs that are not due yet at once.
fn in_dispatch_order(
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

#[cfg(test)]
mod tests;
