//! What the dispatch does with jobs that are held ([`super::held`]): it holds them, and lets them go when a limit has
//! slots for them, or when they are first in their line. And with those of paused queues, which it holds back.

use std::collections::HashSet;
use std::sync::Arc;

use super::board::Board;
use super::held::{HeldBy, LimitSearch};
use super::{Dispatch, Handed, Offer};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, LimitName, OrderingKey, Priority, QueueName, RecordName};
use crate::query::Filter;
use crate::store::{Head, Versioned};

impl Offer {
    /// Returns whether any of the candidates has to be first in a line.
    pub(in crate::manager) fn is_ordered(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.job.spec.ordering().is_some())
    }
}

/// Holds a candidate, unless it was removed meanwhile or is another manager's, which holds it there. Returns whether it
/// is held here.
fn hold_by(board: &mut Board<Handed>, by: &HeldBy, candidate: Versioned) -> bool {
    let job = &candidate.job;
    let is_own = board.lane(&job.spec.queue).shares.has(job);
    let is_held = board.out.remove(&job.id) && (is_own || board.held.is_foreign(&job.id));
    if is_held {
        board.held.hold(by, candidate);
    }
    is_held
}

/// Returns whether a job that a search has found is this manager's to hold: it is with no claim.
fn is_to_be_held(board: &mut Board<Handed>, hit: &Versioned) -> bool {
    board.lane(&hit.job.spec.queue).shares.has(&hit.job) && !board.out.contains(&hit.job.id)
}

impl Dispatch {
    /// Holds back the jobs of exactly these queues. Claims that wait for a queue that is no longer held back are served
    /// at once.
    pub(in crate::manager) fn hold_back(&self, paused: HashSet<QueueName>) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let former = std::mem::replace(&mut board.paused, paused);
        let resumed: Vec<QueueName> = former.into_iter().filter(|queue| !board.paused.contains(queue)).collect();
        for queue in &resumed {
            self.serve(&mut board, queue, now);
        }
        self.wake_if_sooner(&mut board, &resumed, now);
    }

    /// Returns those of these candidates whose queues are not held back. The others go back.
    pub(in crate::manager) fn not_held_back(&self, mut candidates: Vec<Versioned>) -> Vec<Versioned> {
        let paused: Vec<Versioned> = {
            let board = self.shared.board.lock();
            let is_paused = |candidate: &mut Versioned| board.paused.contains(&candidate.job.spec.queue);
            if board.paused.is_empty() { Vec::new() } else { candidates.extract_if(.., is_paused).collect() }
        };
        if !paused.is_empty() {
            self.put_back(paused);
        }
        candidates
    }

    /// Returns whether a claim waits for a queue that is not one of the system's own.
    pub(in crate::manager) fn has_workers_waiting(&self) -> bool {
        let board = self.shared.board.lock();
        board.waited_for().any(|(queue, _)| !queue.is_internal())
    }

    /// Holds back the jobs of these queues as well.
    pub(in crate::manager) fn hold_back_too(&self, paused: impl Iterator<Item = QueueName>) {
        self.shared.board.lock().paused.extend(paused);
    }

    /// Holds a candidate for which a limit has no slot. The limit has none for jobs below a priority, or for any job if
    /// that is `None`. Returns a candidate that another manager is to hold, with that manager.
    pub(in crate::manager) fn hold(
        &self,
        limit: &LimitName,
        candidate: Versioned,
        below: Option<Priority>,
    ) -> Option<(RecordName, Versioned)> {
        let queue = candidate.job.spec.queue.clone();
        let by = HeldBy::Limit(limit.clone(), queue.clone());
        let mut board = self.shared.board.lock();
        let is_out = board.out.contains(&candidate.job.id);
        if hold_by(&mut board, &by, candidate.clone()) {
            board.held.is_full_below(limit, below);
            return None;
        }
        let (kind, partition) = (&candidate.job.spec.kind, candidate.job.partition());
        let first = board.members.first_other(&queue, kind, partition).filter(|_| is_out)?.clone();
        Some((first, candidate))
    }

    /// Holds a candidate that is not first in its line. `first` is the one that is, if that is known.
    pub(in crate::manager) fn hold_in_line(&self, key: &OrderingKey, candidate: Versioned, first: Option<&Head>) {
        let mut board = self.shared.board.lock();
        hold_by(&mut board, &HeldBy::Line(key.clone()), candidate);
        if let Some(Head { seq, job, .. }) = first {
            board.held.is_first(key, *seq, job);
        }
    }

    /// Lets the first jobs go on that a limit holds and somebody can take, so many as it has room for. What it holds
    /// beside them, where these are fewer, waits in its queue for who can take it.
    pub(in crate::manager) fn let_go(&self, limit: &LimitName, room: usize) {
        self.let_go_or_all(limit, room, false);
    }

    /// Lets jobs go on as [`Dispatch::let_go`] does, of a limit that has had room for a while. Where nobody has claimed
    /// what was let go before, all that it holds waits in its queues: who could take the first is busy.
    pub(in crate::manager) fn let_go_after_a_while(&self, limit: &LimitName, room: usize) {
        self.let_go_or_all(limit, room, true);
    }

    /// Lets jobs go on as [`Dispatch::let_go`] does, until so many have been let go that have not been claimed.
    pub(in crate::manager) fn let_go_up_to(&self, limit: &LimitName, room: usize) {
        let let_go = self.count_let_go(limit);
        if room > let_go {
            self.let_go(limit, room - let_go);
        }
    }

    /// Returns the number of jobs that a limit let go and that have not been claimed since.
    pub(in crate::manager) fn count_let_go(&self, limit: &LimitName) -> usize {
        self.shared.board.lock().held.count_let_go(limit)
    }

    /// Returns whether somebody can take a job that a limit holds.
    pub(in crate::manager) fn is_wanted(&self, limit: &LimitName) -> bool {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let (held, open) = board.held_and_open(now);
        held.has_suiting(limit, &open)
    }

    fn let_go_or_all(&self, limit: &LimitName, room: usize, has_had_room: bool) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let (held, open) = board.held_and_open(now);
        let is_left_lying = has_had_room && held.has_let_go(limit);
        let mut gone = held.let_go(limit, room, &open);
        if gone.len() < room || is_left_lying {
            let (others, with_more) = held.take_apart(limit, &open);
            gone.extend(others);
            for queue in &with_more {
                if let Some(lane) = board.lanes.get_mut(queue) {
                    lane.may_miss_some();
                }
            }
            self.wake_if_sooner(&mut board, &with_more, now);
        }
        self.go_on(&mut board, gone, now);
    }

    /// Lets the first job go on that is held in a line, since this one has ended, given by its place and its id; or
    /// since it may be first.
    pub(in crate::manager) fn let_go_in_line(&self, key: &OrderingKey, ended: Option<(u64, &JobId)>) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let next = board.held.next_in_line(key, ended);
        self.go_on(&mut board, next.into_iter().collect(), now);
    }

    fn go_on(&self, board: &mut Board<Handed>, candidates: Vec<Versioned>, now: Timestamp) {
        let queues: HashSet<QueueName> = candidates.iter().map(|candidate| candidate.job.spec.queue.clone()).collect();
        for candidate in candidates {
            match board.lanes.get_mut(&candidate.job.spec.queue) {
                Some(lane) if board.held.is_foreign(&candidate.job.id) => {
                    lane.add(candidate, now, self.shared.config.capacity);
                }
                _ => drop(board.add(candidate, now, &self.shared.config)),
            }
        }
        for queue in &queues {
            self.serve(board, queue, now);
        }
    }

    /// Returns the limits that hold jobs.
    pub(in crate::manager) fn holding_limits(&self) -> Vec<LimitName> {
        self.shared.board.lock().held.limits().cloned().collect()
    }

    /// Returns the job of a limit that is next: of those that somebody can take, if there are any.
    pub(in crate::manager) fn next_of(&self, limit: &LimitName) -> Option<Arc<Job>> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let (held, open) = board.held_and_open(now);
        held.next_of(limit, &open)
    }

    /// Returns the lines in which jobs are held, here or in the store, each with the place of the first that is held
    /// here.
    pub(in crate::manager) fn held_in_lines(&self) -> Vec<(OrderingKey, Option<u64>)> {
        self.shared.board.lock().held.lines().map(|(key, first)| (key.clone(), first)).collect()
    }

    /// Leaves out of a filter for jobs of a queue what is left to the store: the limits and lines of which it may have
    /// more than are held, and what jobs require that suit hardly any claims.
    pub(super) fn without_held(&self, queue: &QueueName, filter: Filter) -> Filter {
        let board = self.shared.board.lock();
        let (mut not_under, mut not_in_line_of) = (Vec::new(), Vec::new());
        for by in board.held.with_more() {
            match by {
                HeldBy::Limit(limit, of) if of == queue => not_under.push(limit.clone()),
                HeldBy::Limit(..) => {}
                HeldBy::Line(key) => not_in_line_of.push(key.clone()),
            }
        }
        let left_out = board.lanes.get(queue).map(|lane| &lane.left_out);
        let not_requiring = left_out.into_iter().flat_map(|left_out| left_out.requirements()).cloned().collect();
        Filter { not_under, not_in_line_of, not_requiring, ..filter }
    }

    /// Begins searches for jobs of limits of which hardly any are left here: at most this many.
    pub(in crate::manager) fn begin_limit_searches(&self, most: usize) -> Vec<LimitSearch> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let (held, open) = board.held_and_open(now);
        held.begin_searches(most, &open)
    }

    /// Adds the jobs of a limit that a search has found, all that there are unless it was cut off.
    pub(in crate::manager) fn end_limit_search(&self, search: LimitSearch, found: Vec<Versioned>, is_cut_off: bool) {
        self.hold_again_by(&HeldBy::Limit(search.limit, search.queue), found, is_cut_off);
    }

    /// Returns the lines whose jobs have to be searched for.
    pub(in crate::manager) fn run_out_of_lines(&self) -> Vec<OrderingKey> {
        self.shared.board.lock().held.lines_run_out().cloned().collect()
    }

    /// Adds the jobs of a line that a search has found, all that there are unless it was cut off.
    pub(in crate::manager) fn hold_again_in_line(&self, key: &OrderingKey, found: Vec<Versioned>, is_cut_off: bool) {
        self.hold_again_by(&HeldBy::Line(key.clone()), found, is_cut_off);
    }

    fn hold_again_by(&self, by: &HeldBy, found: Vec<Versioned>, is_cut_off: bool) {
        let mut board = self.shared.board.lock();
        let wanted = found.into_iter().filter(|hit| is_to_be_held(&mut board, hit)).collect();
        board.held.hold_again(by, wanted, is_cut_off);
    }

    /// Returns how much is kept in each collection that has an entry for a key or a job.
    #[cfg(test)]
    pub(in crate::manager) fn kept_by_key(&self) -> Vec<(&'static str, usize)> {
        let board = self.shared.board.lock();
        let in_lanes = |size: fn(&super::lane::Lane) -> usize| board.lanes.values().map(size).sum();
        let [rows, queues, places] = board.held.kept_by_key();
        vec![
            ("rows of held jobs", rows),
            ("queues of limits", queues),
            ("places of held jobs", places),
            ("jobs with claims", board.out.len()),
            ("due jobs", in_lanes(|lane| lane.due.len())),
            ("later jobs", in_lanes(|lane| lane.later.len())),
            ("positions", in_lanes(|lane| lane.positions.len())),
            ("jobs of others", in_lanes(|lane| lane.foreign.len())),
        ]
    }

    /// Drops what is known of lines in which nothing happens.
    pub(in crate::manager) fn forget_idle_lines(&self) {
        self.shared.board.lock().held.forget_idle_lines();
    }
}
