//! What the monitor does to a job when something takes too long: flags, recovery, time limits, start deadlines; and
//! [`Job::watch_at`], the earliest moment at which any of this can be due. A store keeps `watch_at` as a field, so that
//! a scan reads only the jobs whose `watch_at` has come, however many jobs there are.

use std::time::Duration;

use super::Job;
use super::event::EventName;
use super::names::Actor;
use super::refusal::Refusal;
use super::spec::OrphanPolicy;
use super::state::{Attempt, JobError, Orphan, Running, State};
use super::transition::{Change, Failure, Transition};
use crate::clock::Timestamp;

/// The code of the failure of an attempt whose lease has expired.
pub(crate) const LEASE_EXPIRED: &str = "lease_expired";

/// The terms on which a job is recovered from a worker whose lease has expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Recovery {
    /// How long ago the lease expired, in awake time; `None` while it lasts.
    pub over_for: Option<Duration>,
    /// How long ago the lease must have expired at least.
    pub grace: Duration,
    /// The orphan policy that applies if the job has none of its own.
    pub policy: OrphanPolicy,
    /// The caller's random number from 0 to 1, for the jitter of the backoff.
    pub chance: f64,
}

impl Job {
    /// Returns the earliest moment at which the job may need something done without its worker: a deadline, a limit, a
    /// flag, a recovery, a notice to hand on. Returns `None` when time alone changes nothing.
    ///
    /// The moment may be too early, since the action also depends on settings; it must never be too late.
    #[must_use]
    pub fn watch_at(&self) -> Option<Timestamp> {
        let notice = self.outbox.first().map(|notice| notice.entry.at);
        let deadline = match &self.state {
            State::Available => self.start_deadline(),
            State::Running(running) => self.watch_running_at(running),
            State::Completed { .. } | State::Failed { .. } | State::Cancelled { .. } | State::Expired { .. } => None,
        };
        [notice, deadline].into_iter().flatten().min()
    }

    fn watch_running_at(&self, running: &Running) -> Option<Timestamp> {
        let lease = &running.lease;
        let timeout = self.times_out_at(running);
        let expected = self.expected_until(running);
        let overdue = expected.filter(|_| running.overdue_at.is_none());
        let silent = expected.filter(|_| running.orphan.is_none()).map(|expected| {
            let stale = lease.heartbeat_at.plus(lease.term / 2);
            expected.max(stale)
        });
        let expired = Some(lease.expires_at).filter(|_| running.orphan.as_ref().is_none_or(|orphan| !orphan.held));
        [timeout, overdue, silent, expired].into_iter().flatten().min()
    }

    /// Returns when the current attempt is expected to end by the wall clock, if the job has an expected runtime.
    #[must_use]
    pub fn expected_until(&self, running: &Running) -> Option<Timestamp> {
        self.spec.expected_runtime.map(|expected| running.lease.acquired_at.plus(expected))
    }

    /// Returns when the current attempt reaches its time limit, if the job has one and no time passes that does not
    /// count.
    #[must_use]
    pub fn times_out_at(&self, running: &Running) -> Option<Timestamp> {
        self.spec.timeout.map(|timeout| running.lease.acquired_at.plus(timeout))
    }

    /// Returns the data of a running job.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`].
    pub fn running(&self) -> Result<&Running, Refusal> {
        match &self.state {
            State::Running(running) => Ok(running),
            other => Err(Refusal::NotRunning(other.name())),
        }
    }

    /// Records that the attempt, which has run for the awake time `ran`, takes longer than expected, once for each
    /// lease.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`], [`Refusal::NotYet`].
    pub fn mark_overdue(&self, actor: &Actor, ran: Duration, now: Timestamp) -> Result<Change, Refusal> {
        let running = self.running()?;
        let is_overdue = self.spec.expected_runtime.is_some_and(|expected| expected <= ran);
        let Some(expected) = self.expected_until(running).filter(|_| is_overdue) else {
            return Err(Refusal::NotYet);
        };
        if running.overdue_at.is_some() {
            return Ok(Change::Already);
        }
        let reason = format!("expected to end by {expected}");
        let marked = Running { overdue_at: Some(now), ..running.clone() };
        Ok(Change::To(Box::new(self.still_running(marked, EventName::Overdue, actor, reason, now))))
    }

    /// Flags a job that looks abandoned; if `held` is set, the job is left alone until a person decides. A heartbeat
    /// removes the flag. An existing flag stays as it is unless it has to hold the job now.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`].
    pub fn flag_orphan(&self, actor: &Actor, reason: &str, held: bool, now: Timestamp) -> Result<Change, Refusal> {
        let running = self.running()?;
        let flagged_at = match &running.orphan {
            Some(orphan) if orphan.held || !held => return Ok(Change::Already),
            Some(orphan) => orphan.flagged_at,
            None => now,
        };
        let orphan = Some(Orphan { flagged_at, reason: reason.to_owned(), held });
        let flagged = Running { orphan, ..running.clone() };
        Ok(Change::To(Box::new(self.still_running(flagged, EventName::Orphaned, actor, reason.to_owned(), now))))
    }

    /// Takes the job from a worker whose lease expired at least the grace ago, and applies the job's orphan policy, or
    /// the one given if the job has none. A job whose cancellation was requested is cancelled instead.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`], [`Refusal::NotYet`].
    pub fn recover(&self, actor: &Actor, recovery: &Recovery, now: Timestamp) -> Result<Change, Refusal> {
        let running = self.running()?;
        let lease = &running.lease;
        if recovery.over_for.is_none_or(|over_for| over_for < recovery.grace) {
            return Err(Refusal::NotYet);
        }
        if running.cancel_requested_at.is_some() {
            let reason = Some("lease expired after a cancel request".to_owned());
            return Ok(Change::To(Box::new(self.cancelled(actor, reason, now))));
        }
        let message = format!(
            "worker {} was last heard of at {}; its lease ended at {}",
            lease.worker_id, lease.heartbeat_at, lease.expires_at
        );
        let policy = self.spec.oversight.orphan_policy.unwrap_or(recovery.policy);
        let retryable = match policy {
            OrphanPolicy::Requeue => true,
            OrphanPolicy::Fail => false,
            OrphanPolicy::Flag => return self.flag_orphan(actor, &message, true, now),
        };
        let error = JobError { code: LEASE_EXPIRED.to_owned(), message };
        let failure = Failure { error, retryable, retry_after: None, chance: recovery.chance };
        Ok(Change::To(Box::new(self.failed(&failure, EventName::Released, actor, now))))
    }

    /// Ends an attempt that has run for the awake time `ran` and so has reached the job's `timeout`: it counts as
    /// failed, or the job is cancelled if that was requested.
    ///
    /// # Errors
    /// [`Refusal::NotRunning`], [`Refusal::NotYet`].
    pub fn time_out(&self, actor: &Actor, ran: Duration, chance: f64, now: Timestamp) -> Result<Self, Refusal> {
        let running = self.running()?;
        if self.spec.timeout.is_none_or(|limit| limit > ran) {
            return Err(Refusal::NotYet);
        }
        if running.cancel_requested_at.is_some() {
            return Ok(self.cancelled(actor, Some("timed out after a cancel request".to_owned()), now));
        }
        let limit = self.spec.timeout.unwrap_or_default().as_millis();
        let message = format!("the attempt ran for longer than {limit} ms");
        let error = JobError { code: "timeout".to_owned(), message };
        let failure = Failure { error, retryable: true, retry_after: None, chance };
        Ok(self.failed(&failure, EventName::Retried, actor, now))
    }

    /// Returns the start deadline while it applies. Once an attempt counts there is none: a job that waits for its next
    /// attempt does not expire.
    #[must_use]
    pub fn start_deadline(&self) -> Option<Timestamp> {
        self.expires_at.filter(|_| self.attempt == Attempt::default())
    }

    /// Moves the job `available → expired` once the start deadline has passed.
    ///
    /// # Errors
    /// [`Refusal::NotAvailable`], [`Refusal::NotYet`].
    pub fn expire(&self, actor: &Actor, now: Timestamp) -> Result<Self, Refusal> {
        if self.state != State::Available {
            return Err(Refusal::NotAvailable(self.state.name()));
        }
        if self.start_deadline().is_none_or(|deadline| deadline > now) {
            return Err(Refusal::NotYet);
        }
        let mut expired = self.clone();
        let reason = Some("not claimed before its start deadline".to_owned());
        let to = State::Expired { finished_at: now };
        expired.enter(Transition { to, event: EventName::Expired, doer: actor.into(), reason, now });
        Ok(expired)
    }
}
