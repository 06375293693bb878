//! The urgent look: one call to the store, about once a second, for jobs that are more urgent than what is handed out.
//!
//! A queue's candidates are a part of its due jobs, and so are the jobs that a limit holds here. What is missing comes
//! after them in the order of dispatch, but for jobs that have become due, or were submitted at another manager, since
//! the store was last searched. These may be more urgent, and a search that fills a lane or a row comes only when
//! little is left in it. So as long as a queue's jobs are handed out, the store is searched for jobs above the lowest
//! priority that has been handed out since the last look, or may be until the next. While nothing is missing such a
//! search finds nothing, or what is known of a higher priority.
//!
//! A more urgent job of another manager's partition is handed out here too, where a claim of lately can take it. It
//! was read in real time, and counts until the next look.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::board::Board;
use super::held::HeldBy;
use super::lane::Lane;
use super::since_look::SinceLook;
use super::{Dispatch, Handed};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, Kind, LimitName, Priority, QueueName};
use crate::manager::Manager;
use crate::query::{Filter, Search, Sort, SortKey};
use crate::store::{StoreError, Versioned};

/// The time between two looks: with the time that one takes, less than a second.
const LOOK_EVERY: Duration = Duration::from_millis(800);

/// How many times as long as a look has taken passes until the next one.
const REST: u32 = 10;

/// How long after a look a claim is served without another one. A queue is looked at for as long after its last claim.
const LASTS: Duration = Duration::from_secs(1);

/// The most jobs that one search finds beside those that are known.
const MOST_FOUND: usize = 100;

/// The most limits of one queue whose jobs are looked through for their priorities.
const MOST_ROWS: usize = 1_000;

/// The most searches of one look.
const MOST_SEARCHES: usize = 16;

/// Where jobs may be missing: in a queue, or among the jobs of a limit there of which the store has more.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    /// When the last look was.
    looked_at: Option<Timestamp>,
    queue: QueueName,
    limit: Option<LimitName>,
    /// The priority above which jobs are searched for.
    than: Priority,
    /// How many jobs above it are known.
    known: usize,
}

/// A search for urgent jobs.
pub(super) struct UrgentSearch {
    queue: QueueName,
    limit: Option<LimitName>,
    pub(super) search: Search,
}

/// The searches of one urgent look, and what they cover.
pub(super) struct UrgentLook {
    pub(super) searches: Vec<UrgentSearch>,
    /// The queues that are looked at whole.
    queues: Vec<QueueName>,
}

impl Lane {
    /// Returns whether somebody takes jobs of the queue: a claim waits, or has come lately.
    fn is_handed_out(&self, now: Timestamp) -> bool {
        let came_lately = || self.asked && self.last_claim_at <= now && now.since(self.last_claim_at) <= LASTS;
        self.first_search.is_over() && (!self.waiting.is_empty() || came_lately())
    }

    /// Returns whether the store may have due jobs that come before those of the lane.
    fn may_miss_urgent(&self, now: Timestamp, is_shared: bool) -> bool {
        is_shared || self.incomplete || self.frontier.is_some() || self.known_until <= now
    }

    fn due_jobs(&self) -> impl Iterator<Item = &Job> {
        self.due.values().map(|candidate| &*candidate.job)
    }
}

impl Board<Handed> {
    /// Adds the places of a queue in which jobs may be missing that are more urgent than what is next.
    fn add_places(&self, queue: &QueueName, (now, is_shared): (Timestamp, bool), places: &mut Vec<Place>) {
        let Some(lane) = self.lanes.get(queue) else { return };
        let place = |limit, looked_at, than, known| Place { looked_at, queue: queue.clone(), limit, than, known };
        let rows = || self.held.limits_in(queue).take(MOST_ROWS);
        for (limit, row) in rows().filter(|(_, row)| row.has_more) {
            if let Some(than) = row.since_look.least_urgent(row.held_jobs()) {
                places.push(place(Some(limit.clone()), row.since_look.looked_at, than, row.above(than)));
            }
        }
        if !lane.may_miss_urgent(now, is_shared) {
            return;
        }
        let whole = || rows().filter(|(_, row)| !row.has_more).map(|(_, row)| row);
        let of_rows = whole().filter_map(|row| row.since_look.least_urgent(row.held_jobs()));
        let Some(than) = of_rows.chain(lane.since_look.least_urgent(lane.due_jobs())).min() else { return };
        let known = lane.due_jobs().take_while(|job| job.spec.priority > than).count();
        let held: usize = whole().map(|row| row.above(than)).sum();
        places.push(place(None, lane.since_look.looked_at, than, known + held));
    }
}

impl Dispatch {
    /// Begins a look for the queues that somebody takes jobs of; `None` when nothing is to be searched for.
    pub(super) fn begin_urgent_look(&self) -> Option<UrgentLook> {
        let now = self.shared.clock.now();
        let board = self.shared.board.lock();
        let handed_out =
            board.lanes.iter().filter(|(queue, lane)| lane.is_handed_out(now) && !board.paused.contains(*queue));
        let queues: Vec<QueueName> = handed_out.map(|(queue, _)| queue.clone()).collect();
        drop(board);
        self.begin_urgent_look_for(&queues)
    }

    fn begin_urgent_look_for(&self, queues: &[QueueName]) -> Option<UrgentLook> {
        let now = self.shared.clock.now();
        let is_shared = self.shared.config.poll_interval.is_some();
        let mut places = Vec::new();
        let mut board = self.shared.board.lock();
        for queue in queues {
            board.add_places(queue, (now, is_shared), &mut places);
        }
        // Those that were looked at longest ago first.
        places.sort_unstable();
        let left_out: Vec<QueueName> = places.iter().skip(MOST_SEARCHES).map(|place| place.queue.clone()).collect();
        places.truncate(MOST_SEARCHES);
        let whole: Vec<QueueName> = queues.iter().filter(|queue| !left_out.contains(queue)).cloned().collect();
        let found: Vec<(Place, Option<SortKey>, Vec<Kind>)> = places
            .into_iter()
            .filter_map(|place| {
                let after = board.since_look(&place.queue, place.limit.as_ref())?.begin(now);
                if place.limit.is_none() {
                    board.held.begin_look_in(&place.queue, now);
                }
                let kinds = board.lanes.get(&place.queue).filter(|_| is_shared).map(|lane| lane.offers.kinds(now));
                Some((place, after, kinds.unwrap_or_default()))
            })
            .collect();
        drop(board);
        let search = |(place, after, kinds): (Place, Option<SortKey>, Vec<Kind>)| {
            let filter = Filter {
                states: vec![JobState::Available],
                held: Some(false),
                queues: vec![place.queue.clone()],
                kinds,
                under: place.limit.iter().cloned().collect(),
                run_at_most: Some(now),
                more_urgent_than: Some(place.than),
                ..Filter::default()
            };
            let filter = if place.limit.is_some() { filter } else { self.without_held(&place.queue, filter) };
            let limit = (place.known + MOST_FOUND).min(self.shared.config.page.max(MOST_FOUND));
            let search = Search { filter, sort: Sort::Dispatch, after, limit };
            UrgentSearch { queue: place.queue, limit: place.limit, search }
        };
        let searches: Vec<UrgentSearch> = found.into_iter().map(search).collect();
        if searches.is_empty() {
            self.urgent_looked_at(&whole);
            return None;
        }
        Some(UrgentLook { searches, queues: whole })
    }

    /// Records that these queues have been looked at, or that it was tried.
    fn urgent_looked_at(&self, queues: &[QueueName]) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        for queue in queues {
            if let Some(lane) = board.lanes.get_mut(queue) {
                lane.urgent_looked_at = Some(now);
            }
        }
    }

    /// Returns whether a look is due before jobs of these queues are handed out.
    pub(super) fn is_urgent_look_due(&self, queues: &[QueueName]) -> bool {
        let now = self.shared.clock.now();
        let board = self.shared.board.lock();
        queues.iter().any(|queue| board.is_urgent_look_due(queue, now))
    }

    /// Returns those of the jobs found that are to be read again: jobs of others' partitions that a claim can take, of
    /// which a search shows how they were.
    fn urgent_of_others(&self, queue: &QueueName, found: &mut Vec<Versioned>) -> bool {
        let now = self.shared.clock.now();
        let board = self.shared.board.lock();
        let Some(lane) = board.lanes.get(queue) else { return false };
        found.retain(|hit| lane.shares.has(&hit.job) || lane.offers.suit(&hit.job, now));
        found.iter().any(|hit| !lane.shares.has(&hit.job))
    }

    /// Adds what a search has found, apart from what `fresh` rejects as outdated.
    pub(super) fn end_urgent_search(
        &self,
        UrgentSearch { queue, limit, search }: &UrgentSearch,
        found: Vec<Versioned>,
        is_cut_off: bool,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let now = self.shared.clock.now();
        let last = found.last().filter(|_| is_cut_off).map(|last| Sort::Dispatch.key(&last.job));
        let mut board = self.shared.board.lock();
        if let Some(since) = board.since_look(queue, limit.as_ref()) {
            since.go_on_after(last);
        }
        if search.after.is_none() {
            let Board { held, lanes, out, .. } = &mut *board;
            let lane = lanes.get(queue);
            let went_on = |id: &JobId| out.contains(id) || lane.is_some_and(|lane| lane.held(id).is_some());
            let is_own = |job: &Job| lane.is_some_and(|lane| lane.shares.has(job));
            held.drop_foreign(queue, limit.as_ref(), (went_on, is_own));
        }
        for hit in found.into_iter().filter(fresh) {
            let board = &mut *board;
            let Some(lane) = board.lanes.get_mut(queue) else { return };
            if board.out.contains(&hit.job.id) || !hit.job.is_claimable() {
                continue;
            }
            if lane.shares.has(&hit.job) {
                board.add(hit, now, &self.shared.config);
            } else if let Some(by @ HeldBy::Limit(..)) = board.held.holder_of(&hit.job) {
                board.held.hold_foreign(&by, hit);
            } else if lane.waiting.is_empty() {
                lane.add_foreign(hit, now, self.shared.config.capacity);
            }
        }
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }
}

impl Board<Handed> {
    fn is_urgent_look_due(&self, queue: &QueueName, now: Timestamp) -> bool {
        let is_old = |lane: &Lane| !lane.urgent_looked_at.is_some_and(|at| at <= now && now.since(at) < LASTS);
        !self.paused.contains(queue)
            && self.lanes.get(queue).is_some_and(|lane| is_old(lane) && lane.first_search.is_over() && !lane.has_none())
    }

    fn since_look(&mut self, queue: &QueueName, limit: Option<&LimitName>) -> Option<&mut SinceLook> {
        match limit {
            Some(limit) => self.held.since_look(&HeldBy::Limit(limit.clone(), queue.clone())),
            None => self.lanes.get_mut(queue).map(|lane| &mut lane.since_look),
        }
    }
}

impl Manager {
    /// Looks for urgent jobs, about once a second.
    pub(crate) async fn keep_urgent_known(self) {
        let mut rest = LOOK_EVERY;
        // Ends with the manager.
        while self.shared.stopping.run_until_cancelled(sleep(rest)).await.is_some() {
            let begun = Instant::now();
            if let Some(look) = self.shared.dispatch.begin_urgent_look()
                && let Err(error) = self.look_for_urgent(look).await
            {
                debug!(%error, "cannot look for urgent jobs");
            }
            rest = LOOK_EVERY.max(begun.elapsed() * REST);
        }
    }

    /// Looks for urgent jobs of these queues, for a claim that takes jobs of them, where the last look is too long ago.
    /// Without an answer the claim goes by what is known.
    pub(super) async fn know_urgent(&self, queues: &[QueueName]) {
        let dispatch = &self.shared.dispatch;
        if !dispatch.is_urgent_look_due(queues) {
            return;
        }
        let _turn = dispatch.shared.urgent.lock().await;
        if dispatch.is_urgent_look_due(queues)
            && let Some(look) = dispatch.begin_urgent_look_for(queues)
            && let Err(error) = self.look_for_urgent(look).await
        {
            debug!(%error, "cannot look for urgent jobs; going by what is known");
        }
    }

    async fn look_for_urgent(&self, UrgentLook { searches, queues }: UrgentLook) -> Result<(), StoreError> {
        let wanted: Vec<Search> = searches.iter().map(|urgent| urgent.search.clone()).collect();
        let dispatch = &self.shared.dispatch;
        let answers =
            self.shared.store.search_each(&wanted).await.inspect_err(|_| dispatch.urgent_looked_at(&queues))?;
        for (urgent, mut found) in searches.iter().zip(answers) {
            let is_cut_off = found.len() >= urgent.search.limit;
            if dispatch.urgent_of_others(&urgent.queue, &mut found) {
                self.read_again(&urgent.queue, &found).await;
            }
            dispatch.end_urgent_search(urgent, found, is_cut_off, |hit| !self.shared.work.known.is_outdated(hit));
        }
        dispatch.urgent_looked_at(&queues);
        Ok(())
    }
}
