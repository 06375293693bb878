//! What a worker offers: labels, which must meet what a job requires, and resources. A worker that states resources is
//! given only jobs that together need no more; one that names kinds, only jobs of these.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::order::{Group, Place};
use crate::job::{Job, Kind, Offers, QueueName};
use crate::manager::request::{ClaimOrder, ClaimRequest};
use crate::query::SortKey;

/// Amounts of resources by name.
pub(crate) type Resources = BTreeMap<String, u64>;

/// The most candidates that one claim skips because they ask for more than it offers. Candidates after them are found
/// once the skipped ones have been claimed.
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
    /// The labels that the worker offers.
    pub(crate) labels: &'a Offers,
    /// The kinds of jobs that the claim takes; any when empty.
    pub(crate) kinds: &'a [Kind],
    /// From which of the queues the claim takes next.
    pub(crate) order: &'a ClaimOrder,
}

impl<'a> Wish<'a> {
    /// Returns what a call wants.
    pub(crate) fn of(request: &'a ClaimRequest) -> Self {
        Self {
            queues: &request.queues,
            max_jobs: request.max_jobs,
            resources: &request.resources,
            labels: &request.labels,
            kinds: &request.kinds,
            order: &request.order,
        }
    }

    /// Returns whether the worker offers what the job asks for, of which `room` is left of the resources.
    pub(super) fn suits(&self, job: &Job, room: &Resources) -> bool {
        self.takes(job) && meets(self.labels, job) && (self.resources.is_empty() || fits(room, job))
    }

    /// Returns whether the claim takes jobs of this kind.
    pub(super) fn takes(&self, job: &Job) -> bool {
        self.kinds.is_empty() || self.kinds.contains(&job.spec.kind)
    }
}

/// A claim's request that is equal to another's if both offer the same, for jobs of the same kinds.
pub(super) struct SameOffer(pub(super) Arc<ClaimRequest>);

impl SameOffer {
    fn offered(&self) -> (&Resources, &Offers, &[Kind]) {
        (&self.0.resources, &self.0.labels, &self.0.kinds)
    }
}

impl PartialEq for SameOffer {
    fn eq(&self, other: &Self) -> bool {
        self.offered() == other.offered()
    }
}

impl Eq for SameOffer {}

impl Hash for SameOffer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.offered().hash(state);
    }
}

/// The progress of a claim through the candidates, of which it skips those that ask for what its worker does not offer.
pub(super) struct Walk<'a> {
    wish: Wish<'a>,
    room: Resources,
    /// For each of the claim's queues, the last candidate that was skipped. The labels stay and the remaining resources
    /// only shrink, so a candidate that did not suit once does not suit later.
    pub(super) passed: Vec<Option<SortKey>>,
    /// The same of fair queues, for each owner.
    passed_of: HashMap<(usize, Group), Place>,
    allowed: usize,
    /// The number of candidates that were skipped.
    pub(super) steps: usize,
}

impl<'a> Walk<'a> {
    /// Creates a walk that may skip `steps` candidates.
    pub(super) fn of(wish: &Wish<'a>, steps: usize) -> Self {
        Self {
            wish: *wish,
            room: wish.resources.clone(),
            passed: vec![None; wish.queues.len()],
            passed_of: HashMap::new(),
            allowed: steps.min(STEPS_PER_CLAIM),
            steps: 0,
        }
    }

    /// Returns whether the worker meets what the job requires, and its remaining resources suffice.
    pub(super) fn suits(&self, job: &Job) -> bool {
        self.wish.suits(job, &self.room)
    }

    /// Returns the kinds of jobs that the claim takes; any when empty.
    pub(super) fn kinds(&self) -> &'a [Kind] {
        self.wish.kinds
    }

    /// Returns the last candidate of an owner that was skipped in a fair queue.
    pub(super) fn passed_of(&self, index: usize, owner: &Group) -> Option<Place> {
        // Most claims skip nothing.
        if self.passed_of.is_empty() { None } else { self.passed_of.get(&(index, owner.clone())).cloned() }
    }

    /// Skips a candidate of an owner in a fair queue.
    pub(super) fn pass(&mut self, index: usize, owner: &Group, place: &Place) {
        self.passed_of.insert((index, owner.clone()), place.clone());
    }

    /// Counts a skipped candidate, and returns whether the claim may skip another.
    pub(super) fn step(&mut self) -> bool {
        self.steps = self.allowed.min(self.steps + 1);
        self.steps < self.allowed
    }

    /// Returns whether the claim may skip no further candidate.
    pub(super) fn is_exhausted(&self) -> bool {
        self.steps >= self.allowed
    }

    /// Subtracts the resources of a job that was taken.
    pub(super) fn use_up(&mut self, job: &Job) {
        use_up(&mut self.room, job);
    }
}

/// Returns whether a worker that offers these labels meets what the job requires. A job that requires nothing costs no
/// more than a look at a pointer.
pub(crate) fn meets(offered: &Offers, job: &Job) -> bool {
    job.spec.conditions.as_ref().is_none_or(|conditions| conditions.are_met_by(offered))
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
