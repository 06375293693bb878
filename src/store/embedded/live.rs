//! The jobs that have not ended, in memory, with the indexes that dispatch, leases and the monitor search.
//!
//! Every index is derived from `by_id`: a job is in `available` exactly while it is available and not held, in `held`
//! while it is available and held, in `by_worker` and
//! `by_request` exactly while it runs under such a lease, in `watched` while time alone can bring the monitor something
//! to do with it, in `lines` while it names an ordering key and has not ended. A job that has ended stays here until
//! its notices have been handed on.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{BuildHasher, Hash};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;
use itertools::Itertools;

use super::available::{self, QueueJobs, in_dispatch_order};
use super::grouped::{ByKind, ByOwner, Index};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, OrderingKey, Priority, QueueName, RequestId, State, WorkerId};
use crate::query::{Filter, Group, SortKey};
use crate::store::{Head, Versioned};

/// The finest difference between two times.
const MOMENT: Duration = Duration::from_millis(1);

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
    available: HashMap<QueueName, QueueJobs, RandomState>,
    /// The available jobs that are held: however many they are, a search for what can be claimed meets none.
    held: HashMap<QueueName, QueueJobs, RandomState>,
    /// The jobs of `available` by owner, for the queues of which that is asked.
    by_owner: ByOwner,
    /// The same by kind.
    by_kind: ByKind,
    by_worker: HashMap<WorkerId, BTreeSet<JobId>, RandomState>,
    by_request: HashMap<RequestId, BTreeSet<JobId>, RandomState>,
    /// The jobs of each ordering key that have not ended, by their places.
    lines: HashMap<OrderingKey, BTreeSet<(u64, JobId)>, RandomState>,
    /// The jobs that the monitor has to check, by the time of the check.
    watched: BTreeSet<(Timestamp, JobId)>,
    /// The jobs with notices to hand on; they include all live jobs that have ended.
    pending_notices: BTreeSet<JobId>,
    counts: HashMap<(JobState, QueueName), u64, RandomState>,
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

    /// Returns the first job that has not ended of each of these lines.
    pub(super) fn heads(&self, keys: &[OrderingKey]) -> Vec<Option<Head>> {
        keys.iter().map(|key| self.head(key)).collect()
    }

    fn head(&self, key: &OrderingKey) -> Option<Head> {
        let (seq, id) = self.lines.get(key)?.first()?;
        let state = self.by_id.get(id)?.job.state.name();
        Some(Head { job: id.clone(), seq: *seq, state })
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
        if !filter.in_line_of.is_empty() && filter.only_live() {
            let lines = filter.in_line_of.iter().filter_map(|key| self.lines.get(key)).flatten();
            let of_lines: Vec<&Versioned> = lines.filter_map(|(_, id)| self.by_id.get(id)).collect();
            return Some(Box::new(of_lines.into_iter()));
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
        let than = filter.more_urgent_than.map(Priority::get);
        let is_wanted = move |priority: Reverse<i8>| than.is_none_or(|than| priority.0 > than);
        let of_queue = |queue| in_dispatch_order(queue, after.clone(), until);
        let queues =
            self.queues(filter).map(|queue| of_queue(queue).take_while(move |((priority, _), _)| is_wanted(*priority)));
        queues.kmerge_by(|(one, _), (other, _)| one < other).map(|(_, head)| head)
    }

    /// Returns whether the available jobs of a queue have an index.
    pub(super) fn has_index(&self, index: Index, queue: &QueueName) -> bool {
        match index {
            Index::Owner => self.by_owner.has(queue),
            Index::Kind => self.by_kind.has(queue),
        }
    }

    /// Makes an index of a queue's available jobs, unless it is there.
    pub(super) fn make_index(&mut self, index: Index, queue: &QueueName) {
        if !self.has_index(index, queue) {
            let jobs = self.available.get(queue);
            match index {
                Index::Owner => self.by_owner.make(queue, jobs),
                Index::Kind => self.by_kind.make(queue, jobs),
            }
        }
    }

    /// Counts the available jobs of a queue by owner that are due at `latest`; `None` without an index by owner.
    pub(super) fn count_by_owner(&self, queue: &QueueName, latest: Option<Timestamp>) -> Option<Vec<Group>> {
        self.by_owner.count(queue, latest)
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
        if let Some(of_groups) = self.by_owner.of(filter).or_else(|| self.by_kind.of(filter)) {
            return of_groups.into_iter();
        }
        let mut named: Vec<&QueueJobs> = Vec::new();
        for (queues, is_held) in [(&self.available, false), (&self.held, true)] {
            if filter.held == Some(!is_held) {
                continue;
            }
            if filter.queues.is_empty() {
                named.extend(queues.values());
            } else {
                let distinct: BTreeSet<&QueueName> = filter.queues.iter().collect();
                named.extend(distinct.into_iter().filter_map(|queue| queues.get(queue)));
            }
        }
        named.into_iter()
    }

    fn index(&mut self, head: &Versioned) {
        let job = &*head.job;
        *self.counts.entry((job.state.name(), job.spec.queue.clone())).or_default() += 1;
        match &job.state {
            State::Available if job.hold.is_some() => {
                available::insert(self.held.entry(job.spec.queue.clone()).or_default(), head);
            }
            State::Available => {
                available::insert(self.available.entry(job.spec.queue.clone()).or_default(), head);
                self.by_owner.insert(head);
                self.by_kind.insert(head);
            }
            State::Running(running) => {
                self.by_worker.entry(running.lease.worker_id.clone()).or_default().insert(job.id.clone());
                if let Some(request) = &running.lease.request_id {
                    self.by_request.entry(request.clone()).or_default().insert(job.id.clone());
                }
            }
            State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => {}
        }
        if let Some((key, place)) = place_in_line(job) {
            self.lines.entry(key.clone()).or_default().insert(place);
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
        if let Some((key, place)) = place_in_line(job) {
            leave_set(&mut self.lines, key, &place);
        }
        if !job.outbox.is_empty() {
            self.pending_notices.remove(&job.id);
        }
        if let Some(at) = job.watch_at() {
            self.watched.remove(&(at, job.id.clone()));
        }
    }

    fn leave_queue(&mut self, job: &Job) {
        let queues = match job.hold {
            Some(_) => &mut self.held,
            None => {
                self.by_owner.remove(job);
                self.by_kind.remove(job);
                &mut self.available
            }
        };
        let Some(queue) = queues.get_mut(&job.spec.queue) else { return };
        available::remove(queue, job);
        if queue.is_empty() {
            queues.remove(&job.spec.queue);
        }
    }
}

/// Returns the ordering key of a job that has not ended, and its place in the key's line.
fn place_in_line(job: &Job) -> Option<(&OrderingKey, (u64, JobId))> {
    let ordered = job.spec.ordering().filter(|_| !job.state.name().is_final())?;
    Some((&ordered.key, (ordered.seq, job.id.clone())))
}

fn leave_set<K: Eq + Hash, T: Ord>(map: &mut HashMap<K, BTreeSet<T>, RandomState>, key: &K, element: &T) {
    let Some(elements) = map.get_mut(key) else { return };
    elements.remove(element);
    if elements.is_empty() {
        map.remove(key);
    }
}

#[cfg(test)]
mod tests;
