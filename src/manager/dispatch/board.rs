//! The state of the dispatch: the candidates by queue, and the waiting claims. It has no locks, no clock and no I/O.

use std::collections::{HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;

use foldhash::quality::RandomState;
use tokio::sync::oneshot;

use super::first_search::FirstSearch;
use super::held::Held;
use super::lane::{DispatchConfig, HORIZON, LANE_IDLE, Lane, WaiterId};
use super::open_queues::OpenQueues;
use super::queue_turns::QueueTurns;
use super::quiet::Overviews;
use super::room::{Walk, Wish, meets};
use super::shares::Members;
use super::turns::{Rule, Turns};
use crate::clock::{Clock, Timestamp};
use crate::job::{Job, JobId, Kind, QueueName};
use crate::manager::claimant::Claimant;
use crate::manager::request::ClaimOrder;
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
    pub(super) lanes: HashMap<QueueName, Lane, RandomState>,
    pub(super) waiters: HashMap<WaiterId, Waiter<Handed>>,
    pub(super) next_waiter: u64,
    /// The waiting claims that are neither with the others nor gone, while jobs are being written for them.
    pub(super) reserved: HashSet<WaiterId>,
    /// The managers that share the queues.
    pub(super) members: Arc<Members>,
    /// The candidates that claims are being written for.
    pub(super) out: HashSet<JobId, RandomState>,
    /// The queues whose jobs are held back.
    pub(super) paused: HashSet<QueueName>,
    /// Who is next in queues whose jobs do not go in the order of dispatch.
    pub(super) rules: HashMap<QueueName, Rule>,
    /// Whose turn it is among the queues of claims that take from theirs by weight.
    pub(super) queue_turns: QueueTurns,
    /// The jobs that limits hold, or that are not first in their lines.
    pub(super) held: Held,
    /// Whether a claim is to be served again, since a lane leaves to the store what did not suit it.
    pub(super) looks_behind: bool,
    /// When overviews were made.
    pub(super) overviews: Overviews,
    /// The clock of the lanes.
    pub(super) clock: Option<Arc<dyn Clock>>,
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

/// The most waiting claims that are asked whether a job of another manager's partition suits them.
const ASKED: usize = 64;

/// Returns whether the job suits a claim that waits for the queue of `lane`, as far as that is looked into; `true` if
/// none waits.
pub(super) fn may_suit<Handed>(lane: &Lane, waiters: &HashMap<WaiterId, Waiter<Handed>>, job: &Job) -> bool {
    let suits = |waiter: &Waiter<Handed>| waiter.wish().suits(job, &waiter.claimant.request.resources);
    let mut asked = lane.waiting.iter().take(ASKED).filter_map(|id| waiters.get(id));
    lane.waiting.is_empty() || lane.waiting.len() > ASKED || asked.any(suits)
}

impl<Handed> Default for Board<Handed> {
    fn default() -> Self {
        Self {
            lanes: HashMap::default(),
            waiters: HashMap::new(),
            next_waiter: 0,
            reserved: HashSet::new(),
            members: Arc::default(),
            out: HashSet::default(),
            paused: HashSet::new(),
            rules: HashMap::new(),
            queue_turns: QueueTurns::default(),
            held: Held::default(),
            looks_behind: false,
            overviews: Overviews::default(),
            clock: None,
            wake_at: None,
        }
    }
}

impl<Handed> Board<Handed> {
    pub(super) fn lane(&mut self, queue: &QueueName) -> &mut Lane {
        let turns = || Turns::by(self.rules.get(queue));
        let (shares, clock) = (|| self.members.shares(queue), || self.clock.clone());
        let shared = || Lane { shares: shares(), turns: turns(), clock: clock(), ..Lane::default() };
        self.lanes.entry(queue.clone()).or_insert_with(shared)
    }

    /// Shares out the queues anew. Jobs of partitions that this manager has no more are dropped, and those that it gets
    /// are to be searched for.
    pub(super) fn share(&mut self, members: Members) {
        for (queue, lane) in self.lanes.iter_mut().filter(|(queue, _)| !members.share_alike(&self.members, queue)) {
            let shares = members.shares(queue);
            if shares != lane.shares {
                if lane.shares.own.is_empty() {
                    // Nothing of the queue was searched for.
                    lane.first_search = FirstSearch::NotMade;
                }
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

    /// Takes note of what a claim offers that takes jobs now.
    pub(super) fn note(&mut self, wish: &Wish<'_>, now: Timestamp) {
        for queue in wish.queues {
            let lane = self.lane(queue);
            (lane.last_claim_at, lane.asked) = (now, true);
            lane.note(wish, now);
        }
    }

    /// Returns the jobs that are held, and which queues somebody takes jobs from.
    pub(super) fn held_and_open(&mut self, now: Timestamp) -> (&mut Held, OpenQueues<'_>) {
        let Self { held, lanes, paused, .. } = self;
        (held, OpenQueues { lanes, paused, now })
    }

    /// Adds an available job. Returns it if it is left to another manager, which hands it out soon.
    pub(super) fn add(&mut self, candidate: Versioned, now: Timestamp, config: &DispatchConfig) -> Option<Versioned> {
        if !candidate.job.is_claimable() || self.out.contains(&candidate.job.id) {
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
            // What is not due yet waits for its time first.
            let candidate = if candidate.job.is_due(now) { self.held.keep(candidate)? } else { candidate };
            let is_left = self.members.leaves(&candidate.job.spec.queue, &candidate.job.spec.kind);
            let left = (is_left && candidate.job.run_at < now.plus(HORIZON)).then(|| candidate.clone());
            lane.add(candidate, now, capacity);
            return left;
        } else if lane.wants_at_once(&candidate.job, now)
            && may_suit(lane, &self.waiters, &candidate.job)
            // Without a slot for it here, the manager that gets the hint holds it.
            && self.held.holder_of(&candidate.job).is_none()
        {
            lane.add_foreign(candidate, now, capacity);
        } else if candidate.job.run_at < now.plus(HORIZON) {
            return Some(candidate);
        }
        None
    }

    /// Lets these rules say who is next, in exactly these queues. Returns whether that changes anything.
    pub(super) fn set_rules(&mut self, rules: HashMap<QueueName, Rule>) -> bool {
        if rules == self.rules {
            return false;
        }
        self.rules = rules;
        for (queue, lane) in &mut self.lanes {
            lane.set_rule(self.rules.get(queue));
        }
        true
    }

    /// Takes due candidates, in the order of the wish. Skips at most `steps` candidates that ask for more
    /// than is offered, and subtracts the skipped ones from `steps`.
    ///
    /// A worker without stated resources suits most jobs, so its claim takes the first candidate without a walk, until
    /// one requires what the worker does not offer, or is of a kind that the claim does not take.
    pub(super) fn take(&mut self, wish: &Wish<'_>, now: Timestamp, steps: &mut usize) -> Vec<Versioned> {
        for queue in wish.queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.promote(now);
            }
        }
        let mut walk = (!wish.resources.is_empty() || self.has_kinds_of(wish)).then(|| {
            self.index_kinds(wish, now);
            Walk::of(wish, *steps)
        });
        let mut taken: Vec<Versioned> = Vec::new();
        let mut bytes = 0;
        while taken.len() < wish.max_jobs {
            let picked = match &mut walk {
                None => self.next_queue(wish).map(|queue| (queue, None)),
                Some(walk) => self.next_suiting(wish, walk).map(|(queue, key)| (queue, Some(key))),
            };
            let Some((queue, key)) = picked else { break };
            let Some(lane) = self.lanes.get_mut(queue) else { break };
            let Some(candidate) = lane.at_or_next(key.as_ref(), wish.kinds) else { break };
            if walk.is_none() && !(wish.takes(&candidate.job) && meets(wish.labels, &candidate.job)) {
                self.index_kinds(wish, now);
                walk = Some(Walk::of(wish, *steps));
                continue;
            }
            let holding = self.held.holder_of(&candidate.job);
            if holding.is_none() {
                bytes += candidate.job.payload.bytes();
                if bytes > MAX_CLAIM_BYTES && !taken.is_empty() {
                    break;
                }
                if let Some(walk) = &mut walk {
                    walk.use_up(&candidate.job);
                }
            }
            let Some(candidate) = lane.take_out(key.as_ref(), holding.is_none()) else { break };
            if let Some(by) = holding {
                self.held.hold(&by, candidate);
                continue;
            }
            lane.note_taken(&candidate.job);
            self.held.is_taken(&candidate.job);
            if let Some(weights) = wish.order.weights() {
                self.queue_turns.hand_out(weights, queue, now);
            }
            self.out.insert(candidate.job.id.clone());
            taken.push(candidate);
        }
        let steps_of = walk.map(|walk| (walk.steps, walk.is_exhausted())).filter(|(passed, _)| *passed > 0);
        *steps = steps.saturating_sub(steps_of.map_or(0, |(passed, _)| passed));
        if taken.len() < wish.max_jobs {
            for queue in wish.queues.iter().filter(|queue| !self.paused.contains(*queue)) {
                if let Some(lane) = self.lanes.get_mut(queue) {
                    self.looks_behind |= lane.look_behind(wish, steps_of.map(|(_, is_exhausted)| is_exhausted), now);
                }
            }
        }
        taken
    }

    /// Returns the queue from which the claim takes next.
    fn next_queue<'q>(&self, wish: &Wish<'q>) -> Option<&'q QueueName> {
        let with_next = self.with_next(wish.queues, &[]).map(|(_, queue, first)| (queue, first));
        let next = match wish.order {
            ClaimOrder::Dispatch => with_next.min_by(|(_, a), (_, b)| a.cmp(b)),
            ClaimOrder::Strict => with_next.into_iter().next(),
            ClaimOrder::Weighted(weights) => {
                with_next.min_by_key(|(queue, first)| (self.queue_turns.start(weights, queue), *first))
            }
        };
        next.map(|(queue, _)| queue)
    }

    /// Returns those of a claim's queues that have due candidates, of these kinds if any are named, were searched for
    /// and are not held back: the places in the claim, the names, and the keys of the next candidates.
    fn with_next<'q>(
        &self,
        queues: &'q [QueueName],
        kinds: &[Kind],
    ) -> impl Iterator<Item = (usize, &'q QueueName, &SortKey)> {
        let is_open = |(_, queue): &(usize, &QueueName)| !self.paused.contains(*queue);
        queues.iter().enumerate().filter(is_open).filter_map(|(index, queue)| {
            let next = self.lanes.get(queue).filter(|lane| lane.first_search.is_over())?.next_of(kinds)?;
            Some((index, queue, next))
        })
    }

    /// Returns the next due candidate of the claim's queues that suits it.
    fn next_suiting<'q>(&self, wish: &Wish<'q>, walk: &mut Walk<'_>) -> Option<(&'q QueueName, SortKey)> {
        let with_next = self.with_next(wish.queues, wish.kinds);
        let queues = match wish.order {
            ClaimOrder::Dispatch => {
                let mut best: Option<(&QueueName, &SortKey)> = None;
                for (index, queue, _) in with_next {
                    let next = self.first_suiting(index, queue, best.map(|(_, first)| first), walk);
                    best = best.into_iter().chain(next.map(|key| (queue, key))).min_by_key(|(_, key)| *key);
                }
                return best.map(|(queue, key)| (queue, key.clone()));
            }
            ClaimOrder::Strict => with_next.collect(),
            ClaimOrder::Weighted(weights) => {
                let mut queues: Vec<_> = with_next.collect();
                queues.sort_by_key(|(_, queue, first)| (self.queue_turns.start(weights, queue), *first));
                queues
            }
        };
        let mut suiting = queues.into_iter().filter_map(|(index, queue, _)| {
            let key = self.first_suiting(index, queue, None, walk)?;
            Some((queue, key.clone()))
        });
        suiting.next()
    }

    /// Returns the first due candidate of a queue that suits the claim, unless the key `before` comes first. `index` is
    /// the place of the queue in the claim.
    fn first_suiting(
        &self,
        index: usize,
        queue: &QueueName,
        before: Option<&SortKey>,
        walk: &mut Walk<'_>,
    ) -> Option<&SortKey> {
        let lane = self.lanes.get(queue)?;
        if !walk.kinds().is_empty() && lane.kinds.is_some() {
            return lane.next_suiting_of_kinds(index, before, walk);
        }
        if let Some(turns) = &lane.turns {
            return turns.next_suiting(&lane.due, index, walk);
        }
        let from = walk.passed[index].clone().map_or(Bound::Unbounded, Bound::Excluded);
        for (key, candidate) in lane.due.range((from, Bound::Unbounded)) {
            if before.is_some_and(|before| before < key) {
                return None;
            }
            if walk.suits(&candidate.job) {
                return Some(key);
            }
            walk.passed[index] = Some(key.clone());
            if !walk.step() {
                return None;
            }
        }
        None
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
    pub(super) fn is_to_go_on(&self, queue: &QueueName, now: Timestamp, config: &DispatchConfig) -> bool {
        !self.paused.contains(queue) && self.lanes.get(queue).is_some_and(|lane| lane.is_to_go_on(now, config))
    }

    /// Removes what no claim has asked for in a while.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        self.lanes.retain(|_, lane| !lane.is_idle(now));
        self.lanes.values_mut().for_each(|lane| lane.forget_kinds(now));
        self.queue_turns.forget_idle(now);
    }

    pub(super) fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        let of_lanes = self.waited_for().map(|(_, lane)| lane.next_wake(now, config));
        let next = of_lanes.chain(self.next_overview(now, config)).min();
        next.map_or_else(|| now.plus(LANE_IDLE), |next| next.max(now))
    }
}
