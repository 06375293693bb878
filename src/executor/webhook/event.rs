//! An event of a job, in the form that receivers get.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{Actor, Attempt, EventName, Fence, Job, JobError, JobId, JobState, Kind, Notice, Owner, QueueName};

/// The namespace of the ids of events.
const EVENT_NAMESPACE: Uuid = Uuid::from_u128(0x2c5a_91d4_77b0_4e0e_8f6d_a1b3_50c9_3e17);

/// An event that happened to a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The event's id, which is the same in every delivery, so that receivers can recognise a repetition.
    pub id: Uuid,
    /// When the event happened.
    pub at: Timestamp,
    /// The event and its job.
    pub data: EventData,
}

/// An event and its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventData {
    /// The name of the event.
    pub event: EventName,
    /// The actor that caused the event.
    pub actor: Actor,
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

impl JobEvent {
    /// Makes the event of a job's notice. The same notice always gives the same id; the error is the one that the job
    /// has when the event is made.
    #[must_use]
    pub fn of(job: &Job, notice: &Notice) -> Self {
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
        Self {
            id: Uuid::new_v5(&EVENT_NAMESPACE, name.as_bytes()),
            at: entry.at,
            data: EventData { event: entry.event, actor: entry.actor.clone(), reason: entry.reason.clone(), job: data },
        }
    }
}

/// The installation that events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The installation's name: a URI reference, such as its public address.
    pub source: String,
    /// The address of the web pages that show a job by its id, if there are any.
    pub job_pages: Option<Url>,
}

impl Origin {
    /// Returns the address of the page that shows the job.
    #[must_use]
    pub fn page_of(&self, job: &JobId) -> Option<Url> {
        let mut url = self.job_pages.clone()?;
        url.path_segments_mut().ok()?.pop_if_empty().push(job.as_str());
        Some(url)
    }
}
