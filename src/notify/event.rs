//! The events that can be subscribed to.

use std::fmt;
use std::str::FromStr;

use serde_with::{DeserializeFromStr, SerializeDisplay};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::job::EventName;
use crate::schedule::ScheduleEventName;

/// An event that can be subscribed to, of a job or of a schedule. Its name says which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, SerializeDisplay, DeserializeFromStr)]
pub enum SubscribableEvent {
    /// An event of jobs: one of [`EventName::NOTIFIABLE`], or else nobody is notified of it.
    Job(EventName),
    /// An event of schedules.
    Schedule(ScheduleEventName),
}

impl SubscribableEvent {
    /// Returns every event that receivers are notified of.
    pub fn all() -> impl Iterator<Item = Self> {
        let of_jobs = EventName::NOTIFIABLE.into_iter().map(Self::Job);
        of_jobs.chain(ScheduleEventName::ALL.into_iter().map(Self::Schedule))
    }

    /// Returns the event's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Job(event) => event.as_str(),
            Self::Schedule(event) => event.as_str(),
        }
    }
}

impl From<EventName> for SubscribableEvent {
    fn from(event: EventName) -> Self {
        Self::Job(event)
    }
}

impl From<ScheduleEventName> for SubscribableEvent {
    fn from(event: ScheduleEventName) -> Self {
        Self::Schedule(event)
    }
}

impl fmt::Display for SubscribableEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SubscribableEvent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let of_job = text.parse().map(Self::Job);
        of_job.or_else(|_| text.parse().map(Self::Schedule)).map_err(|_| {
            let words: Vec<&str> = Self::all().map(Self::as_str).collect();
            format!("`{text}` is not an event; the events are {}", words.join(", "))
        })
    }
}

impl PartialSchema for SubscribableEvent {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The name of an event of jobs or of schedules that can be subscribed to."))
            .enum_values(Some(Self::all().map(Self::as_str)))
            .into()
    }
}

impl ToSchema for SubscribableEvent {}
