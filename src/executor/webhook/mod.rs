//! Webhooks: what a receiver is sent about a job, how it is signed, and what its answer means. All pure.
//!
//! In reading order: [`JobEvent`] (what happened), [`render`] (what it looks like to a receiver:
//! [`CloudEvent`]s, messages for Slack, alerts for Alertmanager), [`signature`] (Standard Webhooks), and [`Verdict`]
//! (what an answer means for the delivery).

mod alertmanager;
mod cloud_event;
mod event;
pub mod signature;
mod slack;
mod verdict;

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue, Method};
use serde::Serialize;

pub use cloud_event::CloudEvent;
pub use event::{EventData, JobData, JobEvent, Origin};
pub use signature::{InvalidSecret, InvalidSignature, Secret, verify};
pub use verdict::{MAX_RETRY_AFTER, Verdict};

use super::{HttpCall, TargetUrl};
use crate::clock::Timestamp;
use crate::job::NoticeFormat;

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
