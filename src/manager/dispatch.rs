//! Where jobs and waiting workers meet.
//!
//! For each queue a [`Lane`] keeps the next candidates in memory, the due ones in the order they are handed out and
//! the later ones by their time, and the claims that wait. Pure bookkeeping under one short lock: nothing here does
//! I/O, so the lock is never held across a wait.
//!
//! A candidate is a hint, not a promise: only an acknowledged conditional write makes it a claim. While a candidate is
//! with a claim it is *out*, and is not offered to a second one; an [`Offer`] that is dropped puts it back, so a
//! claim whose connection breaks takes no job with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Timestamp};
use crate::job::{JobId, QueueName, State};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// How far ahead candidates that are due later are kept, to be handed out at their moment without a search.
pub(super) const HORIZON: Duration = Duration::from_secs(120);

/// How long before its horizon ends a lane looks further ahead, if it has room.
const HORIZON_MARGIN: Duration = Duration::from_secs(60);

/// The finest difference between two times.
const MOMENT: Duration = Duration::from_millis(1);

/// How long a search that was cut off is gone on with, before it starts again with the most urgent: a search engine
/// still shows what was claimed since, so going on finds more than starting again, but misses what others added.
const RESTART: Duration = Duration::from_secs(2);

/// How long a lane that nobody asks for is remembered.
const LANE_IDLE: Duration = Duration::from_secs(300);

/// How many bytes of payload one claim takes at most, but for its first job: they are answered together.
const MAX_CLAIM_BYTES: usize = 32 << 20;

/// How many candidates are kept for a queue that nobody has asked for yet, and for how many such queues: where searches
/// lag, the first claim would not find what was submitted a moment ago.
const UNASKED_CAPACITY: usize = 200;
const UNASKED_LANES: usize = 1_000;

/// Below this share of its capacity (one part in so many), a lane that does not hold all due jobs is filled again.
const LOW_WATER_PART: usize = 4;

/// The settings of a dispatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct DispatchConfig {
    /// How many due, and how many later candidates a lane keeps at most.
    pub(super) capacity: usize,
    /// How many candidates one search asks for at most.
    pub(super) page: usize,
    /// How often a lane is looked up while claims wait; `None` where nobody else writes, so that what a lane knows
    /// stays true.
    pub(super) poll_interval: Option<Duration>,
}

/// Candidates and waiting claims. Cheap to clone: clones share everything.
#[derive(Clone)]
pub(super) struct Dispatch {
    shared: Arc<DispatchShared>,
}

struct DispatchShared {
    board: Mutex<Board>,
    clock: Arc<dyn Clock>,
    config: DispatchConfig,
    /// Told when the background loop has something to do sooner than it planned.
    sooner: Notify,
}

#[derive(Default)]
struct Board {
    lanes: HashMap<QueueName, Lane>,
    waiters: HashMap<WaiterId, Waiter>,
    next_waiter: u64,
    /// The candidates that claims are being written for.
    out: HashSet<JobId>,
    /// When the background loop means to wake up.
    wake_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct WaiterId(u64);

struct Waiter {
    queues: Vec<QueueName>,
    max_jobs: usize,
    hand: oneshot::Sender<Offer>,
}

/// One queue's part.
#[derive(Default)]
struct Lane {
    due: BTreeMap<SortKey, Versioned>,
    later: BTreeMap<(Timestamp, JobId), Versioned>,
    places: HashMap<JobId, Place>,
    waiting: BTreeSet<WaiterId>,
    /// When the store was last searched for the most urgent jobs of this queue.
    looked_up_at: Option<Timestamp>,
    /// Where that search was cut off.
    resume: Option<SortKey>,
    /// Whether the store may hold due jobs that the lane does not.
    incomplete: bool,
    /// Jobs due from this time on may be missing.
    known_until: Timestamp,
    /// When a claim last named the queue, or the lane was made.
    asked_at: Timestamp,
    /// Whether a claim ever named the queue.
    asked: bool,
    /// Held while the store is searched for this queue, so that one search serves all who need it.
    lookup: Arc<tokio::sync::Mutex<()>>,
}

enum Place {
    Due(SortKey),
    Later(Timestamp),
}

/// Candidates handed to one claim. What is not taken out goes back when it is dropped.
pub(super) struct Offer {
    candidates: Vec<Versioned>,
    dispatch: Dispatch,
}

impl Offer {
    /// Takes the candidates; the caller owes a [`Dispatch::settle`] for each.
    pub(super) fn take(mut self) -> Vec<Versioned> {
        std::mem::take(&mut self.candidates)
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let candidates = std::mem::take(&mut self.candidates);
        if !candidates.is_empty() {
            self.dispatch.put_back(candidates);
        }
    }
}

/// A claim that waits; forgotten when dropped.
pub(super) struct Waiting {
    id: WaiterId,
    dispatch: Dispatch,
    offer: oneshot::Receiver<Offer>,
}

impl Waiting {
    /// The candidates that came.
    pub(super) async fn offer(&mut self) -> Option<Offer> {
        (&mut self.offer).await.ok()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.dispatch.shared.board.lock().forget_waiter(self.id);
    }
}

/// What to search the store for, for one queue.
pub(super) struct Lookup {
    /// Jobs due at this time or before, in the order they are handed out.
    pub(super) now: Timestamp,
    /// After this one.
    pub(super) resume: Option<SortKey>,
    /// Then jobs due after the first time and not after the second, if they are wanted.
    pub(super) later: Option<(Timestamp, Timestamp)>,
    /// How many of each at most.
    pub(super) limit: usize,
}

/// What a search of the store has found.
pub(super) struct Found {
    /// Due jobs.
    pub(super) due: Vec<Versioned>,
    /// Jobs due later.
    pub(super) later: Vec<Versioned>,
}

/// What the background loop has to do now, and when it should look again.
pub(super) struct Plan {
    /// Queues with waiting claims that the store should be searched for.
    pub(super) lookups: Vec<QueueName>,
    /// When to plan again at the latest.
    pub(super) wake_at: Timestamp,
}

impl Dispatch {
    pub(super) fn new(config: DispatchConfig, clock: Arc<dyn Clock>) -> Self {
        let shared = DispatchShared { board: Mutex::default(), clock, config, sooner: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Adds jobs that are available, and hands them on to claims that wait for their queues.
    pub(super) fn add(&self, candidates: impl IntoIterator<Item = Versioned>) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let mut touched: Vec<QueueName> = Vec::new();
        for candidate in candidates {
            let queue = &candidate.job.spec.queue;
            if touched.last() != Some(queue) {
                touched.push(queue.clone());
            }
            board.add(candidate, now, &self.shared.config);
        }
        for queue in &touched {
            self.serve(&mut board, queue, now);
        }
        self.wake_if_sooner(&mut board, &touched, now);
    }

    /// Takes up to `max_jobs` due candidates, the most urgent of all `queues` first.
    pub(super) fn take(&self, queues: &[QueueName], max_jobs: usize) -> Option<Offer> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(queues, now);
        self.take_locked(&mut board, queues, max_jobs, now)
    }

    /// Takes candidates as [`Dispatch::take`] does or, when there are none, joins those who wait.
    pub(super) fn take_or_wait(&self, queues: &[QueueName], max_jobs: usize) -> Result<Offer, Waiting> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(queues, now);
        if let Some(offer) = self.take_locked(&mut board, queues, max_jobs, now) {
            return Ok(offer);
        }
        let id = WaiterId(board.next_waiter);
        board.next_waiter += 1;
        let (hand, offer) = oneshot::channel();
        for queue in queues {
            board.lane(queue).waiting.insert(id);
        }
        board.waiters.insert(id, Waiter { queues: queues.to_vec(), max_jobs, hand });
        self.wake_if_sooner(&mut board, queues, now);
        Err(Waiting { id, dispatch: self.clone(), offer })
    }

    /// A claim for this candidate has been decided: it is no longer out. `still_available` gives the job as it is now,
    /// when it can be claimed yet.
    pub(super) fn settle(&self, id: &JobId, still_available: Option<Versioned>) {
        self.shared.board.lock().out.remove(id);
        if let Some(candidate) = still_available {
            self.add([candidate]);
        }
    }

    /// [`Dispatch::settle`] for many that are gone.
    pub(super) fn settle_all<'a>(&self, ids: impl IntoIterator<Item = &'a JobId>) {
        let mut board = self.shared.board.lock();
        for id in ids {
            board.out.remove(id);
        }
    }

    /// The job is no longer available as it was: it is not offered again unless it is added again.
    pub(super) fn forget(&self, queue: &QueueName, id: &JobId) {
        if let Some(lane) = self.shared.board.lock().lanes.get_mut(queue) {
            lane.remove(id);
        }
    }

    /// The store may hold due jobs of `queue` that the lane does not know, because a write's outcome was not learnt.
    pub(super) fn mark_incomplete(&self, queue: &QueueName) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.lane(queue).incomplete = true;
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Which of `queues` the store has to be searched for before a claim on them can be told that there is nothing.
    pub(super) fn stale<'a>(&self, queues: &'a [QueueName]) -> Vec<&'a QueueName> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(queues, now);
        queues.iter().filter(|queue| board.lane(queue).needs_lookup(now, &self.shared.config)).collect()
    }

    /// The lock under which the store is searched for `queue`.
    pub(super) fn lookup_lock(&self, queue: &QueueName) -> Arc<tokio::sync::Mutex<()>> {
        self.shared.board.lock().lane(queue).lookup.clone()
    }

    /// A search for `queue` begins: what is added or lost from now on counts on top of what it finds. `None` when it
    /// is no longer needed because somebody else has searched meanwhile.
    pub(super) fn begin_lookup(&self, queue: &QueueName) -> Option<Lookup> {
        let now = self.shared.clock.now();
        let config = &self.shared.config;
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        if !lane.needs_lookup(now, config) {
            return None;
        }
        lane.incomplete = false;
        let recent = lane.looked_up_at.is_some_and(|at| now.since(at) < RESTART);
        let resume = lane.resume.take().filter(|_| recent && config.poll_interval.is_some());
        if resume.is_none() {
            lane.looked_up_at = Some(now);
        }
        let later = lane.needs_later(now, config).then(|| {
            // From the first moment that is not known; the end before it is excluded.
            let after = lane.known_until.minus(MOMENT).max(now);
            (after, after.plus(HORIZON))
        });
        lane.known_until = later.map_or(lane.known_until, |(_, until)| until.plus(MOMENT));
        Some(Lookup { now, resume, later, limit: config.capacity.min(config.page) })
    }

    /// The search that began is done; what `fresh` denies is known to have moved on since.
    pub(super) fn end_lookup(
        &self,
        queue: &QueueName,
        lookup: &Lookup,
        found: Found,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let due_cut_off = found.due.len() >= lookup.limit;
        let later_cut_off = found.later.len() >= lookup.limit;
        let last_due = found.due.last().map(|last| Sort::Dispatch.key(&last.job));
        let last_later = found.later.last().map(|last| last.job.run_at);
        self.add(found.due.into_iter().chain(found.later).filter(fresh));
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        lane.incomplete |= due_cut_off;
        lane.resume = last_due.filter(|_| due_cut_off);
        if let (Some(last), Some((after, _)), true) = (last_later, lookup.later, later_cut_off) {
            // At least one moment further than before, so that a moment with more jobs than a page ends. What is
            // missed of it is found once it is due.
            lane.known_until = lane.known_until.min(last.max(after.plus(MOMENT).plus(MOMENT)));
        }
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// The search that began has failed.
    pub(super) fn fail_lookup(&self, queue: &QueueName) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        lane.incomplete = true;
        lane.resume = None;
        lane.looked_up_at = Some(now);
    }

    /// Hands out what has become due, forgets lanes that nobody asks for, and says what to search for.
    pub(super) fn plan(&self) -> Plan {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let waited_for: Vec<QueueName> =
            board.lanes.iter().filter(|(_, lane)| !lane.waiting.is_empty()).map(|(queue, _)| queue.clone()).collect();
        for queue in &waited_for {
            self.serve(&mut board, queue, now);
        }
        board.lanes.retain(|_, lane| !lane.is_idle(now));
        let config = &self.shared.config;
        let lookups: Vec<QueueName> = board
            .lanes
            .iter()
            .filter(|(_, lane)| !lane.waiting.is_empty() && lane.needs_lookup(now, config))
            .map(|(queue, _)| queue.clone())
            .collect();
        let wake_at = board.next_wake(now, config);
        board.wake_at = Some(wake_at);
        Plan { lookups, wake_at }
    }

    /// Waits until [`Dispatch::plan`] should be asked sooner than it said.
    pub(super) async fn sooner(&self) {
        self.shared.sooner.notified().await;
    }

    /// How many claims wait.
    pub(super) fn waiting(&self) -> usize {
        self.shared.board.lock().waiters.len()
    }

    fn put_back(&self, candidates: Vec<Versioned>) {
        {
            let mut board = self.shared.board.lock();
            for candidate in &candidates {
                board.out.remove(&candidate.job.id);
            }
        }
        self.add(candidates);
    }

    fn take_locked(&self, board: &mut Board, queues: &[QueueName], max_jobs: usize, now: Timestamp) -> Option<Offer> {
        let candidates = board.take(queues, max_jobs, now);
        (!candidates.is_empty()).then(|| Offer { candidates, dispatch: self.clone() })
    }

    /// Hands due candidates of `queue` to those who have waited longest.
    fn serve(&self, board: &mut Board, queue: &QueueName, now: Timestamp) {
        loop {
            let Some(lane) = board.lanes.get_mut(queue) else { return };
            lane.promote(now);
            if lane.due.is_empty() {
                return;
            }
            let Some(&id) = lane.waiting.first() else { return };
            let Some(waiter) = board.forget_waiter(id) else { return };
            let Some(offer) = self.take_locked(board, &waiter.queues, waiter.max_jobs, now) else { return };
            if let Err(unwanted) = waiter.hand.send(offer) {
                // The claim is gone. Put its candidates back without `Offer`'s drop, which would take the lock again.
                for candidate in unwanted.take() {
                    board.out.remove(&candidate.job.id);
                    board.add(candidate, now, &self.shared.config);
                }
            }
        }
    }

    /// Wakes the background loop when one of `queues` needs it sooner than it planned.
    fn wake_if_sooner(&self, board: &mut Board, queues: &[QueueName], now: Timestamp) {
        let next = queues
            .iter()
            .filter_map(|queue| board.lanes.get(queue))
            .filter(|lane| !lane.waiting.is_empty())
            .map(|lane| lane.next_wake(now, &self.shared.config))
            .min();
        if let Some(next) = next
            && board.wake_at.is_none_or(|planned| next < planned)
        {
            board.wake_at = Some(next);
            self.shared.sooner.notify_one();
        }
    }
}

impl Board {
    fn lane(&mut self, queue: &QueueName) -> &mut Lane {
        self.lanes.entry(queue.clone()).or_default()
    }

    fn touch(&mut self, queues: &[QueueName], now: Timestamp) {
        for queue in queues {
            let lane = self.lane(queue);
            lane.asked_at = now;
            lane.asked = true;
        }
    }

    fn add(&mut self, candidate: Versioned, now: Timestamp, config: &DispatchConfig) {
        if candidate.job.state != State::Available || self.out.contains(&candidate.job.id) {
            return;
        }
        let queue = &candidate.job.spec.queue;
        if !self.lanes.contains_key(queue) {
            // On a store that sees its own writes at once, the first claim looks the queue up and misses nothing.
            if config.poll_interval.is_none() || self.lanes.len() >= UNASKED_LANES {
                return;
            }
            self.lane(queue).asked_at = now;
        }
        if let Some(lane) = self.lanes.get_mut(queue) {
            let capacity = if lane.asked { config.capacity } else { config.capacity.min(UNASKED_CAPACITY) };
            lane.add(candidate, now, capacity);
        }
    }

    fn take(&mut self, queues: &[QueueName], max_jobs: usize, now: Timestamp) -> Vec<Versioned> {
        for queue in queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.promote(now);
            }
        }
        let mut taken: Vec<Versioned> = Vec::new();
        let mut bytes = 0;
        while taken.len() < max_jobs {
            let first = |queue: &&QueueName| self.lanes.get(*queue).and_then(|lane| lane.due.first_key_value());
            let Some(queue) = queues
                .iter()
                .filter(|queue| first(queue).is_some())
                .min_by(|a, b| first(a).map(|entry| entry.0).cmp(&first(b).map(|entry| entry.0)))
            else {
                break;
            };
            let Some(lane) = self.lanes.get_mut(queue) else { break };
            bytes += lane.due.first_key_value().map_or(0, |(_, first)| first.job.payload.bytes());
            if bytes > MAX_CLAIM_BYTES && !taken.is_empty() {
                break;
            }
            let Some((_, candidate)) = lane.due.pop_first() else { break };
            lane.places.remove(&candidate.job.id);
            self.out.insert(candidate.job.id.clone());
            taken.push(candidate);
        }
        taken
    }

    fn forget_waiter(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.waiters.remove(&id)?;
        for queue in &waiter.queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.waiting.remove(&id);
            }
        }
        Some(waiter)
    }

    fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        self.lanes
            .values()
            .filter(|lane| !lane.waiting.is_empty())
            .map(|lane| lane.next_wake(now, config))
            .min()
            .unwrap_or_else(|| now.plus(LANE_IDLE))
    }
}

impl Lane {
    fn add(&mut self, candidate: Versioned, now: Timestamp, capacity: usize) {
        let id = candidate.job.id.clone();
        if self.held(&id).is_some_and(|held| held.version >= candidate.version) {
            return;
        }
        self.remove(&id);
        let run_at = candidate.job.run_at;
        if run_at > now {
            // What is due beyond the horizon is found in the store when its time is near.
            if run_at >= self.known_until.max(now.plus(HORIZON)) {
                return;
            }
            self.places.insert(id.clone(), Place::Later(run_at));
            self.later.insert((run_at, id), candidate);
            if self.later.len() > capacity
                && let Some(((dropped_at, dropped), _)) = self.later.pop_last()
            {
                self.places.remove(&dropped);
                self.known_until = self.known_until.min(dropped_at);
            }
            return;
        }
        self.insert_due(candidate);
        if self.due.len() > capacity
            && let Some((_, dropped)) = self.due.pop_last()
        {
            self.places.remove(&dropped.job.id);
            self.incomplete = true;
        }
    }

    fn insert_due(&mut self, candidate: Versioned) {
        let key = Sort::Dispatch.key(&candidate.job);
        self.places.insert(candidate.job.id.clone(), Place::Due(key.clone()));
        self.due.insert(key, candidate);
    }

    fn held(&self, id: &JobId) -> Option<&Versioned> {
        match self.places.get(id)? {
            Place::Due(key) => self.due.get(key),
            Place::Later(run_at) => self.later.get(&(*run_at, id.clone())),
        }
    }

    fn remove(&mut self, id: &JobId) {
        match self.places.remove(id) {
            Some(Place::Due(key)) => {
                self.due.remove(&key);
            }
            Some(Place::Later(run_at)) => {
                self.later.remove(&(run_at, id.clone()));
            }
            None => {}
        }
    }

    /// Moves what has become due among the due.
    fn promote(&mut self, now: Timestamp) {
        while let Some(entry) = self.later.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let candidate = entry.remove();
            self.insert_due(candidate);
        }
    }

    fn needs_lookup(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let Some(looked_up_at) = self.looked_up_at else { return true };
        let low = self.due.len() < (config.capacity / LOW_WATER_PART).max(1);
        let wants_due = match config.poll_interval {
            None => self.incomplete && low,
            // Others write too: look again after a while, at once only where the last search was cut off.
            Some(interval) => {
                let age = now.since(looked_up_at);
                age >= RESTART.max(interval) || (low && (age >= interval || self.resume.is_some()))
            }
        };
        wants_due || self.needs_later(now, config)
    }

    fn needs_later(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let has_room = self.later.len() <= config.capacity / 2;
        self.known_until <= now || (has_room && self.known_until <= now.plus(HORIZON_MARGIN))
    }

    fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        if self.needs_lookup(now, config) {
            return now;
        }
        let mut wake = self.known_until.minus(HORIZON_MARGIN);
        if wake <= now {
            // No room to look further ahead yet.
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

    fn is_idle(&self, now: Timestamp) -> bool {
        self.waiting.is_empty() && now.since(self.asked_at) >= LANE_IDLE
    }
}

#[cfg(test)]
mod tests;
