//! Alerts for Alertmanager (`POST /api/v2/alerts`).
//!
//! An alert is known by its labels, so an event that ends a trouble says again the very labels that began it: nothing
//! that changes over a job's life (its attempt, its error, who did it) is a label. Troubles are an attempt's
//! ([`EventName::Orphaned`], [`EventName::Overdue`]), over when the attempt is; or the job's ([`EventName::Failed`],
//! [`EventName::Expired`]), over when somebody retries it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::event::{EventData, JobData, JobEvent, Origin};
use crate::clock::Timestamp;
use crate::job::EventName;

/// How long an alert stays active without being resolved. Each event is sent once, and Alertmanager would drop an
/// alert without an end time after five minutes.
const FIRES_FOR: Duration = Duration::from_secs(24 * 60 * 60);

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
struct Trouble {
    begins: EventName,
    alertname: &'static str,
    severity: &'static str,
}

const FAILED: Trouble = Trouble { begins: EventName::Failed, alertname: "LeaseholdJobFailed", severity: "critical" };
const EXPIRED: Trouble = Trouble { begins: EventName::Expired, alertname: "LeaseholdJobExpired", severity: "warning" };
const ORPHANED: Trouble =
    Trouble { begins: EventName::Orphaned, alertname: "LeaseholdJobOrphaned", severity: "warning" };
const OVERDUE: Trouble = Trouble { begins: EventName::Overdue, alertname: "LeaseholdJobOverdue", severity: "warning" };

/// Returns the troubles that an event ends.
const fn ended_by(event: EventName) -> &'static [Trouble] {
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
        | EventName::Overdue => &[],
    }
}

/// Returns the alerts that an event begins and ends. Alertmanager sends no notice of the end of an alert that never
/// began.
pub(super) fn alerts(event: &JobEvent, origin: &Origin) -> Vec<Alert> {
    let begun = [FAILED, EXPIRED, ORPHANED, OVERDUE].into_iter().find(|trouble| trouble.begins == event.data.event);
    let begun = begun.map(|trouble| alert(&trouble, event, origin, event.at.plus(FIRES_FOR)));
    let ended = ended_by(event.data.event).iter().map(|trouble| alert(trouble, event, origin, event.at));
    begun.into_iter().chain(ended).collect()
}

fn alert(trouble: &Trouble, event: &JobEvent, origin: &Origin, ends_at: Timestamp) -> Alert {
    Alert {
        labels: labels(trouble, &event.data.job),
        annotations: annotations(&event.data),
        starts_at: event.at,
        ends_at,
        generator_url: origin.page_of(&event.data.job.id).map(String::from),
    }
}

fn labels(trouble: &Trouble, job: &JobData) -> BTreeMap<String, String> {
    let own = job.labels.iter().map(|(name, value)| (format!("label_{}", label_name(name)), value.as_str()));
    let fixed = [
        ("alertname", trouble.alertname),
        ("severity", trouble.severity),
        ("job", job.id.as_str()),
        ("queue", job.queue.as_str()),
        ("kind", job.kind.as_str()),
        ("owner", job.owner.as_ref().map_or("", |owner| owner.as_str())),
    ];
    let fixed = fixed.map(|(name, value)| (name.to_owned(), value));
    // Alertmanager treats an empty label as missing.
    let filled = own.chain(fixed).filter(|(_, value)| !value.is_empty());
    filled.map(|(name, value)| (name, value.to_owned())).collect()
}

/// Returns a label name that every version of Alertmanager accepts (`[a-zA-Z0-9_]`), as Prometheus does for
/// Kubernetes' labels.
fn label_name(name: &str) -> String {
    name.chars().map(|letter| if letter.is_ascii_alphanumeric() { letter } else { '_' }).collect()
}

fn annotations(EventData { event, actor, reason, job }: &EventData) -> BTreeMap<&'static str, String> {
    let summary = format!("Job {} {event}: {} in {}", job.id, job.kind, job.queue);
    let error = job.error.as_ref().map(|error| format!("{}: {}", error.code, error.message));
    let annotations = [
        ("summary", Some(summary)),
        ("description", reason.clone()),
        ("error", error),
        ("actor", Some(actor.as_str().to_owned())),
        ("attempt", Some(job.attempt.get().to_string())),
    ];
    annotations.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
