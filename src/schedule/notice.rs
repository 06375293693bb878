//! The outbox of a schedule: the events that receivers are still to be notified of.
//!
//! As with a job ([`crate::job::notice`]), the write that records such an event also puts a [`ScheduleNotice`] into the
//! schedule's outbox, so that no crash can come between the two. A schedule fires again and again, so its outbox is
//! handed on in intervals and has one notice for each event: what happens in between is told of at once.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{Actor, NoticeFormat, words};

/// How long the first notice of an outbox waits for others: what a downtime has missed becomes known in parts.
const SETTLES_FOR: Duration = Duration::from_secs(5);
/// How long an outbox rests after its notices were handed on, or could not be.
const RESTS_FOR: Duration = Duration::from_secs(60);

words! {
    /// The name of an event of a schedule that receivers can be notified of.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ScheduleEventName: "an event of a schedule", "events" {
        /// Due times could not begin within the margin of error.
        ScheduleMissed = "schedule_missed",
        /// Several triggers in a row have ended without success.
        ScheduleFailing = "schedule_failing",
        /// An action has succeeded after the schedule was failing or due times were missed.
        ScheduleRecovered = "schedule_recovered",
        /// The system has paused the schedule.
        SchedulePaused = "schedule_paused",
        /// Somebody has ended the system's pause.
        ScheduleResumed = "schedule_resumed",
    }
}

impl ScheduleEventName {
    /// Returns the name without saying that it is a schedule's, such as `missed`.
    #[must_use]
    pub fn short(self) -> &'static str {
        self.as_str().trim_start_matches("schedule_")
    }
}

/// A receiver of notifications about a schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleNotifyTarget {
    /// The `http` or `https` URL that is called, at most 2,048 bytes.
    #[schema(max_length = 2048, example = "https://example.org/hook")]
    pub url: String,
    /// The events that are notified. An empty list selects all of them.
    #[serde(default)]
    pub events: Vec<ScheduleEventName>,
    /// The format of the call's body; `cloud_events` by default.
    #[serde(default)]
    pub format: NoticeFormat,
}

impl ScheduleNotifyTarget {
    /// Returns whether the receiver is notified of this event.
    #[must_use]
    pub fn wants(&self, event: ScheduleEventName) -> bool {
        self.events.is_empty() || self.events.contains(&event)
    }
}

/// Due times that were missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissedTimes {
    /// The first due time.
    pub first: Timestamp,
    /// The last due time.
    pub last: Timestamp,
    /// How many due times there are.
    pub count: u64,
}

impl fmt::Display for MissedTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { first, last, count } = self;
        match count {
            1 => write!(f, "the due time {first}"),
            count => write!(f, "{count} due times from {first} to {last}"),
        }
    }
}

/// An event of a schedule that has not been notified yet.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleNotice {
    /// The number of the event, counted from one; with the schedule's id and the time of its creation it identifies
    /// the event for good. Of two events of a schedule the one with the higher number is the later one.
    pub number: u64,
    /// The name of the event.
    pub event: ScheduleEventName,
    /// When the event happened.
    pub at: Timestamp,
    /// The actor that caused the event.
    pub actor: Actor,
    /// Why it happened, where the name does not say enough.
    pub reason: Option<String>,
    /// The due times that [`ScheduleEventName::ScheduleMissed`] is about.
    pub missed: Option<MissedTimes>,
}

/// The notices of a schedule that are still to be handed on: at most one for each event.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScheduleOutbox {
    /// The notices, in the order of their numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<ScheduleNotice>,
    /// The number of the latest notice; 0 before the first one.
    #[serde(default)]
    pub last_number: u64,
    /// The notices are not handed on before this time.
    pub not_before: Option<Timestamp>,
}

impl ScheduleOutbox {
    /// Returns whether the outbox never had a notice.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        *self == Self::default()
    }

    /// Returns when the notices are to be handed on; `None` when there are none.
    #[must_use]
    pub fn hand_on_at(&self) -> Option<Timestamp> {
        self.not_before.filter(|_| !self.notices.is_empty())
    }

    /// Puts a notice into the outbox, under the next number. It takes the place of one of the same event, with the due
    /// times that both have missed.
    pub fn put(&mut self, mut notice: ScheduleNotice) {
        if self.notices.is_empty() {
            let settled = notice.at.plus(SETTLES_FOR);
            self.not_before = Some(self.not_before.map_or(settled, |not_before| not_before.max(settled)));
        }
        let former = self.notices.iter().position(|former| former.event == notice.event);
        if let Some(former) = former.map(|place| self.notices.remove(place))
            && let (Some(missed), Some(before)) = (&mut notice.missed, former.missed)
        {
            missed.first = missed.first.min(before.first);
            missed.last = missed.last.max(before.last);
            missed.count += before.count;
        }
        self.last_number += 1;
        self.notices.push(ScheduleNotice { number: self.last_number, ..notice });
    }

    /// Takes out all notices, which are handed on.
    pub fn handed_on(&mut self, now: Timestamp) {
        self.notices.clear();
        self.put_off(now);
    }

    /// Lets the outbox rest before its notices are handed on.
    pub fn put_off(&mut self, now: Timestamp) {
        self.not_before = Some(now.plus(RESTS_FOR));
    }
}
