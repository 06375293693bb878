//! The audit: events of jobs that are kept for good.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use super::described::Labels;
use super::event::EventJob;
use super::job::JobState;
use crate::clock::Timestamp;
use crate::job::{Actor, WorkerId};
use crate::manager::AuditEventName;
use crate::store::audit::text;
use crate::store::{AuditEntry, AuditPage};

/// A page of the audit. It can have fewer events than asked for, even none, although there is a next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditAnswer {
    /// The events of the page, the newest first. On the embedded store this is the order in which they were written to
    /// the audit, which is that of time but for the events of some seconds.
    pub items: Vec<AuditEvent>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
    /// Whether an audit is kept, as far as the server knows: it writes one itself, or the store has one.
    pub kept: bool,
}

/// An event of a job as the audit keeps it, also when the job is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEvent {
    /// The event's permanent id.
    #[schema(example = "3/0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
    pub id: String,
    /// When the event happened.
    pub at: Timestamp,
    /// The name of the event.
    #[schema(value_type = AuditEventName, example = "completed")]
    pub event: String,
    /// The job that the event is about; null for a change that is no transition of a job.
    pub job: Option<EventJob>,
    /// The change that is no transition of a job; null for an event of a job.
    #[serde(default)]
    pub change: Option<AuditChange>,
    /// The state of the job before the event; null for its submission.
    pub from: Option<JobState>,
    /// The number of the job's transition, counted from one; 0 for a change of anything but a job.
    pub number: u32,
    /// The job's fence after the event.
    pub fence: Option<u64>,
    /// The job's number of attempts after the event.
    pub attempt: Option<u32>,
    /// The worker, person or part of the system that caused the event.
    #[schema(value_type = Actor)]
    pub actor: String,
    /// The worker that caused the event, where the actor is the name of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerId>)]
    pub worker_id: Option<String>,
    /// Why the event happened; null where the event's name says enough.
    pub reason: Option<String>,
    /// The labels of the job when the event was copied to the audit.
    #[schema(value_type = Labels)]
    pub labels: BTreeMap<String, String>,
}

/// A change that is no transition of a job, asked for by somebody who may. The entry is written before the change.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditChange {
    /// What was changed, such as `queue:reports` for a limit; null where the event's name says all.
    #[schema(example = "queue:reports")]
    pub of: Option<String>,
    /// What it was changed to, as JSON in a text, without what is secret; null where there is nothing to say.
    #[schema(example = "{\"max_concurrent\":7}")]
    pub to: Option<String>,
    /// Whether the entry says that the change was refused after all. The reason is then the code of the refusal.
    pub refused: bool,
}

impl AuditEvent {
    /// Reads an entry of the audit; `None` where it is none that this program writes.
    pub(crate) fn of(entry: &AuditEntry) -> Option<Self> {
        let AuditEntry { id, at, document } = entry;
        let text = |field: &str| text(document, field).map(str::to_owned);
        let state = |field: &str| text(field)?.parse::<JobState>().ok();
        let number = |part: &Map<String, Value>, field: &str| part.get(field)?.as_u64();
        let (event, leasehold) = (document.get("event")?.as_object()?, document.get("leasehold")?.as_object()?);
        let labels = document.get("labels").and_then(Value::as_object).into_iter().flatten();
        let action = text("event.action")?;
        let job = match action.strip_prefix("job-") {
            None => None,
            Some(_) => Some(EventJob {
                id: text("leasehold.job.id")?,
                queue: text("leasehold.job.queue")?,
                kind: text("leasehold.job.kind")?,
                owner: text("leasehold.job.owner"),
                state: state("leasehold.to")?,
            }),
        };
        let change = job.is_none().then(|| AuditChange {
            of: text("leasehold.change.of"),
            to: text("leasehold.change.to"),
            refused: text("event.outcome").as_deref() == Some("failure"),
        });
        let (fence, attempt) = (number(leasehold, "fence"), number(leasehold, "attempt"));
        if job.is_some() && (fence.is_none() || attempt.is_none()) {
            return None;
        }
        Some(Self {
            id: id.clone(),
            at: *at,
            event: action.strip_prefix("job-").unwrap_or(&action).replace('-', "_"),
            job,
            change,
            from: state("leasehold.from"),
            number: number(event, "sequence")?.try_into().ok()?,
            fence,
            attempt: attempt.map(u32::try_from).transpose().ok()?,
            actor: text("user.name")?,
            worker_id: text("leasehold.worker_id"),
            reason: text("event.reason"),
            labels: labels.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect(),
        })
    }
}

impl AuditAnswer {
    /// Returns the answer with a page; `next_cursor` stands for its next place. What cannot be read is left out, and
    /// the log names it.
    pub(crate) fn new(page: &AuditPage, next_cursor: Option<String>) -> Self {
        let event = |entry: &AuditEntry| {
            let event = AuditEvent::of(entry);
            if event.is_none() {
                tracing::warn!(id = entry.id, "an entry of the audit cannot be read");
            }
            event
        };
        let items = page.entries.iter().filter_map(event).collect();
        Self { items, next_cursor, kept: page.is_there }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(document: Value) -> AuditEntry {
        let Value::Object(document) = document else { panic!("no object") };
        AuditEntry { id: "2/a".to_owned(), at: Timestamp::from_millis(7), document }
    }

    #[test]
    fn an_entry_becomes_an_event_and_what_is_none_does_not() {
        let document = json!({
            "event": { "id": "2/a", "action": "job-cancel-requested", "sequence": 2, "reason": "late" },
            "user": { "name": "ann" },
            "labels": { "team": "blue" },
            "leasehold": {
                "job": { "id": "a", "queue": "q", "kind": "k" },
                "from": "running", "to": "running", "fence": 1, "attempt": 1,
            },
        });
        let event = AuditEvent::of(&entry(document.clone())).expect("an event");
        assert_eq!(
            (event.event.as_str(), event.job.map(|job| job.owner), event.from),
            ("cancel_requested", Some(None), Some(JobState::Running))
        );
        assert_eq!((event.number, event.reason.as_deref(), event.labels["team"].as_str()), (2, Some("late"), "blue"));
        for missing in ["event", "user", "leasehold"] {
            let mut document = document.clone();
            document[missing] = Value::Null;
            assert_eq!(AuditEvent::of(&entry(document)), None, "without {missing}");
        }
    }
}
