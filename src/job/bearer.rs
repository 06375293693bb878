//! Who makes a worker's call: the holder of a token, beside the worker that the call names.
//!
//! A worker's id is what a client says of itself; the name of its token is proved. So a lease bears both, and a
//! transition that a worker requests has the token's name as its actor and the worker beside it.

use super::names::{Actor, WorkerId};
use super::state::{Fence, Lease};

/// The holder of the token that a call was made with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bearer {
    /// The name of the token. Another token of the same name stands for the same holder.
    pub name: Actor,
    /// Whether the holder is an administrator, who may act for the holder of any lease.
    pub is_admin: bool,
}

impl Bearer {
    /// Returns the holder of a token with this name that is no administrator's.
    #[must_use]
    pub const fn of(name: Actor) -> Self {
        Self { name, is_admin: false }
    }

    /// Returns whether the bearer may act for the holder of a lease.
    #[must_use]
    pub fn may_act_for(&self, holder: &Actor) -> bool {
        self.is_admin || self.name == *holder
    }
}

/// A worker as it calls.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CallingWorker {
    /// The id that the worker has given itself.
    pub id: WorkerId,
    /// Who makes the call; `None` for a call within the process, and on a server without tokens.
    pub bearer: Option<Bearer>,
}

impl CallingWorker {
    /// Returns the proof of this fence that the worker shows.
    #[must_use]
    pub fn proof(&self, fence: Fence) -> LeaseProof {
        LeaseProof { worker_id: self.id.clone(), fence, bearer: self.bearer.clone() }
    }
}

impl From<&WorkerId> for CallingWorker {
    fn from(id: &WorkerId) -> Self {
        Self { id: id.clone(), bearer: None }
    }
}

impl From<WorkerId> for CallingWorker {
    fn from(id: WorkerId) -> Self {
        Self { id, bearer: None }
    }
}

/// A worker's proof that its lease is the current one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseProof {
    /// The worker that shows the proof.
    pub worker_id: WorkerId,
    /// The fence of the worker's claim.
    pub fence: Fence,
    /// Who shows the proof; `None` for the process itself and on a server without tokens.
    pub bearer: Option<Bearer>,
}

impl LeaseProof {
    /// Returns whether the one who shows the proof may act for the holder of a lease.
    pub(super) fn stands_for(&self, holder: Option<&Actor>) -> bool {
        self.bearer.as_ref().zip(holder).is_none_or(|(bearer, holder)| bearer.may_act_for(holder))
    }

    /// Returns whose request the history names: the token's holder, and the worker beside it.
    pub(super) fn doer(&self) -> Doer {
        Doer::of(&self.worker_id, self.bearer.as_ref().map(|bearer| &bearer.name))
    }
}

impl Lease {
    /// Returns the worker that holds the lease, as it calls.
    #[must_use]
    pub fn calling_worker(&self) -> CallingWorker {
        CallingWorker { id: self.worker_id.clone(), bearer: self.holder.clone().map(Bearer::of) }
    }
}

/// Who causes a transition, as the history names it.
#[derive(Clone, Debug)]
pub(super) struct Doer {
    pub(super) actor: Actor,
    pub(super) worker_id: Option<WorkerId>,
}

impl Doer {
    /// Returns a worker that has a token of this name, if it has one.
    pub(super) fn of(worker: &WorkerId, token: Option<&Actor>) -> Self {
        match token {
            Some(name) => Self { actor: name.clone(), worker_id: Some(worker.clone()) },
            None => Self::from(&Actor::from(worker)),
        }
    }
}

impl From<&Actor> for Doer {
    fn from(actor: &Actor) -> Self {
        Self { actor: actor.clone(), worker_id: None }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{
        Body, Change, Claim, Failure, HistoryEntry, Job, JobError, JobId, JobSpec, Kind, QueueName, Refusal,
    };

    fn later() -> Timestamp {
        Timestamp::from_millis(1_000)
    }

    fn worker() -> WorkerId {
        WorkerId::system("w")
    }

    fn calling(name: &'static str) -> CallingWorker {
        CallingWorker { id: worker(), bearer: Some(Bearer::of(Actor::system(name))) }
    }

    fn admin() -> CallingWorker {
        CallingWorker { id: worker(), bearer: Some(Bearer { name: Actor::system("root-token"), is_admin: true }) }
    }

    /// Returns a job that a worker with a token of this name runs.
    fn run_by(holder: Option<&'static str>) -> Job {
        let spec = JobSpec::new(QueueName::system("q"), Kind::system("k"));
        let (id, at) = (JobId::new("a").expect("an id"), Timestamp::from_millis(0));
        let job = Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("ann"), at);
        let term = Duration::from_secs(60);
        let holder = holder.map(Actor::system);
        let claim = Claim { worker_id: worker(), holder, request_id: None, term, margin: Duration::ZERO };
        job.claim(&claim, at).expect("it is available")
    }

    fn failure() -> Failure {
        let error = JobError { code: "exit".to_owned(), message: "1".to_owned() };
        Failure { error, retryable: true, retry_after: None, chance: 0.5 }
    }

    fn last_of(change: Change) -> HistoryEntry {
        let Change::To(job) = change else { panic!("nothing has changed") };
        job.history.entries().last().expect("an entry").clone()
    }

    /// Every call of a worker about its lease.
    fn calls(job: &Job, by: &CallingWorker) -> Vec<Result<(), Refusal>> {
        let proof = by.proof(job.fence);
        vec![
            job.heartbeat(&proof, None, Duration::ZERO, later()).map(drop),
            job.deliver_again(by, None, Duration::ZERO, later()).map(drop),
            job.complete(&proof, &Body::Empty, later()).map(drop),
            job.fail(&proof, &failure(), later()).map(drop),
            job.release(&proof, "why", later()).map(drop),
            job.postpone(&proof, "why", Duration::from_secs(1), later()).map(drop),
            job.takes_output_of(&proof),
        ]
    }

    #[test]
    fn only_a_token_of_the_same_name_or_an_administrators_acts_for_the_holder_of_a_lease() {
        let job = run_by(Some("ci"));
        for (by, is_allowed) in [(calling("ci"), true), (admin(), true), (calling("other"), false)] {
            for done in calls(&job, &by) {
                assert_eq!(done, if is_allowed { Ok(()) } else { Err(Refusal::ForeignLease) }, "{by:?}");
            }
            assert_eq!(job.is_foreign_to(&by.proof(job.fence)), !is_allowed);
        }
        assert!(calls(&job, &CallingWorker::from(worker())).iter().all(Result::is_ok), "the process itself");
    }

    #[test]
    fn a_lease_without_a_holder_is_anybodys() {
        let job = run_by(None);
        for by in [CallingWorker::from(worker()), calling("other"), admin()] {
            assert!(calls(&job, &by).iter().all(Result::is_ok), "{by:?}");
        }
    }

    #[test]
    fn the_history_names_the_token_and_the_worker_beside_it_and_without_tokens_the_worker() {
        let (job, other) = (run_by(Some("ci")), Some(worker()));
        let claimed = job.history.entries().last().expect("an entry");
        assert_eq!((claimed.actor.as_str(), &claimed.worker_id), ("ci", &other));
        for (by, name) in [(calling("ci"), "ci"), (admin(), "root-token")] {
            let done = last_of(job.complete(&by.proof(job.fence), &Body::Empty, later()).expect("done"));
            assert_eq!((done.actor.as_str(), &done.worker_id), (name, &other));
        }
        let job = run_by(None);
        let claimed = job.history.entries().last().expect("an entry");
        assert_eq!((claimed.actor.as_str(), &claimed.worker_id), ("w", &None));
        let own = CallingWorker::from(worker()).proof(job.fence);
        let failed = last_of(job.fail(&own, &failure(), later()).expect("failed"));
        assert_eq!((failed.actor.as_str(), failed.worker_id), ("w", None));
    }

    #[test]
    fn an_end_that_comes_again_is_recognised_for_its_own_token_only() {
        let job = run_by(Some("ci"));
        let proof = calling("ci").proof(job.fence);
        let Ok(Change::To(done)) = job.complete(&proof, &Body::Empty, later()) else { panic!("it was not completed") };
        assert_eq!(done.complete(&proof, &Body::Empty, later()), Ok(Change::Already));
        assert_eq!(done.complete(&admin().proof(job.fence), &Body::Empty, later()), Ok(Change::Already));
        let foreign = calling("other").proof(job.fence);
        assert!(matches!(done.complete(&foreign, &Body::Empty, later()), Err(Refusal::LeaseLost { .. })));
        assert!(done.takes_output_of(&foreign).is_err());
    }

    #[test]
    fn an_end_of_an_earlier_version_is_recognised_by_the_worker() {
        let job = run_by(None);
        let own = CallingWorker::from(worker()).proof(job.fence);
        let Ok(Change::To(done)) = job.complete(&own, &Body::Empty, later()) else { panic!("it was not completed") };
        assert_eq!(done.complete(&calling("ci").proof(job.fence), &Body::Empty, later()), Ok(Change::Already));
    }

    #[test]
    fn json_has_a_field_for_the_second_name_and_only_where_there_is_one() {
        for holder in [Some("ci"), None] {
            let job = run_by(holder);
            let (lease, entry) = (job.lease().expect("a lease"), job.history.entries().last().expect("an entry"));
            let (lease_json, entry_json) =
                (serde_json::to_value(lease).expect("JSON"), serde_json::to_value(entry).expect("JSON"));
            assert_eq!(lease_json.get("holder").and_then(|name| name.as_str()), holder);
            assert_eq!(entry_json.get("worker_id").is_some(), holder.is_some());
            assert_eq!(&serde_json::from_value::<Lease>(lease_json).expect("a lease"), lease);
            assert_eq!(&serde_json::from_value::<HistoryEntry>(entry_json).expect("an entry"), entry);
        }
    }
}
