//! The worker's slots and resources. What is free has one owner at a time: the pool, or the claim that asks for jobs to
//! fill it. So claims that are under way together never get more jobs than the worker has room for.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most jobs that one claim takes.
pub(super) const MAX_CLAIM: usize = 100;

/// Amounts of resources, by name.
type Resources = BTreeMap<String, u64>;

/// The slots and resources that no running job uses and no claim offers.
pub(super) struct SlotPool {
    slots: Arc<Semaphore>,
    /// As many as the worker may still begin jobs and no claim offers slots for.
    budget: Arc<Semaphore>,
    resources: Arc<Mutex<Resources>>,
}

impl SlotPool {
    /// Creates a pool of which at most `max_jobs` slots are used for a job, one after the other.
    pub(super) fn new(slots: usize, resources: Resources, max_jobs: Option<usize>) -> Self {
        let budget = max_jobs.unwrap_or(Semaphore::MAX_PERMITS).min(Semaphore::MAX_PERMITS);
        let (slots, budget) = (Arc::new(Semaphore::new(slots)), Arc::new(Semaphore::new(budget)));
        Self { slots, budget, resources: Arc::new(Mutex::new(resources)) }
    }

    /// Waits for one free slot, and takes all others that are free then, with all free resources. It waits for ever
    /// once the worker has begun as many jobs as it may.
    pub(super) async fn take(&self) -> Slots {
        let Ok(mut slots) = self.slots.clone().acquire_owned().await else { return std::future::pending().await };
        let Ok(mut budget) = self.budget.clone().acquire_owned().await else { return std::future::pending().await };
        while slots.num_permits() < MAX_CLAIM
            && let Ok(more) = self.slots.clone().try_acquire_owned()
            && let Ok(more_budget) = self.budget.clone().try_acquire_owned()
        {
            slots.merge(more);
            budget.merge(more_budget);
        }
        let mut taken = Slots { resources: Share::none_of(&self.resources), slots, budget };
        taken.add_free_resources();
        taken
    }
}

/// Slots and resources, of a running job or to be offered by a claim. They go back to the pool when this is dropped.
pub(super) struct Slots {
    // Dropped before the slots, so that whoever takes a slot finds the resources that its job has used.
    resources: Share,
    slots: OwnedSemaphorePermit,
    /// One for each slot that can be given a job.
    budget: OwnedSemaphorePermit,
}

impl Slots {
    /// Joins the slots of attempts that have ended, as many as one claim may offer, with all free resources. Returns
    /// `None` when there are none.
    pub(super) fn of_ended(ended: &mut dyn Iterator<Item = Self>) -> Option<Self> {
        let mut joined = ended.next()?;
        for more in ended.take(MAX_CLAIM - 1) {
            joined.slots.merge(more.slots);
            joined.resources.merge(more.resources);
            joined.budget.merge(more.budget);
        }
        let budget = joined.budget.semaphore().clone();
        while joined.budget.num_permits() < joined.count()
            && let Ok(more) = budget.clone().try_acquire_owned()
        {
            joined.budget.merge(more);
        }
        // Slots for which the worker may begin no more jobs are free.
        drop(joined.slots.split(joined.count() - joined.budget.num_permits()));
        if joined.count() == 0 {
            return None;
        }
        joined.add_free_resources();
        Some(joined)
    }

    /// Returns the number of slots.
    pub(super) fn count(&self) -> usize {
        self.slots.num_permits()
    }

    /// Returns the resources that go with the slots.
    pub(super) const fn resources(&self) -> &Resources {
        &self.resources.amounts
    }

    /// Takes out one slot with the resources that are needed; `None` when no slot is left.
    pub(super) fn take(&mut self, needed: &BTreeMap<String, u64>) -> Option<Self> {
        let (slots, budget) = (self.slots.split(1)?, self.budget.split(1)?);
        Some(Self { resources: self.resources.split(needed), slots, budget })
    }

    /// Takes note of that these slots are given jobs, which count against what the worker may begin.
    pub(super) fn begin(mut self) -> Self {
        if let Some(budget) = self.budget.split(self.budget.num_permits()) {
            budget.forget();
        }
        self
    }

    fn add_free_resources(&mut self) {
        for (name, free) in self.resources.pool.lock().iter_mut() {
            *self.resources.amounts.entry(name.clone()).or_default() += std::mem::take(free);
        }
    }
}

/// A part of the worker's resources, which goes back to the pool when it is dropped.
struct Share {
    amounts: Resources,
    pool: Arc<Mutex<Resources>>,
}

impl Share {
    fn none_of(pool: &Arc<Mutex<Resources>>) -> Self {
        Self { amounts: Resources::new(), pool: pool.clone() }
    }

    fn merge(&mut self, mut other: Self) {
        for (name, amount) in std::mem::take(&mut other.amounts) {
            *self.amounts.entry(name).or_default() += amount;
        }
    }

    /// Takes out what a job needs of the resources that the worker has.
    fn split(&mut self, needed: &Resources) -> Self {
        let mut part = Self::none_of(&self.pool);
        for (name, mine) in &mut self.amounts {
            let amount = needed.get(name).map_or(0, |needed| (*mine).min(*needed));
            *mine -= amount;
            part.amounts.insert(name.clone(), amount);
        }
        part
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut free = self.pool.lock();
        for (name, amount) in std::mem::take(&mut self.amounts) {
            *free.entry(name).or_default() += amount;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(amount: u64) -> Resources {
        [("memory".to_owned(), amount)].into()
    }

    fn needing(amount: u64) -> Resources {
        [("memory".to_owned(), amount), ("not offered".to_owned(), 1)].into()
    }

    #[tokio::test]
    async fn what_one_claim_offers_no_other_does() {
        let pool = SlotPool::new(3, memory(10), None);
        let mut first = pool.take().await;
        assert_eq!((first.count(), first.resources()), (3, &memory(10)));
        let (large, small) = (first.take(&needing(6)).expect("a slot"), first.take(&needing(1)).expect("one"));
        assert_eq!((first.count(), first.resources()), (1, &memory(3)));
        let next = Slots::of_ended(&mut std::iter::once(large)).expect("a slot");
        assert_eq!((next.count(), next.resources()), (1, &memory(6)), "the rest is the first claim's");
        drop(first);
        let next = Slots::of_ended(&mut [next, small].into_iter()).expect("slots");
        assert_eq!((next.count(), next.resources()), (2, &memory(10)), "what is free goes along");
        let other = pool.take().await;
        assert_eq!((other.count(), other.resources()), (1, &memory(0)));
        drop((next, other));
        assert_eq!(pool.take().await.resources(), &memory(10), "all of it comes back");
    }

    #[tokio::test]
    async fn no_more_jobs_begin_than_may() {
        let pool = SlotPool::new(2, Resources::new(), Some(3));
        let mut first = pool.take().await;
        let begun = [(); 2].map(|()| first.take(&needing(0)).expect("a slot").begin());
        assert_eq!(begun.each_ref().map(Slots::count), [1, 1]);
        let mut next = Slots::of_ended(&mut begun.into_iter()).expect("a slot");
        assert_eq!(next.count(), 1, "for the third job");
        let third = next.take(&needing(0)).expect("a slot");
        drop(next);
        // It was not given a job after all.
        drop(third);
        let mut again = pool.take().await;
        assert_eq!(again.count(), 1);
        let last = again.take(&needing(0)).expect("a slot").begin();
        assert!(Slots::of_ended(&mut std::iter::once(last)).is_none());
    }

    #[tokio::test]
    async fn no_claim_offers_more_slots_than_it_may_take_jobs() {
        let pool = SlotPool::new(MAX_CLAIM + 5, Resources::new(), None);
        let mut first = pool.take().await;
        let rest = pool.take().await;
        assert_eq!((first.count(), rest.count()), (MAX_CLAIM, 5));
        let mut ended: Vec<Slots> = std::iter::from_fn(|| first.take(&needing(0))).chain([rest]).collect();
        ended.reverse();
        let mut ended = ended.into_iter().skip(1);
        assert_eq!(Slots::of_ended(&mut ended).map(|slots| slots.count()), Some(MAX_CLAIM));
        assert!(Slots::of_ended(&mut ended).is_none());
    }
}
