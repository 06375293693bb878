//! An event of a job's history, as feeds deliver it.

use std::sync::Arc;

use crate::job::{EventName, HistoryEntry, Job, JobId, JobSpec, Kind, Owner, QueueName};

/// A transition of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct JobEvent {
    /// The job's id.
    pub job_id: JobId,
    /// The job's specification.
    pub spec: Arc<JobSpec>,
    /// The number of the transition among the job's, counted from one.
    pub number: u32,
    /// The transition's entry in the job's history.
    pub entry: HistoryEntry,
}

impl JobEvent {
    pub(super) fn new(job: &Job, number: u32, entry: &HistoryEntry) -> Self {
        Self { job_id: job.id.clone(), spec: Arc::clone(&job.spec), number, entry: entry.clone() }
    }
}

/// Selects the events that satisfy every part. An empty list selects any event. Events of the system's own jobs are
/// left out unless the job or its queue is named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFilter {
    /// Selects these kinds of event.
    pub events: Vec<EventName>,
    /// Selects events of jobs in these queues.
    pub queues: Vec<QueueName>,
    /// Selects events of jobs of these kinds.
    pub kinds: Vec<Kind>,
    /// Selects events of jobs of these owners.
    pub owners: Vec<Owner>,
    /// Selects events of these jobs.
    pub jobs: Vec<JobId>,
}

impl EventFilter {
    /// Returns whether the filter selects the event.
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
