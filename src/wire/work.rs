//! Calls about existing jobs: by workers, clients and administrators.

use std::ops::RangeInclusive;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Checks, Invalid, MAX_BULK_ITEMS, MAX_ERROR_BYTES, MAX_RETRY_MS, MAX_TEXT_BYTES};
use super::claims::ClaimNext;
use super::described::UserWorker;
use super::job::{JobError, Progress};
use crate::job::{self, Actor, ErrorCode, Fence, JobId, Json, Then, WorkerId};
use crate::manager;

/// The reason that is recorded when a worker releases a job without giving one.
const RELEASED: &str = "released by its worker";

/// A heartbeat for one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatJob {
    /// The worker that holds the lease.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The progress of the work. When left out, the last report is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl HeartbeatJob {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_beat(self, id: JobId) -> Result<(WorkerId, manager::Heartbeat), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        let progress = checks.progress(self.progress);
        Ok((checks.finish(worker)?, manager::Heartbeat { id, fence: Fence::new(self.fence), progress }))
    }
}

/// Heartbeats for many jobs of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeartbeatJobs {
    /// The worker that holds the leases.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The leases to prolong; at most 1,000.
    #[schema(max_items = 1000)]
    pub leases: Vec<LeaseBeat>,
}

/// A heartbeat for one of many jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LeaseBeat {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The progress of the work. When left out, the last report is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<Progress>,
}

impl HeartbeatJobs {
    /// Checks the fields of the call itself, and returns the result of checking each item.
    ///
    /// # Errors
    /// The worker's name or the number of items is wrong.
    pub fn into_beats(self) -> Result<(WorkerId, Vec<Result<manager::Heartbeat, Invalid>>), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        checks.count("leases", self.leases.len(), MAX_BULK_ITEMS);
        let worker = checks.finish(worker)?;
        Ok((worker, self.leases.into_iter().map(LeaseBeat::into_beat).collect()))
    }
}

impl LeaseBeat {
    fn into_beat(self) -> Result<manager::Heartbeat, Invalid> {
        let mut checks = Checks::default();
        let id = checks.name("id", &self.id);
        let progress = checks.progress(self.progress);
        Ok(manager::Heartbeat { id: checks.finish(id)?, fence: Fence::new(self.fence), progress })
    }
}

/// The leases of a worker that waits for recalls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AwaitRecalls {
    /// The leases that the worker holds now; at most 1,000. It is told of those that it is given meanwhile as well.
    #[schema(max_items = 1000)]
    pub leases: Vec<HeldLease>,
}

/// A lease that a worker holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HeldLease {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The fence of the claim.
    pub fence: u64,
}

/// The attempts of a worker that have to end early.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecallList {
    /// The recalls; empty when none came in time.
    pub items: Vec<manager::Recall>,
}

impl AwaitRecalls {
    /// Checks every field, and returns the leases in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_leases(self) -> Result<Vec<(JobId, Fence)>, Invalid> {
        let mut checks = Checks::default();
        checks.count("leases", self.leases.len(), MAX_BULK_ITEMS);
        let mut leases = Vec::with_capacity(self.leases.len().min(MAX_BULK_ITEMS));
        for (index, lease) in self.leases.iter().take(MAX_BULK_ITEMS).enumerate() {
            let id: Option<JobId> = checks.name(&format!("leases[{index}].id"), &lease.id);
            leases.extend(id.map(|id| (id, Fence::new(lease.fence))));
        }
        checks.finish(Some(leases))
    }
}

/// The completion of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompleteJob {
    /// The worker that ran the job.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The output of the work: any JSON of at most 1 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Value>)]
    pub result: Option<Json>,
    /// The claim of the next jobs, in the same call. The answer is then the job and the next ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<ClaimNext>,
}

impl CompleteJob {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_finish(self, id: JobId) -> Result<(WorkerId, manager::Finish, Option<manager::ClaimRequest>), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        checks.body("result", self.result.as_ref());
        let next = checks.next(self.next, &self.worker_id);
        let outcome = manager::Outcome::Completed { result: self.result };
        Ok((checks.finish(worker)?, manager::Finish { id, fence: Fence::new(self.fence), outcome }, next))
    }
}

/// The failure of an attempt.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FailJob {
    /// The worker that ran the job.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The error that the attempt failed with.
    pub error: JobError,
    /// Whether another attempt could succeed. True by default.
    pub retryable: Option<bool>,
    /// The shortest wait before the next attempt, where the failure named one (as `Retry-After` does); at most
    /// 604,800,000 milliseconds (a week).
    #[schema(minimum = 0, maximum = 604_800_000)]
    pub retry_after_ms: Option<u64>,
    /// The claim of the next jobs, in the same call. The answer is then the job and the next ones.
    #[schema(nullable = false)]
    pub next: Option<ClaimNext>,
}

impl FailJob {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_finish(self, id: JobId) -> Result<(WorkerId, manager::Finish, Option<manager::ClaimRequest>), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        let outcome = checks.failure(self.error, self.retryable, self.retry_after_ms);
        let next = checks.next(self.next, &self.worker_id);
        Ok((checks.finish(worker)?, manager::Finish { id, fence: Fence::new(self.fence), outcome }, next))
    }
}

/// The release of a job by its worker: the job waits again, and the attempt does not count.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReleaseJob {
    /// The worker that holds the lease.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The reason, which is recorded in the job's history; at most 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The time after which the job can be claimed again, at most 604,800,000 milliseconds (a week); 0 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 0, maximum = 604_800_000)]
    pub delay_ms: Option<u64>,
}

impl ReleaseJob {
    /// Checks every field, and returns the request in the types of the domain.
    ///
    /// # Errors
    /// Every field that is wrong.
    pub fn into_finish(self, id: JobId) -> Result<(WorkerId, manager::Finish), Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        let reason = self.reason.unwrap_or_else(|| RELEASED.to_owned());
        checks.text("reason", &reason, MAX_TEXT_BYTES);
        let delay = checks.millis("delay_ms", self.delay_ms.unwrap_or(0), 0..=MAX_RETRY_MS);
        let outcome = manager::Outcome::Released { reason, delay };
        Ok((checks.finish(worker)?, manager::Finish { id, fence: Fence::new(self.fence), outcome }))
    }
}

/// The ends of many attempts of one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishJobs {
    /// The worker that ran the jobs.
    #[schema(value_type = UserWorker)]
    pub worker_id: String,
    /// The completions and failures; at most 1,000.
    #[schema(max_items = 1000)]
    pub items: Vec<Completion>,
    /// The claim of the next jobs, in the same call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub next: Option<ClaimNext>,
}

/// The end of one of many attempts: a failure when there is an `error`, else a completion.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Completion {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The fence of the claim.
    pub fence: u64,
    /// The output of the work: any JSON of at most 1 MiB.
    #[schema(value_type = Option<Value>)]
    pub result: Option<Json>,
    /// The error that the attempt failed with.
    pub error: Option<JobError>,
    /// Whether another attempt could succeed. True by default. Allowed only with an `error`.
    pub retryable: Option<bool>,
    /// The shortest wait before the next attempt, at most 604,800,000 milliseconds (a week). Allowed only with an
    /// `error`.
    #[schema(minimum = 0, maximum = 604_800_000)]
    pub retry_after_ms: Option<u64>,
}

/// The ends of attempts as they were checked, each on its own, and the claim of the next jobs.
type CheckedEnds = (WorkerId, Vec<Result<manager::Finish, Invalid>>, Option<manager::ClaimRequest>);

impl FinishJobs {
    /// Checks the fields of the call itself, and returns the result of checking each item.
    ///
    /// # Errors
    /// The worker's name, the number of items or the claim of the next jobs is wrong.
    pub fn into_finishes(self) -> Result<CheckedEnds, Invalid> {
        let mut checks = Checks::default();
        let worker = checks.worker(&self.worker_id);
        checks.count("items", self.items.len(), MAX_BULK_ITEMS);
        let next = checks.next(self.next, &self.worker_id);
        let worker = checks.finish(worker)?;
        Ok((worker, self.items.into_iter().map(Completion::into_finish).collect(), next))
    }
}

impl Completion {
    fn into_finish(self) -> Result<manager::Finish, Invalid> {
        let mut checks = Checks::default();
        let id = checks.name("id", &self.id);
        let outcome = match self.error {
            Some(error) => {
                if self.result.is_some() {
                    checks.fault("result", "must not stand beside an `error`");
                }
                checks.failure(error, self.retryable, self.retry_after_ms)
            }
            None => {
                if self.retryable.is_some() {
                    checks.fault("retryable", "stands only beside an `error`");
                }
                if self.retry_after_ms.is_some() {
                    checks.fault("retry_after_ms", "stands only beside an `error`");
                }
                checks.body("result", self.result.as_ref());
                manager::Outcome::Completed { result: self.result }
            }
        };
        Ok(manager::Finish { id: checks.finish(id)?, fence: Fence::new(self.fence), outcome })
    }
}

/// The reason for cancelling a job, for retrying it, or for pausing a queue or a schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeReason {
    /// The reason, at most 4 KiB. It is recorded in the job's history, or shown with the paused queue or
    /// schedule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
}

impl ChangeReason {
    /// Checks the reason.
    ///
    /// # Errors
    /// The reason is too long.
    pub fn into_reason(self) -> Result<Option<String>, Invalid> {
        let mut checks = Checks::default();
        checks.text("reason", self.reason.as_deref().unwrap_or_default(), MAX_TEXT_BYTES);
        checks.finish(Some(self.reason))
    }
}

/// A request to cancel a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CancelJob {
    /// The reason, at most 4 KiB. It is recorded in the job's history.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 4096)]
    pub reason: Option<String>,
    /// The fence that the job must still have. A job that was claimed again meanwhile is not cancelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_fence: Option<u64>,
}

impl CancelJob {
    /// Checks the reason, and returns it with the expected fence.
    ///
    /// # Errors
    /// The reason is too long.
    pub fn into_order(self) -> Result<(Option<String>, Option<Fence>), Invalid> {
        let reason = ChangeReason { reason: self.reason }.into_reason()?;
        Ok((reason, self.expected_fence.map(Fence::new)))
    }
}

/// An administrator's order to end the lease of a running job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AdminRelease {
    /// The reason, which is recorded in the job's history; at most 4 KiB.
    #[schema(min_length = 1, max_length = 4096, example = "host7 burnt down")]
    pub reason: String,
    /// What happens to the released job.
    pub then: Then,
    /// The fence that the job must still have. When the job has been claimed again, the release is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_fence: Option<u64>,
}

impl AdminRelease {
    /// Checks the reason.
    ///
    /// # Errors
    /// The reason is empty or too long.
    pub fn into_order(self, actor: Actor) -> Result<job::AdminRelease, Invalid> {
        let mut checks = Checks::default();
        if self.reason.trim().is_empty() {
            checks.fault("reason", "must not be empty");
        }
        checks.text("reason", &self.reason, MAX_TEXT_BYTES);
        let expected_fence = self.expected_fence.map(Fence::new);
        checks.finish(Some(job::AdminRelease { actor, reason: self.reason, then: self.then, expected_fence }))
    }
}

impl Checks {
    /// Checks a progress report, and returns it as it is kept.
    fn progress(&mut self, progress: Option<Progress>) -> Option<Progress> {
        let Progress { percent, message } = progress?;
        let percent = percent.map(|percent| self.number("progress.percent", percent, 0.0..=100.0));
        self.text("progress.message", message.as_deref().unwrap_or_default(), MAX_TEXT_BYTES);
        Some(Progress { percent, message })
    }

    /// Checks a failure report.
    fn failure(&mut self, error: JobError, retryable: Option<bool>, after_ms: Option<u64>) -> manager::Outcome {
        const AFTER: RangeInclusive<u64> = 0..=MAX_RETRY_MS;
        self.name::<ErrorCode>("error.code", &error.code);
        self.text("error.message", &error.message, MAX_ERROR_BYTES);
        let retry_after: Option<Duration> = after_ms.map(|millis| self.millis("retry_after_ms", millis, AFTER));
        manager::Outcome::Failed { error, retryable: retryable.unwrap_or(true), retry_after }
    }
}
