//! Webhooks: the messages that receivers get, their signatures, and the meaning of a receiver's answer. All pure.
//!
//! In reading order: [`Event`] (what happened), [`render`] (the message in a receiver's format: [`CloudEvent`]s,
//! messages for Slack, alerts for Alertmanager), [`signature`] (Standard Webhooks), and [`Verdict`] (what an answer
//! means for the delivery).

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
pub use event::{Event, EventData, JobData, JobEvent, Origin, ScheduleData, ScheduleEvent, Subject};
pub use signature::{InvalidSecret, InvalidSignature, Secret, verify};
pub use verdict::{MAX_RETRY_AFTER, Verdict};

use super::{HttpCall, TargetUrl};
use crate::clock::Timestamp;
use crate::job::NoticeFormat;

/// Renders the event in a receiver's format.
#[must_use]
pub fn render(format: NoticeFormat, event: &Event, origin: &Origin) -> Message {
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

/// A rendered event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The media type of the body.
    pub content_type: &'static str,
    /// The body of the message.
    pub body: Bytes,
}

/// A receiver of events.
#[derive(Clone, Debug)]
pub struct Receiver {
    /// The URL that messages are posted to.
    pub url: TargetUrl,
    /// The format of the messages.
    pub format: NoticeFormat,
    /// The secrets that sign messages: the current one, and the former one after a rotation. Without one, messages are
    /// not signed.
    pub secrets: Vec<Secret>,
    /// The time within which the receiver must answer.
    pub timeout: Duration,
}

impl Receiver {
    /// Returns the call that delivers the event. Each try has the event's id, and a signature over the time `now`.
    #[must_use]
    pub fn delivery(&self, event: &Event, origin: &Origin, now: Timestamp) -> HttpCall {
        let message = render(self.format, event, origin);
        let mut headers: HeaderMap = signature::headers(event.id, now, &message.body, &self.secrets);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(message.content_type));
        HttpCall { method: Method::POST, url: self.url.clone(), headers, body: message.body, timeout: self.timeout }
    }
}
