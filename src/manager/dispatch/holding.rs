//! What the dispatch does with jobs that are held ([`super::held`]): it holds them, and lets them go when a limit has
//! slots for them, or when they are first in their line. And with those of paused queues, which it holds back.

use std::collections::HashSet;
use std::sync::Arc;

use super::board::Board;
use super::held::HeldBy;
use super::{Dispatch, Handed, Offer};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, LimitName, OrderingKey, Priority, QueueName};
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
    let is_held =
        board.out.remove(&candidate.job.id) && board.lane(&candidate.job.spec.queue).shares.has(&candidate.job);
    if is_held {
        board.held.hold(by, candidate);
    }
    is_held
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

    /// Holds back the jobs of these queues as well.
    pub(in crate::manager) fn hold_back_too(&self, paused: impl Iterator<Item = QueueName>) {
        self.shared.board.lock().paused.extend(paused);
    }

    /// Holds a candidate for which a limit has no slot. The limit has none for jobs below a priority, or for any job if
    /// that is `None`.
    pub(in crate::manager) fn hold(&self, limit: &LimitName, candidate: Versioned, below: Option<Priority>) {
        let by = HeldBy::Limit(limit.clone());
        let mut board = self.shared.board.lock();
        if hold_by(&mut board, &by, candidate) {
            board.held.is_full_below(&by, below);
        }
    }

    /// Holds a candidate that is not first in its line. `first` is the one that is, if that is known.
    pub(in crate::manager) fn hold_in_line(&self, key: &OrderingKey, candidate: Versioned, first: Option<&Head>) {
        let mut board = self.shared.board.lock();
        hold_by(&mut board, &HeldBy::Line(key.clone()), candidate);
        if let Some(Head { seq, job, .. }) = first {
            board.held.is_first(key, *seq, job);
        }
    }

    /// Lets the first jobs go on that a limit holds.
    pub(in crate::manager) fn let_go(&self, limit: &LimitName, count: usize) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let gone = board.held.let_go(&HeldBy::Limit(limit.clone()), count);
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
            board.add(candidate, now, &self.shared.config);
        }
        for queue in &queues {
            self.serve(board, queue, now);
        }
    }

    /// Returns the limits that hold jobs, each with the first of them.
    pub(in crate::manager) fn held(&self) -> Vec<(LimitName, Arc<Job>)> {
        let board = self.shared.board.lock();
        let limits = board.held.first().filter_map(|(by, job)| Some((limit(by)?, Arc::clone(job))));
        limits.collect()
    }

    /// Returns the first of the jobs that a limit holds.
    pub(in crate::manager) fn first_held(&self, limit: &LimitName) -> Option<Arc<Job>> {
        self.shared.board.lock().held.first_of(&HeldBy::Limit(limit.clone())).cloned()
    }

    /// Returns the lines in which jobs are held, here or in the store, each with the place of the first that is held
    /// here.
    pub(in crate::manager) fn held_in_lines(&self) -> Vec<(OrderingKey, Option<u64>)> {
        self.shared.board.lock().held.lines().map(|(key, first)| (key.clone(), first)).collect()
    }

    /// Returns the limits of which the store may have more jobs, which searches leave out.
    pub(in crate::manager) fn with_more(&self) -> Vec<LimitName> {
        self.shared.board.lock().held.with_more().filter_map(limit).collect()
    }

    /// Leaves out of a filter the limits and lines of which the store may have more jobs than are held.
    pub(super) fn without_held(&self, filter: Filter) -> Filter {
        let board = self.shared.board.lock();
        let (not_under, not_in_line_of) =
            (board.held.with_more().filter_map(limit).collect(), board.held.with_more().filter_map(line).collect());
        Filter { not_under, not_in_line_of, ..filter }
    }

    /// Returns the limits whose jobs have to be searched for.
    pub(in crate::manager) fn run_out(&self) -> Vec<LimitName> {
        self.shared.board.lock().held.run_out().filter_map(limit).collect()
    }

    /// Returns the lines whose jobs have to be searched for.
    pub(in crate::manager) fn run_out_of_lines(&self) -> Vec<OrderingKey> {
        self.shared.board.lock().held.run_out().filter_map(line).collect()
    }

    /// Adds the jobs of a limit that a search has found, all that there are unless it was cut off.
    pub(in crate::manager) fn hold_again(&self, limit: &LimitName, found: Vec<Versioned>, is_cut_off: bool) {
        self.hold_again_by(&HeldBy::Limit(limit.clone()), found, is_cut_off);
    }

    /// Adds the jobs of a line that a search has found, all that there are unless it was cut off.
    pub(in crate::manager) fn hold_again_in_line(&self, key: &OrderingKey, found: Vec<Versioned>, is_cut_off: bool) {
        self.hold_again_by(&HeldBy::Line(key.clone()), found, is_cut_off);
    }

    fn hold_again_by(&self, by: &HeldBy, found: Vec<Versioned>, is_cut_off: bool) {
        let mut board = self.shared.board.lock();
        let mut is_wanted = |candidate: &Versioned| {
            let is_own = board.lane(&candidate.job.spec.queue).shares.has(&candidate.job);
            is_own && !board.out.contains(&candidate.job.id)
        };
        let wanted = found.into_iter().filter(|candidate| is_wanted(candidate)).collect();
        board.held.hold_again(by, wanted, is_cut_off);
    }

    /// Drops what is known of lines in which nothing happens.
    pub(in crate::manager) fn forget_idle_lines(&self) {
        self.shared.board.lock().held.forget_idle_lines();
    }
}

fn limit(by: &HeldBy) -> Option<LimitName> {
    if let HeldBy::Limit(name) = by { Some(name.clone()) } else { None }
}

fn line(by: &HeldBy) -> Option<OrderingKey> {
    if let HeldBy::Line(key) = by { Some(key.clone()) } else { None }
}
