//! The events of jobs, as the stream sends them.

use serde::{Deserialize, Serialize};
use utoipa::openapi::schema::AnyOfBuilder;
use utoipa::openapi::{ObjectBuilder, Type};
use utoipa::{PartialSchema, ToSchema};

use super::described::{Components, Described, add, reference};
use super::job::{Job, JobState};
use crate::clock::Timestamp;
use crate::job::{Actor, EventName, History, HistoryEntry, JobId, Kind, Owner, QueueName, WorkerId};
use crate::manager;

/// An event of a job. `job.id` and `number` together identify the event for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// When the event happened.
    pub at: Timestamp,
    /// The name of the event.
    #[schema(example = "completed")]
    pub event: EventName,
    /// The job that the event is about.
    pub job: EventJob,
    /// The number of the job's transition, counted from one.
    pub number: u32,
    /// The job's fence after the event.
    pub fence: u64,
    /// The job's number of attempts after the event.
    pub attempt: u32,
    /// The worker, person or part of the system that caused the event.
    #[schema(value_type = Actor)]
    pub actor: String,
    /// The worker that caused the event, where the actor is the name of its token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<WorkerId>)]
    pub worker_id: Option<String>,
    /// Why the event happened; null where the event's name says enough.
    pub reason: Option<String>,
}

/// The job of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventJob {
    /// The job's id.
    #[schema(value_type = JobId)]
    pub id: String,
    /// The queue from which workers claim the job.
    #[schema(value_type = QueueName, example = "reports")]
    pub queue: String,
    /// The kind of work: the name of the handler that runs the job.
    #[schema(value_type = Kind, example = "render")]
    pub kind: String,
    /// The team or person that the job belongs to.
    #[schema(value_type = Option<Owner>)]
    pub owner: Option<String>,
    /// The state of the job after the event.
    pub state: JobState,
}

impl JobEvent {
    /// Returns the events of the transitions that a job has in its history, oldest first.
    pub(crate) fn all_of(job: &Job) -> Vec<Self> {
        let history = History::from_parts(job.history.to_vec(), job.history_folded);
        let of_entry = |(number, entry): (u32, &HistoryEntry)| {
            let job = EventJob {
                id: job.id.to_string(),
                queue: job.queue.to_string(),
                kind: job.kind.to_string(),
                owner: job.owner.as_deref().map(str::to_owned),
                state: entry.to,
            };
            Self::new(job, number, entry)
        };
        history.numbered().map(of_entry).collect()
    }

    fn new(job: EventJob, number: u32, entry: &HistoryEntry) -> Self {
        Self {
            at: entry.at,
            event: entry.event,
            job,
            number,
            fence: entry.fence.get(),
            attempt: entry.attempt.get(),
            actor: entry.actor.as_str().to_owned(),
            worker_id: entry.worker_id.as_ref().map(ToString::to_string),
            reason: entry.reason.clone(),
        }
    }
}

impl From<&manager::JobEvent> for JobEvent {
    fn from(event: &manager::JobEvent) -> Self {
        let manager::JobEvent { job_id, spec, number, entry } = event;
        let job = EventJob {
            id: job_id.as_str().to_owned(),
            queue: spec.queue.as_str().to_owned(),
            kind: spec.kind.as_str().to_owned(),
            owner: spec.owner.as_ref().map(Owner::as_str).map(str::to_owned),
            state: entry.to,
        };
        Self::new(job, *number, entry)
    }
}

/// The event of the stream itself that says that all events from before its beginning were sent.
pub(crate) const LIVE: &str = "live";
/// The event of the stream itself that says that events are missing.
pub(crate) const GAP: &str = "gap";
/// The data of the stream's own events.
pub(crate) const NO_DATA: &str = "{}";

/// A message of the stream, as its client puts it together (WHATWG HTML, section 9.2.6).
pub(crate) struct EventMessage;

impl PartialSchema for EventMessage {
    fn schema() -> Described {
        let text = || ObjectBuilder::new().schema_type(Type::String);
        let json = || text().content_media_type("application/json");
        let of_job = json().description(Some("A `JobEvent`.")).content_schema(Some(reference::<JobEvent>()));
        let of_stream = text().enum_values(Some([LIVE, GAP]));
        AnyOfBuilder::new()
            .description(Some("A message of the stream."))
            .item(message("An event of a job.", reference::<EventName>(), of_job))
            .item(message("An event of the stream itself.", of_stream, json().enum_values(Some([NO_DATA]))))
            .into()
    }
}

/// Returns the schema of the messages with these events and data.
fn message(description: &str, event: impl Into<Described>, data: ObjectBuilder) -> ObjectBuilder {
    let id = ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("The place in the stream, from which a client can go on."));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(description))
        .property("id", id)
        .required("id")
        .property("event", event)
        .required("event")
        .property("data", data)
        .required("data")
}

impl ToSchema for EventMessage {
    fn schemas(components: &mut Components) {
        add::<JobEvent>(components);
    }
}
