//! A trigger: one due time of a schedule, which is a job of the system's own.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{Due, JobId, JobSpec, Json, Kind, Priority, QueueName, RetryPolicy, ScheduleId};
use crate::manager::NewJob;
use crate::manager::own::{Meaning, SoughtOwn};
use crate::schedule::{MissReason, Outcome, Schedule};

/// The name of the queue of triggers.
pub const QUEUE: &str = "leasehold.triggers";
/// The kind of triggers.
pub const KIND: &str = "leasehold.trigger";
/// The label that names the backfill of a trigger, or of a job that one has submitted.
pub const BACKFILL_LABEL: &str = "backfill_id";

/// From when on a trigger counts as late.
pub(super) const LATE: Duration = Duration::from_secs(1);

/// The namespaces of the ids of triggers, and of the jobs that they submit (RFC 9562, section 5.5).
const TRIGGERS: Uuid = Uuid::from_u128(0x0c4f_5a53_3d0c_4f1e_9c11_7ad2_54e7_b6a1);
const JOBS: Uuid = Uuid::from_u128(0x7e0d_91c8_8f24_4b0a_8a55_2b9e_0f6d_13c4);
/// The same of backfills. A due time that was missed may have a trigger already, and overlaps do not ask for these.
const BACKFILLED_TRIGGERS: Uuid = Uuid::from_u128(0x3f1b_64ce_91d7_4a58_b0e6_c25d_8a07_4e19);
const BACKFILLED_JOBS: Uuid = Uuid::from_u128(0x95ad_20e7_6c3b_4d81_87f2_1b4e_d960_5ac3);

/// How long a trigger waits to be judged after its margin of error is over. What is judged is noted in its schedule.
const KEPT_WAITING: Duration = Duration::from_secs(3_600);
/// The part of its margin of error that lies between two tries of a call at the most.
const PART: u32 = 4;
/// A trigger is claimed as often as its margin of error allows.
const MAX_ATTEMPTS: u32 = 1_000;

/// The payload of a trigger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trigger {
    /// The id of the schedule that is due.
    pub schedule_id: ScheduleId,
    /// When the trigger is due.
    pub due_at: Timestamp,
    /// When the schedule from which it was made was created: another one may have its id since.
    pub created_at: Timestamp,
    /// The revision of that schedule.
    pub revision: u64,
    /// The due time of the trigger before it.
    pub previous: Option<Timestamp>,
    /// Whether a person asked for it, so that it runs whatever the schedule's times are and though it is paused.
    #[serde(default)]
    pub on_request: bool,
    /// The backfill that made it; `None` for a trigger that was made when it was due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<BackfillMark>,
}

/// What a trigger knows of the backfill that made it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillMark {
    /// The id of the backfill, which is a job in the same queue.
    pub id: JobId,
    /// When the trigger was made. A call is tried until the margin of error has passed since then.
    pub made_at: Timestamp,
    /// When people had last changed the schedule by then. A pause does not count, and neither does its end.
    pub changed_at: Timestamp,
}

/// What has become of a trigger, as its job's result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Performed {
    /// What has become of it.
    pub outcome: Outcome,
    /// How late it began, in milliseconds.
    pub late_ms: u64,
    /// The job that it has submitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job_id: Option<JobId>,
    /// Why it was not performed, or what was answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// What has kept it from beginning in time, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<MissReason>,
    /// The due time of the earlier trigger for whose sake it was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behind: Option<Timestamp>,
}

/// Returns the id of the trigger of a schedule that is due at this time.
#[must_use]
pub fn id(schedule: &ScheduleId, due_at: Timestamp) -> JobId {
    derived(TRIGGERS, schedule, due_at)
}

/// Returns the id of the job that this trigger submits.
#[must_use]
pub fn job_id(schedule: &ScheduleId, due_at: Timestamp) -> JobId {
    derived(JOBS, schedule, due_at)
}

/// Returns the id of the trigger that a backfill makes for a due time of a schedule.
#[must_use]
pub fn backfilled_id(schedule: &ScheduleId, due_at: Timestamp) -> JobId {
    derived(BACKFILLED_TRIGGERS, schedule, due_at)
}

/// Returns the id of the job that such a trigger submits.
#[must_use]
pub fn backfilled_job_id(schedule: &ScheduleId, due_at: Timestamp) -> JobId {
    derived(BACKFILLED_JOBS, schedule, due_at)
}

/// What there may be of a due time, each under ids of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// The trigger that was made when it was due.
    Trigger,
    /// The job that it has submitted.
    Job,
    /// The trigger that a backfill has made.
    Backfilled,
    /// The job that it has submitted.
    BackfilledJob,
}

impl Trace {
    /// Returns what is looked for of a due time of a schedule.
    pub(super) fn sought(self, schedule: &ScheduleId, due_at: Timestamp) -> SoughtOwn {
        let (id, queue): (fn(&ScheduleId, Timestamp) -> JobId, _) = match self {
            Self::Trigger => (id, Some(QUEUE)),
            Self::Job => (job_id, None),
            Self::Backfilled => (backfilled_id, Some(QUEUE)),
            Self::BackfilledJob => (backfilled_job_id, None),
        };
        let due = Some(Due { schedule_id: schedule.clone(), due_at });
        let meaning = Meaning { queue: queue.map(|queue| (QueueName::system(queue), Kind::system(KIND))), due };
        SoughtOwn { id: id(schedule, due_at), since: Some(due_at), meaning }
    }
}

/// Returns how a call that had no answer is made again: four times at least in the latter part of its margin of error.
pub(super) fn retry_within(margin: Duration) -> RetryPolicy {
    let policy = RetryPolicy::default();
    RetryPolicy { max: policy.max.min(margin / PART).max(policy.base), ..policy }
}

fn derived(namespace: Uuid, schedule: &ScheduleId, due_at: Timestamp) -> JobId {
    let name = format!("{schedule}\u{0}{}", due_at.as_millis());
    JobId::of_uuid(Uuid::new_v5(&namespace, name.as_bytes()))
}

impl Trigger {
    /// Returns the trigger of a schedule that is due then, where `previous` is the due time before.
    #[must_use]
    pub fn of(schedule: &Schedule, due_at: Timestamp, previous: Option<Timestamp>) -> Self {
        let Schedule { id, created_at, revision, .. } = schedule;
        let (created_at, revision) = (*created_at, *revision);
        Self { schedule_id: id.clone(), due_at, created_at, revision, previous, on_request: false, backfill: None }
    }

    /// Returns the trigger that a backfill makes for a due time of a schedule.
    #[must_use]
    pub fn backfilled(schedule: &Schedule, due_at: Timestamp, backfill: JobId, now: Timestamp) -> Self {
        let mark = BackfillMark { id: backfill, made_at: now, changed_at: schedule.updated_at };
        Self { backfill: Some(mark), ..Self::of(schedule, due_at, None) }
    }

    /// Returns a trigger of a schedule that need not exist, to fill in what stands for triggers.
    #[must_use]
    pub fn example(schedule_id: ScheduleId, due_at: Timestamp) -> Self {
        let (created_at, revision) = (due_at, 1);
        Self { schedule_id, due_at, created_at, revision, previous: None, on_request: false, backfill: None }
    }

    /// Returns the id of the trigger's job.
    #[must_use]
    pub fn id(&self) -> JobId {
        let id = if self.backfill.is_some() { backfilled_id } else { id };
        id(&self.schedule_id, self.due_at)
    }

    /// Returns the id of the job that the trigger submits.
    #[must_use]
    pub fn job_id(&self) -> JobId {
        let id = if self.backfill.is_some() { backfilled_job_id } else { job_id };
        id(&self.schedule_id, self.due_at)
    }

    /// Returns the labels of the trigger, and of the job that it submits.
    #[must_use]
    pub fn labels(&self) -> BTreeMap<String, String> {
        let of_backfill = self.backfill.as_ref().map(|backfill| (BACKFILL_LABEL.to_owned(), backfill.id.to_string()));
        of_backfill.into_iter().collect()
    }

    /// Returns the time until which the trigger of a schedule may be tried.
    #[must_use]
    pub fn until(&self, schedule: &Schedule) -> Timestamp {
        self.backfill.as_ref().map_or(self.due_at, |backfill| backfill.made_at).plus(schedule.margin())
    }

    /// Returns the due time, as it stands in the trigger's job and in the job that it submits.
    #[must_use]
    pub fn due(&self) -> Due {
        Due { schedule_id: self.schedule_id.clone(), due_at: self.due_at }
    }

    /// Returns the job that performs this trigger of a schedule.
    ///
    /// # Errors
    /// Returns an error when the trigger cannot be written as JSON.
    pub fn into_job(self, schedule: &Schedule) -> Result<NewJob, serde_json::Error> {
        let is_backfilled = self.backfill.is_some();
        let expires_at = self.until(schedule).plus(KEPT_WAITING);
        Ok(NewJob {
            id: Some(self.id()),
            payload: Some(Json::of(&self)?),
            // One that is backfilled waits for its turn, however long those take that are due.
            run_at: (!is_backfilled).then_some(self.due_at),
            expires_at: (!is_backfilled).then_some(expires_at),
            ..NewJob::of(JobSpec {
                owner: schedule.definition.owner.clone(),
                labels: self.labels(),
                max_attempts: MAX_ATTEMPTS,
                retry: retry_within(schedule.margin()),
                priority: Priority::new(if is_backfilled { Priority::LOWEST } else { 0 }).unwrap_or_default(),
                due: Some(Box::new(self.due())),
                ..JobSpec::new(QueueName::system(QUEUE), Kind::system(KIND))
            })
        })
    }
}
