//! The events of jobs, as the stream sends them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::Timestamp;
use crate::job::{EventName, Owner};
use crate::manager;

/// An event of a job. `job.id` and `number` together identify the event for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// When the event happened.
    pub at: Timestamp,
    /// What happened: `submitted`, `claimed`, `completed`, `failed`, `retried`, `cancelled`, `cancel_requested`,
    /// `expired`, `released`, `returned`, `orphaned` or `overdue`.
    #[schema(value_type = String, example = "completed")]
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
    pub actor: String,
    /// Why the event happened; null where the event's name says enough.
    pub reason: Option<String>,
}

/// The job of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventJob {
    /// The job's id.
    pub id: String,
    /// The queue from which workers claim the job.
    #[schema(example = "reports")]
    pub queue: String,
    /// The kind of work: the name of the handler that runs the job.
    #[schema(example = "render")]
    pub kind: String,
    /// The team or person that the job belongs to.
    pub owner: Option<String>,
    /// The state of the job after the event.
    pub state: JobState,
}

impl From<&manager::JobEvent> for JobEvent {
    fn from(event: &manager::JobEvent) -> Self {
        let manager::JobEvent { job_id, spec, number, entry } = event;
        Self {
            at: entry.at,
            event: entry.event,
            job: EventJob {
                id: job_id.as_str().to_owned(),
                queue: spec.queue.as_str().to_owned(),
                kind: spec.kind.as_str().to_owned(),
                owner: spec.owner.as_ref().map(Owner::as_str).map(str::to_owned),
                state: entry.to,
            },
            number: *number,
            fence: entry.fence.get(),
            attempt: entry.attempt.get(),
            actor: entry.actor.as_str().to_owned(),
            reason: entry.reason.clone(),
        }
    }
}
