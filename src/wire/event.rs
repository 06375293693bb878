//! What happened to a job, as the stream of events tells it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::{Timestamp, rfc3339};
use crate::job::{EventName, Owner};
use crate::manager;

/// Something that happened to a job. `job.id` and `number` name it for good: what comes with the same two is the same
/// event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobEvent {
    /// When.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What: `submitted`, `claimed`, `completed`, `failed`, `retried`, `cancelled`, `cancel_requested`, `expired`,
    /// `released`, `returned`, `orphaned` or `overdue`.
    #[schema(value_type = String, example = "completed")]
    pub event: EventName,
    /// To which job.
    pub job: EventJob,
    /// Which of the job's transitions it is, counted from one.
    pub number: u32,
    /// The fence after it.
    pub fence: u64,
    /// The attempts counted after it.
    pub attempt: u32,
    /// Who did it.
    pub actor: String,
    /// Why, where there is more to say.
    pub reason: Option<String>,
}

/// The job that something happened to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventJob {
    /// Its id.
    pub id: String,
    /// The line it waits in.
    #[schema(example = "reports")]
    pub queue: String,
    /// Its handler's name.
    #[schema(example = "render")]
    pub kind: String,
    /// Who it belongs to.
    pub owner: Option<String>,
    /// Where it stood after the event.
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
