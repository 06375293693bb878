//! Recalls: the word to a worker that an attempt of its has to end early, since its cancellation is requested or its
//! lease is lost.
//!
//! A worker waits for recalls with one call, however many jobs it runs. Each acknowledged write that takes a lease away
//! or requests a cancellation wakes the call of the worker that holds the lease; where that waits at another manager of
//! the store, all others are told by a hint, or find requested cancellations by a search where they cannot be told. A
//! call begins with a look at the worker's leases, so that nothing is missed between two calls, whichever managers they
//! are made at. A recall is only a hint to the worker: the heartbeats say the same, later, and the fence decides.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tracing::debug;
use utoipa::ToSchema;

use crate::job::{Actor, Bearer, CallingWorker, Fence, HistoryEntry, Job, JobId, JobState, Refusal, State, WorkerId};
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::manager::work::write::Acknowledged;
use crate::query::kql::Expression;
use crate::query::{Direction, Filter, Query, Search, Sort, SortField, SortKey};
use crate::store::{Sought, StoreError};

/// The most recalls that one call is answered with. The look at the beginning of the next call finds the others.
const MAX_RECALLS: usize = 1_000;

/// The time between two looks for requested cancellations that other managers tell nobody of.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The most jobs that one look finds. The next one goes on after them.
const MAX_FOUND: usize = 500;

/// The word to a worker that an attempt has to end early.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Recall {
    /// The worker that runs the attempt.
    pub worker_id: WorkerId,
    /// The job's id.
    pub id: JobId,
    /// The fence of the attempt's claim.
    #[schema(value_type = u64)]
    pub fence: Fence,
    /// Why the attempt has to end.
    pub reason: RecallReason,
    /// The name of the token that the lease was taken with: only calls of its holder are answered with it. It goes from
    /// manager to manager and to no worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    pub holder: Option<Actor>,
}

/// Why an attempt has to end early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum RecallReason {
    /// The job's cancellation is requested.
    CancelRequested,
    /// The worker does not hold the lease any more.
    LeaseLost,
}

impl Recall {
    /// Returns the recall that follows from a write of a job, if one does. A worker needs none for what it did itself.
    fn of_write(before: &Job, after: Option<&Job>) -> Option<Self> {
        let State::Running(was) = &before.state else { return None };
        let worker_id = &was.lease.worker_id;
        let is_own = |job: &Job| {
            // An administrator may have ended it in the worker's name.
            let is_own = |last: &HistoryEntry| {
                last.is_by(worker_id) && was.lease.holder.as_ref().is_none_or(|holder| *holder == last.actor)
            };
            job.fence == before.fence && job.history.entries().last().is_some_and(is_own)
        };
        let reason = match after {
            Some(job) if reason_of(job, worker_id, before.fence) != Some(RecallReason::LeaseLost) => {
                reason_of(job, worker_id, before.fence).filter(|_| was.cancel_requested_at.is_none())?
            }
            Some(job) if is_own(job) => return None,
            Some(_) | None => RecallReason::LeaseLost,
        };
        let (worker_id, holder) = (worker_id.clone(), was.lease.holder.clone());
        Some(Self { worker_id, id: before.id.clone(), fence: before.fence, reason, holder })
    }
}

/// Returns why the attempt of this worker and fence has to end, as the job stands.
fn reason_of(job: &Job, worker: &WorkerId, fence: Fence) -> Option<RecallReason> {
    match &job.state {
        State::Running(running) if job.fence == fence && running.lease.worker_id == *worker => {
            running.cancel_requested_at.map(|_| RecallReason::CancelRequested)
        }
        _ => Some(RecallReason::LeaseLost),
    }
}

/// The calls that wait for recalls, by worker.
#[derive(Default)]
pub(super) struct RecallCalls(Mutex<HashMap<WorkerId, Vec<Arc<Waiting>>>>);

struct Waiting {
    /// Who waits; `None` for whom every lease counts as its own.
    bearer: Option<Bearer>,
    recalls: Mutex<Vec<Recall>>,
    came: Notify,
}

/// One call that waits. It waits no more when this is dropped.
struct RecallCall<'a> {
    calls: &'a RecallCalls,
    worker: WorkerId,
    waiting: Arc<Waiting>,
}

impl RecallCalls {
    fn enter(&self, worker: CallingWorker) -> RecallCall<'_> {
        let CallingWorker { id: worker, bearer } = worker;
        let waiting = Arc::new(Waiting { bearer, recalls: Mutex::default(), came: Notify::new() });
        self.0.lock().entry(worker.clone()).or_default().push(Arc::clone(&waiting));
        RecallCall { calls: self, worker, waiting }
    }

    fn are_none(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Tells the calls of the worker, and returns whether there is one.
    fn tell(&self, recall: &Recall) -> bool {
        let calls = self.0.lock();
        let Some(waiting) = calls.get(&recall.worker_id) else { return false };
        let mut is_told = false;
        for waiting in waiting.iter().filter(|waiting| waiting.may_hear(recall.holder.as_ref())) {
            is_told = true;
            let mut recalls = waiting.recalls.lock();
            if recalls.len() < MAX_RECALLS {
                recalls.push(recall.clone());
            }
            waiting.came.notify_one();
        }
        is_told
    }
}

impl Waiting {
    fn may_hear(&self, holder: Option<&Actor>) -> bool {
        self.bearer.as_ref().zip(holder).is_none_or(|(bearer, holder)| bearer.may_act_for(holder))
    }
}

/// How far the looks for requested cancellations have come.
#[derive(Default)]
struct Look {
    /// The key after which the next look goes on.
    after: Option<SortKey>,
    /// The attempts whose workers were told, as far as the last looks have found them.
    told: HashSet<(JobId, Fence)>,
    /// Those that were found since the looks began with the first job.
    seen: HashSet<(JobId, Fence)>,
}

impl Drop for RecallCall<'_> {
    fn drop(&mut self) {
        let mut calls = self.calls.0.lock();
        if let Some(waiting) = calls.get_mut(&self.worker) {
            waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.waiting));
            if waiting.is_empty() {
                calls.remove(&self.worker);
            }
        }
    }
}

impl Manager {
    /// Waits until one of the worker's attempts has to end early, for `wait` at most, and returns those that have to.
    /// `leases` are those that the worker holds now; it is told of ones that it is given meanwhile as well.
    ///
    /// # Errors
    /// [`ManagerError::ShuttingDown`]; [`Refusal::ForeignLease`] when one of the leases was taken with a token of
    /// another name; the store's error when the leases cannot be read.
    pub async fn recalls(
        &self,
        worker: impl Into<CallingWorker>,
        leases: &[(JobId, Fence)],
        wait: Duration,
    ) -> Result<Vec<Recall>, ManagerError> {
        let no_claims = &self.shared.work.no_claims;
        if no_claims.is_cancelled() {
            return Err(ManagerError::ShuttingDown);
        }
        let worker = worker.into();
        // It is entered before the look, so that nothing is missed between the two.
        let call = self.shared.work.recalls.enter(worker.clone());
        let mut found = self.recalled(&worker, leases).await?;
        if found.is_empty() {
            tokio::select! {
                () = call.waiting.came.notified() => {}
                () = tokio::time::sleep(wait) => {}
                () = no_claims.cancelled() => {}
            }
            found = std::mem::take(&mut *call.waiting.recalls.lock());
        }
        found.iter_mut().for_each(|recall| recall.holder = None);
        metrics::counter!("leasehold_recalls_total").increment(found.len() as u64);
        Ok(found)
    }

    /// Returns which of these attempts have to end, as a real-time read shows.
    async fn recalled(&self, worker: &CallingWorker, leases: &[(JobId, Fence)]) -> Result<Vec<Recall>, ManagerError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let sought: Vec<Sought<'_>> = leases.iter().map(|(id, _)| Sought::from(id)).collect();
        let found = self.shared.store.look_up(&sought).await;
        let mut recalls = Vec::new();
        for ((id, fence), found) in leases.iter().zip(found) {
            let reason = match found {
                Ok(Some(found)) if found.job.is_foreign_to(&worker.proof(*fence)) => {
                    return Err(Refusal::ForeignLease.into());
                }
                Ok(Some(found)) => reason_of(&found.job, &worker.id, *fence),
                Ok(None) => Some(RecallReason::LeaseLost),
                // Whether there is such a job is not known: the attempt's next heartbeat says so.
                Err(StoreError::OutOfOrder(_)) => None,
                Err(error) => return Err(error.into()),
            };
            let recall =
                |reason| Recall { worker_id: worker.id.clone(), id: id.clone(), fence: *fence, reason, holder: None };
            recalls.extend(reason.map(recall));
        }
        if !recalls.is_empty() {
            // Another member that leads by now may have given the leases since.
            self.shared.store.confirm_now().await?;
        }
        Ok(recalls)
    }

    /// Tells the workers whose attempts have to end since these writes, here or through their managers.
    pub(super) fn note_recalls(&self, writes: &[Acknowledged]) {
        let of_write = |write: &Acknowledged| {
            Recall::of_write(write.before.as_deref()?, write.after.as_ref().map(|after| &*after.job))
        };
        let mut elsewhere: Vec<Recall> = writes.iter().filter_map(of_write).collect();
        elsewhere.retain(|recall| !self.shared.work.recalls.tell(recall));
        self.shared.hints.keep_recalls(&elsewhere);
    }

    /// Runs the background task that looks for requested cancellations of running jobs whose workers wait here, where
    /// other managers cannot tell of them since they or this one have no address.
    ///
    /// It is one search a second while any call waits, of few jobs: those that run although their cancellation is
    /// requested. It is not by the time of the request, since that is of another manager's clock.
    pub(crate) async fn keep_recalled(&self) {
        let mut look = Look::default();
        while !self.shared.store.is_exclusive() {
            tokio::select! {
                () = tokio::time::sleep(LOOK_EVERY) => {}
                () = self.shared.stopping.cancelled() => return,
            }
            if self.shared.work.recalls.are_none() || !self.shared.hints.is_any_without_address() {
                look = Look::default();
                continue;
            }
            if let Err(error) = self.look_for_cancellations(&mut look).await {
                debug!(%error, "cannot look for requested cancellations; heartbeats tell of them");
            }
        }
    }

    async fn look_for_cancellations(&self, look: &mut Look) -> Result<(), StoreError> {
        let Ok(expression) = Expression::parse("cancel_requested_at: *") else { return Ok(()) };
        let query = Some(Query { expression: Arc::new(expression), now: self.shared.clock.now() });
        let filter = Filter { states: vec![JobState::Running], query, ..Filter::default() };
        let (sort, after) = (Sort::By(SortField::CreatedAt, Direction::Ascending), look.after.take());
        let found = self.shared.store.search(&Search { filter, sort, after, limit: MAX_FOUND }).await?;
        for found in &found {
            let job = &found.job;
            let State::Running(running) = &job.state else { continue };
            let attempt = (job.id.clone(), job.fence);
            let worker_id = running.lease.worker_id.clone();
            let (reason, holder) = (RecallReason::CancelRequested, running.lease.holder.clone());
            let recall = Recall { worker_id, id: job.id.clone(), fence: job.fence, reason, holder };
            // A worker that was told may take its time to end the attempt.
            if look.told.contains(&attempt) || self.shared.work.recalls.tell(&recall) {
                look.seen.insert(attempt);
            }
        }
        look.after = found.last().filter(|_| found.len() >= MAX_FOUND).map(|last| sort.key(&last.job));
        if look.after.is_none() {
            look.told = std::mem::take(&mut look.seen);
        } else {
            look.told.extend(look.seen.iter().cloned());
        }
        Ok(())
    }

    /// Takes recalls that another manager tells of, for the workers that wait here.
    pub fn take_recalls(&self, recalls: &[Recall]) {
        for recall in recalls {
            self.shared.work.recalls.tell(recall);
        }
    }
}
