//! The overview: one search of the store for all queues that claims wait for, which finds those with due jobs.
//!
//! Where managers share a store, each would have to search every such queue again and again, for jobs that others have
//! written. While the overview finds nothing due in a queue, the queue is *quiet*, and is not searched. Those in which
//! something is due are searched as if there were no overview.

use std::collections::HashSet;
use std::time::Duration;

use tracing::debug;

use super::board::Board;
use super::lane::{DispatchConfig, Lane};
use super::quiet::{Overview, Shown, is_within};
use super::{Dispatch, Handed};
use crate::clock::Timestamp;
use crate::job::{JobState, QueueName};
use crate::manager::Manager;
use crate::query::{Filter, GroupField};
use crate::store::StoreError;

/// How long after an overview has found something in any queue the next ones follow each other as fast as searches of
/// a queue do.
const BUSY_FOR: Duration = Duration::from_secs(10);

/// How many times as far apart as the searches of a queue overviews are, and where nothing is to be expected but of
/// the system's own queues.
const APART: u32 = 2;
const APART_AT_REST: u32 = 8;

/// How long a queue with due jobs is left out, since it is searched by itself.
const LEFT_OUT_FOR: Duration = Duration::from_secs(2);

/// How long a queue counts as quiet after an overview, at most: longer than the time to the next one.
const QUIET_FOR: Duration = Duration::from_secs(10);

impl Lane {
    /// Returns whether the queue is known to have nothing due but what is kept here.
    pub(super) fn is_quiet(&self, now: Timestamp) -> bool {
        self.is_searched() && self.shown.nothing_at.is_some_and(|at| is_within(at, now, QUIET_FOR))
    }

    /// Returns whether the queue was known to have nothing due when overviews were last made, which was lately.
    pub(super) fn was_quiet_lately(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let lately = config.poll_interval.unwrap_or_default() * 2 * APART;
        self.is_searched() && self.shown.nothing_at.is_some_and(|at| is_within(at, now, lately))
    }

    /// Returns whether the queue was searched, and nothing is known to be missing.
    fn is_searched(&self) -> bool {
        let is_cut_off = self.incomplete || self.left_out.has_any() || self.may_go_on();
        self.looked_up_at.is_some() && self.first_search.is_over() && !is_cut_off
    }

    fn is_in_overview(&self, now: Timestamp) -> bool {
        self.is_searched() && !self.shown.something_at.is_some_and(|at| is_within(at, now, LEFT_OUT_FOR))
    }

    /// Returns whether a search of the store for this queue alone is due while claims wait.
    pub(super) fn needs_search_of_its_own(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        match self.is_quiet(now) {
            true => self.needs_later(now, config) || self.needs_look_for_kinds(now),
            false => self.needs_search(now, config),
        }
    }
}

impl<Handed> Board<Handed> {
    /// Returns when the next overview is due; `None` when none is to be made.
    pub(super) fn next_overview(&self, now: Timestamp, config: &DispatchConfig) -> Option<Timestamp> {
        let interval = config.poll_interval?;
        let looked_over = self.waited_for().filter(|(_, lane)| lane.is_in_overview(now));
        let mut queues = looked_over.map(|(queue, _)| queue).peekable();
        queues.peek()?;
        // Who has a claim waiting hands out there what it writes itself.
        let is_at_rest = queues.all(|queue| queue.is_internal() && self.members.all_others_take(queue));
        let is_busy = self.overviews.found_at.is_some_and(|at| is_within(at, now, BUSY_FOR));
        let apart = match (is_busy, is_at_rest) {
            (true, _) => interval,
            (false, false) => interval * APART,
            (false, true) => interval * APART_AT_REST,
        };
        // One that was made at a time that is to come was made before the clock was set back.
        Some(self.overviews.made_at.filter(|at| *at <= now).map_or(now, |at| at.plus(apart)))
    }
}

impl Dispatch {
    /// Begins an overview if one is due.
    pub(super) fn begin_overview(&self) -> Option<Overview> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        board.next_overview(now, &self.shared.config).filter(|at| *at <= now)?;
        board.overviews.made_at = Some(now);
        // A count of theirs would have what searches leave out.
        let left_out = board.held.queues_with_more();
        for queue in &left_out {
            if let Some(lane) = board.lanes.get_mut(queue) {
                lane.shown = Shown::default();
            }
        }
        let is_in_it = |(queue, lane): &(&QueueName, &Lane)| lane.is_in_overview(now) && !left_out.contains(*queue);
        let queues: Vec<QueueName> = board.waited_for().filter(is_in_it).map(|(queue, _)| queue.clone()).collect();
        (!queues.is_empty()).then_some(Overview { now, queues })
    }

    /// Wakes the background loop when an overview is due sooner than it planned to wake up.
    pub(super) fn wake_for_overview(&self, board: &mut Board<Handed>, now: Timestamp) {
        if let Some(at) = board.next_overview(now, &self.shared.config)
            && board.wake_at.is_none_or(|planned| at < planned)
        {
            board.wake_at = Some(at);
            self.shared.sooner.notify_one();
        }
    }

    /// Ends an overview, by the queues in which it has found due jobs.
    pub(super) fn end_overview(&self, overview: &Overview, with_due: &HashSet<QueueName>) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let board = &mut *board;
        if overview.now > now {
            // The clock was set back meanwhile.
            return;
        }
        if !with_due.is_empty() {
            board.overviews.found_at = Some(overview.now);
        }
        for queue in &overview.queues {
            let Some(lane) = board.lanes.get_mut(queue).filter(|lane| lane.is_searched()) else { continue };
            if with_due.contains(queue) {
                lane.shown = Shown { nothing_at: None, something_at: Some(overview.now) };
            } else {
                lane.shown.nothing_at = Some(overview.now);
                // A search would have found nothing either.
                lane.looked_up_at = lane.looked_up_at.max(Some(overview.now));
                lane.looked_elsewhere = lane.looked_elsewhere.max(Some(overview.now));
            }
        }
    }
}

impl Manager {
    /// Makes an overview. Where it fails, the queues are searched one by one once they do not count as quiet any more.
    pub(super) async fn look_over(&self, overview: Overview) {
        if let Err(error) = self.try_look_over(&overview).await {
            debug!(%error, "cannot look for due jobs of all queues at once");
        }
    }

    async fn try_look_over(&self, overview: &Overview) -> Result<(), StoreError> {
        let filter = Filter {
            states: vec![JobState::Available],
            held: Some(false),
            queues: overview.queues.clone(),
            run_at_most: Some(overview.now),
            ..Filter::default()
        };
        let groups = self.shared.store.count(&filter, &[GroupField::Queue]).await?;
        let names = groups.into_iter().filter_map(|group| group.values.into_iter().next().flatten());
        let with_due = names.filter_map(|name| QueueName::new(name).ok()).collect();
        self.shared.dispatch.end_overview(overview, &with_due);
        Ok(())
    }
}
