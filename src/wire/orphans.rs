//! Running jobs that look abandoned, with the evidence and what happens to them next.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::millis;
use crate::clock::Timestamp;
use crate::job::{self, OrphanPolicy, words};
use crate::manager::{OrphanStatus, Prospect};

/// A running job that looks abandoned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OrphanedJob {
    /// The job's id.
    pub id: String,
    /// The queue that the job was claimed from.
    pub queue: String,
    /// The kind of work: the name of the handler that runs the job.
    pub kind: String,
    /// The team or person that the job belongs to.
    pub owner: Option<String>,
    /// The worker that holds the lease.
    pub worker_id: String,
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

impl OrphanNext {
    fn of(prospect: Prospect, is_last_attempt: bool) -> Self {
        let (action, text) = match prospect {
            Prospect::WaitsForItsWorker => (
                OrphanAction::AwaitWorker,
                "its lease still runs: a heartbeat takes the flag off, and nothing is done before the lease is over",
            ),
            Prospect::WaitsForAPerson => (OrphanAction::AwaitPerson, "waits for a person"),
            Prospect::IsCancelled => (
                OrphanAction::Cancel,
                "the monitor cancels it, as was asked, once its lease has been over for the grace",
            ),
            Prospect::IsRecovered(Some(OrphanPolicy::Requeue)) if is_last_attempt => (
                OrphanAction::Fail,
                "fails once its lease has been over for the grace: the monitor would put it back in its queue, but no \
                 attempt is left",
            ),
            Prospect::IsRecovered(Some(OrphanPolicy::Requeue)) => (
                OrphanAction::Requeue,
                "the monitor puts it back in its queue once its lease has been over for the grace",
            ),
            Prospect::IsRecovered(Some(OrphanPolicy::Fail)) => {
                (OrphanAction::Fail, "the monitor fails it once its lease has been over for the grace")
            }
            Prospect::IsRecovered(Some(OrphanPolicy::Flag)) => (OrphanAction::AwaitPerson, "waits for a person"),
            Prospect::IsRecovered(None) => (
                OrphanAction::MonitorRule,
                "the monitor recovers it by its own rule once its lease has been over for the grace",
            ),
        };
        Self { action, text: text.to_owned() }
    }
}

impl TryFrom<&OrphanStatus> for OrphanedJob {
    type Error = job::Refusal;

    /// Converts the status; fails when the job is not running, which every flagged job is.
    fn try_from(status: &OrphanStatus) -> Result<Self, job::Refusal> {
        let job = &*status.versioned.job;
        let lease = &job.running()?.lease;
        let since = |earlier: Timestamp| millis(status.now.since(earlier));
        Ok(Self {
            id: job.id.as_str().to_owned(),
            queue: job.spec.queue.as_str().to_owned(),
            kind: job.spec.kind.as_str().to_owned(),
            owner: job.spec.owner.as_ref().map(|owner| owner.as_str().to_owned()),
            worker_id: lease.worker_id.as_str().to_owned(),
            fence: job.fence.get(),
            attempt: job.attempt.get(),
            max_attempts: job.spec.max_attempts,
            reason: status.orphan.reason.clone(),
            flagged_at: status.orphan.flagged_at,
            flagged_for_ms: since(status.orphan.flagged_at),
            held: status.orphan.held,
            evidence: OrphanEvidence {
                heartbeat_at: lease.heartbeat_at,
                silent_for_ms: since(lease.heartbeat_at),
                lease_expires_at: lease.expires_at,
                lease_expired_for_ms: status.expired_for().map(millis),
                acquired_at: lease.acquired_at,
                running_for_ms: since(lease.acquired_at),
                expected_runtime_ms: job.spec.expected_runtime.map(millis),
            },
            next: OrphanNext::of(status.next, job.attempt.get() >= job.spec.max_attempts),
        })
    }
}
