//! The events of jobs, as the stream sends them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::{Timestamp, rfc3339};
use crate::job::{EventName, Owner};
use crate::manager;

/// An event of a job. `job.id` and `number` together identify the event for good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// The time of the event.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What happened: `submitted`, `claimed`, `completed`, `failed`, `retried`, `cancelled`, `cancel_requested`,
    /// `expired`, `released`, `returned`, `orphaned` or `overdue`.
    #[schema(value_type = String, example = "completed")]
    pub event: EventName,
    /// The job.
    pub job: EventJob,
    /// The number of the job's transition, counted from one.
    pub number: u32,
    /// The job's fence after the event.
    pub fence: u64,
    /// The job's number of attempts after the event.
    pub attempt: u32,
    /// The worker, person or part of the system that caused the event.
    pub actor: String,
    /// Why it happened, where the event alone does not say.
    pub reason: Option<String>,
}

/// The job of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventJob {
    /// The job's id.
    pub id: String,
    /// The queue that the job waits in.
    #[schema(example = "reports")]
    pub queue: String,
    /// What sort of work the job is: the name of its handler.
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
