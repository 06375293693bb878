//! CloudEvents, version 1.0, in the structured JSON form
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md>).

use serde::{Deserialize, Serialize};

use super::event::{Event, EventData, Origin, Subject};
use crate::clock::Timestamp;

/// The media type of the structured form.
pub(super) const CONTENT_TYPE: &str = "application/cloudevents+json";

/// A CloudEvent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CloudEvent {
    /// The version of the specification: `1.0`.
    pub specversion: String,
    /// The event's id, which is unique within the source and the same in every delivery.
    pub id: String,
    /// The installation that the event comes from, as a URI reference.
    pub source: String,
    /// The event's type: `dev.leasehold.job.` or `dev.leasehold.schedule.` and the event's name.
    #[serde(rename = "type")]
    pub event_type: String,
    /// The id of the job or schedule.
    pub subject: String,
    /// When the event happened.
    pub time: Timestamp,
    /// The media type of the data: `application/json`.
    pub datacontenttype: String,
    /// The event, and what it happened to.
    pub data: EventData,
}

impl CloudEvent {
    /// Makes the CloudEvent of an event.
    #[must_use]
    pub fn of(event: &Event, origin: &Origin) -> Self {
        let Subject { kind, id, short, .. } = event.subject();
        Self {
            specversion: "1.0".to_owned(),
            id: event.id.to_string(),
            source: origin.source.clone(),
            event_type: format!("dev.leasehold.{kind}.{short}"),
            subject: id.to_owned(),
            time: event.at,
            datacontenttype: "application/json".to_owned(),
            data: event.data.clone(),
        }
    }
}
