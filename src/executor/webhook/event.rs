//! An event of a job or of a schedule, in the form that receivers get.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Attempt, EventName, Fence, HistoryEntry, Job, JobError, JobId, JobState, Kind, Notice, Owner, QueueName,
    ScheduleId, WorkerId,
};
use crate::schedule::{MissedTimes, Schedule, ScheduleEventName, ScheduleNotice, SchedulePause};

/// The namespaces of the ids of events: of jobs, and of schedules.
const EVENT_NAMESPACE: Uuid = Uuid::from_u128(0x2c5a_91d4_77b0_4e0e_8f6d_a1b3_50c9_3e17);
const SCHEDULE_NAMESPACE: Uuid = Uuid::from_u128(0x9b3e_07c2_e15d_4a68_b7f4_60d8_2f91_c5ae);

/// An event that receivers are notified of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The event's id, which is the same in every delivery, so that receivers can recognise a repetition.
    pub id: Uuid,
    /// When the event happened.
    pub at: Timestamp,
    /// The event, and what it happened to.
    pub data: EventData,
}

/// An event, and what it happened to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum EventData {
    /// An event of a job.
    Job(JobEvent),
    /// An event of a schedule.
    Schedule(ScheduleEvent),
}

/// An event and its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The name of the event.
    pub event: EventName,
    /// The actor that caused the event.
    pub actor: Actor,
    /// The worker that caused it, where it has a token, whose name is the actor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_id: Option<WorkerId>,
    /// The reason, if one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The job after the event.
    pub job: JobData,
}

/// The part of a job that receivers get. The field names are those of the API.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobData {
    /// The job's id.
    pub id: JobId,
    /// The job's queue.
    pub queue: QueueName,
    /// The job's kind.
    pub kind: Kind,
    /// The job's owner, if it has one.
    pub owner: Option<Owner>,
    /// The job's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The job's state after the event.
    pub state: JobState,
    /// The number of attempts that counted by the time of the message.
    pub attempt: Attempt,
    /// The fence of the job's latest claim. Of two events of one job, the one with the higher fence is the later one.
    pub fence: Fence,
    /// The error of the latest attempt, if it failed.
    pub error: Option<JobError>,
}

/// An event and its schedule.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleEvent {
    /// The name of the event.
    pub event: ScheduleEventName,
    /// The number of the event among those of the schedule. The one with the higher number is the later one.
    pub number: u64,
    /// The actor that caused the event.
    pub actor: Actor,
    /// Why it happened, where the name does not say enough.
    pub reason: Option<String>,
    /// The due times that were missed, if the event is about such.
    pub missed: Option<MissedTimes>,
    /// The schedule when the message was made.
    pub schedule: ScheduleData,
}

/// The part of a schedule that receivers get. The field names are those of the API.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleData {
    /// The schedule's id.
    pub id: ScheduleId,
    /// The schedule's owner, if it has one.
    pub owner: Option<Owner>,
    /// The schedule's labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Who paused the schedule, when and why; `None` while it runs.
    pub paused: Option<SchedulePause>,
    /// How many triggers in a row ended with an error of the user's.
    pub errors: u32,
    /// How many triggers in a row ended without success.
    pub failures: u32,
    /// The next time for which no trigger is made yet.
    pub next_due_at: Option<Timestamp>,
}

/// What an event happened to, and its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// What it is: `job` or `schedule`.
    pub kind: &'static str,
    /// The id of the job or schedule.
    pub id: &'a str,
    /// The owner of the job or schedule.
    pub owner: Option<&'a Owner>,
    /// The name of the event, as people subscribe to it.
    pub event: &'static str,
    /// The name of the event without saying what it happened to.
    pub short: &'static str,
}

impl Event {
    /// Makes the event of a job's notice. The same notice always gives the same id; the error is the one that the job
    /// has when the event is made.
    #[must_use]
    pub fn of_job(job: &Job, notice: &Notice) -> Self {
        // A job may be deleted, and another one submitted under its id.
        let name = format!("{}:{}:{}", notice.number, job.created_at.as_millis(), job.id);
        let entry = &notice.entry;
        let data = JobData {
            id: job.id.clone(),
            queue: job.spec.queue.clone(),
            kind: job.spec.kind.clone(),
            owner: job.spec.owner.clone(),
            labels: job.spec.labels.clone(),
            state: entry.to,
            attempt: entry.attempt,
            fence: entry.fence,
            error: job.error.clone(),
        };
        let HistoryEntry { event, actor, worker_id, reason, .. } = entry.clone();
        Self {
            id: Uuid::new_v5(&EVENT_NAMESPACE, name.as_bytes()),
            at: entry.at,
            data: EventData::Job(JobEvent { event, actor, worker_id, reason, job: data }),
        }
    }

    /// Makes the event of a schedule's notice. The same notice always gives the same id; the rest of the schedule is as
    /// it is when the event is made.
    #[must_use]
    pub fn of_schedule(schedule: &Schedule, notice: &ScheduleNotice) -> Self {
        // A schedule may be removed, and another one created under its id.
        let name = format!("{}:{}:{}", notice.number, schedule.created_at.as_millis(), schedule.id);
        let (definition, course) = (&*schedule.definition, &schedule.course);
        let data = ScheduleData {
            id: schedule.id.clone(),
            owner: definition.owner.clone(),
            labels: definition.labels.clone(),
            paused: schedule.paused.clone(),
            errors: course.errors,
            failures: course.failures,
            next_due_at: course.next_due_at,
        };
        let ScheduleNotice { number, event, at, actor, reason, missed } = notice.clone();
        let id = Uuid::new_v5(&SCHEDULE_NAMESPACE, name.as_bytes());
        Self {
            id,
            at,
            data: EventData::Schedule(ScheduleEvent { event, number, actor, reason, missed, schedule: data }),
        }
    }

    /// Returns what the event happened to, and its name.
    #[must_use]
    pub fn subject(&self) -> Subject<'_> {
        match &self.data {
            EventData::Job(JobEvent { event, job, .. }) => Subject {
                kind: "job",
                id: job.id.as_str(),
                owner: job.owner.as_ref(),
                event: event.as_str(),
                short: event.as_str(),
            },
            EventData::Schedule(ScheduleEvent { event, schedule, .. }) => Subject {
                kind: "schedule",
                id: schedule.id.as_str(),
                owner: schedule.owner.as_ref(),
                event: event.as_str(),
                short: event.short(),
            },
        }
    }
}

/// The installation that events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The installation's name: a URI reference, such as its public address.
    pub source: String,
    /// The address below which web pages show `jobs` and `schedules` by their ids, if there are any.
    pub pages: Option<Url>,
}

impl Origin {
    /// Returns the address of the page that shows what an event happened to.
    #[must_use]
    pub fn page_of(&self, subject: &Subject<'_>) -> Option<Url> {
        let mut url = self.pages.clone()?;
        url.path_segments_mut().ok()?.pop_if_empty().push(&format!("{}s", subject.kind)).push(subject.id);
        Some(url)
    }
}
