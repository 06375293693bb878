//! Every way from one state to another that workers, submitters and administrators request; [`super::oversight`] has
//! what the monitor does.
//!
//! Each function takes the job as it is, a request and the time, and gives the job as it should be written, or says
//! why not. Nothing here does I/O, reads a clock or draws a random number: the caller writes the answer back under the
//! version it read, and repeats the transition when somebody else wrote first.
//!
//! What they keep, and `tests` hold over random sequences: a job has a lease exactly while it runs; the fence rises by
//! one at each claim and never else; a final state is left only by [`Job::retry`]; each history entry starts where
//! the one before it ended.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Job;
use super::body::Body;
use super::event::EventName;
use super::history::{History, HistoryEntry};
use super::names::{Actor, JobId, RequestId, WorkerId};
use super::spec::JobSpec;
use super::state::{Attempt, Fence, JobError, JobState, Lease, Progress, Running, State};
use crate::clock::Timestamp;

/// What a worker shows to prove that its lease is the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseProof {
    /// The worker.
    pub worker_id: WorkerId,
    /// The fence of its claim.
    pub fence: Fence,
}

/// A worker's claim of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The worker.
    pub worker_id: WorkerId,
    /// The worker's name for the claim call.
    pub request_id: Option<RequestId>,
    /// How long the lease lasts without a heartbeat.
    pub term: Duration,
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// What went wrong.
    pub error: JobError,
    /// Whether another attempt could succeed.
    pub retryable: bool,
    /// The shortest wait before the next attempt, where the failure named one.
    pub retry_after: Option<Duration>,
    /// The caller's random number from 0 to 1, for the backoff.
    pub chance: f64,
}

/// What becomes of a job that is taken from its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The job waits in its queue again and can be claimed at once.
    Requeue,
    /// The job fails.
    Fail,
    /// The job is cancelled.
    Cancel,
}

/// An administrator's order to end a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminRelease {
    /// The administrator.
    pub actor: Actor,
    /// The reason, for the history.
    pub reason: String,
    /// What becomes of the job.
    pub then: Then,
    /// The fence that the administrator saw; a newer claim is left alone.
    pub expected_fence: Option<Fence>,
}

/// The outcome of a granted request.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The job is to be written like this.
    To(Box<Job>),
    /// The job already is as requested: nothing is to be written.
    Already,
}

/// Why a request is not granted. Nothing changes then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The job does not wait to be claimed.
    #[error("the job is {0}, not available")]
    NotAvailable(JobState),
    /// The job waits for a later time.
    #[error("the job is not due before {0}")]
    NotDue(Timestamp),
    /// The start deadline has passed.
    #[error("the job's start deadline {0} has passed")]
    StartDeadlinePassed(Timestamp),
    /// The lease spoken of is not, or no longer, the job's current one.
    #[error("the lease is not the job's current one: the job is {state}, its fence is {}", fence.get())]
    LeaseLost {
        /// Where the job is now.
        state: JobState,
        /// Its fence now.
        fence: Fence,
    },
    /// The job does not run.
    #[error("the job is {0}, not running")]
    NotRunning(JobState),
    /// The job was claimed anew.
    #[error("the job's fence is {}, not the expected one: it was claimed anew", .0.get())]
    FenceMoved(Fence),
    /// The job has reached its end in another way.
    #[error("the job is already {0}")]
    AlreadyFinal(JobState),
    /// Only a failed, cancelled or expired job can be retried.
    #[error("the job is {0}; only a failed, cancelled or expired job can be retried")]
    NotRetryable(JobState),
    /// The time has not come: the lease, the deadline or the time limit still runs.
    #[error("the time has not come yet")]
    NotYet,
}

/// A transition: the new state, and what its history entry says.
pub(super) struct Transition<'a> {
    pub(super) to: State,
    pub(super) event: EventName,
    pub(super) actor: &'a Actor,
    pub(super) reason: Option<String>,
    pub(super) now: Timestamp,
}

impl Job {
    /// A new job, waiting to be claimed from `run_at` on.
    #[must_use]
    pub fn submit(
        id: JobId,
        spec: Arc<JobSpec>,
        payload: Body,
        (run_at, expires_at): (Timestamp, Option<Timestamp>),
        actor: &Actor,
        now: Timestamp,
    ) -> Self {
        let mut history = History::default();
        history.push(HistoryEntry {
            at: now,
            from: None,
            to: JobState::Available,
            fence: Fence::default(),
            attempt: Attempt::default(),
            event: EventName::Submitted,
            actor: actor.clone(),
            reason: None,
        });
        Self {
            id,
            spec,
            payload,
            state: State::Available,
            run_at,
            expires_at,
            attempt: Attempt::default(),
            fence: Fence::default(),
            error: None,
            history,
            outbox: Vec::new(),
            created_at: now,
            updated_at: now,
            started_at: None,
        }
    }

    /// `available → running`: a worker takes the job under a new fence.
    ///
    /// # Errors
    /// [`Refusal::NotAvailable`], [`Refusal::NotDue`], [`Refusal::StartDeadlinePassed`].
    pub fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Self, Refusal> {
        if self.state != State::Available {
            return Err(Refusal::NotAvailable(self.state.name()));
        }
        if let Some(deadline) = self.start_deadline().filter(|deadline| *deadline <= now) {
            return Err(Refusal::StartDeadlinePassed(deadline));
        }
        if self.run_at > now {
            return Err(Refusal::NotDue(self.run_at));
        }
        let lease = Lease {
            worker_id: claim.worker_id.clone(),
            request_id: claim.request_id.clone(),
            acquired_at: now,
            heartbeat_at: now,
            expires_at: now.plus(claim.term),
            term: claim.term,
        };
        let mut claimed = self.clone();
        claimed.fence = self.fence.next();
        claimed.attempt = self.attempt.next();
        claimed.started_at = Some(now);
        let running = Running { lease, progress: None, cancel_requested_at: None, orphan: None, overdue_at: None };
        let actor = Actor::from(&claim.worker_id);
        let to = State::Running(Box::new(running));
        claimed.enter(Transition { to, event: EventName::Claimed, actor: &actor, reason: None, now });
        Ok(claimed)
    }

    /// A sign of life: the lease lasts its term from now on, and an orphan's flag is taken off. Not a transition, so
    /// not in the history.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn heartbeat(&self, proof: &LeaseProof, progress: Option<Progress>, now: Timestamp) -> Result<Self, Refusal> {
        let running = self.held_by(proof)?;
        let mut running = running.clone();
        running.lease.heartbeat_at = now.max(running.lease.heartbeat_at);
        running.lease.expires_at = now.plus(running.lease.term).max(running.lease.expires_at);
        running.orphan = None;
        if progress.is_some() {
            running.progress = progress;
        }
        let mut beating = self.clone();
        beating.state = State::Running(Box::new(running));
        beating.updated_at = now.max(self.updated_at);
        Ok(beating)
    }

    /// `running → completed`. A late completion is accepted as long as its fence is the current one, even when the
    /// worker was asked to stop: the work is done. The same completion again changes nothing; one with another result
    /// comes too late.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn complete(&self, proof: &LeaseProof, result: &Body, now: Timestamp) -> Result<Change, Refusal> {
        if self.end_by(proof).is_some_and(|end| end.to == JobState::Completed) && self.result().resembles(result) {
            return Ok(Change::Already);
        }
        self.held_by(proof)?;
        let mut done = self.clone();
        done.error = None;
        let actor = Actor::from(&proof.worker_id);
        let to = State::Completed { finished_at: now, result: result.clone() };
        done.enter(Transition { to, event: EventName::Completed, actor: &actor, reason: None, now });
        Ok(Change::To(Box::new(done)))
    }

    /// `running → available`, to be tried again after a wait, or `running → failed` when the failure is final or the
    /// attempts are used up, or `running → cancelled` when that was requested. The same failure again changes
    /// nothing.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn fail(&self, proof: &LeaseProof, failure: &Failure, now: Timestamp) -> Result<Change, Refusal> {
        let same = |end: &HistoryEntry| match end.to {
            JobState::Cancelled => true,
            JobState::Available | JobState::Failed => {
                end.reason.as_ref() == Some(&failure.error.code) && self.error.as_ref() == Some(&failure.error)
            }
            JobState::Running | JobState::Completed | JobState::Expired => false,
        };
        if self.end_by(proof).is_some_and(same) {
            return Ok(Change::Already);
        }
        let running = self.held_by(proof)?;
        let actor = Actor::from(&proof.worker_id);
        if running.cancel_requested_at.is_some() {
            return Ok(Change::To(Box::new(self.cancelled(&actor, Some("ended as asked".to_owned()), now))));
        }
        Ok(Change::To(Box::new(self.failed(failure, EventName::Retried, &actor, now))))
    }

    /// `running → available`: the worker gives the job back unharmed, and the attempt with it; or `running →
    /// cancelled` when that was requested. The same release again changes nothing.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn release(&self, proof: &LeaseProof, reason: &str, now: Timestamp) -> Result<Change, Refusal> {
        let same = |end: &HistoryEntry| match end.to {
            JobState::Cancelled => true,
            JobState::Available => end.reason.as_deref() == Some(reason),
            JobState::Running | JobState::Completed | JobState::Failed | JobState::Expired => false,
        };
        if self.end_by(proof).is_some_and(same) {
            return Ok(Change::Already);
        }
        let running = self.held_by(proof)?;
        let actor = Actor::from(&proof.worker_id);
        if running.cancel_requested_at.is_some() {
            return Ok(Change::To(Box::new(self.cancelled(&actor, Some("ended as asked".to_owned()), now))));
        }
        let mut released = self.clone();
        released.attempt = self.attempt.given_back();
        let reason = Some(reason.to_owned());
        released.enter(Transition { to: State::Available, event: EventName::Returned, actor: &actor, reason, now });
        Ok(Change::To(Box::new(released)))
    }

    /// `available → cancelled`; a running job is requested to stop, which the answer to its worker's next heartbeat
    /// says.
    ///
    /// # Errors
    /// [`Refusal::AlreadyFinal`] when the job has ended in another way.
    pub fn cancel(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Change, Refusal> {
        match &self.state {
            State::Available => Ok(Change::To(Box::new(self.cancelled(actor, reason, now)))),
            State::Running(running) if running.cancel_requested_at.is_some() => Ok(Change::Already),
            State::Running(running) => {
                let mut asked = self.clone();
                asked.state =
                    State::Running(Box::new(Running { cancel_requested_at: Some(now), ..running.as_ref().clone() }));
                asked.updated_at = now.max(self.updated_at);
                let reason =
                    reason.map_or_else(|| "cancel requested".to_owned(), |why| format!("cancel requested: {why}"));
                let states = (JobState::Running, JobState::Running);
                asked.record(states, EventName::CancelRequested, actor, Some(reason), now);
                Ok(Change::To(Box::new(asked)))
            }
            State::Cancelled { .. } => Ok(Change::Already),
            other => Err(Refusal::AlreadyFinal(other.name())),
        }
    }

    /// Ends a running job's lease without its worker.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`], [`Refusal::FenceMoved`].
    pub fn admin_release(&self, order: &AdminRelease, now: Timestamp) -> Result<Self, Refusal> {
        let State::Running(running) = &self.state else {
            return Err(Refusal::NotRunning(self.state.name()));
        };
        if order.expected_fence.is_some_and(|fence| fence != self.fence) {
            return Err(Refusal::FenceMoved(self.fence));
        }
        let reason = Some(order.reason.clone());
        let mut released = self.clone();
        let asked_to_stop = running.cancel_requested_at.is_some();
        let (to, event) = match order.then {
            // A cancellation that was acknowledged holds, whoever ends the attempt.
            Then::Requeue if asked_to_stop => (State::Cancelled { finished_at: now }, EventName::Cancelled),
            Then::Requeue => {
                released.run_at = now;
                (State::Available, EventName::Released)
            }
            Then::Fail => {
                released.error = Some(JobError { code: "released".to_owned(), message: order.reason.clone() });
                (State::Failed { finished_at: now }, EventName::Failed)
            }
            Then::Cancel => (State::Cancelled { finished_at: now }, EventName::Cancelled),
        };
        released.enter(Transition { to, event, actor: &order.actor, reason, now });
        Ok(released)
    }

    /// `failed | cancelled | expired → available`, with a fresh budget of attempts and no start deadline; the fence
    /// goes on counting.
    ///
    /// # Errors
    /// [`Refusal::NotRetryable`].
    pub fn retry(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Self, Refusal> {
        match self.state {
            State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => {}
            State::Available | State::Running(_) | State::Completed { .. } => {
                return Err(Refusal::NotRetryable(self.state.name()));
            }
        }
        let mut again = self.clone();
        again.attempt = Attempt::default();
        again.error = None;
        again.run_at = now;
        again.expires_at = None;
        let reason = reason.or_else(|| Some("retried on request".to_owned()));
        again.enter(Transition { to: State::Available, event: EventName::Retried, actor, reason, now });
        Ok(again)
    }

    /// The running data, if `proof` shows the current lease.
    fn held_by(&self, proof: &LeaseProof) -> Result<&Running, Refusal> {
        match &self.state {
            State::Running(running) if self.fence == proof.fence && running.lease.worker_id == proof.worker_id => {
                Ok(running)
            }
            _ => Err(Refusal::LeaseLost { state: self.state.name(), fence: self.fence }),
        }
    }

    /// The latest transition, if it was `proof`'s own end of its lease: then the same request may have come again
    /// because its answer was lost.
    fn end_by(&self, proof: &LeaseProof) -> Option<&HistoryEntry> {
        let last = self.history.entries().last().filter(|_| self.fence == proof.fence)?;
        let ended = last.from == Some(JobState::Running) && last.to != JobState::Running;
        (ended && last.actor.as_str() == proof.worker_id.as_str()).then_some(last)
    }

    /// Returns the job after a failed attempt: waiting for the next one, recorded as the event `again`, or failed.
    pub(super) fn failed(&self, failure: &Failure, again: EventName, actor: &Actor, now: Timestamp) -> Self {
        let mut failed = self.clone();
        failed.error = Some(failure.error.clone());
        let (to, event) = if failure.retryable && self.attempt.get() < self.spec.max_attempts {
            let backoff = self.spec.retry.backoff(self.attempt.get(), failure.chance);
            failed.run_at = now.plus(backoff.max(failure.retry_after.unwrap_or_default()));
            (State::Available, again)
        } else {
            (State::Failed { finished_at: now }, EventName::Failed)
        };
        let reason = Some(failure.error.code.clone());
        failed.enter(Transition { to, event, actor, reason, now });
        failed
    }

    pub(super) fn cancelled(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Self {
        let mut cancelled = self.clone();
        let to = State::Cancelled { finished_at: now };
        cancelled.enter(Transition { to, event: EventName::Cancelled, actor, reason, now });
        cancelled
    }

    /// Moves to another state and records it.
    pub(super) fn enter(&mut self, step: Transition<'_>) {
        let from = self.state.name();
        self.state = step.to;
        self.updated_at = step.now.max(self.updated_at);
        self.record((from, self.state.name()), step.event, step.actor, step.reason, step.now);
    }

    pub(super) fn record(
        &mut self,
        (from, to): (JobState, JobState),
        event: EventName,
        actor: &Actor,
        reason: Option<String>,
        now: Timestamp,
    ) {
        let (fence, attempt, actor) = (self.fence, self.attempt, actor.clone());
        self.history.push(HistoryEntry { at: now, from: Some(from), to, fence, attempt, event, actor, reason });
    }
}

#[cfg(test)]
mod tests;
