//! Resources: a worker may state what it offers, and is then given only jobs that together need no more.

use std::collections::BTreeMap;

use crate::job::{Job, QueueName};
use crate::manager::request::ClaimRequest;
use crate::query::SortKey;

/// Amounts of resources by name.
pub(crate) type Resources = BTreeMap<String, u64>;

/// The most candidates that one claim skips because they do not fit. Candidates after them are found once the skipped
/// ones have been claimed.
pub(super) const STEPS_PER_CLAIM: usize = 1_000;

/// The most candidates that all waiting claims together skip when candidates are added.
pub(super) const STEPS_PER_SERVING: usize = 4_000;

/// The jobs that a claim can take.
#[derive(Clone, Copy)]
pub(crate) struct Wish<'a> {
    /// The queues that the claim takes jobs from.
    pub(crate) queues: &'a [QueueName],
    /// The most jobs that the claim takes.
    pub(crate) max_jobs: usize,
    /// The resources that the worker offers to these jobs together; unlimited when empty.
    pub(crate) resources: &'a Resources,
}

impl<'a> Wish<'a> {
    /// Returns what a call wants.
    pub(crate) fn of(request: &'a ClaimRequest) -> Self {
        Self { queues: &request.queues, max_jobs: request.max_jobs, resources: &request.resources }
    }
}

/// The progress of a claim with stated resources through the candidates.
pub(super) struct Walk {
    room: Resources,
    /// For each of the claim's queues, the last candidate that was skipped. The remaining resources only shrink, so a
    /// candidate that did not fit once does not fit later.
    pub(super) passed: Vec<Option<SortKey>>,
    steps: usize,
}

impl Walk {
    /// Creates a walk that may skip `steps` candidates, or `None` when the worker takes any job.
    pub(super) fn of(wish: &Wish<'_>, steps: usize) -> Option<Self> {
        (!wish.resources.is_empty()).then(|| Self {
            room: wish.resources.clone(),
            passed: vec![None; wish.queues.len()],
            steps: steps.min(STEPS_PER_CLAIM),
        })
    }

    /// Returns whether the remaining resources suffice for the job.
    pub(super) fn fits(&self, job: &Job) -> bool {
        fits(&self.room, job)
    }

    /// Counts a skipped candidate, and returns whether the claim may skip another.
    pub(super) fn step(&mut self) -> bool {
        self.steps = self.steps.saturating_sub(1);
        self.steps > 0
    }

    /// Returns the number of candidates that the claim may still skip.
    pub(super) fn steps_left(&self) -> usize {
        self.steps
    }

    /// Subtracts the resources of a job that was taken.
    pub(super) fn use_up(&mut self, job: &Job) {
        use_up(&mut self.room, job);
    }
}

/// Returns whether the offered resources suffice for the job. A resource that is not named is not offered.
pub(crate) fn fits(offered: &Resources, job: &Job) -> bool {
    let enough = |(name, needed): (&String, &u64)| *needed == 0 || offered.get(name).is_some_and(|free| needed <= free);
    job.spec.resources.iter().all(enough)
}

/// Subtracts the resources of a job from those that are offered.
pub(super) fn use_up(offered: &mut Resources, job: &Job) {
    for (name, needed) in &job.spec.resources {
        if let Some(free) = offered.get_mut(name) {
            *free = free.saturating_sub(*needed);
        }
    }
}
