//! CloudEvents, version 1.0, in the structured JSON form
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>).

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{JobEvent, Origin};
use crate::clock::{Timestamp, rfc3339};
use crate::job::{Actor, Attempt, EventName, Fence, JobError, JobId, JobState, Kind, Owner, QueueName};

/// The media type of the structured form.
pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";

/// An event as a receiver of CloudEvents gets it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudEvent {
    /// `1.0`.
    pub specversion: String,
    /// Unique within the source: the same in every delivery of the event.
    pub id: String,
    /// Which installation it comes from: a URI reference.
    pub source: String,
    /// `dev.leasehold.job.` and the event's name.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The job's id.
    pub subject: String,
    /// When it happened.
    #[serde(with = "rfc3339")]
    pub time: Timestamp,
    /// `application/json`.
    pub datacontenttype: String,
    /// What happened.
    pub data: EventData,
}

/// What happened, and to which job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventData {
    /// What happened.
    pub event: EventName,
    /// Who did it.
    pub actor: Actor,
    /// Why, where there is more to say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The job after it.
    pub job: JobData,
}

/// A job, as far as receivers are told; the names are the API's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobData {
    /// Its id.
    pub id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Its kind.
    pub kind: Kind,
    /// Who it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<Owner>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Where it stands.
    pub state: JobState,
    /// How many claims count so far.
    pub attempt: Attempt,
    /// Its latest claim's fence: of two events of a job, the one with the higher is the later.
    pub fence: Fence,
    /// How its latest attempt failed, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<JobError>,
}

impl CloudEvent {
    /// The event in this form.
    #[must_use]
    pub fn of(event: &JobEvent, origin: &Origin) -> Self {
        Self {
            specversion: "1.0".to_owned(),
            id: event.id.to_string(),
            source: origin.source.clone(),
            event_type: format!("dev.leasehold.job.{}", event.event),
            subject: event.job_id.as_str().to_owned(),
            time: event.at,
            datacontenttype: "application/json".to_owned(),
            data: EventData {
                event: event.event,
                actor: event.actor.clone(),
                reason: event.reason.clone(),
                job: JobData::of(event),
            },
        }
    }
}

impl JobData {
    fn of(event: &JobEvent) -> Self {
        Self {
            id: event.job_id.clone(),
            queue: event.queue.clone(),
            kind: event.kind.clone(),
            owner: event.owner.clone(),
            labels: event.labels.clone(),
            state: event.state,
            attempt: event.attempt,
            fence: event.fence,
            error: event.error.clone(),
        }
    }
}
