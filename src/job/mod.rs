//! The job: one unit of work, one document.
//!
//! In reading order: [`names`] (ids and other checked strings), [`spec`] (what was asked for), [`state`] (where it
//! stands, each state with its own data), [`history`], [`event`] (what happened, and who is yet to be told), [`retry`]
//! (backoff), [`transition`] (every way from one state to another: pure functions, no I/O, no clock, no randomness), and
//! [`oversight`] (what the monitor does to a job, and when it looks at it next).

pub mod body;
pub mod event;
pub mod history;
pub mod names;
pub mod oversight;
pub mod retry;
pub mod spec;
pub mod state;
pub mod transition;
mod word_enum;

use std::sync::Arc;
use std::time::Duration;

pub use body::{Body, BodyId, BodyRef, Json, NewBody};
pub use event::{EventName, Notice, NoticeFormat, NoticeTarget};
pub use history::{History, HistoryEntry};
pub use names::{Actor, InvalidName, JobId, Kind, Owner, QueueName, RecordName, RequestId, WorkerId};
pub use oversight::{OrphanPolicy, Oversight, Recovery};
pub use retry::RetryPolicy;
pub use spec::{Fingerprint, JobSpec, Priority};
pub use state::{Attempt, Fence, JobError, JobState, Lease, Orphan, Progress, Running, State};
pub use transition::{AdminRelease, Change, Claim, Failure, LeaseProof, Refusal, Then};

pub(crate) use word_enum::words;

use crate::clock::Timestamp;

/// A job as the store keeps it. Changed only through [`transition`].
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// Its name, unique in the store.
    pub id: JobId,
    /// What was asked for at submission; never changes afterwards.
    pub spec: Arc<JobSpec>,
    /// The input of the work.
    pub payload: Body,
    /// Where the job stands.
    pub state: State,
    /// Not claimed before this time. Kept after the claim, so that the wait can be told.
    pub run_at: Timestamp,
    /// Expires when not claimed by then.
    pub expires_at: Option<Timestamp>,
    /// How many claims count against the budget of attempts.
    pub attempt: Attempt,
    /// How often the job was ever claimed: the fencing token of its latest lease.
    pub fence: Fence,
    /// How the latest attempt failed, if one did; cleared by a completion and by an explicit retry.
    pub error: Option<JobError>,
    /// Every transition since the submission.
    pub history: History,
    /// What somebody is yet to be told of.
    pub outbox: Vec<Notice>,
    /// When it was submitted.
    pub created_at: Timestamp,
    /// When the document was last written.
    pub updated_at: Timestamp,
    /// When the latest attempt began.
    pub started_at: Option<Timestamp>,
}

impl Job {
    /// The lease, which a running job has and no other.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Running(running) => Some(&running.lease),
            _ => None,
        }
    }

    /// The flag of a running job that looks abandoned.
    #[must_use]
    pub fn orphan(&self) -> Option<&Orphan> {
        match &self.state {
            State::Running(running) => running.orphan.as_ref(),
            _ => None,
        }
    }

    /// When the job reached its final state, if it has.
    #[must_use]
    pub fn finished_at(&self) -> Option<Timestamp> {
        match &self.state {
            State::Available | State::Running(_) => None,
            State::Completed { finished_at, .. }
            | State::Failed { finished_at }
            | State::Cancelled { finished_at }
            | State::Expired { finished_at } => Some(*finished_at),
        }
    }

    /// How long the latest attempt let the job wait from when it was due. `None` before the first attempt, and while the
    /// next one is put off.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let started_at = self.started_at?;
        (started_at >= self.run_at).then(|| started_at.since(self.run_at))
    }

    /// How long the attempt took that the job ended with; `None` when it has not ended, or ended while it waited.
    #[must_use]
    pub fn run_time(&self) -> Option<Duration> {
        let (started_at, finished_at) = (self.started_at?, self.finished_at()?);
        let end = self.history.entries().last()?;
        (end.from == Some(JobState::Running)).then(|| finished_at.since(started_at))
    }

    /// The output of the work, if it was completed with one.
    #[must_use]
    pub fn result(&self) -> &Body {
        match &self.state {
            State::Completed { result, .. } => result,
            _ => &Body::Empty,
        }
    }

    /// The references to bodies that this job keeps outside its own document.
    pub fn stored_bodies(&self) -> impl Iterator<Item = &BodyRef> {
        [&self.payload, self.result()].into_iter().filter_map(|body| match body {
            Body::Stored(reference) => Some(reference),
            Body::Empty | Body::Inline(_) => None,
        })
    }
}
