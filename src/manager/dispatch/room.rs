//! Resources: a worker may state what it offers, and is then given only jobs that together need no more.

use std::collections::BTreeMap;

use crate::job::{Job, QueueName};
use crate::query::SortKey;

/// Amounts by the resource's name, as jobs state what they need.
pub(crate) type Resources = BTreeMap<String, u64>;

/// How many candidates that do not fit one claim steps over. What fits behind them is found once those before it are
/// gone, or by a claim that has room for them.
pub(super) const STEPS_PER_CLAIM: usize = 1_000;

/// The same for all claims together that are looked at when candidates come.
pub(super) const STEPS_PER_SERVING: usize = 4_000;

/// What a claim wants.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    /// The queues it takes jobs from.
    pub(crate) queues: &'a [QueueName],
    /// The most jobs it takes.
    pub(crate) max_jobs: usize,
    /// What its worker offers to them together; anything, when nothing is stated.
    pub(crate) resources: &'a Resources,
}

/// The way of one claim over the candidates, where it must look at what they need.
pub(super) struct Walk {
    room: Resources,
    /// For each of its queues, the last candidate that was stepped over: room only shrinks, so what did not fit once
    /// does not fit later.
    pub(super) passed: Vec<Option<SortKey>>,
    steps: usize,
}

impl Walk {
    /// A walk that may step over so many; none where the worker states nothing and takes whatever comes.
    pub(super) fn of(wish: &Wish<'_>, steps: usize) -> Option<Self> {
        (!wish.resources.is_empty()).then(|| Self {
            room: wish.resources.clone(),
            passed: vec![None; wish.queues.len()],
            steps: steps.min(STEPS_PER_CLAIM),
        })
    }

    /// Whether the job needs no more of anything than there is.
    pub(super) fn fits(&self, job: &Job) -> bool {
        fits(&self.room, job)
    }

    /// Counts a candidate that was stepped over; false when there were enough of them.
    pub(super) fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// How many more it may step over.
    pub(super) fn steps_left(&self) -> usize {
        self.steps
    }

    /// The job is taken.
    pub(super) fn use_up(&mut self, job: &Job) {
        for (name, needed) in &job.spec.resources {
            if let Some(free) = self.room.get_mut(name) {
                *free = free.saturating_sub(*needed);
            }
        }
    }
}

/// Whether the job needs no more of anything than is offered. What is not named is not offered.
pub(crate) fn fits(offered: &Resources, job: &Job) -> bool {
    let enough = |(name, needed): (&String, &u64)| *needed == 0 || offered.get(name).is_some_and(|free| needed <= free);
    job.spec.resources.iter().all(enough)
}
