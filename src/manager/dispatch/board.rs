//! The state of the dispatch: the candidates by queue, and the waiting claims. It has no locks, no clock and no I/O.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::room::{Resources, Walk, Wish};
use crate::clock::Timestamp;
use crate::job::{JobId, QueueName, State};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// How far ahead of their due time candidates are kept, so that they can be handed out on time without a search.
pub(super) const HORIZON: Duration = Duration::from_secs(120);

/// How long before the end of its horizon a lane is filled with later candidates, if it has room.
const HORIZON_MARGIN: Duration = Duration::from_secs(60);

/// The smallest difference between two times.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// How long a search that was cut off is continued before it starts again with the most urgent jobs. A search engine
/// still returns jobs that were claimed since, so continuing finds more, but misses jobs that others added.
pub(super) const RESTART: Duration = Duration::from_secs(2);

/// How long a lane is kept after the last claim that named its queue.
pub(super) const LANE_IDLE: Duration = Duration::from_secs(300);

/// The most bytes of payload that one claim takes, apart from its first job, since one answer carries them all.
pub(super) const MAX_CLAIM_BYTES: usize = 32 << 20;

/// The most candidates that are kept for a queue that no claim has named yet, and the most such queues. Where searches
/// lag, the first claim would not find recently submitted jobs without them.
const UNASKED_CAPACITY: usize = 200;
const UNASKED_LANES: usize = 1_000;

/// The divisor of a lane's capacity that gives its low-water mark: an incomplete lane with fewer due jobs is filled
/// again.
const LOW_WATER_PART: usize = 4;

/// The settings of a dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchConfig {
    /// The most due candidates, and the most later candidates, that a lane keeps.
    pub(crate) capacity: usize,
    /// The most candidates that one search returns.
    pub(crate) page: usize,
    /// The time between two searches for a lane while claims wait; `None` in an exclusive store, where a lane cannot
    /// become outdated.
    pub(crate) poll_interval: Option<Duration>,
}

/// The lanes and the waiting claims. `Offer` is the type that a waiting claim receives.
pub(super) struct Board<Offer> {
    pub(super) lanes: HashMap<QueueName, Lane>,
    pub(super) waiters: HashMap<WaiterId, Waiter<Offer>>,
    pub(super) next_waiter: u64,
    /// The candidates that claims are being written for.
    pub(super) out: HashSet<JobId>,
    /// The queues whose jobs are held back.
    pub(super) paused: HashSet<QueueName>,
    /// When the background loop plans to wake up.
    pub(super) wake_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WaiterId(pub(super) u64);

pub(super) struct Waiter<Offer> {
    pub(super) queues: Vec<QueueName>,
    pub(super) max_jobs: usize,
    pub(super) resources: Resources,
    pub(super) hand: oneshot::Sender<Offer>,
}

impl<Offer> Waiter<Offer> {
    pub(super) fn wish(&self) -> Wish<'_> {
        Wish { queues: &self.queues, max_jobs: self.max_jobs, resources: &self.resources }
    }
}

/// The candidates and waiting claims of one queue.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) due: BTreeMap<SortKey, Versioned>,
    pub(super) later: BTreeMap<(Timestamp, JobId), Versioned>,
    positions: HashMap<JobId, Position>,
    pub(super) waiting: BTreeSet<WaiterId>,
    /// When the store was last searched for the most urgent jobs of this queue.
    pub(super) looked_up_at: Option<Timestamp>,
    /// The key after which that search was cut off.
    pub(super) resume: Option<SortKey>,
    /// Whether the store may hold due jobs that the lane does not.
    pub(super) incomplete: bool,
    /// The key after which due jobs may be missing. New jobs after it are left to the store as well: kept here, they
    /// would overtake the missing ones.
    pub(super) frontier: Option<SortKey>,
    /// The time from which on jobs that become due may be missing.
    pub(super) known_until: Timestamp,
    /// When a claim last named the queue, or else when the lane was created.
    pub(super) last_claim_at: Timestamp,
    /// Whether a claim has ever named the queue.
    pub(super) asked: bool,
    /// The lock that is held while the store is searched for this queue, so that one search serves all its callers.
    pub(super) lookup: Arc<tokio::sync::Mutex<()>>,
}

enum Position {
    Due(SortKey),
    Later(Timestamp),
}

impl<Offer> Default for Board<Offer> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            waiters: HashMap::new(),
            next_waiter: 0,
            out: HashSet::new(),
            paused: HashSet::new(),
            wake_at: None,
        }
    }
}

impl<Offer> Board<Offer> {
    pub(super) fn lane(&mut self, queue: &QueueName) -> &mut Lane {
        self.lanes.entry(queue.clone()).or_default()
    }

    pub(super) fn touch(&mut self, queues: &[QueueName], now: Timestamp) {
        for queue in queues {
            let lane = self.lane(queue);
            lane.last_claim_at = now;
            lane.asked = true;
        }
    }

    pub(super) fn add(&mut self, candidate: Versioned, now: Timestamp, config: &DispatchConfig) {
        if candidate.job.state != State::Available || self.out.contains(&candidate.job.id) {
            return;
        }
        let queue = &candidate.job.spec.queue;
        if !self.lanes.contains_key(queue) {
            // In a store that sees its own writes at once, the first claim searches the queue and misses nothing.
            if config.poll_interval.is_none() || self.lanes.len() >= UNASKED_LANES {
                return;
            }
            self.lane(queue).last_claim_at = now;
        }
        if let Some(lane) = self.lanes.get_mut(queue) {
            let capacity = if lane.asked { config.capacity } else { config.capacity.min(UNASKED_CAPACITY) };
            lane.add(candidate, now, capacity);
        }
    }

    /// Takes due candidates, the most urgent of all queues first. Skips at most `steps` candidates that do not fit,
    /// and subtracts the skipped ones from `steps`.
    pub(super) fn take(&mut self, wish: &Wish<'_>, now: Timestamp, steps: &mut usize) -> Vec<Versioned> {
        for queue in wish.queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.promote(now);
            }
        }
        let granted = *steps;
        let mut walk = Walk::of(wish, granted);
        let allowed = walk.as_ref().map_or(0, Walk::steps_left);
        let mut taken: Vec<Versioned> = Vec::new();
        let mut bytes = 0;
        while taken.len() < wish.max_jobs {
            let picked = match &mut walk {
                None => self.most_urgent(wish.queues).map(|queue| (queue, None)),
                Some(walk) => self.most_urgent_fitting(wish.queues, walk).map(|(queue, key)| (queue, Some(key))),
            };
            let Some((queue, key)) = picked else { break };
            let Some(lane) = self.lanes.get_mut(queue) else { break };
            let candidate = match &key {
                None => lane.due.first_key_value().map(|(_, first)| first),
                Some(key) => lane.due.get(key),
            };
            let Some(candidate) = candidate else { break };
            bytes += candidate.job.payload.bytes();
            if bytes > MAX_CLAIM_BYTES && !taken.is_empty() {
                break;
            }
            if let Some(walk) = &mut walk {
                walk.use_up(&candidate.job);
            }
            let removed = match &key {
                None => lane.due.pop_first().map(|(_, first)| first),
                Some(key) => lane.due.remove(key),
            };
            let Some(candidate) = removed else { break };
            lane.positions.remove(&candidate.job.id);
            self.out.insert(candidate.job.id.clone());
            taken.push(candidate);
        }
        *steps = granted - allowed + walk.map_or(0, |walk| walk.steps_left());
        taken
    }

    /// Returns the queue with the most urgent due candidate.
    fn most_urgent<'q>(&self, queues: &'q [QueueName]) -> Option<&'q QueueName> {
        let first = |queue: &QueueName| self.lanes.get(queue).and_then(|lane| lane.due.first_key_value());
        queues
            .iter()
            .filter(|queue| !self.paused.contains(*queue) && first(queue).is_some())
            .min_by(|a, b| first(a).map(|entry| entry.0).cmp(&first(b).map(|entry| entry.0)))
    }

    /// Returns the most urgent due candidate of all queues that fits.
    fn most_urgent_fitting<'q>(&self, queues: &'q [QueueName], walk: &mut Walk) -> Option<(&'q QueueName, SortKey)> {
        let mut best: Option<(&QueueName, &SortKey)> = None;
        for (index, queue) in queues.iter().enumerate().filter(|(_, queue)| !self.paused.contains(*queue)) {
            let Some(lane) = self.lanes.get(queue) else { continue };
            let from = walk.passed[index].clone().map_or(Bound::Unbounded, Bound::Excluded);
            for (key, candidate) in lane.due.range((from, Bound::Unbounded)) {
                if best.is_some_and(|(_, first)| first < key) {
                    break;
                }
                if walk.fits(&candidate.job) {
                    best = Some((queue, key));
                    break;
                }
                walk.passed[index] = Some(key.clone());
                if !walk.step() {
                    break;
                }
            }
        }
        best.map(|(queue, key)| (queue, key.clone()))
    }

    pub(super) fn forget_waiter(&mut self, id: WaiterId) {
        if let Some(waiter) = self.waiters.remove(&id) {
            self.leave_lanes(id, &waiter.queues);
        }
    }

    pub(super) fn leave_lanes(&mut self, id: WaiterId, queues: &[QueueName]) {
        for queue in queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.waiting.remove(&id);
            }
        }
    }

    /// Returns the lanes with waiting claims whose queues are not held back.
    pub(super) fn waited_for(&self) -> impl Iterator<Item = (&QueueName, &Lane)> {
        self.lanes.iter().filter(|(queue, lane)| !lane.waiting.is_empty() && !self.paused.contains(*queue))
    }

    pub(super) fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        self.waited_for().map(|(_, lane)| lane.next_wake(now, config)).min().unwrap_or_else(|| now.plus(LANE_IDLE))
    }
}

impl Lane {
    pub(super) fn add(&mut self, candidate: Versioned, now: Timestamp, capacity: usize) {
        let id = candidate.job.id.clone();
        if self.held(&id).is_some_and(|held| held.version >= candidate.version) {
            return;
        }
        self.remove(&id);
        let run_at = candidate.job.run_at;
        if run_at > now {
            // Jobs that are due beyond the horizon are found in the store when their time is near.
            if run_at >= self.known_until.max(now.plus(HORIZON)) {
                return;
            }
            self.positions.insert(id.clone(), Position::Later(run_at));
            self.later.insert((run_at, id), candidate);
            if self.later.len() > capacity
                && let Some(((dropped_at, dropped), _)) = self.later.pop_last()
            {
                self.positions.remove(&dropped);
                self.known_until = self.known_until.min(dropped_at);
            }
            return;
        }
        self.insert_due(candidate);
        if self.due.len() > capacity
            && let Some((_, dropped)) = self.due.pop_last()
        {
            self.positions.remove(&dropped.job.id);
            self.ends_at(self.due.last_key_value().map(|(key, _)| key.clone()));
        }
    }

    /// Records that due jobs after `last` may be missing.
    pub(super) fn ends_at(&mut self, last: Option<SortKey>) {
        self.incomplete = true;
        if let Some(last) = last
            && self.frontier.as_ref().is_none_or(|frontier| last < *frontier)
        {
            self.frontier = Some(last);
        }
    }

    pub(super) fn insert_due(&mut self, candidate: Versioned) {
        let key = Sort::Dispatch.key(&candidate.job);
        if self.frontier.as_ref().is_some_and(|frontier| key > *frontier) {
            self.incomplete = true;
            return;
        }
        self.positions.insert(candidate.job.id.clone(), Position::Due(key.clone()));
        self.due.insert(key, candidate);
    }

    pub(super) fn held(&self, id: &JobId) -> Option<&Versioned> {
        match self.positions.get(id)? {
            Position::Due(key) => self.due.get(key),
            Position::Later(run_at) => self.later.get(&(*run_at, id.clone())),
        }
    }

    pub(super) fn remove(&mut self, id: &JobId) {
        match self.positions.remove(id) {
            Some(Position::Due(key)) => {
                self.due.remove(&key);
            }
            Some(Position::Later(run_at)) => {
                self.later.remove(&(run_at, id.clone()));
            }
            None => {}
        }
    }

    /// Moves the later candidates that have become due to the due ones.
    pub(super) fn promote(&mut self, now: Timestamp) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let candidate = entry.remove();
            self.positions.remove(&candidate.job.id);
            self.insert_due(candidate);
        }
    }

    pub(super) fn needs_lookup(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let Some(looked_up_at) = self.looked_up_at else { return true };
        let low = self.due.len() < (config.capacity / LOW_WATER_PART).max(1);
        let wants_due = match config.poll_interval {
            None => self.incomplete && low,
            // Other processes write too: the lane is searched periodically, and at once only after a cut-off search.
            Some(interval) => {
                let age = now.since(looked_up_at);
                age >= RESTART.max(interval) || (low && (age >= interval || self.resume.is_some()))
            }
        };
        wants_due || self.needs_later(now, config)
    }

    pub(super) fn needs_later(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let has_room = self.later.len() <= config.capacity / 2;
        self.known_until <= now || (has_room && self.known_until <= now.plus(HORIZON_MARGIN))
    }

    pub(super) fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        if self.needs_lookup(now, config) {
            return now;
        }
        let mut wake = self.known_until.minus(HORIZON_MARGIN);
        if wake <= now {
            // The lane has no room for later candidates yet.
            wake = self.known_until;
        }
        if let Some(((run_at, _), _)) = self.later.first_key_value() {
            wake = wake.min(*run_at);
        }
        if let (Some(interval), Some(looked_up_at)) = (config.poll_interval, self.looked_up_at) {
            wake = wake.min(looked_up_at.plus(interval));
        }
        wake.max(now)
    }

    /// Returns the first waiting claim after `passed`.
    pub(super) fn waiting_after(&self, passed: Option<WaiterId>) -> Option<WaiterId> {
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().copied()
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.waiting.is_empty() && now.since(self.last_claim_at) >= LANE_IDLE
    }
}
