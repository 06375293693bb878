//! Where jobs and waiting workers meet.
//!
//! For each queue a [`Lane`] keeps the next candidates in memory, the due ones in the order they are handed out and
//! the later ones by their time, and the claims that wait. Pure bookkeeping under one short lock: nothing here does
//! I/O, so the lock is never held across a wait.
//!
//! A candidate is a hint: only an acknowledged conditional write makes it a claim. While it is with a claim it is
//! *out*, and is offered to no second one. An [`Offer`] that is dropped puts it back, so that no job goes with it.

mod board;
mod elsewhere;
mod first_search;
mod held;
mod hinted;
mod holding;
mod kinds;
mod lane;
mod later;
mod leaving_out;
mod left_out;
mod level;
mod offers;
mod open_queues;
mod order;
mod overview;
mod queue_turns;
mod quiet;
mod refill;
mod reserve;
mod room;
mod shares;
mod since_look;
mod taking_kinds;
mod taking_turns;
mod turns;
mod urgent;
mod waited_for;

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, Timestamp};
use crate::job::{Job, JobId, PartitionSet, QueueName};
use crate::manager::claimant::{Claimant, Claimed};
use crate::manager::request::ManagerError;
use crate::query::{Sort, SortKey};
use crate::store::Versioned;
use board::{Board, Waiter};
use first_search::FirstSearch;
pub(super) use held::MOST_HELD;
pub(super) use lane::DispatchConfig;
use lane::{HORIZON, Lane, MOMENT, RESTART, RESTART_PAGE, WaiterId};
pub(super) use order::{Order, Unit};
use quiet::Overview;
pub(super) use reserve::Reservation;
pub(super) use room::{Resources, Wish, fits, meets};
use room::{STEPS_PER_CLAIM, STEPS_PER_SERVING, SameOffer};
pub(super) use shares::{KindsByQueue, Member, Members};
pub(super) use turns::Rule;

/// The candidates and the waiting claims. It is cheap to clone, and all clones share one state.
#[derive(Clone)]
pub(super) struct Dispatch {
    shared: Arc<DispatchState>,
}

struct DispatchState {
    board: Mutex<Board<Handed>>,
    clock: Arc<dyn Clock>,
    config: DispatchConfig,
    /// The notification that the background loop must act sooner than it planned.
    sooner: Notify,
    urgent: since_look::Turn,
}

/// The candidates that are handed to one claim. Candidates that were not taken go back when it is dropped.
pub(super) struct Offer {
    candidates: Vec<Versioned>,
    dispatch: Dispatch,
}

impl Offer {
    /// Takes the candidates. The caller must call [`Dispatch::settle`] for each.
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

/// What a waiting claim is given.
pub(super) enum Handed {
    /// Candidates, which it may claim.
    Offer(Offer),
    /// Jobs that were claimed for it in the write that created them, or why they cannot be given.
    Claimed(Result<Claimed, ManagerError>),
}

/// A waiting claim. Dropping it removes it from the dispatch.
pub(super) struct WaitingClaim {
    id: WaiterId,
    dispatch: Dispatch,
    hand: oneshot::Receiver<Handed>,
}

impl WaitingClaim {
    /// Waits for candidates or jobs and returns them.
    pub(super) async fn handed(&mut self) -> Option<Handed> {
        (&mut self.hand).await.ok()
    }

    /// Waits no longer, except for jobs that are being written for the claim.
    pub(super) async fn withdraw(mut self) -> Option<Handed> {
        let is_reserved = self.dispatch.shared.board.lock().forget_waiter(self.id);
        if is_reserved { self.handed().await } else { self.hand.try_recv().ok() }
    }
}

impl Drop for WaitingClaim {
    fn drop(&mut self) {
        self.dispatch.shared.board.lock().forget_waiter(self.id);
    }
}

/// A search of the store for the candidates of one queue.
pub(super) struct Lookup {
    /// The time by which the due jobs are due. They are found in the order in which they are handed out.
    pub(super) now: Timestamp,
    /// The key after which the search for due jobs starts.
    pub(super) resume: Option<SortKey>,
    /// The times after the first and up to the second of which later jobs are due; `None` when none are needed.
    pub(super) later: Option<(Timestamp, Timestamp)>,
    /// The most due jobs, and the most later jobs, to find.
    pub(super) limit: usize,
    /// The partitions whose jobs are searched for; `None` for all.
    pub(super) partitions: Option<PartitionSet>,
    /// Whether the owners take turns, so that those that have due jobs are to be counted first.
    pub(super) is_fair: bool,
    /// The time from which on later jobs were not known before.
    known_until: Timestamp,
    /// How far searches had come before the latest of them started again with the most urgent jobs.
    reached: Option<SortKey>,
}

/// The results of a search of the store.
#[derive(Default)]
pub(super) struct LookupResult {
    /// The jobs that are due.
    pub(super) due: Vec<Versioned>,
    /// The jobs that are due later.
    pub(super) later: Vec<Versioned>,
}

/// The work of the background loop now.
struct Plan {
    /// The queues for which the store must be searched: claims wait for them, or soon would.
    lookups: Vec<QueueName>,
    /// The search for all queues that claims wait for, if it is due.
    overview: Option<Overview>,
    /// The latest time of the next plan.
    wake_at: Timestamp,
}

impl Dispatch {
    pub(super) fn new(config: DispatchConfig, clock: Arc<dyn Clock>) -> Self {
        let board = Mutex::new(Board { clock: Some(Arc::clone(&clock)), ..Board::default() });
        let shared = DispatchState { board, clock, config, sooner: Notify::new(), urgent: since_look::Turn::default() };
        Self { shared: Arc::new(shared) }
    }

    /// Adds available jobs, and hands them to claims that wait for their queues.
    pub(super) fn add(&self, candidates: impl IntoIterator<Item = Versioned>) {
        self.add_or_leave(candidates);
    }

    /// Adds available jobs as [`Dispatch::add`] does. Returns those that are left to other managers of the store, and
    /// who these managers are.
    fn add_or_leave(&self, candidates: impl IntoIterator<Item = Versioned>) -> (Vec<Versioned>, Arc<Members>) {
        let mut candidates = candidates.into_iter().peekable();
        if candidates.peek().is_none() {
            return Default::default();
        }
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let (mut touched, mut left): (Vec<QueueName>, Vec<Versioned>) = Default::default();
        for candidate in candidates {
            let queue = &candidate.job.spec.queue;
            if touched.last() != Some(queue) {
                touched.push(queue.clone());
            }
            left.extend(board.add(candidate, now, &self.shared.config));
        }
        for queue in &touched {
            self.serve(&mut board, queue, now);
        }
        self.wake_if_sooner(&mut board, &touched, now);
        (left, Arc::clone(&board.members))
    }

    /// Takes due candidates, in the order of the wish.
    pub(super) fn take(&self, wish: &Wish<'_>) -> Option<Offer> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.note(wish, now);
        let mut steps = STEPS_PER_CLAIM;
        let offer = self.take_locked(&mut board, wish, now, &mut steps);
        if wish.queues.iter().any(|queue| board.is_to_go_on(queue, now, &self.shared.config)) {
            self.shared.sooner.notify_one();
        }
        offer
    }

    /// Takes candidates as [`Dispatch::take`] does or, when there are none, registers a waiting claim.
    pub(super) fn take_or_wait(&self, claimant: &Claimant) -> Result<Offer, WaitingClaim> {
        let now = self.shared.clock.now();
        let wish = Wish::of(&claimant.request);
        let mut board = self.shared.board.lock();
        board.note(&wish, now);
        let mut steps = STEPS_PER_CLAIM;
        if let Some(offer) = self.take_locked(&mut board, &wish, now, &mut steps) {
            return Ok(offer);
        }
        let id = WaiterId(board.next_waiter);
        board.next_waiter += 1;
        let (given, hand) = oneshot::channel();
        board.wait(id, Waiter { claimant: claimant.clone(), hand: given });
        self.wake_if_sooner(&mut board, wish.queues, now);
        self.wake_for_overview(&mut board, now);
        Err(WaitingClaim { id, dispatch: self.clone(), hand })
    }

    /// Records that a claim for this candidate was decided, so that it is no longer out. `still_available` is the
    /// current job if it can still be claimed.
    pub(super) fn settle(&self, id: &JobId, still_available: Option<Versioned>) {
        self.shared.board.lock().out.remove(id);
        if let Some(candidate) = still_available {
            self.add([candidate]);
        }
    }

    /// Removes jobs that are no longer available. They are not offered again unless they are added again.
    pub(super) fn remove<'a>(&self, jobs: impl Iterator<Item = &'a Job>) {
        let mut jobs = jobs.peekable();
        if jobs.peek().is_none() {
            return;
        }
        let mut board = self.shared.board.lock();
        for job in jobs {
            // A candidate is out, held, or in its lane.
            if !board.out.remove(&job.id)
                && !board.held.remove(&job.id)
                && let Some(lane) = board.lanes.get_mut(&job.spec.queue)
            {
                lane.remove(&job.id);
            }
        }
    }

    /// Records that the store may hold due jobs of `queue` that the lane does not have, since a write's outcome is
    /// unknown.
    pub(super) fn mark_incomplete(&self, queue: &QueueName) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.lane(queue).may_miss_some();
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Returns the lock under which the store is searched for `queue`.
    pub(super) fn lookup_lock(&self, queue: &QueueName) -> Arc<tokio::sync::Mutex<()>> {
        self.shared.board.lock().lane(queue).lookup.clone()
    }

    /// Begins a search for `queue`, and returns `None` when another caller has searched meanwhile. Jobs that are added
    /// or lost from now on are counted in addition to the results.
    pub(super) fn begin_lookup(&self, queue: &QueueName) -> Option<Lookup> {
        let now = self.shared.clock.now();
        let config = &self.shared.config;
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        if !lane.needs_lookup(now, config) {
            return None;
        }
        lane.first_search.begin();
        (lane.incomplete, lane.left_out.is_wanted) = (false, false);
        lane.frontier = None;
        let is_fair = lane.turns.as_mut().is_some_and(|turns| turns.begin_look());
        let recent = lane.looked_up_at.is_some_and(|at| now.since(at) < RESTART);
        let cut_off_at = lane.resume.take().filter(|_| config.poll_interval.is_some());
        let reached = lane.reached.take();
        let (resume, reached) = if recent { (cut_off_at, reached) } else { (None, cut_off_at.max(reached)) };
        let mut limit = config.capacity.min(config.page);
        if resume.is_none() {
            lane.looked_up_at = Some(now);
            if reached.is_some() {
                limit = limit.min(RESTART_PAGE);
            }
        }
        let later = lane.needs_later(now, config).then(|| {
            // The search starts at the first time that is not known, since its lower bound is excluded.
            let after = lane.known_until.minus(MOMENT).max(now);
            (after, after.plus(HORIZON))
        });
        let known_until = lane.known_until;
        lane.known_until = later.map_or(known_until, |(_, until)| until.plus(MOMENT));
        let partitions = Some(lane.shares.own).filter(|own| !own.is_full());
        Some(Lookup { now, resume, later, limit, partitions, is_fair, known_until, reached })
    }

    /// Ends a search and adds its results, apart from those that `fresh` rejects as outdated.
    ///
    /// A search engine shows jobs for a while that were claimed since. Under load they fill the first pages of a search
    /// that starts again, so once the later half of a page has nothing new, the next goes on where the searches before
    /// had come to. What is missed in between became available there within that while; the next start finds it.
    pub(super) fn end_lookup(
        &self,
        queue: &QueueName,
        lookup: &Lookup,
        mut found: LookupResult,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let due_cut_off = found.due.len() >= lookup.limit;
        let later_cut_off = found.later.len() >= lookup.limit;
        let last_due = found.due.last().map(|last| Sort::Dispatch.key(&last.job));
        let last_later = found.later.last().map(|last| last.job.run_at);
        let mut last_half = found.due.split_off(found.due.len() / 2);
        last_half.retain(&fresh);
        let ahead = lookup.reached.clone().filter(|reached| due_cut_off && last_due.as_ref() < Some(reached));
        let (resume, reached) = match self.has_news(&last_half) {
            true => (last_due, ahead),
            false => (ahead.or(last_due), None),
        };
        self.add(found.due.into_iter().chain(found.later).filter(fresh).chain(last_half));
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        (lane.resume, lane.reached) = (resume.filter(|_| due_cut_off), reached);
        if due_cut_off {
            lane.ends_at(lane.resume.clone());
        }
        if later_cut_off {
            lane.ends_later(last_later, lookup.later);
        }
        lane.end_search();
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Returns whether any of these jobs is neither held nor out.
    fn has_news(&self, found: &[Versioned]) -> bool {
        let board = self.shared.board.lock();
        let is_held = |job: &Job| board.lanes.get(&job.spec.queue).is_some_and(|lane| lane.held(&job.id).is_some());
        found.iter().any(|hit| !board.out.contains(&hit.job.id) && !is_held(&hit.job))
    }

    /// Ends a search that has failed: of what it was for, nothing is known.
    pub(super) fn fail_lookup(&self, queue: &QueueName, lookup: &Lookup) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        lane.first_search.fail();
        (lane.incomplete, lane.left_out.is_wanted) = (true, true);
        lane.resume = None;
        if let Some(turns) = &mut lane.turns {
            turns.fail_look();
        }
        // Of candidates that were dropped meanwhile, nothing was searched for.
        lane.looked_up_at = Some(now).filter(|_| lane.first_search != FirstSearch::NotMade);
        lane.known_until = lane.known_until.min(lookup.known_until);
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Hands out the candidates that have become due, removes idle lanes, and returns the plan of the background loop.
    fn plan(&self) -> Plan {
        let overview = self.begin_overview();
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let waited_for: Vec<QueueName> = board.waited_for().map(|(queue, _)| queue.clone()).collect();
        for queue in &waited_for {
            self.serve(&mut board, queue, now);
        }
        board.forget_idle(now);
        let config = &self.shared.config;
        let needs_search = |queue: &QueueName, lane: &Lane| match lane.waiting.is_empty() {
            true => board.is_to_go_on(queue, now, config),
            false => !board.paused.contains(queue) && lane.needs_search_of_its_own(now, config),
        };
        let searched = board.lanes.iter().filter(|(queue, lane)| needs_search(queue, lane));
        let lookups: Vec<QueueName> = searched.map(|(queue, _)| queue.clone()).collect();
        let wake_at = board.next_wake(now, config);
        board.wake_at = Some(wake_at);
        Plan { lookups, overview, wake_at }
    }

    /// Waits until [`Dispatch::plan`] must be called sooner than planned.
    pub(super) async fn sooner(&self) {
        self.shared.sooner.notified().await;
    }

    /// Returns the number of waiting claims.
    pub(super) fn waiting(&self) -> usize {
        self.shared.board.lock().waiters.len()
    }

    /// Takes back candidates of which nothing was written.
    pub(super) fn put_back(&self, candidates: Vec<Versioned>) {
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
        board: &mut Board<Handed>,
        wish: &Wish<'_>,
        now: Timestamp,
        steps: &mut usize,
    ) -> Option<Offer> {
        let candidates = board.take(wish, now, steps);
        if std::mem::take(&mut board.looks_behind) {
            self.shared.sooner.notify_one();
        }
        (!candidates.is_empty()).then(|| Offer { candidates, dispatch: self.clone() })
    }

    /// Hands due candidates of `queue` to the claims that have waited longest and offer what is asked for.
    fn serve(&self, board: &mut Board<Handed>, queue: &QueueName, now: Timestamp) {
        if board.paused.contains(queue) {
            return;
        }
        let mut passed = None;
        let mut steps = STEPS_PER_SERVING;
        // Claims that no candidate suits: a further claim that offers the same is skipped.
        let mut in_vain: HashSet<SameOffer> = HashSet::new();
        // The loop ends, since every turn serves or skips a claim.
        loop {
            let Some(lane) = board.lanes.get_mut(queue) else { return };
            lane.promote(now);
            if lane.has_none() || !lane.first_search.is_over() || steps == 0 {
                return;
            }
            let Some(id) = lane.waiting_after(passed) else { return };
            let Some(waiter) = board.waiters.remove(&id) else { return };
            let offered = SameOffer(Arc::clone(&waiter.claimant.request));
            let offer = match in_vain.contains(&offered) {
                true => None,
                false => self.take_locked(board, &waiter.wish(), now, &mut steps),
            };
            let Some(offer) = offer else {
                in_vain.insert(offered);
                board.waiters.insert(id, waiter);
                passed = Some(id);
                steps = steps.saturating_sub(1);
                continue;
            };
            board.leave_lanes(id, waiter.queues());
            if let Err(Handed::Offer(unwanted)) = waiter.hand.send(Handed::Offer(offer)) {
                // The claim was dropped. Its candidates go back without `Offer`'s drop, which would lock again.
                for candidate in unwanted.take() {
                    board.out.remove(&candidate.job.id);
                    board.add(candidate, now, &self.shared.config);
                }
            }
        }
    }

    /// Wakes the background loop when one of `queues` needs it sooner than it planned.
    fn wake_if_sooner(&self, board: &mut Board<Handed>, queues: &[QueueName], now: Timestamp) {
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
