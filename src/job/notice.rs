//! The outbox of a job: the events that receivers are still to be notified of.
//!
//! The write that records such an event also puts a [`Notice`] into the job's outbox: the need to notify is part of the
//! same conditional write, so that no crash can come between the two. The notice stays until it has been handed on.

use serde::{Deserialize, Serialize};
use utoipa::openapi::{ObjectBuilder, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use super::Job;
use super::event::EventName;
use super::history::HistoryEntry;
use super::word_enum::words;
use crate::clock::Timestamp;

words! {
    /// The format of a notification.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum NoticeFormat: "a format", "formats" {
        /// CloudEvents 1.0 as JSON, signed.
        #[default]
        CloudEvents = "cloud_events",
        /// A message for a Slack-compatible webhook.
        Slack = "slack",
        /// An alert for an Alertmanager.
        Alertmanager = "alertmanager",
    }
}

/// A receiver of notifications about a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(as = NotifyTarget)]
#[serde(deny_unknown_fields)]
pub struct NoticeTarget {
    /// The `http` or `https` URL that is called, at most 2,048 bytes.
    #[schema(max_length = 2048, example = "https://example.org/hook")]
    pub url: String,
    /// The events that are notified. An empty list selects all of them.
    #[serde(default)]
    #[schema(value_type = Vec<NotifiableEvent>)]
    pub events: Vec<EventName>,
    /// The format of the call's body; `cloud_events` by default.
    #[serde(default)]
    pub format: NoticeFormat,
}

/// An event of [`EventName::NOTIFIABLE`], in the API's description.
pub struct NotifiableEvent;

impl PartialSchema for NotifiableEvent {
    fn schema() -> RefOr<Schema> {
        ObjectBuilder::new()
            .schema_type(Type::String)
            .description(Some("The name of an event that receivers can be notified of."))
            .enum_values(Some(EventName::NOTIFIABLE.map(EventName::as_str)))
            .into()
    }
}

impl ToSchema for NotifiableEvent {}

impl NoticeTarget {
    /// Returns whether the receiver is notified of this event.
    #[must_use]
    pub fn wants(&self, event: EventName) -> bool {
        EventName::NOTIFIABLE.contains(&event) && (self.events.is_empty() || self.events.contains(&event))
    }
}

/// An event of a job that has not been notified yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notice {
    /// The number of the history entry, counted from one; with the job's id it identifies the event for good.
    pub number: u32,
    /// The event's entry in the history.
    pub entry: HistoryEntry,
}

/// The largest number of notices in one outbox. Notices wait only while the part that hands them on cannot write, when
/// little else happens either; beyond this number the oldest is dropped.
pub const MAX_NOTICES: usize = 50;

impl Job {
    /// Puts a notice into the outbox for each notifiable event since `before` that one of the job's own targets wants
    /// or `wanted` accepts. The system's own jobs get no notices: a failed notification would lead to another one.
    pub fn announce(&mut self, before: &Self, wanted: impl Fn(EventName) -> bool) {
        if self.spec.queue.is_internal() {
            return;
        }
        let new = self.history.len().saturating_sub(before.history.len()).min(self.history.entries().len());
        let first = self.history.entries().len() - new;
        for (place, entry) in self.history.entries().iter().enumerate().skip(first) {
            let is_wanted = EventName::NOTIFIABLE.contains(&entry.event)
                && (wanted(entry.event) || self.spec.oversight.notify.iter().any(|target| target.wants(entry.event)));
            if !is_wanted {
                continue;
            }
            if self.outbox.len() >= MAX_NOTICES {
                self.outbox.remove(0);
            }
            let number = self.history.len() - (self.history.entries().len() - 1 - place);
            self.outbox.push(Notice { number: u32::try_from(number).unwrap_or(u32::MAX), entry: entry.clone() });
        }
    }

    /// Returns the job without the notices of these numbers, which are handed on; `None` if its outbox has none of
    /// them.
    #[must_use]
    pub fn notices_handed_on(&self, numbers: &[u32], now: Timestamp) -> Option<Self> {
        if !self.outbox.iter().any(|notice| numbers.contains(&notice.number)) {
            return None;
        }
        let mut rest = self.clone();
        rest.outbox.retain(|notice| !numbers.contains(&notice.number));
        rest.updated_at = self.next_update(now);
        Some(rest)
    }

    /// Returns whether nothing is left to do for the job: it has ended, and its notices have been handed on.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state.name().is_final() && self.outbox.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_names_no_events_wants_all_that_are_notifiable_and_no_others() {
        let target = |events: &[EventName]| NoticeTarget {
            url: String::new(),
            events: events.into(),
            format: NoticeFormat::Slack,
        };
        let [any, named] = [target(&[]), target(&[EventName::Failed, EventName::Claimed])];
        for event in EventName::ALL {
            assert_eq!(any.wants(event), EventName::NOTIFIABLE.contains(&event), "{event:?}");
            assert_eq!(named.wants(event), event == EventName::Failed, "{event:?}");
        }
    }
}
