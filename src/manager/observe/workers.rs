//! The workers that claimed lately, and the leases in the store.
//!
//! Which queues a worker claims from and what it offers is known only to the manager it calls, in memory
//! and for a bounded number of workers; the managers of a store ask each other. Which jobs it runs is in the store, for
//! all managers.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, Kind, Lease, OfferedLabels, Offers, QueueName, Requirement, WorkerId};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::recent::RecentMap;

use crate::manager::Manager;
use crate::manager::dispatch::{KindsByQueue, Resources, fits, meets};
use crate::manager::request::{ClaimRequest, ManagerError};

/// The number of workers that are remembered at least.
const REMEMBERED: usize = 5_000;

/// A worker that has claimed within this time counts as one that claims.
const LATELY: Duration = Duration::from_secs(120);

/// The most characters that are kept of what a worker says of the program that calls for it.
const MAX_USER_AGENT_CHARS: usize = 200;

/// The most kinds of a queue that other managers are told of; where workers name more, any kind is left to them.
const MAX_KINDS: usize = 64;

/// The most running jobs that are read for a list of workers, in the order of their last heartbeats.
const MAX_LEASES: usize = 10_000;
const LEASES_PER_PAGE: usize = 1_000;

/// A worker's latest calls to this manager.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sighting {
    last_seen_at: Timestamp,
    last_claim_at: Option<Timestamp>,
    queues: Vec<QueueName>,
    resources: Resources,
    labels: Offers,
    kinds: Vec<Kind>,
    user_agent: Option<Box<str>>,
    /// The number of the worker's claims that wait for a job now.
    waiting: u32,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// The worker's name.
    #[schema(example = "host7:4711")]
    pub id: WorkerId,
    /// When the worker last called a server; null when it has called none recently.
    pub last_seen_at: Option<Timestamp>,
    /// When the worker last tried to claim jobs.
    pub last_claim_at: Option<Timestamp>,
    /// Whether a claim of the worker waits for a job now.
    pub waiting: bool,
    /// The queues of the worker's latest claim.
    pub queues: Vec<QueueName>,
    /// The resources that the worker's latest claim offered; empty when the worker takes any job.
    pub resources: BTreeMap<String, u64>,
    /// The labels that the worker's latest claim offered.
    #[schema(value_type = OfferedLabels)]
    pub labels: Offers,
    /// The kinds of jobs that the worker's latest claim takes; empty when it takes any.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// The program that calls for the worker, with its version, as the `User-Agent` of its latest claim says it; null
    /// when it says nothing. At most 200 characters are kept.
    #[schema(example = "leasehold/0.1.0")]
    #[serde(default)]
    pub user_agent: Option<String>,
    /// The number of jobs that the worker runs.
    pub running: u64,
    /// The time of the oldest among the latest heartbeats of the worker's jobs; null when it runs none.
    pub oldest_heartbeat_at: Option<Timestamp>,
    /// When the first of the worker's leases expires; null when it runs no job.
    pub lease_expires_at: Option<Timestamp>,
}

impl Worker {
    /// Returns a worker of which nothing but its name is known.
    const fn named(id: WorkerId) -> Self {
        Self {
            id,
            last_seen_at: None,
            last_claim_at: None,
            waiting: false,
            queues: Vec::new(),
            resources: BTreeMap::new(),
            labels: Offers::new(),
            kinds: Vec::new(),
            user_agent: None,
            running: 0,
            oldest_heartbeat_at: None,
            lease_expires_at: None,
        }
    }

    /// Returns what a manager knows of a worker by its calls.
    fn seen(id: WorkerId, sighting: Sighting) -> Self {
        Self {
            last_seen_at: Some(sighting.last_seen_at),
            last_claim_at: sighting.last_claim_at,
            waiting: sighting.waiting > 0,
            queues: sighting.queues,
            resources: sighting.resources,
            labels: sighting.labels,
            kinds: sighting.kinds,
            user_agent: sighting.user_agent.map(String::from),
            ..Self::named(id)
        }
    }

    /// Adds what a manager knows of the worker by its calls. What the worker said last holds.
    fn add_seen(&mut self, seen: Self) {
        self.waiting |= seen.waiting;
        self.last_seen_at = self.last_seen_at.max(seen.last_seen_at);
        if seen.last_claim_at >= self.last_claim_at {
            (self.queues, self.resources, self.labels) = (seen.queues, seen.resources, seen.labels);
            (self.kinds, self.user_agent) = (seen.kinds, seen.user_agent);
            self.last_claim_at = seen.last_claim_at;
        }
    }

    fn add_lease(&mut self, lease: &Lease) {
        let earliest = |known: Option<Timestamp>, other| known.into_iter().chain([other]).min();
        self.running += 1;
        self.oldest_heartbeat_at = earliest(self.oldest_heartbeat_at, lease.heartbeat_at);
        self.lease_expires_at = earliest(self.lease_expires_at, lease.expires_at);
    }
}

/// The status of all known workers.
#[derive(Clone, Debug)]
pub struct WorkerStatuses {
    /// The workers in the order of their names.
    pub workers: Vec<Worker>,
    /// Whether there are more leases than are read (10,000), so that some are missing from the list.
    pub truncated: bool,
    /// The number of other managers that did not say which workers call them.
    pub unasked: usize,
}

/// The workers that other managers of the store know by their calls.
#[derive(Clone, Debug, Default)]
pub struct SeenElsewhere {
    /// What each manager knows; a worker that calls several is there several times.
    pub workers: Vec<Worker>,
    /// The number of other managers that were not asked, or did not answer.
    pub unasked: usize,
}

/// The workers that claim jobs from one job's queue, counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claimants {
    /// The time of the latest claim by any worker.
    pub(crate) last_at: Option<Timestamp>,
    /// The number of workers that have claimed within the last two minutes.
    pub(crate) lately: usize,
    /// The number of those workers that take jobs of its kind.
    pub(crate) of_kind: usize,
    /// The number of workers of that kind whose labels meet all that the job requires.
    pub(crate) able: usize,
    /// What the job requires that none of those workers offers.
    pub(crate) unmet: Vec<Requirement>,
    /// The number of able workers whose offered resources suffice for the job.
    pub(crate) with_room: usize,
    /// The number of able workers with enough resources that wait for a job now.
    pub(crate) waiting: usize,
    /// For each resource that the job needs, the largest amount that any able worker with stated resources offers.
    pub(crate) most_offered: Resources,
}

/// The workers that called this manager lately.
#[derive(Default)]
pub(crate) struct Workers {
    sightings: Mutex<Sightings>,
}

type Sightings = RecentMap<WorkerId, Sighting, REMEMBERED>;

/// A waiting claim of a worker. Dropping it ends the wait in the worker's entry.
pub(crate) struct Waits<'a> {
    workers: &'a Workers,
    id: &'a WorkerId,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if let Some(sighting) = self.workers.sightings.lock().get_mut(self.id) {
            sighting.waiting = sighting.waiting.saturating_sub(1);
        }
    }
}

/// Returns the worker's entry, which becomes the most recent of all.
fn heard_of<'a>(sightings: &'a mut Sightings, id: &WorkerId, now: Timestamp) -> Option<&'a mut Sighting> {
    let mut sighting = sightings.remove(id).unwrap_or(Sighting {
        last_seen_at: now,
        last_claim_at: None,
        queues: Vec::new(),
        resources: Resources::new(),
        labels: Offers::new(),
        kinds: Vec::new(),
        user_agent: None,
        waiting: 0,
    });
    sighting.last_seen_at = sighting.last_seen_at.max(now);
    sightings.insert(id.clone(), sighting);
    sightings.get_mut(id)
}

impl Workers {
    /// Records a worker's claim. The system's own workers are left out, since users need not know them.
    pub(crate) fn claims(&self, request: &ClaimRequest, now: Timestamp) {
        if request.worker_id.is_internal() {
            return;
        }
        let mut sightings = self.sightings.lock();
        let Some(sighting) = heard_of(&mut sightings, &request.worker_id, now) else { return };
        sighting.last_claim_at = Some(now);
        if sighting.queues != request.queues {
            sighting.queues.clone_from(&request.queues);
        }
        if sighting.resources != request.resources {
            sighting.resources.clone_from(&request.resources);
        }
        if sighting.labels != request.labels {
            sighting.labels.clone_from(&request.labels);
        }
        if sighting.kinds != request.kinds {
            sighting.kinds.clone_from(&request.kinds);
        }
    }

    /// Records which program calls for a worker.
    pub(crate) fn calls_by(&self, id: &WorkerId, user_agent: &str, now: Timestamp) {
        if id.is_internal() {
            return;
        }
        let end = user_agent.char_indices().nth(MAX_USER_AGENT_CHARS).map_or(user_agent.len(), |(at, _)| at);
        let user_agent = &user_agent[..end];
        let mut sightings = self.sightings.lock();
        // Nearly every claim says what the one before it said.
        if sightings.get(id).is_some_and(|known| known.user_agent.as_deref() == Some(user_agent)) {
            return;
        }
        if let Some(sighting) = heard_of(&mut sightings, id, now) {
            sighting.user_agent = Some(user_agent.into());
        }
    }

    /// Records that a worker's claim waits from now on.
    pub(crate) fn waits<'a>(&'a self, id: &'a WorkerId) -> Waits<'a> {
        if let Some(sighting) = self.sightings.lock().get_mut(id) {
            sighting.waiting += 1;
        }
        Waits { workers: self, id }
    }

    /// Records that a worker called this manager.
    pub(crate) fn is_alive(&self, id: &WorkerId, now: Timestamp) {
        if !id.is_internal() {
            heard_of(&mut self.sightings.lock(), id, now);
        }
    }

    /// Counts the workers that claim jobs from this job's queue.
    pub(crate) fn claimants(&self, job: &Job, now: Timestamp) -> Claimants {
        let sightings = self.sightings.lock();
        let mut claimants = Claimants { unmet: job.spec.requires().to_vec(), ..Claimants::default() };
        for (_, sighting) in sightings.iter().filter(|(_, sighting)| sighting.queues.contains(&job.spec.queue)) {
            let last_claim_at = if sighting.waiting > 0 { Some(now) } else { sighting.last_claim_at };
            claimants.last_at = claimants.last_at.max(last_claim_at);
            if last_claim_at.is_none_or(|at| now.since(at) > LATELY) {
                continue;
            }
            claimants.lately += 1;
            if !sighting.kinds.is_empty() && !sighting.kinds.contains(&job.spec.kind) {
                continue;
            }
            claimants.of_kind += 1;
            claimants.unmet.retain(|requirement| !requirement.is_met_by(&sighting.labels));
            if !meets(&sighting.labels, job) {
                continue;
            }
            claimants.able += 1;
            if sighting.resources.is_empty() || fits(&sighting.resources, job) {
                claimants.with_room += 1;
                claimants.waiting += usize::from(sighting.waiting > 0);
            }
            for name in job.spec.resources.keys().filter(|_| !sighting.resources.is_empty()) {
                let offered = sighting.resources.get(name).copied().unwrap_or(0);
                let most = claimants.most_offered.entry(name.clone()).or_default();
                *most = offered.max(*most);
            }
        }
        claimants
    }

    /// Counts the workers of each queue that have called within this time. One that is busy with long jobs claims
    /// nothing, and sends heartbeats.
    pub(crate) fn by_queue(&self, now: Timestamp, within: Duration) -> BTreeMap<QueueName, u64> {
        let mut workers = BTreeMap::new();
        for (_, sighting) in self.sightings.lock().iter() {
            if now.since(as_of(sighting, now).last_seen_at) <= within {
                sighting.queues.iter().for_each(|queue| *workers.entry(queue.clone()).or_default() += 1);
            }
        }
        workers
    }

    /// Returns the kinds that the workers take which have called within this time, of each queue whose workers all name
    /// kinds, and not more than [`MAX_KINDS`] together.
    pub(crate) fn kinds_by_queue(&self, now: Timestamp, within: Duration) -> KindsByQueue {
        let mut by_queue: BTreeMap<QueueName, Option<BTreeSet<Kind>>> = BTreeMap::new();
        for (_, sighting) in self.sightings.lock().iter() {
            if now.since(as_of(sighting, now).last_seen_at) > within {
                continue;
            }
            for queue in &sighting.queues {
                let kinds = by_queue.entry(queue.clone()).or_insert_with(|| Some(BTreeSet::new()));
                if let Some(named) = kinds.as_mut().filter(|_| !sighting.kinds.is_empty()) {
                    named.extend(sighting.kinds.iter().cloned());
                } else {
                    *kinds = None;
                }
            }
        }
        let few = |(queue, kinds): (QueueName, Option<BTreeSet<Kind>>)| {
            let kinds = kinds.filter(|kinds| kinds.len() <= MAX_KINDS)?;
            Some((queue, kinds.into_iter().collect()))
        };
        by_queue.into_iter().filter_map(few).collect()
    }

    fn of(&self, id: &WorkerId, now: Timestamp) -> Option<Worker> {
        self.sightings.lock().get(id).map(|sighting| Worker::seen(id.clone(), as_of(sighting, now)))
    }

    fn all(&self, now: Timestamp) -> Vec<Worker> {
        let seen = |(id, sighting): (&WorkerId, &Sighting)| Worker::seen(id.clone(), as_of(sighting, now));
        self.sightings.lock().iter().map(seen).collect()
    }
}

/// Returns the entry as of `now`. A worker with a waiting claim counts as seen at `now`.
fn as_of(sighting: &Sighting, now: Timestamp) -> Sighting {
    let last_seen_at = if sighting.waiting > 0 { now.max(sighting.last_seen_at) } else { sighting.last_seen_at };
    Sighting { last_seen_at, ..sighting.clone() }
}

impl Manager {
    /// Returns the number of workers of each queue that have called this manager lately.
    #[must_use]
    pub fn workers_by_queue(&self) -> BTreeMap<QueueName, u64> {
        self.shared.observe.workers.by_queue(self.shared.clock.now(), LATELY)
    }

    /// Records which program calls for a worker.
    pub fn worker_calls_by(&self, id: &WorkerId, user_agent: &str) {
        self.shared.observe.workers.calls_by(id, user_agent, self.shared.clock.now());
    }

    /// Returns the workers that called this manager lately, or the one of this name, without what they run.
    #[must_use]
    pub fn workers_seen_here(&self, id: Option<&WorkerId>) -> Vec<Worker> {
        let (workers, now) = (&self.shared.observe.workers, self.shared.clock.now());
        id.map_or_else(|| workers.all(now), |id| workers.of(id, now).into_iter().collect())
    }

    /// Returns the workers that called a manager lately, and those that run jobs; only the one of this name, if one is
    /// given.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn workers(
        &self,
        id: Option<&WorkerId>,
        elsewhere: SeenElsewhere,
    ) -> Result<WorkerStatuses, ManagerError> {
        let (mut workers, truncated) = self.workers_with_leases(id).await?;
        for seen in self.workers_seen_here(id).into_iter().chain(elsewhere.workers) {
            workers.entry(seen.id.clone()).or_insert_with(|| Worker::named(seen.id.clone())).add_seen(seen);
        }
        Ok(WorkerStatuses { workers: workers.into_values().collect(), truncated, unasked: elsewhere.unasked })
    }
}

impl Manager {
    /// Returns the workers that run jobs, and whether there are more running jobs than were read.
    async fn workers_with_leases(
        &self,
        worker: Option<&WorkerId>,
    ) -> Result<(BTreeMap<WorkerId, Worker>, bool), ManagerError> {
        let filter = Filter { states: vec![JobState::Running], worker_id: worker.cloned(), ..Filter::default() };
        // A heartbeat writes the job, so the jobs with the oldest heartbeats come first.
        let sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);
        let mut search = Search { filter, sort, after: None, limit: LEASES_PER_PAGE };
        let mut workers: BTreeMap<WorkerId, Worker> = BTreeMap::new();
        // A job with a heartbeat meanwhile moves to the end and is found again.
        let mut counted: HashSet<JobId> = HashSet::new();
        for _ in 0..MAX_LEASES / LEASES_PER_PAGE {
            let page = self.shared.store.search(&search).await?;
            for found in &page {
                let Some(lease) = found.job.lease().filter(|_| !found.job.spec.queue.is_internal()) else { continue };
                if counted.insert(found.job.id.clone()) {
                    let id = &lease.worker_id;
                    workers.entry(id.clone()).or_insert_with(|| Worker::named(id.clone())).add_lease(lease);
                }
            }
            match page.last() {
                Some(last) if page.len() >= LEASES_PER_PAGE => search.after = Some(sort.key(&last.job)),
                _ => return Ok((workers, false)),
            }
        }
        Ok((workers, true))
    }
}

#[cfg(test)]
mod tests;
