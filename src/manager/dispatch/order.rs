//! Who is next: a pure function of a job's priority, its age, its expected runtime, and of what its owner has had. No
//! job, no clock, no I/O.
//!
//! Jobs of a higher priority come first in every order. Among those of one priority an [`Order`] says two things:
//!
//! *Whose turn it is.* By default whoever owns the next job. Where owners take turns, this is start-time fair queueing
//! (Goyal, Vin and Cheng, "Start-Time Fair Queueing", SIGCOMM 1996): each owner has a virtual time, which goes on by
//! cost/weight with each of its jobs, and the owner whose time is the least is next. A job costs one, or the time that
//! it is expected to run. An owner that had no jobs for a while begins at the time of the others, so that nobody saves
//! up turns.
//!
//! *Which of an owner's jobs is next*, or of all jobs. By default that which has been due longest. Where shorter jobs
//! go first, each has a [rank](Order::place): the time at which it became due, put off by [`PUT_OFF`] times the time
//! that it is expected to run. That is the expected runtime, discounted by the age: the difference of two ranks does
//! not change with time, so that jobs can be kept in their order. No job starves: whatever becomes due after a job's
//! rank goes after it, so only those overtake it that become due within [`PUT_OFF`] times [`LONGEST`] of it.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use crate::clock::{Timestamp, millis};
use crate::job::{Job, Owner};
use crate::query::{Sort, SortKey};

/// The owner of a job; the jobs without one are a group as those of an owner are.
pub(in crate::manager) type Group = Option<Owner>;

/// How much of a queue an owner without a weight of its own gets, compared with the others.
pub(super) const DEFAULT_WEIGHT: u32 = 1;

/// What a millisecond of an owner of weight 1 costs. It is large, so that it can be divided by a weight.
const MILLISECOND: u64 = 1_000;

/// The time that a job is expected to run which does not say it.
pub(super) const USUAL: Duration = Duration::from_secs(60);

/// The shortest time that a job counts as in an owner's turn: it is worth no owner's while to understate it further.
pub(super) const SHORTEST: Duration = Duration::from_secs(1);

/// The longest time by which a job is put off behind shorter ones, before it is multiplied.
pub(super) const LONGEST: Duration = Duration::from_secs(3_600);

/// How many times its expected runtime a job is put off behind shorter ones.
pub(super) const PUT_OFF: u32 = 4;

/// A number of owners at rest below which none of their times is dropped.
const FEW_AT_REST: usize = 1_000;

/// The order in which jobs of one priority are handed out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::manager) struct Order {
    /// What an owner's turn counts, if the owners take turns.
    pub(in crate::manager) turns: Option<Unit>,
    /// Whether shorter jobs go first, of one owner if the owners take turns.
    pub(in crate::manager) shortest_first: bool,
}

/// What an owner's turn counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::manager) enum Unit {
    /// Each job as one.
    Job,
    /// Each job as the time that it is expected to run.
    Runtime,
}

/// A job's place among those of its owner: the least is next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::manager) struct Place {
    priority: Reverse<i8>,
    /// When it became due, in milliseconds, put off by what it is expected to run; the same for all in the order of
    /// dispatch.
    rank: i64,
    /// The place in the order of dispatch, which decides between equals.
    pub(super) key: SortKey,
}

/// An owner's place in an order: the least is next.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Turn {
    /// The owner's virtual time; the same for all where they take no turns.
    start: u64,
    /// The first job, which decides between equals.
    pub(super) first: Place,
}

impl Order {
    /// The owners take turns job by job.
    #[cfg(test)]
    pub(super) const BY_OWNER: Self = Self { turns: Some(Unit::Job), shortest_first: false };

    /// Returns the place of an owner that has come to the virtual time `start`, and whose first job is `first`.
    pub(super) fn turn(self, start: u64, first: Place) -> Turn {
        Turn { start: if self.turns.is_some() { start } else { 0 }, first }
    }

    /// Returns the place of a job of this priority that is due at `run_at`, is expected to run for so long, and has
    /// this place in the order of dispatch.
    pub(super) fn place(self, priority: i8, run_at: Timestamp, expected: Option<Duration>, key: SortKey) -> Place {
        let rank = match self.shortest_first {
            false => 0,
            true => run_at.plus(expected.unwrap_or(USUAL).min(LONGEST) * PUT_OFF).as_millis(),
        };
        Place { priority: Reverse(priority), rank, key }
    }

    /// Returns the place of a job.
    pub(in crate::manager) fn place_of(self, job: &Job) -> Place {
        self.place(job.spec.priority.get(), job.run_at, job.spec.expected_runtime, Sort::Dispatch.key(job))
    }

    /// Returns by how much a job that is expected to run for so long takes the virtual time of its owner on.
    pub(super) fn cost(self, expected: Option<Duration>) -> u64 {
        let counts_as = match self.turns {
            Some(Unit::Runtime) => expected.unwrap_or(USUAL).max(SHORTEST),
            Some(Unit::Job) | None => USUAL,
        };
        millis(counts_as).saturating_mul(MILLISECOND)
    }
}

/// What one job costs, where all cost the same.
pub(super) fn cost_of_one() -> u64 {
    Order::default().cost(None)
}

/// The virtual times of the jobs of one priority.
#[derive(Debug)]
pub(super) struct VirtualTimes<Of> {
    /// The time at which the job began that was handed out last.
    now: u64,
    /// The times to which owners have come that have no jobs, and that are not past yet.
    at_rest: HashMap<Of, u64>,
    /// The number of owners at rest from which on those whose times are past are looked for.
    most_at_rest: usize,
}

impl<Of> Default for VirtualTimes<Of> {
    fn default() -> Self {
        Self { now: 0, at_rest: HashMap::new(), most_at_rest: FEW_AT_REST }
    }
}

impl<Of: Eq + Hash> VirtualTimes<Of> {
    /// Returns the time of an owner that has jobs again: that to which it had come, or the present if that is later.
    pub(super) fn begin(&mut self, owner: &Of) -> u64 {
        let start = self.at_rest_or_now(owner);
        self.at_rest.remove(owner);
        start
    }

    /// Returns the time at which an owner at rest would begin.
    pub(super) fn at_rest_or_now(&self, owner: &Of) -> u64 {
        self.at_rest.get(owner).map_or(self.now, |end| self.now.max(*end))
    }

    /// Records that a job that costs so much, of an owner that has come to `start`, is handed out. Returns the time to
    /// which the owner has come with it.
    pub(super) fn hand_out(&mut self, start: u64, cost: u64, weight: u32) -> u64 {
        self.now = self.now.max(start);
        start.saturating_add(cost / u64::from(weight.max(DEFAULT_WEIGHT)))
    }

    /// Records that an owner that has come to `end` has no jobs any more.
    pub(super) fn rest(&mut self, owner: Of, end: u64) {
        let now = self.now;
        if end > now {
            self.at_rest.insert(owner, end);
        }
        if self.at_rest.len() > self.most_at_rest {
            self.at_rest.retain(|_, end| *end > now);
            self.most_at_rest = FEW_AT_REST.max(2 * self.at_rest.len());
        }
    }
}

#[cfg(test)]
mod tests;
