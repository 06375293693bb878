//! The job: one unit of work, one document.
//!
//! In reading order: [`names`] (ids and other checked strings), [`spec`] (what a client submits), [`conditions`],
//! [`requirement`] (what a worker must offer to be given the job) and [`limit`] (what only so many of run at once),
//! [`state`] (each state with its own data), [`phase`] (the state as people see it), [`event`] and [`history`] (what
//! happened), [`notice`] (events that receivers are to be notified of), [`retry`] (backoff), [`partition`] (which jobs
//! managers share out together), [`transition`] (every way from one state to another: pure functions, no I/O, no clock,
//! no randomness), [`refusal`] (why there is none), [`hold`] and [`edit`] (what people change while a job waits or
//! runs), [`unique`] (what submissions under a unique key do to jobs), `output` (who may write it), and [`oversight`]
//! (what the monitor does to a job, and when it checks the job next).

pub mod bearer;
pub mod body;
pub mod conditions;
pub mod edit;
pub mod event;
pub mod history;
pub mod hold;
pub mod limit;
pub mod names;
mod names_in_one;
pub mod notice;
mod output;
pub mod oversight;
pub mod partition;
pub mod phase;
pub mod refusal;
pub mod requirement;
pub mod retry;
pub mod shell;
pub mod spec;
pub mod state;
pub mod strict;
pub mod transition;
pub mod unique;
mod word_enum;

use std::sync::Arc;
use std::time::Duration;

pub use bearer::{Bearer, CallingWorker, LeaseProof};
pub use body::{Body, BodyId, BodyRef, Json, NewBody};
pub use conditions::{Concurrency, Conditions, Ordered};
pub use edit::{Edit, RetryEdit};
pub use event::EventName;
pub use history::{History, HistoryEntry};
pub use hold::Hold;
pub use limit::{LimitName, LimitScope, MAX_CONCURRENT};
pub use names::{
    Actor, ConcurrencyKey, ErrorCode, IdempotencyKey, InvalidName, JobId, Kind, LabelName, OrderingKey, Owner,
    QueueName, RESERVED_ACTORS, RecordName, RequestId, ScheduleId, UniqueKey, WorkerId,
};
pub use notice::{Notice, NoticeFormat, NoticeTarget, NotifiableEvent};
pub(crate) use oversight::LEASE_EXPIRED;
pub use oversight::Recovery;
pub use partition::{Partition, PartitionSet};
pub use phase::Phase;
pub use refusal::Refusal;
pub use requirement::{
    InvalidRequirement, MAX_OFFERED, MAX_OFFERED_NAME, MAX_OFFERED_VALUE, MAX_REQUIREMENT_BYTES, OFFERED_NAME_PATTERN,
    Offers, Requirement, is_offered_name, is_offered_value,
};
pub use retry::RetryPolicy;
pub use spec::{
    Due, Fingerprint, JobSpec, MAX_RESOURCE_NAME, OrphanPolicy, Oversight, Priority, RESOURCE_NAME_PATTERN,
    is_resource_name,
};
pub use state::{Attempt, Fence, JobError, JobState, Lease, Orphan, Progress, Running, State};
pub use transition::{AdminRelease, Change, Claim, Failure, Then};
pub use unique::Replacement;

pub(crate) use requirement::OfferedLabels;
pub(crate) use word_enum::words;

use crate::clock::{FAR_AHEAD, LONGEST_STEP, Timestamp};

/// A job as the store keeps it. It is changed only by the functions of [`transition`], [`hold`], [`edit`],
/// [`oversight`] and [`notice`].
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The job's id, unique in the store.
    pub id: JobId,
    /// The specification from the submission, which only [`edit`] changes.
    pub spec: Arc<JobSpec>,
    /// The input of the work.
    pub payload: Body,
    /// The state of the job, with the data of that state.
    pub state: State,
    /// The earliest time at which the job can be claimed. A claim leaves it as it is, so that the wait can be computed.
    pub run_at: Timestamp,
    /// The start deadline, if there is one: the job expires when no worker has claimed it by then.
    pub expires_at: Option<Timestamp>,
    /// The note that the job is held, if it is.
    pub hold: Option<Box<Hold>>,
    /// How many claims count as attempts so far.
    pub attempt: Attempt,
    /// The fencing token of the latest lease, which counts all claims of the job.
    pub fence: Fence,
    /// The error of the latest attempt, if it failed; a completion and an explicit retry clear it.
    pub error: Option<JobError>,
    /// Every transition since the submission.
    pub history: History,
    /// The notices that have not been handed on for delivery yet, at most [`notice::MAX_NOTICES`].
    pub outbox: Vec<Notice>,
    /// When the job was submitted.
    pub created_at: Timestamp,
    /// When the document was last written.
    pub updated_at: Timestamp,
    /// When the latest attempt began; `None` before the first one.
    pub started_at: Option<Timestamp>,
}

impl Job {
    /// Returns the lease of a running job; no other job has one.
    #[must_use]
    pub fn lease(&self) -> Option<&Lease> {
        match &self.state {
            State::Running(running) => Some(&running.lease),
            _ => None,
        }
    }

    /// Returns the orphan flag of a running job that looks abandoned.
    #[must_use]
    pub fn orphan(&self) -> Option<&Orphan> {
        match &self.state {
            State::Running(running) => running.orphan.as_ref(),
            _ => None,
        }
    }

    /// Returns when the job reached its final state, if it has.
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

    /// Returns since when the job has waited for its next attempt; `None` when it does not, and when somebody has
    /// changed it meanwhile, who may have set another time.
    #[must_use]
    pub fn backs_off_since(&self) -> Option<Timestamp> {
        let last = self.history.entries().last()?;
        (last.from == Some(JobState::Running) && last.to == JobState::Available).then_some(last.at)
    }

    /// Returns the time of a write of the job, as it is after that, at `now`: times never go back, but from where no
    /// clock can have been unless it was wrong. Under a lease whose times are to come they do not either: scans find
    /// such a job by that.
    fn next_update(&self, now: Timestamp) -> Timestamp {
        let is_wrong = self.updated_at > now.plus(FAR_AHEAD);
        let is_to_come = self.lease().is_some_and(|lease| lease.heartbeat_at > now.plus(LONGEST_STEP));
        if is_wrong && !is_to_come { now } else { now.max(self.updated_at) }
    }

    /// Returns whether the job can be claimed, as far as the time goes: its `run_at` has come, or had come when a clock
    /// that was far ahead of this one has written it.
    #[must_use]
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.run_at <= now || self.waits_by_another_clock(now) == Some(Duration::ZERO)
    }

    /// Returns whether only a clock that is right says that the job may be claimed: somebody has named the time from
    /// which it can be, or its start deadline is over by this clock. A wait for the next attempt lasts for awake time.
    #[must_use]
    pub fn awaits_a_right_clock(&self, now: Timestamp) -> bool {
        let is_too_late = self.start_deadline().is_some_and(|deadline| deadline <= now);
        is_too_late || (!self.was_to_run_at_once() && self.backs_off_since().is_none())
    }

    /// Returns how long the job was to wait when a clock that was far ahead of this one has written it; `None` when
    /// none has, and when somebody has named the time at which it is to run.
    fn waits_by_another_clock(&self, now: Timestamp) -> Option<Duration> {
        if self.updated_at <= now.plus(FAR_AHEAD) {
            return None;
        }
        match self.backs_off_since() {
            Some(since) => Some(self.run_at.since(since)),
            None => self.was_to_run_at_once().then_some(Duration::ZERO),
        }
    }

    /// Returns whether nobody has named the time from which the job can be claimed: it is that of its submission or of
    /// the change that let it wait.
    fn was_to_run_at_once(&self) -> bool {
        self.run_at == self.created_at || self.history.entries().iter().any(|entry| entry.at == self.run_at)
    }

    /// Returns whether the job waits longer than it was to, since a clock that was far ahead of this one has written
    /// it.
    #[must_use]
    pub fn is_written_ahead(&self, now: Timestamp) -> bool {
        let wait = self.waits_by_another_clock(now).filter(|_| self.state == State::Available);
        wait.is_some_and(|wait| self.run_at > now.plus(wait))
    }

    /// Lets a job that a clock has written that was far ahead of this one run when it was meant to.
    ///
    /// # Errors
    /// [`Refusal::NotYet`] when it does not wait longer than it was to.
    pub fn move_up(&self, actor: &Actor, now: Timestamp) -> Result<Change, Refusal> {
        let wait = self.waits_by_another_clock(now).filter(|_| self.is_written_ahead(now)).ok_or(Refusal::NotYet)?;
        let edit = Edit { run_at: Some(now.plus(wait)), ..Edit::default() };
        self.edit(&edit, actor, Some("the clock was ahead when it was written, and was set back"), now)
    }

    /// Returns how long the job waited for its latest attempt after it was due; `None` before the first attempt, and
    /// while the next one is delayed.
    #[must_use]
    pub fn wait(&self) -> Option<Duration> {
        let started_at = self.started_at?;
        (started_at >= self.run_at).then(|| started_at.since(self.run_at))
    }

    /// Returns how long the last attempt took; `None` when the job has not ended, or ended while it waited.
    #[must_use]
    pub fn run_time(&self) -> Option<Duration> {
        let (started_at, finished_at) = (self.started_at?, self.finished_at()?);
        let end = self.history.entries().last()?;
        (end.from == Some(JobState::Running)).then(|| finished_at.since(started_at))
    }

    /// Returns the output of the work; [`Body::Empty`] if the job has none or was not completed.
    #[must_use]
    pub fn result(&self) -> &Body {
        match &self.state {
            State::Completed { result, .. } => result,
            _ => &Body::Empty,
        }
    }

    /// Returns the references to bodies that this job keeps outside its own document.
    pub fn stored_bodies(&self) -> impl Iterator<Item = &BodyRef> {
        [&self.payload, self.result()].into_iter().filter_map(|body| match body {
            Body::Stored(reference) => Some(reference),
            Body::Empty | Body::Inline(_) => None,
        })
    }
}
