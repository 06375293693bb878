//! Alerts for Alertmanager (`POST /api/v2/alerts`).
//!
//! An alert is known by its labels, so an event that ends a trouble says again the very labels that began it: nothing
//! that changes over the life of a job (its attempt, its error, who did it) or with a schedule's course is a label.
//! Troubles of jobs are an attempt's ([`EventName::Orphaned`], [`EventName::Overdue`]), over when the attempt is; or
//! the job's ([`EventName::Failed`], [`EventName::Expired`]), over when somebody retries it. A schedule's are over when
//! an action succeeds, or when its pause ends.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::event::{Event, EventData, JobEvent, Origin, ScheduleEvent};
use crate::clock::Timestamp;
use crate::job::EventName;
use crate::schedule::ScheduleEventName;

/// How long an alert about a job stays active without being resolved. Each event is sent once, and Alertmanager would
/// drop an alert without an end time after five minutes.
const FIRES_FOR: Duration = Duration::from_secs(24 * 60 * 60);
/// How long one about a schedule does: most are due seldom, and a trouble lasts from one due time to the next at least.
const SCHEDULE_FIRES_FOR: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// One alert.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Alert {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<&'static str, String>,
    starts_at: Timestamp,
    ends_at: Timestamp,
    #[serde(rename = "generatorURL", skip_serializing_if = "Option::is_none")]
    generator_url: Option<String>,
}

/// A kind of trouble: the event that begins it, the name of its alert, and its severity.
struct Trouble<E: 'static> {
    begins: E,
    alertname: &'static str,
    severity: &'static str,
}

const fn trouble<E>(begins: E, alertname: &'static str, severity: &'static str) -> Trouble<E> {
    Trouble { begins, alertname, severity }
}

const FAILED: Trouble<EventName> = trouble(EventName::Failed, "LeaseholdJobFailed", "critical");
const EXPIRED: Trouble<EventName> = trouble(EventName::Expired, "LeaseholdJobExpired", "warning");
const ORPHANED: Trouble<EventName> = trouble(EventName::Orphaned, "LeaseholdJobOrphaned", "warning");
const OVERDUE: Trouble<EventName> = trouble(EventName::Overdue, "LeaseholdJobOverdue", "warning");

use ScheduleEventName::{ScheduleFailing, ScheduleMissed, SchedulePaused, ScheduleRecovered, ScheduleResumed};
const MISSED: Trouble<ScheduleEventName> = trouble(ScheduleMissed, "LeaseholdScheduleMissed", "warning");
const FAILING: Trouble<ScheduleEventName> = trouble(ScheduleFailing, "LeaseholdScheduleFailing", "critical");
const PAUSED: Trouble<ScheduleEventName> = trouble(SchedulePaused, "LeaseholdSchedulePaused", "critical");

/// Returns the troubles that an event of a job ends.
const fn ended_by(event: EventName) -> &'static [Trouble<EventName>] {
    match event {
        EventName::Retried => &[FAILED, EXPIRED, ORPHANED, OVERDUE],
        EventName::Completed
        | EventName::Failed
        | EventName::Cancelled
        | EventName::Expired
        | EventName::Released
        | EventName::Returned => &[ORPHANED, OVERDUE],
        EventName::Submitted
        | EventName::Claimed
        | EventName::CancelRequested
        | EventName::Orphaned
        | EventName::Overdue
        | EventName::Held
        | EventName::Unheld
        | EventName::Edited
        | EventName::Deleted => &[],
    }
}

/// Returns the troubles that an event of a schedule ends.
const fn ended_by_schedules(event: ScheduleEventName) -> &'static [Trouble<ScheduleEventName>] {
    match event {
        ScheduleRecovered => &[MISSED, FAILING],
        ScheduleResumed => &[PAUSED],
        ScheduleMissed | ScheduleFailing | SchedulePaused => &[],
    }
}

/// Returns the alerts that an event begins and ends. Alertmanager sends no notice of the end of an alert that never
/// began.
pub(super) fn alerts(event: &Event, origin: &Origin) -> Vec<Alert> {
    match &event.data {
        EventData::Job(JobEvent { event: name, job, .. }) => {
            let known = [("job", job.id.as_str()), ("queue", job.queue.as_str()), ("kind", job.kind.as_str())];
            let alerts = Alerts { event, origin, labels: (&known, &job.labels), fires_for: FIRES_FOR };
            alerts.of(*name, &[FAILED, EXPIRED, ORPHANED, OVERDUE], ended_by(*name))
        }
        EventData::Schedule(ScheduleEvent { event: name, schedule, .. }) => {
            let known = [("schedule", schedule.id.as_str())];
            let alerts = Alerts { event, origin, labels: (&known, &schedule.labels), fires_for: SCHEDULE_FIRES_FOR };
            alerts.of(*name, &[MISSED, FAILING, PAUSED], ended_by_schedules(*name))
        }
    }
}

/// What the alerts of an event have in common.
struct Alerts<'a> {
    event: &'a Event,
    origin: &'a Origin,
    /// The labels of what the event happened to: those that are known of it, and those that people gave it.
    labels: (&'a [(&'static str, &'a str)], &'a BTreeMap<String, String>),
    fires_for: Duration,
}

impl Alerts<'_> {
    fn of<E: PartialEq>(&self, name: E, begin: &[Trouble<E>], ended: &[Trouble<E>]) -> Vec<Alert> {
        let begun = begin.iter().find(|trouble| trouble.begins == name);
        let begun = begun.map(|trouble| self.alert(trouble, self.event.at.plus(self.fires_for)));
        let ended = ended.iter().map(|trouble| self.alert(trouble, self.event.at));
        begun.into_iter().chain(ended).collect()
    }

    fn alert<E>(&self, trouble: &Trouble<E>, ends_at: Timestamp) -> Alert {
        Alert {
            labels: self.labels(trouble),
            annotations: annotations(&self.event.data),
            starts_at: self.event.at,
            ends_at,
            generator_url: self.origin.page_of(&self.event.subject()).map(String::from),
        }
    }

    fn labels<E>(&self, trouble: &Trouble<E>) -> BTreeMap<String, String> {
        let (known, own) = self.labels;
        let own = own.iter().map(|(name, value)| (format!("label_{}", label_name(name)), value.as_str()));
        let owner = self.event.subject().owner.map_or("", |owner| owner.as_str());
        let fixed = [("alertname", trouble.alertname), ("severity", trouble.severity), ("owner", owner)];
        let fixed = fixed.iter().chain(known).map(|(name, value)| ((*name).to_owned(), *value));
        // Alertmanager treats an empty label as missing.
        let filled = own.chain(fixed).filter(|(_, value)| !value.is_empty());
        filled.map(|(name, value)| (name, value.to_owned())).collect()
    }
}

/// Returns a label name that every version of Alertmanager accepts (`[a-zA-Z0-9_]`), as Prometheus does for
/// Kubernetes' labels.
fn label_name(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

fn annotations(data: &EventData) -> BTreeMap<&'static str, String> {
    let annotations = match data {
        EventData::Job(JobEvent { event, actor, worker_id, reason, job }) => vec![
            ("summary", Some(format!("Job {} {event}: {} in {}", job.id, job.kind, job.queue))),
            ("description", reason.clone()),
            ("error", job.error.as_ref().map(|error| format!("{}: {}", error.code, error.message))),
            ("actor", Some(actor.as_str().to_owned())),
            ("worker_id", worker_id.as_ref().map(ToString::to_string)),
            ("attempt", Some(job.attempt.get().to_string())),
        ],
        EventData::Schedule(ScheduleEvent { event, actor, reason, missed, schedule, .. }) => vec![
            ("summary", Some(format!("Schedule {} {}", schedule.id, event.short()))),
            ("description", reason.clone()),
            ("missed", missed.as_ref().map(ToString::to_string)),
            ("actor", Some(actor.as_str().to_owned())),
            ("failures", Some(schedule.failures.to_string())),
        ],
    };
    annotations.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
