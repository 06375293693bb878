//! Orphans: running jobs that look abandoned, and what happens to them next.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Timestamp, millis};
use crate::job::{Job, JobId, Kind, Orphan, OrphanPolicy, Owner, QueueName, Running, State, WorkerId, words};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::Versioned;

use crate::manager::Manager;
use crate::manager::request::ManagerError;

/// The order of the list of orphans: the least recently written job first.
pub const ORPHAN_ORDER: Sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);

/// A running job that looks abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanedJob {
    /// The job's id.
    pub id: JobId,
    /// The queue that the job was claimed from.
    pub queue: QueueName,
    /// The kind of work: the name of the handler that runs the job.
    pub kind: Kind,
    /// The team or person that the job belongs to.
    pub owner: Option<Owner>,
    /// The worker that holds the lease.
    pub worker_id: WorkerId,
    /// The fence of the claim, for `expected_fence` of a release.
    pub fence: u64,
    /// The number of claims so far that count as attempts.
    pub attempt: u32,
    /// The most attempts that the job gets.
    pub max_attempts: u32,
    /// Why the job was flagged.
    #[schema(example = "no heartbeat since 2030-01-31T08:00:00.000Z")]
    pub reason: String,
    /// When the job was flagged.
    pub flagged_at: Timestamp,
    /// How long ago the job was flagged, in milliseconds.
    pub flagged_for_ms: u64,
    /// Whether the job is left alone until a person decides.
    pub held: bool,
    /// The facts by which to judge whether the job is abandoned.
    pub evidence: OrphanEvidence,
    /// What happens to the job next unless a person intervenes.
    pub next: OrphanNext,
}

/// The facts by which to judge whether a job is abandoned, by the server's clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanEvidence {
    /// When the worker last sent a heartbeat.
    pub heartbeat_at: Timestamp,
    /// How long ago the last heartbeat was, in milliseconds.
    pub silent_for_ms: u64,
    /// When the lease expires, or when it expired.
    pub lease_expires_at: Timestamp,
    /// How long ago the lease expired, in milliseconds; null while it lasts.
    pub lease_expired_for_ms: Option<u64>,
    /// When the lease was acquired.
    pub acquired_at: Timestamp,
    /// How long ago the lease was acquired, in milliseconds.
    pub running_for_ms: u64,
    /// How long an attempt is expected to take, in milliseconds; null when the job does not set it.
    pub expected_runtime_ms: Option<u64>,
}

/// What happens to a job that looks abandoned unless a person intervenes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanNext {
    /// What happens, as a word.
    pub action: OrphanAction,
    /// What happens, as a sentence.
    #[schema(example = "the monitor puts it back in its queue once its lease has been over for the grace")]
    pub text: String,
}

words! {
    /// What happens to a job that looks abandoned.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum OrphanAction: "an action", "actions" {
        /// The lease still lasts: a heartbeat of the worker removes the flag.
        AwaitWorker = "await_worker",
        /// A person has to decide.
        AwaitPerson = "await_person",
        /// The job returns to its queue for its next attempt.
        Requeue = "requeue",
        /// The job fails.
        Fail = "fail",
        /// The job is cancelled, because its cancellation was requested before.
        Cancel = "cancel",
        /// The monitor's own policy applies, since neither the job nor its queue has one.
        MonitorRule = "monitor_rule",
    }
}

impl OrphanedJob {
    /// Returns a flagged job whose queue has this orphan policy as it is at `now`, or `None` when it is not flagged.
    fn of(job: &Job, queue_policy: Option<OrphanPolicy>, now: Timestamp) -> Option<Self> {
        let State::Running(running) = &job.state else { return None };
        let (lease, orphan) = (&running.lease, running.orphan.clone()?);
        let since = |earlier: Timestamp| millis(now.since(earlier));
        Some(Self {
            id: job.id.clone(),
            queue: job.spec.queue.clone(),
            kind: job.spec.kind.clone(),
            owner: job.spec.owner.clone(),
            worker_id: lease.worker_id.clone(),
            fence: job.fence.get(),
            attempt: job.attempt.get(),
            max_attempts: job.spec.max_attempts,
            flagged_at: orphan.flagged_at,
            flagged_for_ms: since(orphan.flagged_at),
            held: orphan.held,
            evidence: OrphanEvidence {
                heartbeat_at: lease.heartbeat_at,
                silent_for_ms: since(lease.heartbeat_at),
                lease_expires_at: lease.expires_at,
                lease_expired_for_ms: (lease.expires_at <= now).then(|| since(lease.expires_at)),
                acquired_at: lease.acquired_at,
                running_for_ms: since(lease.acquired_at),
                expected_runtime_ms: job.spec.expected_runtime.map(millis),
            },
            next: OrphanNext::of(job, running, &orphan, queue_policy, now),
            reason: orphan.reason,
        })
    }
}

impl OrphanNext {
    fn of(job: &Job, running: &Running, orphan: &Orphan, queue_policy: Option<OrphanPolicy>, now: Timestamp) -> Self {
        let (action, text) = match job.spec.oversight.orphan_policy.or(queue_policy) {
            _ if orphan.held => (OrphanAction::AwaitPerson, "waits for a person"),
            _ if running.lease.expires_at > now => (
                OrphanAction::AwaitWorker,
                "its lease still runs: a heartbeat takes the flag off, and nothing is done before the lease is over",
            ),
            _ if running.cancel_requested_at.is_some() => (
                OrphanAction::Cancel,
                "the monitor cancels it, as was asked, once its lease has been over for the grace",
            ),
            Some(OrphanPolicy::Flag) => (OrphanAction::AwaitPerson, "waits for a person"),
            Some(OrphanPolicy::Requeue) if job.attempt.get() >= job.spec.max_attempts => (
                OrphanAction::Fail,
                "fails once its lease has been over for the grace: the monitor would put it back in its queue, but no \
                 attempt is left",
            ),
            Some(OrphanPolicy::Requeue) => (
                OrphanAction::Requeue,
                "the monitor puts it back in its queue once its lease has been over for the grace",
            ),
            Some(OrphanPolicy::Fail) => {
                (OrphanAction::Fail, "the monitor fails it once its lease has been over for the grace")
            }
            None => (
                OrphanAction::MonitorRule,
                "the monitor recovers it by its own rule once its lease has been over for the grace",
            ),
        };
        Self { action, text: text.to_owned() }
    }
}

impl Manager {
    /// Returns up to `limit` flagged jobs that satisfy `filter`, in [`ORPHAN_ORDER`], each with its key in that order.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn orphans(
        &self,
        filter: Filter,
        after: Option<SortKey>,
        limit: usize,
    ) -> Result<Vec<(SortKey, OrphanedJob)>, ManagerError> {
        let filter = Filter { orphaned: Some(true), ..filter };
        let found = self.shared.store.search(&Search { filter, sort: ORPHAN_ORDER, after, limit }).await?;
        let now = self.shared.clock.now();
        let orphaned = |found: Versioned| {
            let queue_policy = self.orphan_policy_of(&found.job.spec.queue);
            Some((ORPHAN_ORDER.key(&found.job), OrphanedJob::of(&found.job, queue_policy, now)?))
        };
        Ok(found.into_iter().filter_map(orphaned).collect())
    }
}
