//! Holding a job back: a held job is not claimed until somebody lets it go.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::Job;
use super::event::EventName;
use super::names::Actor;
use super::refusal::Refusal;
use super::state::State;
use super::transition::{Change, Transition};
use crate::clock::Timestamp;

/// The note on a job that it is held. Only a job that waits or runs has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Hold {
    /// When the job was held.
    pub at: Timestamp,
    /// Who holds the job.
    pub by: Actor,
    /// The reason, if one was given.
    pub reason: Option<String>,
}

impl Job {
    /// Returns whether a worker may be given the job once it is due: it is available, and nobody holds it.
    #[must_use]
    pub fn is_claimable(&self) -> bool {
        self.state == State::Available && self.hold.is_none()
    }

    /// Holds the job: it is not claimed until [`Job::unhold`]. A running job runs on, and is held when it becomes
    /// available again. A job that is held already stays as it is.
    ///
    /// # Errors
    /// [`Refusal::AlreadyFinal`] when the job has ended.
    pub fn hold(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Change, Refusal> {
        self.unless_final()?;
        if self.hold.is_some() {
            return Ok(Change::Already);
        }
        let mut held = self.amended(EventName::Held, actor, reason.clone(), now);
        held.hold = Some(Box::new(Hold { at: now, by: actor.clone(), reason }));
        Ok(Change::To(Box::new(held)))
    }

    /// Ends the hold, so that the job can be claimed once it is due.
    ///
    /// # Errors
    /// [`Refusal::AlreadyFinal`] when the job has ended.
    pub fn unhold(&self, actor: &Actor, reason: Option<String>, now: Timestamp) -> Result<Change, Refusal> {
        self.unless_final()?;
        if self.hold.is_none() {
            return Ok(Change::Already);
        }
        let mut free = self.amended(EventName::Unheld, actor, reason, now);
        free.hold = None;
        Ok(Change::To(Box::new(free)))
    }

    pub(super) fn unless_final(&self) -> Result<(), Refusal> {
        let state = self.state.name();
        if state.is_final() { Err(Refusal::AlreadyFinal(state)) } else { Ok(()) }
    }

    /// Returns the job in the same state with a history entry for `event`, which a person has caused.
    pub(super) fn amended(&self, event: EventName, actor: &Actor, reason: Option<String>, now: Timestamp) -> Self {
        let mut amended = self.clone();
        let to = self.state.clone();
        amended.enter(Transition { to, event, doer: actor.into(), reason, now });
        amended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::job::{Body, Claim, Failure, JobError, JobId, JobSpec, JobState, Kind, LeaseProof, QueueName, WorkerId};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn ann() -> Actor {
        Actor::system("ann")
    }

    fn waiting() -> Job {
        let spec = JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
        Job::submit(JobId::new("j").expect("an id"), Arc::new(spec), Body::Empty, (at(0), None), &ann(), at(0))
    }

    fn claim() -> Claim {
        let worker_id = WorkerId::new("w").expect("a name");
        Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(60), margin: Duration::ZERO }
    }

    fn changed(change: Result<Change, Refusal>) -> Job {
        match change {
            Ok(Change::To(job)) => *job,
            other => panic!("not changed: {other:?}"),
        }
    }

    #[test]
    fn a_held_job_is_not_claimed_until_it_is_let_go() {
        let held = changed(waiting().hold(&ann(), Some("wrong month".to_owned()), at(1)));
        assert_eq!(held.claim(&claim(), at(2)), Err(Refusal::Held));
        assert_eq!(held.hold(&ann(), None, at(2)), Ok(Change::Already));
        let entry = held.history.entries().last().expect("an entry");
        assert_eq!((entry.event, entry.from, entry.to), (EventName::Held, Some(JobState::Available), entry.to));
        assert_eq!(entry.reason.as_deref(), Some("wrong month"));
        let free = changed(held.unhold(&ann(), None, at(3)));
        assert!(free.claim(&claim(), at(4)).is_ok());
        assert_eq!(free.unhold(&ann(), None, at(4)), Ok(Change::Already));
    }

    #[test]
    fn a_running_job_is_held_when_it_is_available_again_and_its_end_is_still_recognised() {
        let running = waiting().claim(&claim(), at(1)).expect("claimed");
        let held = changed(running.hold(&ann(), None, at(2)));
        let proof = LeaseProof { worker_id: claim().worker_id, fence: held.fence, bearer: None };
        let released = changed(held.release(&proof, "shutdown", at(3)));
        assert_eq!((released.state.name(), released.is_claimable()), (JobState::Available, false));
        let error = JobError { code: "exit".to_owned(), message: String::new() };
        let failure = Failure { error, retryable: true, retry_after: None, chance: 0.5 };
        let failed = changed(running.fail(&proof, &failure, at(3)));
        let held = changed(failed.hold(&ann(), None, at(4)));
        assert_eq!(held.fail(&proof, &failure, at(5)), Ok(Change::Already), "a repeated end is the same end");
    }

    #[test]
    fn a_job_that_ends_is_held_no_more_and_one_that_has_ended_is_refused() {
        let held = changed(waiting().hold(&ann(), None, at(1)));
        let ended = changed(held.cancel(&ann(), None, at(2)));
        assert_eq!(ended.hold, None);
        assert_eq!(ended.hold(&ann(), None, at(3)), Err(Refusal::AlreadyFinal(JobState::Cancelled)));
        assert_eq!(ended.unhold(&ann(), None, at(3)), Err(Refusal::AlreadyFinal(JobState::Cancelled)));
        assert!(ended.retry(&ann(), None, at(3)).expect("retried").is_claimable());
    }
}
