//! What submissions under a unique key do to jobs: they leave a job in the place of one that was never created, and
//! change the input of one that waits.

use std::sync::Arc;
use std::time::Duration;

use super::Job;
use super::body::Body;
use super::event::EventName;
use super::names::{Actor, JobId};
use super::spec::JobSpec;
use super::state::{Fence, JobState, State};
use super::transition::Transition;
use crate::clock::Timestamp;

/// The reason in the history of a job that stands for one that was never created.
const NOT_COMPLETED: &str = "its submission was not completed";

/// What a submission brings for the job of its unique key that waits already.
#[derive(Clone, Debug, PartialEq)]
pub struct Replacement {
    /// The new input of the work.
    pub payload: Body,
    /// The time at which the job is due now; if `None`, it stays as it is.
    pub run_at: Option<Timestamp>,
    /// The start deadline now; if `None`, it stays as it is.
    pub expires_at: Option<Timestamp>,
    /// How long after its own submission the job may be put off to; without end when `None`.
    pub longest_wait: Option<Duration>,
}

impl Job {
    /// Makes a cancelled job under the id of one whose submission was given up, so that none can be created under the
    /// id any more.
    #[must_use]
    pub fn never_created(id: JobId, spec: Arc<JobSpec>, actor: &Actor, now: Timestamp) -> Self {
        let job = Self::submit(id, spec, Body::Empty, (now, None), actor, now);
        job.cancelled(actor, Some(NOT_COMPLETED.to_owned()), now)
    }

    /// Returns whether this is what [`Job::never_created`] makes.
    #[must_use]
    pub fn is_never_created(&self) -> bool {
        let is_cancelled = self.state.name() == JobState::Cancelled && self.fence == Fence::default();
        let [_, end] = self.history.entries() else { return false };
        is_cancelled && self.payload == Body::Empty && end.reason.as_deref() == Some(NOT_COMPLETED)
    }

    /// Returns the job as it is submitted again after all, from what stands for it ([`Job::never_created`]).
    #[must_use]
    pub fn submitted_again(&self, new: &Self, actor: &Actor, now: Timestamp) -> Self {
        let mut job = self.clone();
        job.spec = Arc::clone(&new.spec);
        job.payload = new.payload.clone();
        job.run_at = new.run_at;
        job.expires_at = new.expires_at;
        let reason = Some("submitted again".to_owned());
        job.enter(Transition { to: State::Available, event: EventName::Retried, doer: actor.into(), reason, now });
        job
    }

    /// Returns under which name the job was submitted. Where that was given up at first, as [`Job::never_created`]
    /// notes, it is the name of the later submission.
    #[must_use]
    pub fn submitter(&self) -> Option<&Actor> {
        match self.history.entries() {
            [given_up, end, again, ..]
                if given_up.actor.is_reserved()
                    && end.actor == given_up.actor
                    && end.reason.as_deref() == Some(NOT_COMPLETED) =>
            {
                Some(&again.actor)
            }
            entries => entries.first().map(|submitted| &submitted.actor),
        }
    }

    /// Returns the job with the input of a later submission; `None` if the job does not wait. This is no transition, so
    /// the history does not show it.
    #[must_use]
    pub fn replaced(&self, with: &Replacement, now: Timestamp) -> Option<Self> {
        if self.state != State::Available {
            return None;
        }
        let mut replaced = self.clone();
        replaced.payload = with.payload.clone();
        if let Some(run_at) = with.run_at {
            let latest = with.longest_wait.map(|longest| self.created_at.plus(longest));
            replaced.run_at = latest.map_or(run_at, |latest| run_at.min(latest));
        }
        replaced.expires_at = with.expires_at.or(self.expires_at);
        replaced.updated_at = self.next_update(now);
        Some(replaced)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Change, Json, Kind, QueueName, Refusal};

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    fn spec() -> Arc<JobSpec> {
        Arc::new(JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name")))
    }

    fn waiting() -> Job {
        let (id, actor) = (JobId::new("j").expect("an id"), Actor::system("tester"));
        Job::submit(id, spec(), Body::Empty, (at(1_000), None), &actor, at(1_000))
    }

    fn replacement(run_at: i64, longest_wait: Option<u64>) -> Replacement {
        Replacement {
            payload: Body::Inline(Json::parse("2".to_owned()).expect("JSON")),
            run_at: Some(at(run_at)),
            expires_at: None,
            longest_wait: longest_wait.map(Duration::from_millis),
        }
    }

    #[test]
    fn a_job_that_waits_takes_over_the_input_and_is_put_off_no_longer_than_it_may() {
        for (run_at, longest, expected) in [(5_000, None, 5_000), (5_000, Some(3_000), 4_000), (500, Some(0), 500)] {
            let replaced = waiting().replaced(&replacement(run_at, longest), at(2_000)).expect("it waits");
            assert_eq!((replaced.run_at, replaced.updated_at), (at(expected), at(2_000)));
            assert_eq!(replaced.payload, replacement(0, None).payload);
            assert_eq!((replaced.created_at, replaced.history), (at(1_000), waiting().history));
        }
        let as_it_was = Replacement { run_at: None, ..replacement(0, Some(0)) };
        assert_eq!(waiting().replaced(&as_it_was, at(2_000)).map(|job| job.run_at), Some(at(1_000)));
    }

    #[test]
    fn a_job_that_has_ended_is_not_replaced() {
        let Ok(Change::To(ended)) = waiting().cancel(&Actor::system("tester"), None, at(2_000)) else {
            panic!("it is cancelled");
        };
        assert_eq!(ended.replaced(&replacement(5_000, None), at(3_000)), None);
    }

    #[test]
    fn what_stands_for_a_job_that_was_never_created_is_recognised_and_never_retried() {
        let actor = Actor::system("manager");
        let stands = Job::never_created(JobId::new("j").expect("an id"), spec(), &actor, at(1_000));
        assert!(stands.is_never_created() && stands.state.name().is_final());
        assert_eq!(stands.retry(&actor, None, at(2_000)), Err(Refusal::NeverCreated));
        let ann = Actor::system("ann");
        let again = stands.submitted_again(&waiting(), &ann, at(2_000));
        assert_eq!((again.submitter(), waiting().submitter()), (Some(&ann), Some(&Actor::system("tester"))));
        assert_eq!((again.state.name(), again.is_never_created()), (JobState::Available, false));
        assert_eq!(again.history.entries().last().map(|entry| entry.from), Some(Some(JobState::Cancelled)));
        let Ok(Change::To(cancelled)) = waiting().cancel(&actor, None, at(2_000)) else { panic!("it is cancelled") };
        assert!(!cancelled.is_never_created() && !waiting().is_never_created());
    }
}
