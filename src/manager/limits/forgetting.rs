//! Removing the documents of limits that nobody needs any more.

use std::collections::HashSet;
use std::time::Duration;

use tracing::debug;

use super::bucket::{Age, Bucket};
use super::documents::{Known, Sight, record_key};
use super::slots::{Evidence, Holder, SlotDocument};
use super::taking::READS_PER_LOOK;
use crate::job::{JobId, LimitName};
use crate::manager::Manager;
use crate::manager::sweep::Swept;
use crate::store::{RecordKind, RecordWrite, Versioned};

/// How long a document is kept that nobody has asked for.
const KEPT: Duration = Duration::from_secs(30);

impl Manager {
    /// Removes the documents that no manager knows and whose slots are all gone, until the manager stops.
    pub(in crate::manager) async fn keep_slots_swept(self) {
        self.keep_swept(|manager, after| async move { manager.sweep::<SlotDocument>(after).await }).await;
    }

    /// Removes the documents that nobody has asked for lately and whose slots are all gone, and forgets the others.
    pub(super) async fn forget_unused(&self) {
        let held: HashSet<LimitName> = self.shared.dispatch.holding_limits().into_iter().collect();
        let unused: Vec<LimitName> = {
            let known = self.shared.limits.documents.lock();
            let is_unused = |(name, known): &(&LimitName, &Known)| {
                known.asked_at.elapsed() >= KEPT && !held.contains(*name) && !known.slots.is_claiming()
            };
            known.iter().filter(is_unused).map(|(name, _)| name.clone()).take(READS_PER_LOOK).collect()
        };
        if unused.is_empty() {
            return;
        }
        let doubtful = self.shared.limits.documents.doubtful(unused.iter(), false, Sight::Due, READS_PER_LOOK);
        if !doubtful.is_empty() {
            self.find_out(doubtful).await;
        }
        let removals: Vec<(LimitName, RecordWrite)> = {
            let mut known = self.shared.limits.documents.lock();
            let removal = |name: LimitName| {
                let slots = known.remove(&name)?.slots;
                let expected = slots.version.filter(|_| slots.document(&name).is_none())?;
                Some((name.clone(), RecordWrite::Remove { key: record_key(&name), expected }))
            };
            unused.into_iter().filter_map(removal).collect()
        };
        let results = self.write_documents(removals.iter().map(|(_, write)| write)).await;
        for ((name, _), result) in removals.iter().zip(results) {
            if let Err(error) = result {
                debug!(%error, limit = %name, "a document of slots that nobody needs is left");
            }
        }
    }
}

/// A document that no manager knows, such as one of a manager that was killed, is removed once its slots are all gone.
impl Swept for SlotDocument {
    const KIND: RecordKind = RecordKind::Slots;
    /// A document can name a thousand jobs.
    const AT_ONCE: usize = 1;

    fn is_in_use(&self, manager: &Manager) -> bool {
        manager.shared.limits.documents.lock().contains_key(&self.limit)
    }

    fn jobs(&self) -> Vec<JobId> {
        self.holders.iter().map(|holder| holder.job.clone()).collect()
    }

    async fn is_over(&self, manager: &Manager, jobs: &[Option<Versioned>]) -> bool {
        let is_over = |(holder, job): (&Holder, &Option<Versioned>)| {
            holder.evidence(job.as_ref().map(|found| &*found.job)) == Evidence::Over
        };
        let set = manager.shared.limits.settings.get(&self.limit);
        let now = manager.shared.clock.now();
        let is_needed = |bucket: Bucket| {
            set.as_ref()
                .and_then(|set| set.rate)
                .is_some_and(|rate| !Bucket::filled(Some(bucket), rate, Age::default(), now).is_full(rate))
        };
        self.holders.iter().zip(jobs).all(is_over) && !self.bucket.is_some_and(is_needed)
    }
}

#[cfg(test)]
mod tests;
