//! An event of a job's history, as feeds deliver it.

use std::sync::Arc;

use crate::job::{EventName, HistoryEntry, Job, JobId, JobSpec, Kind, Owner, QueueName};

/// Something that happened to a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEvent {
    /// Which job.
    pub job_id: JobId,
    /// What the job asks for.
    pub spec: Arc<JobSpec>,
    /// Which of the job's transitions it is, counted from one.
    pub number: u32,
    /// The transition.
    pub entry: HistoryEntry,
}

impl JobEvent {
    pub(super) fn new(job: &Job, number: u32, entry: &HistoryEntry) -> Self {
        Self { job_id: job.id.clone(), spec: Arc::clone(&job.spec), number, entry: entry.clone() }
    }
}

/// Which events: those that satisfy every part. An empty list leaves a part open. Jobs of the system's own are passed
/// over unless they or their queue are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Any of these happened.
    pub events: Vec<EventName>,
    /// To a job in one of these queues.
    pub queues: Vec<QueueName>,
    /// Of one of these kinds.
    pub kinds: Vec<Kind>,
    /// Belonging to one of these owners.
    pub owners: Vec<Owner>,
    /// One of these jobs.
    pub jobs: Vec<JobId>,
}

impl EventFilter {
    /// Whether the event is one of those asked for.
    #[must_use]
    pub fn matches(&self, event: &JobEvent) -> bool {
        fn any<T: PartialEq>(wanted: &[T], value: Option<&T>) -> bool {
            wanted.is_empty() || value.is_some_and(|value| wanted.contains(value))
        }
        let named = !self.queues.is_empty() || !self.jobs.is_empty();
        (named || !event.spec.queue.is_internal())
            && any(&self.events, Some(&event.entry.event))
            && any(&self.queues, Some(&event.spec.queue))
            && any(&self.kinds, Some(&event.spec.kind))
            && any(&self.owners, event.spec.owner.as_ref())
            && any(&self.jobs, Some(&event.job_id))
    }
}
