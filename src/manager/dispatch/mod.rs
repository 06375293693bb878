//! Where jobs and waiting workers meet.
//!
//! For each queue a [`Lane`] keeps the next candidates in memory, the due ones in the order they are handed out and
//! the later ones by their time, and the claims that wait. Pure bookkeeping under one short lock: nothing here does
//! I/O, so the lock is never held across a wait.
//!
//! A candidate is a hint, not a promise: only an acknowledged conditional write makes it a claim. While a candidate
//! is with a claim it is *out*, and is not offered to a second one; an [`Offer`] that is dropped puts it back, so a
//! claim whose connection breaks takes no job with it.

mod board;
mod refill;
mod room;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Timestamp};
use crate::job::{Job, JobId, QueueName};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;
pub(super) use board::DispatchConfig;
use board::{Board, HORIZON, MOMENT, RESTART, Waiter, WaiterId};
pub(super) use room::{Resources, Wish, fits};
use room::{STEPS_PER_CLAIM, STEPS_PER_SERVING};

/// Candidates and waiting claims. Cheap to clone: clones share everything.
#[derive(Clone)]
pub(super) struct Dispatch {
    shared: Arc<DispatchState>,
}

struct DispatchState {
    board: Mutex<Board<Offer>>,
    clock: Arc<dyn Clock>,
    config: DispatchConfig,
    /// Notified when the background loop has something to do sooner than it planned.
    sooner: Notify,
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
pub(super) struct WaitingClaim {
    id: WaiterId,
    dispatch: Dispatch,
    offer: oneshot::Receiver<Offer>,
}

impl WaitingClaim {
    /// The candidates that came.
    pub(super) async fn offer(&mut self) -> Option<Offer> {
        (&mut self.offer).await.ok()
    }
}

impl Drop for WaitingClaim {
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
pub(super) struct LookupResult {
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
        let shared = DispatchState { board: Mutex::default(), clock, config, sooner: Notify::new() };
        Self { shared: Arc::new(shared) }
    }

    /// Adds jobs that are available, and hands them on to claims that wait for their queues.
    pub(super) fn add(&self, candidates: impl IntoIterator<Item = Versioned>) {
        let mut candidates = candidates.into_iter().peekable();
        if candidates.peek().is_none() {
            return;
        }
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

    /// Takes due candidates, the most urgent of all queues first.
    pub(super) fn take(&self, wish: &Wish<'_>) -> Option<Offer> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(wish.queues, now);
        let mut steps = STEPS_PER_CLAIM;
        self.take_locked(&mut board, wish, now, &mut steps)
    }

    /// Takes candidates as [`Dispatch::take`] does or, when there are none, joins those who wait.
    pub(super) fn take_or_wait(&self, wish: &Wish<'_>) -> Result<Offer, WaitingClaim> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.touch(wish.queues, now);
        let mut steps = STEPS_PER_CLAIM;
        if let Some(offer) = self.take_locked(&mut board, wish, now, &mut steps) {
            return Ok(offer);
        }
        let id = WaiterId(board.next_waiter);
        board.next_waiter += 1;
        let (hand, offer) = oneshot::channel();
        for queue in wish.queues {
            board.lane(queue).waiting.insert(id);
        }
        let (queues, resources) = (wish.queues.to_vec(), wish.resources.clone());
        board.waiters.insert(id, Waiter { queues, max_jobs: wish.max_jobs, resources, hand });
        self.wake_if_sooner(&mut board, wish.queues, now);
        Err(WaitingClaim { id, dispatch: self.clone(), offer })
    }

    /// Holds the jobs of these queues back, and of no others. Claims that wait for one that is no longer held back
    /// are served at once.
    pub(super) fn hold_back(&self, paused: HashSet<QueueName>) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let former = std::mem::replace(&mut board.paused, paused);
        let resumed: Vec<QueueName> = former.into_iter().filter(|queue| !board.paused.contains(queue)).collect();
        for queue in &resumed {
            self.serve(&mut board, queue, now);
        }
        self.wake_if_sooner(&mut board, &resumed, now);
    }

    /// A claim for this candidate has been decided: it is no longer out. `still_available` gives the job as it is
    /// now, when it can be claimed yet.
    pub(super) fn settle(&self, id: &JobId, still_available: Option<Versioned>) {
        self.shared.board.lock().out.remove(id);
        if let Some(candidate) = still_available {
            self.add([candidate]);
        }
    }

    /// Removes jobs that are no longer available: they are not offered again unless they are added again.
    pub(super) fn remove<'a>(&self, jobs: impl Iterator<Item = &'a Job>) {
        let mut jobs = jobs.peekable();
        if jobs.peek().is_none() {
            return;
        }
        let mut board = self.shared.board.lock();
        for job in jobs {
            // A candidate is out or in its lane.
            if !board.out.remove(&job.id)
                && let Some(lane) = board.lanes.get_mut(&job.spec.queue)
            {
                lane.remove(&job.id);
            }
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
        let mut needs_lookup = |queue: &QueueName| {
            !board.paused.contains(queue) && board.lane(queue).needs_lookup(now, &self.shared.config)
        };
        queues.iter().filter(|queue| needs_lookup(queue)).collect()
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
        lane.frontier = None;
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
        found: LookupResult,
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
        lane.resume = last_due.filter(|_| due_cut_off);
        if due_cut_off {
            lane.ends_at(lane.resume.clone());
        }
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
        let waited_for: Vec<QueueName> = board.waited_for().map(|(queue, _)| queue.clone()).collect();
        for queue in &waited_for {
            self.serve(&mut board, queue, now);
        }
        board.lanes.retain(|_, lane| !lane.is_idle(now));
        let config = &self.shared.config;
        let lookups: Vec<QueueName> = board
            .waited_for()
            .filter(|(_, lane)| lane.needs_lookup(now, config))
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

    fn take_locked(
        &self,
        board: &mut Board<Offer>,
        wish: &Wish<'_>,
        now: Timestamp,
        steps: &mut usize,
    ) -> Option<Offer> {
        let candidates = board.take(wish, now, steps);
        (!candidates.is_empty()).then(|| Offer { candidates, dispatch: self.clone() })
    }

    /// Hands due candidates of `queue` to those who have waited longest, of those that have room for them.
    fn serve(&self, board: &mut Board<Offer>, queue: &QueueName, now: Timestamp) {
        if board.paused.contains(queue) {
            return;
        }
        let mut passed = None;
        let mut steps = STEPS_PER_SERVING;
        // What was offered in vain: the next worker that offers the same need not look.
        let mut in_vain: Vec<Resources> = Vec::new();
        // Ends: every turn serves a claim or passes one over.
        loop {
            let Some(lane) = board.lanes.get_mut(queue) else { return };
            lane.promote(now);
            if lane.due.is_empty() || steps == 0 {
                return;
            }
            let Some(id) = lane.waiting_after(passed) else { return };
            let Some(waiter) = board.waiters.remove(&id) else { return };
            let offer = match in_vain.contains(&waiter.resources) {
                true => None,
                false => self.take_locked(board, &waiter.wish(), now, &mut steps),
            };
            let Some(offer) = offer else {
                if !in_vain.contains(&waiter.resources) {
                    in_vain.push(waiter.resources.clone());
                }
                board.waiters.insert(id, waiter);
                passed = Some(id);
                steps = steps.saturating_sub(1);
                continue;
            };
            board.leave_lanes(id, &waiter.queues);
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
    fn wake_if_sooner(&self, board: &mut Board<Offer>, queues: &[QueueName], now: Timestamp) {
        let next = queues
            .iter()
            .filter(|queue| !board.paused.contains(*queue))
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

#[cfg(test)]
mod tests;
