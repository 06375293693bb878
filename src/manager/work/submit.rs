//! Submitting: creates a job once, however often its submission is repeated.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{Body, Fingerprint, Job, JobId, JobSpec, Json, NewBody};
use crate::store::{Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::changes::CLAIMED_WITHIN;
use crate::manager::request::{Caller, Duplicate, JobView, ManagerError, NewJob, Submitted};
use crate::manager::work::handover::Handover;
use crate::manager::work::write::JobWrite;

/// The namespace of the ids that are derived from idempotency keys (RFC 9562, section 5.5).
const KEY_NAMESPACE: Uuid = Uuid::from_u128(0x6b1f_6f8e_2f9d_4f0a_9a53_0d6a_4b7c_91e2);

/// How far ahead the time may be that a client's id carries.
const MOST_AHEAD: Duration = Duration::from_secs(24 * 3_600);

/// A submission as a job.
pub(super) struct Prepared {
    pub(super) job: Arc<Job>,
    pub(super) payload: Option<Json>,
    /// The payload's body, if it is stored apart.
    pub(super) body: Option<NewBody>,
    /// Whether this call generated the id, so that a document under it can only be this very job.
    pub(super) own_id: bool,
    /// The place of its write among those of the call.
    place: usize,
    /// The rule that the submission breaks. Such a job is not written.
    pub(super) refusal: Option<ManagerError>,
    /// What stands under the job's id for one that was never created, and is written over.
    pub(super) over: Option<Versioned>,
    /// The times that the client named: when the job is due, and its start deadline.
    pub(super) times: (Option<Timestamp>, Option<Timestamp>),
    /// What becomes of it while another job of its unique key waits or runs.
    pub(super) duplicate: Duplicate,
}

impl Prepared {
    /// Returns the write of the job.
    fn write(&self) -> JobWrite {
        let bodies = self.body.iter().cloned().collect();
        match &self.over {
            Some(over) => JobWrite::replace(over.clone(), Arc::clone(&self.job), bodies),
            None => JobWrite::create(Arc::clone(&self.job), bodies),
        }
    }
}

impl Manager {
    /// Submits jobs, and returns the answers in the same order. A submission that is repeated under its id or key
    /// returns the same job.
    pub async fn submit(&self, caller: &Caller, jobs: Vec<NewJob>) -> Vec<Result<Submitted, ManagerError>> {
        let now = self.shared.clock.now();
        let inline_limit = self.shared.store.inline_limit();
        let is_shared = !self.shared.store.is_exclusive();
        let prepare = |job| prepare(caller, job, inline_limit, (now, is_shared));
        let mut prepared: Vec<Prepared> = jobs.into_iter().map(prepare).collect();
        if prepared.iter().any(|ready| ready.job.spec.is_keyed()) {
            return self.submit_keyed(caller, prepared).await;
        }
        let results = self.create(&mut prepared, now).await;
        let mut submitted = Vec::with_capacity(prepared.len());
        for (ready, result) in prepared.into_iter().zip(results) {
            submitted.push(self.answer(ready, result).await);
        }
        submitted
    }

    /// Writes the jobs that break no rule, and hands them to the calls that wait for them. Returns, in the same order,
    /// the results of the writes; `None` for a job that is not written.
    pub(super) async fn create(
        &self,
        prepared: &mut [Prepared],
        now: Timestamp,
    ) -> Vec<Option<Result<Versioned, WriteError>>> {
        for (place, ready) in prepared.iter_mut().filter(|ready| ready.refusal.is_none()).enumerate() {
            ready.place = place;
        }
        if !self.shared.store.is_exclusive() && self.waiting_claims() > 0 {
            self.know_changes(CLAIMED_WITHIN).await;
        }
        let handovers = self.claim_for_waiting(prepared, now);
        let writes = prepared.iter().filter(|ready| ready.refusal.is_none()).map(Prepared::write).collect();
        let mut results = self.write_and_hand_over(writes, handovers).await.into_iter();
        let mut next = || results.next().unwrap_or_else(|| Err(WriteError::Unknown("the store gave no answer".into())));
        prepared.iter().map(|ready| ready.refusal.is_none().then(&mut next)).collect()
    }

    /// Claims those of the new jobs for which calls wait here.
    ///
    /// Where others write to the store, a job under a client's id or key may have to be looked for in the history
    /// before it is created. A worker is not kept from other jobs for that long.
    fn claim_for_waiting(&self, prepared: &mut [Prepared], now: Timestamp) -> Vec<Handover> {
        let is_exclusive = self.shared.store.is_exclusive();
        // A job under a limit has to have its slots before it is claimed, and one in a line has to be the first.
        let is_fit = |(_, ready): &(usize, &Prepared)| {
            let is_new = ready.refusal.is_none() && ready.over.is_none();
            is_new
                && (ready.own_id || is_exclusive)
                && !self.is_limited(&ready.job)
                && ready.job.spec.ordering().is_none()
        };
        let fit = prepared.iter().enumerate().filter(is_fit);
        let mut handovers = self.handovers(fit.map(|(number, ready)| (number, &ready.job)));
        for handover in &mut handovers {
            for number in handover.wanted().to_vec() {
                if let Some(claimed) = self.claim_new(&prepared[number].job, handover, now) {
                    handover.add(prepared[number].place, &claimed);
                    prepared[number].job = claimed;
                }
            }
        }
        handovers
    }

    /// Refuses a submission, unless it repeats one that was accepted: rules go by the clock, so the same submission may
    /// have been good when it was first made, and its client must hear of the job that it made.
    async fn refuse(&self, ready: Prepared, refusal: ManagerError) -> Result<Submitted, ManagerError> {
        if ready.own_id {
            return Err(refusal);
        }
        let found = self.shared.store.get(std::slice::from_ref(&ready.job.id)).await?;
        match found.into_iter().flatten().next() {
            Some(existing) if !existing.job.is_never_created() => self.answer_existing(ready, existing).await,
            _ => Err(refusal),
        }
    }

    /// Answers a submission after the write of its job, if it was to be written.
    pub(super) async fn answer(
        &self,
        mut ready: Prepared,
        result: Option<Result<Versioned, WriteError>>,
    ) -> Result<Submitted, ManagerError> {
        if let Some(refusal) = ready.refusal.take() {
            return self.refuse(ready, refusal).await;
        }
        match result.unwrap_or_else(|| Err(WriteError::Unknown("the store gave no answer".to_owned()))) {
            Ok(versioned) => {
                Ok(Submitted { job: JobView { versioned, payload: ready.payload, result: None }, created: true })
            }
            Err(WriteError::Conflict(Some(existing))) => self.answer_existing(ready, existing).await,
            Err(WriteError::Conflict(None)) => {
                Err(ManagerError::Unknown("the job existed and was removed at the same moment".to_owned()))
            }
            Err(WriteError::Refused(error)) => Err(ManagerError::Store(error)),
            Err(WriteError::Unknown(why)) => Err(ManagerError::Unknown(why)),
        }
    }

    /// Answers with the job that exists under the submission's id, if the submission is the one that made it.
    pub(super) async fn answer_existing(
        &self,
        ready: Prepared,
        existing: Versioned,
    ) -> Result<Submitted, ManagerError> {
        self.shared.work.known.learn(&existing);
        let same =
            existing.job.spec.fingerprint.is_some() && existing.job.spec.fingerprint == ready.job.spec.fingerprint;
        if !ready.own_id && !same {
            return Err(ManagerError::SubmissionDiffers(existing.job.id.clone()));
        }
        let mut views = self.view(vec![existing]).await?;
        let job = views.pop().ok_or_else(|| ManagerError::NotFound(ready.job.id.clone()))?;
        Ok(Submitted { job, created: ready.own_id })
    }
}

/// Returns the rule that a new job breaks at `now`, if any.
fn refusal(new: &NewJob, now: Timestamp) -> Option<ManagerError> {
    let invalid = |field, message: &str| Some(ManagerError::Invalid { field, message: message.to_owned() });
    if new.expires_at.is_some_and(|deadline| deadline <= now) {
        return invalid("expires_at", "is in the past");
    }
    if let (Some(run_at), Some(deadline)) = (new.run_at, new.expires_at)
        && deadline <= run_at
    {
        return invalid("expires_at", "is not after `run_at`");
    }
    if new.spec.max_attempts == 0 {
        return invalid("max_attempts", "must be at least 1");
    }
    None
}

/// Returns the refusal of an id that carries a time which is not yet. A store with an archive looks for a job from the
/// time in its id on, so a job must not have ended before that.
fn of_the_future(new: &NewJob, now: Timestamp) -> Option<ManagerError> {
    let made_at = new.id.as_ref().and_then(JobId::made_at)?;
    let message = format!("carries a time that is more than a day ahead ({made_at})");
    (made_at > now.plus(MOST_AHEAD)).then_some(ManagerError::Invalid { field: "id", message })
}

fn prepare(caller: &Caller, new: NewJob, inline_limit: usize, (now, is_shared): (Timestamp, bool)) -> Prepared {
    let refusal = refusal(&new, now).or_else(|| of_the_future(&new, now).filter(|_| is_shared));
    let repeatable = new.id.is_some() || new.idempotency_key.is_some();
    let fingerprint = repeatable.then(|| Fingerprint::of(&new.spec, new.payload.as_ref(), new.run_at, new.expires_at));
    let own_id = !repeatable;
    let id = match (new.id, &new.idempotency_key) {
        (Some(id), _) => id,
        (None, Some(key)) => id_of_key(caller, key),
        (None, None) => JobId::generate(),
    };
    let (payload, body) = Body::place(new.payload.clone(), inline_limit);
    let spec = JobSpec { fingerprint, ..new.spec };
    let run_at = new.run_at.unwrap_or(now);
    let job = Job::submit(id, spec.shared(), payload, (run_at, new.expires_at), &caller.name, now);
    Prepared {
        job: Arc::new(job),
        payload: new.payload,
        body,
        own_id,
        place: 0,
        refusal,
        over: None,
        times: (new.run_at, new.expires_at),
        duplicate: new.duplicate,
    }
}

/// Returns the id that is derived from a client's idempotency key. Each client has its own keys.
fn id_of_key(caller: &Caller, key: &str) -> JobId {
    let name = format!("{}\u{0}{key}", caller.name);
    JobId::of_uuid(Uuid::new_v5(&KEY_NAMESPACE, name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Kind, QueueName};

    fn new_job() -> NewJob {
        NewJob::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    }

    #[test]
    fn a_key_gives_the_same_id_to_the_same_caller_only() {
        let (ann, bob) = (Caller::system("ann"), Caller::system("bob"));
        assert_eq!(id_of_key(&ann, "1"), id_of_key(&ann, "1"));
        assert_ne!(id_of_key(&ann, "1"), id_of_key(&ann, "2"));
        assert_ne!(id_of_key(&ann, "1"), id_of_key(&bob, "1"));
    }

    #[test]
    fn an_id_that_carries_a_time_of_more_than_a_day_ahead_is_refused() {
        let now = Timestamp::from_millis(1_800_000_000_000);
        let made_at = |at: Timestamp| {
            let millis = u64::try_from(at.as_millis()).expect("after 1970");
            let id = uuid::Builder::from_unix_timestamp_millis(millis, &[7; 10]).into_uuid();
            NewJob { id: Some(JobId::of_uuid(id)), ..new_job() }
        };
        assert!(of_the_future(&made_at(now.plus(MOST_AHEAD)), now).is_none());
        let refused = of_the_future(&made_at(now.plus(2 * MOST_AHEAD)), now);
        assert!(matches!(refused, Some(ManagerError::Invalid { field: "id", .. })), "{refused:?}");
        let named = NewJob { id: Some(JobId::new("nightly").expect("an id")), ..new_job() };
        assert!(of_the_future(&named, now).is_none());
    }

    #[test]
    fn a_deadline_in_the_past_or_before_the_start_is_refused() {
        let now = Timestamp::from_millis(1_000);
        for (run_at, expires_at) in [(None, 1_000), (Some(3_000), 2_000), (Some(2_000), 2_000)] {
            let run_at = run_at.map(Timestamp::from_millis);
            let late = NewJob { run_at, expires_at: Some(Timestamp::from_millis(expires_at)), ..new_job() };
            let refused = refusal(&late, now);
            assert!(matches!(refused, Some(ManagerError::Invalid { field: "expires_at", .. })), "{refused:?}");
        }
    }
}
