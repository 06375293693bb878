//! Webhooks: what a receiver is sent about a job, how it is signed, and what its answer means. All pure.
//!
//! In reading order: [`JobEvent`] (what happened), [`render`] (what it looks like to a receiver:
//! [`CloudEvent`]s, messages for Slack, alerts for Alertmanager), [`signature`] (Standard Webhooks), and [`Verdict`]
//! (what an answer means for the delivery).

mod alertmanager;
mod cloud_event;
pub mod signature;
mod slack;
mod verdict;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub use cloud_event::{CloudEvent, EventData, JobData};
pub use signature::{InvalidSecret, InvalidSignature, Secret, verify};
pub use verdict::{MAX_RETRY_AFTER, Verdict};

use super::{HttpCall, TargetUrl};
use crate::clock::{Timestamp, rfc3339};
use crate::job::{
    Actor, Attempt, EventName, Fence, Job, JobError, JobId, JobState, Kind, Notice, NoticeFormat, Owner, QueueName,
};

/// What the ids of events are made in, so that they are nobody else's.
const EVENT_NAMESPACE: Uuid = Uuid::from_u128(0x2c5a_91d4_77b0_4e0e_8f6d_a1b3_50c9_3e17);

/// Something that happened to a job, with what a receiver may want to know of the job at that time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEvent {
    /// The event's own id: the same in every delivery of it, so that receivers can tell a repetition.
    pub id: Uuid,
    /// What happened.
    pub event: EventName,
    /// When.
    #[serde(with = "rfc3339")]
    pub at: Timestamp,
    /// To which job.
    pub job_id: JobId,
    /// Its queue.
    pub queue: QueueName,
    /// Its kind.
    pub kind: Kind,
    /// Who it belongs to.
    pub owner: Option<Owner>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Where it stands after the event.
    pub state: JobState,
    /// How many claims counted by then.
    pub attempt: Attempt,
    /// Its latest claim's fence.
    pub fence: Fence,
    /// Who did it.
    pub actor: Actor,
    /// Why, where there is more to say.
    pub reason: Option<String>,
    /// How its latest attempt failed, if it did.
    pub error: Option<JobError>,
}

impl JobEvent {
    /// The event that a job's notice tells of. The same notice has the same id, whoever makes the event of it; the
    /// error is the one that the job has by now.
    #[must_use]
    pub fn of(job: &Job, notice: &Notice) -> Self {
        // A job may be deleted, and another one submitted under its id.
        let name = format!("{}:{}:{}", notice.number, job.created_at.as_millis(), job.id);
        let entry = &notice.entry;
        Self {
            id: Uuid::new_v5(&EVENT_NAMESPACE, name.as_bytes()),
            event: entry.event,
            at: entry.at,
            job_id: job.id.clone(),
            queue: job.spec.queue.clone(),
            kind: job.spec.kind.clone(),
            owner: job.spec.owner.clone(),
            labels: job.spec.labels.clone(),
            state: entry.to,
            attempt: entry.attempt,
            fence: entry.fence,
            actor: entry.actor.clone(),
            reason: entry.reason.clone(),
            error: job.error.clone(),
        }
    }
}

/// Where events come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// This installation's name: a URI reference, such as its public address.
    pub source: String,
    /// The address under which people find a job by its id, where there is one.
    pub job_pages: Option<Url>,
}

impl Origin {
    /// Where people find the job.
    #[must_use]
    pub fn page_of(&self, job: &JobId) -> Option<Url> {
        let mut url = self.job_pages.clone()?;
        url.path_segments_mut().ok()?.pop_if_empty().push(job.as_str());
        Some(url)
    }
}

/// What a receiver of this format is sent of the event.
#[must_use]
pub fn render(format: NoticeFormat, event: &JobEvent, origin: &Origin) -> Message {
    let (content_type, body) = match format {
        NoticeFormat::CloudEvents => (cloud_event::CONTENT_TYPE, json(&CloudEvent::of(event, origin))),
        NoticeFormat::Slack => ("application/json", json(&slack::message(event, origin))),
        NoticeFormat::Alertmanager => ("application/json", json(&alertmanager::alerts(event, origin))),
    };
    Message { content_type, body }
}

fn json(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value).expect("texts and numbers under names become JSON").into()
}

/// An event as it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its media type.
    pub content_type: &'static str,
    /// Its bytes.
    pub body: Bytes,
}

/// Who is told of events, and how.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// Where it listens.
    pub url: TargetUrl,
    /// What it understands.
    pub format: NoticeFormat,
    /// What it is signed with: one secret, or old and new ones while they are being changed. None: unsigned.
    pub secrets: Vec<Secret>,
    /// How long it may take to answer.
    pub timeout: Duration,
}

impl Receiver {
    /// The call that delivers the event. Each try is signed anew, with `now`, and has the event's id.
    #[must_use]
    pub fn delivery(&self, event: &JobEvent, origin: &Origin, now: Timestamp) -> HttpCall {
        let message = render(self.format, event, origin);
        let mut headers: HeaderMap = signature::headers(event.id, now, &message.body, &self.secrets);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(message.content_type));
        HttpCall { method: Method::POST, url: self.url.clone(), headers, body: message.body, timeout: self.timeout }
    }
}
