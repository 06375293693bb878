//! A transition in the terms of the Elastic Common Schema (ECS 8.17), as in other logs: `event.action`,
//! `event.outcome`, `user.name`, `labels`. Values without a field in the schema are under `leasehold`.

use serde_json::{Map, Value, json};

use crate::job::{EventName, HistoryEntry, Job, JobState, WorkerId};
use crate::store::AuditEntry;

/// The version of the schema.
pub(super) const VERSION: &str = "8.17.0";

/// Returns the audit entry of the job's transition with this number.
pub(crate) fn entry(job: &Job, number: u32, entry: &HistoryEntry) -> AuditEntry {
    // The parts identify the transition uniquely, since a number has no `/`. Without the time, the transitions of a job
    // that is submitted again after its deletion would be taken for those of the former one.
    let id = format!("{number}/{}/{}", entry.at.as_millis(), job.id);
    let document = json!({
        "@timestamp": entry.at.to_rfc3339(),
        "ecs": { "version": VERSION },
        "message": message(job, entry),
        "event": present(json!({
            "id": id,
            "kind": "event",
            "category": ["process"],
            "type": [kind(entry.event)],
            "module": "leasehold",
            "dataset": "leasehold.audit",
            "action": action(entry.event),
            "outcome": outcome(entry),
            "reason": entry.reason,
            "sequence": number,
        })),
        "user": { "name": entry.actor.as_str() },
        "labels": job.spec.labels,
        "leasehold": present(json!({
            "job": present(json!({
                "id": job.id.as_str(),
                "queue": job.spec.queue.as_str(),
                "kind": job.spec.kind.as_str(),
                "owner": job.spec.owner.as_ref().map(crate::job::Owner::as_str),
            })),
            "from": entry.from.map(JobState::as_str),
            "to": entry.to.as_str(),
            "fence": entry.fence.get(),
            "attempt": entry.attempt.get(),
            "worker_id": entry.worker_id.as_ref().map(WorkerId::as_str),
        })),
    });
    let document = if let Value::Object(document) = document { document } else { Map::new() };
    AuditEntry { id, at: entry.at, document }
}

/// Returns the event's name in the schema's `event.action`.
pub(crate) fn action(event: EventName) -> String {
    format!("job-{}", event.as_str().replace('_', "-"))
}

/// Removes the fields that are null.
pub(super) fn present(mut object: Value) -> Value {
    if let Value::Object(fields) = &mut object {
        fields.retain(|_, value| !value.is_null());
    }
    object
}

fn message(job: &Job, entry: &HistoryEntry) -> String {
    let what = entry.event.as_str().replace('_', " ");
    format!("job {} of the queue {}: {what} by {}", job.id, job.spec.queue, entry.actor)
}

/// Returns the event's type among the schema's types for processes.
const fn kind(event: EventName) -> &'static str {
    match event {
        EventName::Claimed => "start",
        EventName::Completed | EventName::Failed | EventName::Cancelled | EventName::Expired => "end",
        EventName::Submitted
        | EventName::Retried
        | EventName::CancelRequested
        | EventName::Released
        | EventName::Returned
        | EventName::Orphaned
        | EventName::Overdue
        | EventName::Held
        | EventName::Unheld
        | EventName::Edited => "change",
        EventName::Deleted => "deletion",
    }
}

/// Returns the outcome for the job. A `retried` event that ends an attempt counts as that attempt's failure.
fn outcome(entry: &HistoryEntry) -> &'static str {
    match entry.event {
        EventName::Submitted | EventName::Claimed | EventName::Completed => "success",
        EventName::Failed | EventName::Expired => "failure",
        EventName::Retried if entry.from == Some(JobState::Running) => "failure",
        EventName::Retried
        | EventName::Cancelled
        | EventName::CancelRequested
        | EventName::Released
        | EventName::Returned
        | EventName::Orphaned
        | EventName::Overdue => "unknown",
        EventName::Held | EventName::Unheld | EventName::Edited | EventName::Deleted => "success",
    }
}
