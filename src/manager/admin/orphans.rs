//! Orphans: running jobs that look abandoned, and what happens to them next.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{Orphan, OrphanPolicy, Running, State};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::Versioned;

use crate::manager::Manager;
use crate::manager::request::ManagerError;

/// The order of the list of orphans: the least recently written job first.
pub const ORPHAN_ORDER: Sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);

/// What happens to a flagged job next if no administrator acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// The job's lease has not expired; its worker's next heartbeat removes the flag.
    WaitsForItsWorker,
    /// The job is held until an administrator decides.
    WaitsForAPerson,
    /// The job's cancellation was requested; it is cancelled when the monitor takes it from its worker.
    IsCancelled,
    /// The monitor takes the job from its worker under this orphan policy of the job or its queue, or under the
    /// monitor's default policy when `None`.
    IsRecovered(Option<OrphanPolicy>),
}

/// The status of a flagged job at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct OrphanStatus {
    /// The job.
    pub versioned: Versioned,
    /// When and why it was flagged.
    pub orphan: Orphan,
    /// The time of this status.
    pub now: Timestamp,
    /// What happens to the job next.
    pub next: Prospect,
}

impl OrphanStatus {
    /// Returns the status of a job whose queue has this orphan policy, or `None` when the job is not flagged.
    #[must_use]
    pub fn of(versioned: Versioned, queue_policy: Option<OrphanPolicy>, now: Timestamp) -> Option<Self> {
        let State::Running(running) = &versioned.job.state else { return None };
        let orphan = running.orphan.clone()?;
        let policy = versioned.job.spec.oversight.orphan_policy.or(queue_policy);
        let next = prospect(policy, running, &orphan, now);
        Some(Self { versioned, orphan, now, next })
    }

    /// Returns how long ago the lease expired, or `None` when it has not expired.
    #[must_use]
    pub fn expired_for(&self) -> Option<Duration> {
        let lease = self.versioned.job.lease()?;
        (lease.expires_at <= self.now).then(|| self.now.since(lease.expires_at))
    }
}

fn prospect(policy: Option<OrphanPolicy>, running: &Running, orphan: &Orphan, now: Timestamp) -> Prospect {
    if orphan.held {
        return Prospect::WaitsForAPerson;
    }
    if running.lease.expires_at > now {
        return Prospect::WaitsForItsWorker;
    }
    if running.cancel_requested_at.is_some() {
        return Prospect::IsCancelled;
    }
    match policy {
        Some(OrphanPolicy::Flag) => Prospect::WaitsForAPerson,
        policy => Prospect::IsRecovered(policy),
    }
}

impl Manager {
    /// Returns up to `limit` flagged jobs that satisfy `filter`, in [`ORPHAN_ORDER`].
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn orphans(
        &self,
        filter: Filter,
        after: Option<SortKey>,
        limit: usize,
    ) -> Result<Vec<OrphanStatus>, ManagerError> {
        let filter = Filter { orphaned: Some(true), ..filter };
        let found = self.shared.store.search(&Search { filter, sort: ORPHAN_ORDER, after, limit }).await?;
        let now = self.shared.clock.now();
        let status = |found: Versioned| {
            let queue_policy = self.orphan_policy_of(&found.job.spec.queue);
            OrphanStatus::of(found, queue_policy, now)
        };
        Ok(found.into_iter().filter_map(status).collect())
    }
}
