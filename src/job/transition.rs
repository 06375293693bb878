//! Every transition of a job that workers, submitters and administrators request; [`super::oversight`] has those of the
//! monitor.
//!
//! Each function takes the job as it is, a request and the time, and returns the job as it is to be written, or a
//! [`Refusal`]. Nothing here does I/O, reads a clock or draws a random number: the caller writes the result under the
//! version that it read, and repeats the transition when another writer came first.
//!
//! These invariants hold, and `tests` checks them over random sequences: a job has a lease exactly while it runs; the
//! fence rises by one at each claim and never otherwise; a final state is left only by
//! [`Job::retry`], and by [`Job::submitted_again`] where there was no job before; each history
//! entry starts where the one before it ended.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Job;
use super::bearer::{CallingWorker, Doer, LeaseProof};
use super::body::Body;
use super::event::EventName;
use super::history::{History, HistoryEntry};
use super::names::{Actor, JobId, RequestId, WorkerId};
use super::refusal::Refusal;
use super::spec::JobSpec;
use super::state::{Attempt, Fence, JobError, JobState, Lease, Progress, Running, State};
use crate::clock::{LONGEST_STEP, Timestamp};

/// A worker's claim of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The worker that claims the job.
    pub worker_id: WorkerId,
    /// The name of the token that the claim is made with, which the lease bears.
    pub holder: Option<Actor>,
    /// The worker's id for the claim call, if it gave one.
    pub request_id: Option<RequestId>,
    /// How long the lease lasts without a heartbeat.
    pub term: Duration,
    /// How far the clock that shows `now` may be behind others. The lease lasts as much longer.
    pub margin: Duration,
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    /// The error that ended the attempt.
    pub error: JobError,
    /// Whether another attempt could succeed.
    pub retryable: bool,
    /// The shortest wait before the next attempt, if the failure named one.
    pub retry_after: Option<Duration>,
    /// The caller's random number from 0 to 1, for the jitter of the backoff.
    pub chance: f64,
}

/// What becomes of a job that is taken from its worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// The job is available again and can be claimed at once, or is cancelled if that was requested before.
    Requeue,
    /// The job fails.
    Fail,
    /// The job is cancelled.
    Cancel,
}

/// An administrator's order to end a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdminRelease {
    /// The administrator who gives the order.
    pub actor: Actor,
    /// The reason, which the history records.
    pub reason: String,
    /// What becomes of the job.
    pub then: Then,
    /// The fence that the administrator saw, if given; a job with another fence is refused.
    pub expected_fence: Option<Fence>,
}

/// The outcome of a granted request.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// The job has to be written in this form.
    To(Box<Job>),
    /// The job is already as requested, and nothing has to be written.
    Already,
}

/// A transition: the new state, and the contents of its history entry.
pub(super) struct Transition {
    pub(super) to: State,
    pub(super) event: EventName,
    pub(super) doer: Doer,
    pub(super) reason: Option<String>,
    pub(super) now: Timestamp,
}

impl Job {
    /// Makes a new job, which can be claimed from `run_at` on.
    #[must_use]
    pub fn submit(
        id: JobId,
        spec: Arc<JobSpec>,
        payload: Body,
        (run_at, expires_at): (Timestamp, Option<Timestamp>),
        actor: &Actor,
        now: Timestamp,
    ) -> Self {
        let mut job = Self {
            id,
            spec,
            payload,
            state: State::Available,
            run_at,
            expires_at,
            hold: None,
            attempt: Attempt::default(),
            fence: Fence::default(),
            error: None,
            history: History::default(),
            outbox: Vec::new(),
            created_at: now,
            updated_at: now,
            started_at: None,
        };
        job.record(None, EventName::Submitted, Doer::from(actor), None, now);
        job
    }

    /// Moves the job `available → running`: a worker gets a lease under a new fence.
    ///
    /// # Errors
    /// [`Refusal::NotAvailable`], [`Refusal::Held`], [`Refusal::NotDue`], [`Refusal::StartDeadlinePassed`].
    pub fn claim(&self, claim: &Claim, now: Timestamp) -> Result<Self, Refusal> {
        if self.state != State::Available {
            return Err(Refusal::NotAvailable(self.state.name()));
        }
        if let Some(deadline) = self.start_deadline().filter(|deadline| *deadline <= now) {
            return Err(Refusal::StartDeadlinePassed(deadline));
        }
        if self.hold.is_some() {
            return Err(Refusal::Held);
        }
        if !self.is_due(now) {
            return Err(Refusal::NotDue(self.run_at));
        }
        let lease = Lease {
            worker_id: claim.worker_id.clone(),
            holder: claim.holder.clone(),
            request_id: claim.request_id.clone(),
            acquired_at: now,
            heartbeat_at: now,
            expires_at: now.plus(claim.term + claim.margin),
            term: claim.term,
        };
        let mut claimed = self.clone();
        claimed.fence = self.fence.next();
        claimed.attempt = self.attempt.next();
        claimed.started_at = Some(now);
        let running = Running { lease, progress: None, cancel_requested_at: None, orphan: None, overdue_at: None };
        let doer = Doer::of(&claim.worker_id, claim.holder.as_ref());
        let to = State::Running(Box::new(running));
        claimed.enter(Transition { to, event: EventName::Claimed, doer, reason: None, now });
        Ok(claimed)
    }

    /// Renews the lease for its term and the `margin` (see [`Claim::margin`]) from `now` on, stores the progress if
    /// there is any, and removes an orphan flag. A heartbeat is no transition, so the history does not show it.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn heartbeat(
        &self,
        proof: &LeaseProof,
        progress: Option<Progress>,
        margin: Duration,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let running = self.held_by(proof)?;
        let mut running = running.clone();
        let lease = &mut running.lease;
        // A lease gets no shorter, unless its times are to come: they are those of another clock, or of this one before
        // it was set back.
        if lease.heartbeat_at > now.plus(LONGEST_STEP) {
            (lease.heartbeat_at, lease.expires_at) = (now, now.plus(lease.term + margin));
        } else {
            lease.heartbeat_at = now.max(lease.heartbeat_at);
            lease.expires_at = now.plus(lease.term + margin).max(lease.expires_at);
        }
        if lease.acquired_at > now.plus(LONGEST_STEP) {
            lease.acquired_at = now;
        }
        running.orphan = None;
        if progress.is_some() {
            running.progress = progress;
        }
        let mut beating = self.clone();
        beating.state = State::Running(Box::new(running));
        beating.updated_at = beating.next_update(now);
        Ok(beating)
    }

    /// Renews the lease of a claim that its worker makes again under the same name: the job is delivered once more. The
    /// lease always changes, also when the clock stands still, so that it can be told from one that was not delivered.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn deliver_again(
        &self,
        worker: &CallingWorker,
        request_id: Option<&RequestId>,
        margin: Duration,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let lost = || Refusal::LeaseLost { state: self.state.name(), fence: self.fence };
        let lease = self.lease().filter(|lease| lease.request_id.as_ref() == request_id).ok_or_else(lost)?;
        let proof = worker.proof(self.fence);
        let later = lease.heartbeat_at.plus(Duration::from_millis(1));
        self.heartbeat(&proof, None, margin, if later > now.plus(LONGEST_STEP) { now } else { now.max(later) })
    }

    /// Moves the job `running → completed`. A late completion is accepted as long as its fence is the current one, even
    /// when cancellation was requested: the work is done. The same completion again changes nothing; one with another
    /// result is refused.
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
        let to = State::Completed { finished_at: now, result: result.clone() };
        done.enter(Transition { to, event: EventName::Completed, doer: proof.doer(), reason: None, now });
        Ok(Change::To(Box::new(done)))
    }

    /// Ends a failed attempt: moves the job `running → available` for another attempt after a wait, `running → failed`
    /// if the failure is not retryable or the attempts are used up, or `running → cancelled` if that was requested. The
    /// same failure again changes nothing.
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
        if running.cancel_requested_at.is_some() {
            return Ok(Change::To(Box::new(self.cancelled(proof.doer(), Some("ended as asked".to_owned()), now))));
        }
        Ok(Change::To(Box::new(self.failed(failure, EventName::Retried, proof.doer(), now))))
    }

    /// Moves the job `running → available` and gives the attempt back, so that it does not count; or moves the job
    /// `running → cancelled` if that was requested. The same release again changes nothing.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn release(&self, proof: &LeaseProof, reason: &str, now: Timestamp) -> Result<Change, Refusal> {
        self.postpone(proof, reason, Duration::ZERO, now)
    }

    /// Releases the job as [`Job::release`] does. It can be claimed again after `delay`.
    ///
    /// # Errors
    /// [`Refusal::LeaseLost`].
    pub fn postpone(
        &self,
        proof: &LeaseProof,
        reason: &str,
        delay: Duration,
        now: Timestamp,
    ) -> Result<Change, Refusal> {
        let same = |end: &HistoryEntry| match end.to {
            JobState::Cancelled => true,
            JobState::Available => end.reason.as_deref() == Some(reason),
            JobState::Running | JobState::Completed | JobState::Failed | JobState::Expired => false,
        };
        if self.end_by(proof).is_some_and(same) {
            return Ok(Change::Already);
        }
        let running = self.held_by(proof)?;
        let doer = proof.doer();
        if running.cancel_requested_at.is_some() {
            return Ok(Change::To(Box::new(self.cancelled(doer, Some("ended as asked".to_owned()), now))));
        }
        let mut released = self.clone();
        released.attempt = self.attempt.given_back();
        if !delay.is_zero() {
            released.run_at = now.plus(delay);
        }
        let reason = Some(reason.to_owned());
        released.enter(Transition { to: State::Available, event: EventName::Returned, doer, reason, now });
        Ok(Change::To(Box::new(released)))
    }

    /// Moves the job `available → cancelled`. For a running job it records the request, of which the answer to the
    /// worker's next heartbeat informs the worker.
    ///
    /// # Errors
    /// [`Refusal::AlreadyFinal`] when the job has ended in another way.
    pub fn cancel(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Change, Refusal> {
        match &self.state {
            State::Available => Ok(Change::To(Box::new(self.cancelled(actor, reason, now)))),
            State::Running(running) if running.cancel_requested_at.is_some() => Ok(Change::Already),
            State::Running(running) => {
                let stopping = Running { cancel_requested_at: Some(now), ..running.as_ref().clone() };
                let reason =
                    reason.map_or_else(|| "cancel requested".to_owned(), |why| format!("cancel requested: {why}"));
                let stopping = self.still_running(stopping, EventName::CancelRequested, actor, reason, now);
                Ok(Change::To(Box::new(stopping)))
            }
            State::Cancelled { .. } => Ok(Change::Already),
            other => Err(Refusal::AlreadyFinal(other.name())),
        }
    }

    /// Checks that the job was not claimed anew since whoever expects this fence looked at it.
    ///
    /// # Errors
    /// [`Refusal::FenceMoved`].
    pub fn is_still_at(&self, expected: Option<Fence>) -> Result<(), Refusal> {
        match expected {
            Some(fence) if fence != self.fence => Err(Refusal::FenceMoved(self.fence)),
            _ => Ok(()),
        }
    }

    /// Ends a running job's lease on an administrator's order.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`], [`Refusal::FenceMoved`].
    pub fn admin_release(&self, order: &AdminRelease, now: Timestamp) -> Result<Self, Refusal> {
        let State::Running(running) = &self.state else {
            return Err(Refusal::NotRunning(self.state.name()));
        };
        self.is_still_at(order.expected_fence)?;
        let reason = Some(order.reason.clone());
        let mut released = self.clone();
        let asked_to_stop = running.cancel_requested_at.is_some();
        let (to, event) = match order.then {
            // A cancellation that was acknowledged holds, no matter who ends the attempt.
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
        released.enter(Transition { to, event, doer: Doer::from(&order.actor), reason, now });
        Ok(released)
    }

    /// Moves the job `failed | cancelled | expired → available` with a fresh budget of attempts and no start deadline;
    /// the fence is not reset.
    ///
    /// # Errors
    /// [`Refusal::NotRetryable`], [`Refusal::NeverCreated`].
    pub fn retry(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Self, Refusal> {
        if self.is_never_created() {
            return Err(Refusal::NeverCreated);
        }
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
        again.enter(Transition {
            to: State::Available,
            event: EventName::Retried,
            doer: Doer::from(actor),
            reason,
            now,
        });
        Ok(again)
    }

    /// Returns the running data if `proof` shows the current lease.
    pub(super) fn held_by(&self, proof: &LeaseProof) -> Result<&Running, Refusal> {
        match &self.state {
            State::Running(running) if self.fence == proof.fence && running.lease.worker_id == proof.worker_id => {
                if proof.stands_for(running.lease.holder.as_ref()) {
                    Ok(running)
                } else {
                    Err(Refusal::ForeignLease)
                }
            }
            _ => Err(Refusal::LeaseLost { state: self.state.name(), fence: self.fence }),
        }
    }

    /// Returns whether the job has the lease of `proof`, and it was taken with a token of another name.
    #[must_use]
    pub fn is_foreign_to(&self, proof: &LeaseProof) -> bool {
        self.held_by(proof) == Err(Refusal::ForeignLease)
    }

    /// Returns the latest transition if it ended the lease of `proof` on its own worker's request: the same request may
    /// then have come again because its answer was lost.
    pub(super) fn end_by(&self, proof: &LeaseProof) -> Option<&HistoryEntry> {
        let entries = self.history.entries().iter().filter(|_| self.fence == proof.fence);
        let last = entries.rev().find(|entry| !entry.event.is_amendment())?;
        let ended = last.from == Some(JobState::Running) && last.to != JobState::Running;
        let holder = last.worker_id.as_ref().map(|_| &last.actor);
        (ended && last.is_by(&proof.worker_id) && proof.stands_for(holder)).then_some(last)
    }

    /// Returns the job after a failed attempt: waiting for the next one, recorded as the event `again`, or failed.
    pub(super) fn failed(&self, failure: &Failure, again: EventName, doer: impl Into<Doer>, now: Timestamp) -> Self {
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
        failed.enter(Transition { to, event, doer: doer.into(), reason, now });
        failed
    }

    pub(super) fn cancelled(&self, doer: impl Into<Doer>, reason: Option<String>, now: Timestamp) -> Self {
        let mut cancelled = self.clone();
        let to = State::Cancelled { finished_at: now };
        cancelled.enter(Transition { to, event: EventName::Cancelled, doer: doer.into(), reason, now });
        cancelled
    }

    /// Returns the running job with other running data and a history entry for `event`.
    pub(super) fn still_running(
        &self,
        running: Running,
        event: EventName,
        actor: &Actor,
        reason: String,
        now: Timestamp,
    ) -> Self {
        let mut job = self.clone();
        let (to, doer) = (State::Running(Box::new(running)), Doer::from(actor));
        job.enter(Transition { to, event, doer, reason: Some(reason), now });
        job
    }

    /// Moves the job to another state and records that in the history.
    pub(super) fn enter(&mut self, transition: Transition) {
        let Transition { to, event, doer, reason, now } = transition;
        let from = std::mem::replace(&mut self.state, to).name();
        if self.state.name().is_final() {
            self.hold = None;
        }
        self.updated_at = self.next_update(now);
        self.record(Some(from), event, doer, reason, now);
    }

    /// Records in the history that the job has come to its state from the state `from`.
    fn record(&mut self, from: Option<JobState>, event: EventName, doer: Doer, reason: Option<String>, now: Timestamp) {
        let (to, fence, attempt) = (self.state.name(), self.fence, self.attempt);
        let Doer { actor, worker_id } = doer;
        self.history.push(HistoryEntry { at: now, from, to, fence, attempt, event, actor, worker_id, reason });
    }
}

#[cfg(test)]
mod tests;
