//! Orphans: running jobs that look abandoned, and what happens to them next.

use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{Orphan, OrphanPolicy, Running, State};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::Versioned;

use crate::manager::Manager;
use crate::manager::request::ManagerError;

/// The order of the list of orphans: those that were not written for the longest time first.
pub const ORPHAN_ORDER: Sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);

/// What a job does next if nobody steps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prospect {
    /// Its lease has not expired: a heartbeat takes the flag off.
    WaitsForItsWorker,
    /// It is held until an administrator decides.
    WaitsForAPerson,
    /// Its cancellation was requested; it is cancelled when the monitor takes it from its worker.
    IsCancelled,
    /// The monitor takes it from its worker under this orphan policy of the job or its queue; under the monitor's own
    /// when `None`.
    IsRecovered(Option<OrphanPolicy>),
}

/// A flagged job, as it stood at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct OrphanStatus {
    /// The job.
    pub versioned: Versioned,
    /// When and why it was flagged.
    pub orphan: Orphan,
    /// The time that this status is about.
    pub now: Timestamp,
    /// What happens to the job next.
    pub next: Prospect,
}

impl OrphanStatus {
    /// Returns the status of a job whose queue has this orphan policy; `None` when the job is not flagged.
    #[must_use]
    pub fn of(versioned: Versioned, queue_policy: Option<OrphanPolicy>, now: Timestamp) -> Option<Self> {
        let State::Running(running) = &versioned.job.state else { return None };
        let orphan = running.orphan.clone()?;
        let policy = versioned.job.spec.oversight.orphan_policy.or(queue_policy);
        let next = prospect(policy, running, &orphan, now);
        Some(Self { versioned, orphan, now, next })
    }

    /// Returns for how long the lease has been expired; `None` before.
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
    /// The store's.
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
