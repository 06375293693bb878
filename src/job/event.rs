//! What happens to a job, in one word each, and the outbox of what others want to be told of.
//!
//! Every history entry names its event. When somebody wants to hear of one, the write that records it also puts a
//! [`Notice`] into the job's outbox: the need to tell is part of the same conditional write, so that no crash can come
//! between the two. The notice stays until what it asks for has been handed on.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Job;
use super::history::HistoryEntry;
use super::word_enum::words;
use crate::clock::Timestamp;

words! {
    /// What happened to a job.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum EventName: "an event" {
        /// The job was submitted.
        Submitted = "submitted",
        /// A worker claimed the job.
        Claimed = "claimed",
        /// The job was completed.
        Completed = "completed",
        /// The job failed for good.
        Failed = "failed",
        /// The job waits again: an attempt failed with attempts left, or somebody retried the job.
        Retried = "retried",
        /// The job was cancelled.
        Cancelled = "cancelled",
        /// The worker was asked to stop.
        CancelRequested = "cancel_requested",
        /// Nobody claimed the job before its start deadline.
        Expired = "expired",
        /// Somebody other than the worker ended the lease, and the job waits again.
        Released = "released",
        /// The worker gave the job back unharmed.
        Returned = "returned",
        /// The job was flagged as an orphan.
        Orphaned = "orphaned",
        /// The attempt takes longer than expected.
        Overdue = "overdue",
    }
}

impl EventName {
    /// The events that can be notified. The others happen to every job, so that notifying them would cost every job a
    /// second write; a live stream shows them all.
    pub const NOTIFIABLE: [Self; 8] = [
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Expired,
        Self::Orphaned,
        Self::Overdue,
        Self::Released,
        Self::Retried,
    ];
}

words! {
    /// The format of a notification.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum NoticeFormat: "a format" {
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
    #[schema(example = "https://example.org/hook")]
    pub url: String,
    /// The events that are notified: `completed`, `failed`, `cancelled`, `expired`, `orphaned`, `overdue`, `released`,
    /// `retried`. An empty list selects all of them.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub events: Vec<EventName>,
    /// The format of the call's body: `cloud_events` (the default), `slack` or `alertmanager`.
    #[serde(default)]
    #[schema(value_type = String)]
    pub format: NoticeFormat,
}

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
    /// The number of the job's event, counted from one: with the job's id it identifies the event for good.
    pub number: u32,
    /// The event's entry in the history.
    pub entry: HistoryEntry,
}

/// The most notices that wait in one job. They wait only while what hands them on cannot write, when little else
/// happens either; beyond this the oldest goes.
pub const MAX_NOTICES: usize = 50;

impl Job {
    /// Puts those events that happened since `before` into the outbox that the job's own targets want, or `wanted`
    /// says yes to. Nobody is told of the system's own jobs: a notification that fails would be told of by another one.
    pub fn announce(&mut self, before: &Self, wanted: impl Fn(EventName) -> bool) {
        if self.spec.queue.is_internal() {
            return;
        }
        let new = self.history.len().saturating_sub(before.history.len()).min(self.history.entries().len());
        let first = self.history.entries().len() - new;
        for (place, entry) in self.history.entries().iter().enumerate().skip(first) {
            let told = EventName::NOTIFIABLE.contains(&entry.event)
                && (wanted(entry.event) || self.spec.oversight.notify.iter().any(|target| target.wants(entry.event)));
            if !told {
                continue;
            }
            if self.outbox.len() >= MAX_NOTICES {
                self.outbox.remove(0);
            }
            let number = self.history.len() - (self.history.entries().len() - 1 - place);
            self.outbox.push(Notice { number: u32::try_from(number).unwrap_or(u32::MAX), entry: entry.clone() });
        }
    }

    /// Takes notices out of the outbox that have been handed on. `None` when none of them is there any more.
    #[must_use]
    pub fn notices_handed_on(&self, numbers: &[u32], now: Timestamp) -> Option<Self> {
        if !self.outbox.iter().any(|notice| numbers.contains(&notice.number)) {
            return None;
        }
        let mut rest = self.clone();
        rest.outbox.retain(|notice| !numbers.contains(&notice.number));
        rest.updated_at = now.max(self.updated_at);
        Some(rest)
    }

    /// Whether nothing is left to do for the job: it has ended, and everybody who is to be told of it has been.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.state.name().is_final() && self.outbox.is_empty()
    }
}
