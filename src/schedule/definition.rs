//! A schedule as it is stored: what people define, and how far it has come.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::count::count;
use super::exclude::ExcludedDays;
use super::notice::{ScheduleNotifyTarget, ScheduleOutbox};
use super::outcome::KeptOutcome;
use super::period::Period;
use super::text::{DatesText, Fault, PeriodText};
use crate::clock::Timestamp;
use crate::job::{Actor, Json, Owner, Partition, ScheduleId, words};

/// The most ranges of due times that did not run which a schedule keeps. With more, the oldest become one.
pub const MAX_RANGES: usize = 20;

/// How far ahead of the time at which a schedule has to be looked at loaders do so.
pub const LOADED_AHEAD: Duration = Duration::from_secs(10);

/// How far back the latest due times are looked for at first, and how many times as far with every further look.
const SHORTEST_SPAN: Duration = Duration::from_secs(60);
const SPAN_GROWS: u32 = 8;
/// How many due times one look passes at the most, and how much two looks differ at the least.
const MOST_LOOKED_AT: usize = 10_000;
const SHORTEST_STEP: Duration = Duration::from_millis(1);

words! {
    /// What becomes of a trigger that is due while an earlier one of its schedule has not ended.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum Overlap: "a rule for overlaps", "rules" {
        /// It runs beside the earlier one.
        #[default]
        Allow = "allow",
        /// It is skipped.
        Skip = "skip",
        /// It waits until the earlier one has ended. While it waits, later ones are skipped.
        QueueOne = "queue_one",
        /// The earlier one is cancelled, and it runs.
        CancelPrevious = "cancel_previous",
    }
}

words! {
    /// What an action does.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum ActionType: "a type of action", "types" {
        /// It submits a job.
        Job = "job",
        /// It calls a URL.
        Http = "http",
    }
}

words! {
    /// The method of an HTTP call.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Method: "a method", "methods" {
        /// `GET`
        Get = "GET",
        /// `POST`
        #[default]
        Post = "POST",
        /// `PUT`
        Put = "PUT",
        /// `PATCH`
        Patch = "PATCH",
        /// `DELETE`
        Delete = "DELETE",
        /// `HEAD`
        Head = "HEAD",
    }
}

/// What is done when a schedule fires. A `job` action has `job`, an `http` action has `url`, and may have the rest.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"type": "job", "job": {"queue": "reports", "kind": "render"}}))]
pub struct Action {
    /// What the action does.
    #[serde(rename = "type")]
    pub kind: ActionType,
    /// The job to submit, as a submission without `id`, `idempotency_key` and `run_at`. In its texts, `{{due_at}}`
    /// stands for the time at which the trigger is due, and `{{schedule_id}}` for the schedule's id.
    #[schema(value_type = Option<Object>)]
    pub job: Option<Json>,
    /// The URL to call.
    pub url: Option<String>,
    /// The method of the call; `POST` by default.
    pub method: Option<Method>,
    /// The headers of the call.
    pub headers: Option<BTreeMap<String, String>>,
    /// The body of the call: a text is sent as it is, anything else as JSON.
    #[schema(value_type = Option<Value>)]
    pub body: Option<Json>,
    /// How long the call may take, in milliseconds; 10,000 by default.
    #[schema(minimum = 100, maximum = 60_000)]
    pub timeout_ms: Option<u64>,
    /// The status of an answer that means success; any from 200 to 299 by default.
    #[schema(minimum = 200, maximum = 599)]
    pub expect_status: Option<u16>,
}

impl Action {
    /// Returns an action of a type, without what it needs.
    #[must_use]
    pub const fn of(kind: ActionType) -> Self {
        let (job, url, method, headers, body) = (None, None, None, None, None);
        Self { kind, job, url, method, headers, body, timeout_ms: None, expect_status: None }
    }
}

/// What people define of a schedule.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// The team or person that the schedule belongs to.
    pub owner: Option<Owner>,
    /// The labels that the schedule can be found by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The action that is performed whenever the schedule is due.
    pub action: Action,
    /// When it is done.
    pub period: PeriodText,
    /// How late a trigger may start, in milliseconds. A later one is missed.
    pub margin_of_error_ms: u64,
    /// Within how many milliseconds after the period's time the schedule has its own fixed place.
    #[serde(default)]
    pub spread_ms: u64,
    /// What becomes of a trigger that is due while an earlier one has not ended.
    #[serde(default)]
    pub overlap: Overlap,
    /// After how many errors of the user's in a row the system pauses the schedule; `None` for never.
    pub pause_after_errors: Option<u32>,
    /// Before this time, nothing is due.
    pub start_at: Option<Timestamp>,
    /// From this time on, nothing is due.
    pub end_at: Option<Timestamp>,
    /// Days on which nothing is due.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<DatesText>,
    /// The receivers that are notified of events of the schedule.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notify: Vec<ScheduleNotifyTarget>,
}

/// That a schedule is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SchedulePause {
    /// When it was paused.
    pub at: Timestamp,
    /// The actor who paused it.
    #[schema(value_type = String)]
    pub by: Actor,
    /// Why; empty when nobody said.
    #[serde(default)]
    pub reason: String,
}

words! {
    /// Why triggers did not run.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
    #[serde(rename_all = "snake_case")]
    pub enum NotRun: "a reason", "reasons" {
        /// They could not start within the margin of error.
        Missed = "missed",
        /// An earlier one had not ended.
        Overlap = "overlap",
        /// The schedule was paused.
        Paused = "paused",
    }
}

impl NotRun {
    /// Returns the reason in words.
    #[must_use]
    pub const fn why(self) -> &'static str {
        match self {
            Self::Missed => "it could not begin within the margin of error",
            Self::Overlap => "an earlier one had not ended",
            Self::Paused => "the schedule was paused",
        }
    }
}

/// Due times in a row that did not run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotRunRange {
    /// The first due time.
    pub first: Timestamp,
    /// The last due time.
    pub last: Timestamp,
    /// How many due times there are.
    pub count: u64,
    /// Why they did not run.
    pub reason: NotRun,
}

/// How far a schedule has come.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// The next time for which no trigger is made yet; `None` when there is none within a hundred years.
    pub next_due_at: Option<Timestamp>,
    /// The last time for which a trigger was made.
    pub last_due_at: Option<Timestamp>,
    /// The due times that did not run, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub not_run: Vec<NotRunRange>,
    /// The outcomes of those of the last triggers that were removed, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptOutcome>,
    /// How many triggers in a row ended with an error of the user's.
    #[serde(default)]
    pub errors: u32,
    /// How many triggers in a row ended without success: with such an error, or given up.
    #[serde(default)]
    pub failures: u32,
    /// Since when the schedule is failing; `None` while it is not.
    pub failing_since: Option<Timestamp>,
    /// When a due time was first found to be missed since an action last succeeded.
    pub missed_since: Option<Timestamp>,
    /// The events that receivers are still to be notified of.
    #[serde(default, skip_serializing_if = "ScheduleOutbox::is_unused")]
    pub outbox: ScheduleOutbox,
}

/// A schedule.
#[serde_with::skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The id of the schedule, unique in its store.
    pub id: ScheduleId,
    /// The part that people define.
    pub definition: Arc<Definition>,
    /// Which definition this is, counted from 1. A pause and its end count as well.
    pub revision: u64,
    /// Since when the definition has its period: due times before that are not its own.
    pub period_since: Timestamp,
    /// Who paused the schedule and when; `None` while it runs.
    pub paused: Option<SchedulePause>,
    /// When the schedule was created.
    pub created_at: Timestamp,
    /// Under which name, if it is for that one alone to change, and may change no more itself. `None` where it was
    /// created by somebody who may change everything.
    pub created_by: Option<Actor>,
    /// When people changed the schedule last.
    pub updated_at: Timestamp,
    /// How far it has come.
    #[serde(default)]
    pub course: Course,
}

/// When a schedule is due.
#[derive(Clone, Debug)]
pub struct Timetable {
    period: Period,
    excluded: ExcludedDays,
    /// How long after the period's time the schedule is due.
    offset: Duration,
    start_at: Option<Timestamp>,
    end_at: Option<Timestamp>,
}

impl Definition {
    /// Returns whether a schedule with this definition is due at the same times as one with `other`.
    #[must_use]
    pub fn is_due_alike(&self, other: &Self) -> bool {
        let times = |of: &Self| (of.period.clone(), of.spread_ms, of.start_at, of.end_at, of.exclude.clone());
        times(self) == times(other)
    }

    /// Returns when a schedule with this definition is due; what is wrong with the definition is added to `faults`.
    pub fn timetable(&self, id: &ScheduleId, faults: &mut Vec<Fault>) -> Option<Timetable> {
        let period = self.period.parse(faults);
        let excluded = DatesText::parse_all(&self.exclude, faults);
        let offset = Duration::from_millis(match self.spread_ms {
            0 => 0,
            spread => id.hash() % spread,
        });
        Some(Timetable { period: period?, excluded, offset, start_at: self.start_at, end_at: self.end_at })
    }
}

impl Timetable {
    /// Returns the times after `after` at which the schedule is due, in order.
    pub fn due_after(&self, after: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        let before_start = self.start_at.map(|start| Timestamp::from_millis(start.as_millis() - 1));
        let from = before_start.map_or(after, |start| start.max(after)).minus(self.offset);
        let due = self.period.fire_times(from, &self.excluded).map(|time| time.plus(self.offset));
        due.take_while(|due| self.end_at.is_none_or(|end| *due < end))
    }

    /// Returns the last `count` times after `since` and up to `until` at which the schedule is due, in order.
    #[must_use]
    pub fn last_until(&self, until: Timestamp, count: usize, since: Timestamp) -> Vec<Timestamp> {
        let until = self.end_at.map_or(until, |end| until.min(Timestamp::from_millis(end.as_millis() - 1)));
        let most = count.saturating_mul(SPAN_GROWS as usize).max(MOST_LOOKED_AT);
        let (mut span, mut too_short, mut too_long) = (SHORTEST_SPAN, Duration::ZERO, None::<Duration>);
        loop {
            let after = until.minus(span).max(since);
            let due: Vec<Timestamp> = self.due_after(after).take_while(|due| *due <= until).take(most + 1).collect();
            let has_too_many = due.len() > most;
            let is_found = due.len() >= count || after == since;
            // Ends: the span grows until it reaches back to `since`, or lies between two that come together.
            if !has_too_many && (is_found || too_long.is_some_and(|long| long - too_short < SHORTEST_STEP)) {
                return due[due.len().saturating_sub(count)..].to_vec();
            }
            if has_too_many {
                too_long = Some(span);
            } else {
                too_short = span;
            }
            span = too_long.map_or_else(|| span.saturating_mul(SPAN_GROWS), |long| too_short + (long - too_short) / 2);
        }
    }

    /// Returns the first and the last time after `after` and up to `until` at which the schedule is due, and how many
    /// such times there are; `None` when there are none.
    #[must_use]
    pub fn span(&self, after: Timestamp, until: Timestamp) -> Option<(Timestamp, Timestamp, u64)> {
        let last = self.last_until(until, 1, after).pop()?;
        let first = self.due_after(after).next()?;
        let (before, last_time) = (Timestamp::from_millis(first.as_millis() - 1), last.minus(self.offset));
        Some((first, last, count(&self.period, &self.excluded, before.minus(self.offset), last_time)))
    }

    /// Returns whether the schedule is due at this very time.
    #[must_use]
    pub fn is_due_at(&self, time: Timestamp) -> bool {
        self.due_after(Timestamp::from_millis(time.as_millis() - 1)).next() == Some(time)
    }
}

impl Schedule {
    /// Returns the schedule's share of the work: as for jobs, the lowest byte of the hash of its id.
    #[must_use]
    pub fn partition(&self) -> Partition {
        Partition::of(self.id.as_str())
    }

    /// Returns a text that changes whenever people change the schedule, and not when it goes on.
    #[must_use]
    pub fn tag(&self) -> String {
        format!("{}-{}", self.created_at.as_millis(), self.revision)
    }

    /// Returns when the schedule is due.
    ///
    /// # Errors
    /// Returns what cannot be read any more of a definition that could be read when it was stored.
    pub fn timetable(&self) -> Result<Timetable, String> {
        let mut faults = Vec::new();
        let timetable = self.definition.timetable(&self.id, &mut faults);
        timetable.ok_or_else(|| faults.iter().map(Fault::to_string).collect::<Vec<_>>().join("; "))
    }

    /// Returns how late a trigger may start.
    #[must_use]
    pub fn margin(&self) -> Duration {
        Duration::from_millis(self.definition.margin_of_error_ms)
    }

    /// Returns whether at `now` a trigger of this due time may not start any more. At the margin's end it still may.
    #[must_use]
    pub fn is_too_late(&self, due: Timestamp, now: Timestamp) -> bool {
        due.plus(self.margin()) < now
    }

    /// Returns the next time for which a trigger is to be made; `None` when the schedule is paused or has no more due
    /// times.
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.course.next_due_at.filter(|_| self.paused.is_none())
    }

    /// Returns when a loader has to look at the schedule next: when it is due, or when its outbox is to be handed on.
    /// `None` when there is neither.
    #[must_use]
    pub fn load_at(&self) -> Option<Timestamp> {
        // Triggers are made ahead of their time, and notices are not handed on before theirs.
        let hand_on_at = self.course.outbox.hand_on_at().map(|at| at.plus(LOADED_AHEAD));
        [self.next_due(), hand_on_at].into_iter().flatten().min()
    }
}

impl Course {
    /// Returns the range of due times that did not run which this one is in.
    #[must_use]
    pub fn not_run_at(&self, due: Timestamp) -> Option<&NotRunRange> {
        self.not_run.iter().find(|range| (range.first..=range.last).contains(&due))
    }

    /// Returns whether it is known that this due time did not run.
    #[must_use]
    pub fn has_not_run(&self, due: Timestamp) -> bool {
        self.not_run_at(due).is_some()
    }

    /// Returns the latest due time that is known not to have run.
    #[must_use]
    pub fn last_not_run(&self) -> Option<Timestamp> {
        self.not_run.iter().map(|range| range.last).max()
    }

    /// Adds due times that did not run. Those that follow on the latest for the same reason are one range with them.
    pub fn add_not_run(&mut self, range: NotRunRange) {
        // A trigger may be missed before it is known that others before it were.
        let place = self.not_run.partition_point(|other| other.first < range.first);
        let is_latest = place == self.not_run.len();
        match self.not_run.last_mut().filter(|_| is_latest) {
            Some(last) if last.reason == range.reason && self.last_due_at.is_none_or(|ran| ran <= last.last) => {
                last.last = last.last.max(range.last);
                last.count += range.count;
            }
            _ => self.not_run.insert(place, range),
        }
        if self.not_run.len() > MAX_RANGES {
            let NotRunRange { first, count, .. } = self.not_run.remove(0);
            if let Some(oldest) = self.not_run.first_mut() {
                oldest.first = first;
                oldest.count += count;
            }
        }
    }
}
