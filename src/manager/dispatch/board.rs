//! The state of the dispatch: the candidates by queue, and the waiting claims. It has no locks, no clock and no I/O.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use tokio::sync::oneshot;

use super::lane::{DispatchConfig, HORIZON, LANE_IDLE, Lane, WaiterId};
use super::room::{Walk, Wish};
use super::shares::Members;
use crate::clock::Timestamp;
use crate::job::{JobId, QueueName, State};
use crate::manager::claimant::Claimant;
use crate::query::SortKey;
use crate::store::Versioned;

/// The most bytes of payload that one claim takes, apart from its first job, since one answer carries them all.
pub(super) const MAX_CLAIM_BYTES: usize = 32 << 20;

/// The most candidates that are kept for a queue that no claim has named yet, and the most such queues. Where searches
/// lag, the first claim would not find recently submitted jobs without them.
const UNASKED_CAPACITY: usize = 200;
const UNASKED_LANES: usize = 1_000;

/// The lanes and the waiting claims. `Handed` is the type that a waiting claim receives.
pub(super) struct Board<Handed> {
    pub(super) lanes: HashMap<QueueName, Lane>,
    pub(super) waiters: HashMap<WaiterId, Waiter<Handed>>,
    pub(super) next_waiter: u64,
    /// The waiting claims that are neither with the others nor gone, while jobs are being written for them.
    pub(super) reserved: HashSet<WaiterId>,
    /// The managers that share the queues.
    pub(super) members: Arc<Members>,
    /// The candidates that claims are being written for.
    pub(super) out: HashSet<JobId>,
    /// The queues whose jobs are held back.
    pub(super) paused: HashSet<QueueName>,
    /// When the background loop plans to wake up.
    pub(super) wake_at: Option<Timestamp>,
}

pub(super) struct Waiter<Handed> {
    pub(super) claimant: Claimant,
    pub(super) hand: oneshot::Sender<Handed>,
}

impl<Handed> Waiter<Handed> {
    pub(super) fn queues(&self) -> &[QueueName] {
        &self.claimant.request.queues
    }

    pub(super) fn wish(&self) -> Wish<'_> {
        Wish::of(&self.claimant.request)
    }
}

impl<Handed> Default for Board<Handed> {
    fn default() -> Self {
        Self {
            lanes: HashMap::new(),
            waiters: HashMap::new(),
            next_waiter: 0,
            reserved: HashSet::new(),
            members: Arc::default(),
            out: HashSet::new(),
            paused: HashSet::new(),
            wake_at: None,
        }
    }
}

impl<Handed> Board<Handed> {
    pub(super) fn lane(&mut self, queue: &QueueName) -> &mut Lane {
        let shared = || Lane { shares: self.members.shares(queue), ..Lane::default() };
        self.lanes.entry(queue.clone()).or_insert_with(shared)
    }

    /// Shares out the queues anew. Jobs of partitions that this manager has no more are dropped, and those that it gets
    /// are to be searched for.
    pub(super) fn share(&mut self, members: Members) {
        for (queue, lane) in self.lanes.iter_mut().filter(|(queue, _)| !members.share_alike(&self.members, queue)) {
            let shares = members.shares(queue);
            if shares != lane.shares {
                lane.shares = shares;
                lane.keep_own();
            }
        }
        self.members = Arc::new(members);
    }

    pub(super) fn touch(&mut self, queues: &[QueueName], now: Timestamp) {
        for queue in queues {
            let lane = self.lane(queue);
            lane.last_claim_at = now;
            lane.asked = true;
        }
    }

    /// Adds an available job, or returns it if it is left to another manager, which hands it out soon.
    pub(super) fn add(&mut self, candidate: Versioned, now: Timestamp, config: &DispatchConfig) -> Option<Versioned> {
        if candidate.job.state != State::Available || self.out.contains(&candidate.job.id) {
            return None;
        }
        let queue = &candidate.job.spec.queue;
        if !self.lanes.contains_key(queue) {
            // In a store that sees its own writes at once, the first claim searches the queue and misses nothing.
            if config.poll_interval.is_none() || self.lanes.len() >= UNASKED_LANES {
                return None;
            }
            self.lane(queue).last_claim_at = now;
        }
        let lane = self.lanes.get_mut(queue)?;
        let capacity = if lane.asked { config.capacity } else { config.capacity.min(UNASKED_CAPACITY) };
        if lane.shares.has(&candidate.job) {
            lane.add(candidate, now, capacity);
        } else if lane.wants_at_once(&candidate.job, now) {
            lane.add_foreign(candidate, now, capacity);
        } else if candidate.job.run_at < now.plus(HORIZON) {
            return Some(candidate);
        }
        None
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

    /// Adds a waiting claim.
    pub(super) fn wait(&mut self, id: WaiterId, waiter: Waiter<Handed>) {
        for queue in waiter.queues() {
            self.lane(queue).waiting.insert(id);
        }
        self.waiters.insert(id, waiter);
    }

    /// Takes a claim from those that wait.
    pub(super) fn take_waiter(&mut self, id: WaiterId) -> Option<Waiter<Handed>> {
        let waiter = self.waiters.remove(&id)?;
        self.leave_lanes(id, waiter.queues());
        Some(waiter)
    }

    /// Lets a waiting claim go. Returns whether jobs are being written for it.
    pub(super) fn forget_waiter(&mut self, id: WaiterId) -> bool {
        self.take_waiter(id);
        self.reserved.remove(&id)
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

    /// Returns whether a search for the queue that was cut off is to go on before a claim has to wait for it.
    pub(super) fn is_to_go_on(&self, queue: &QueueName, config: &DispatchConfig) -> bool {
        !self.paused.contains(queue) && self.lanes.get(queue).is_some_and(|lane| lane.is_to_go_on(config))
    }

    pub(super) fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        self.waited_for().map(|(_, lane)| lane.next_wake(now, config)).min().unwrap_or_else(|| now.plus(LANE_IDLE))
    }
}
