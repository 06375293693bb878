//! The one loop in which jobs change: decide on the job as it is known, write under its version, and when somebody
//! else wrote first, decide again on what they wrote.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Timestamp;
use crate::job::{
    Actor, AdminRelease, Body, CallingWorker, Change, Failure, Fence, Job, JobId, JobState, LeaseProof, NewBody,
    Refusal, State,
};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::{Sought, Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::request::{Caller, Finish, Heartbeat, HeartbeatAnswer, ManagerError, Outcome};
use crate::manager::work::write::JobWrite;

/// The most tries to change one job while other writers keep changing it.
const MAX_TRIES: usize = 10;

/// The most jobs in one page of [`Manager::reclaim_all`].
const RECLAIM_PAGE: usize = 1_000;

/// The state of one job in the loop.
struct Item {
    /// The known version of the job, and whether it was read from the store or remembered.
    known: Option<(Versioned, Freshness)>,
    /// The body to write with the job, if it is stored separately.
    body: Option<NewBody>,
    outcome: Option<Result<Versioned, ManagerError>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Freshness {
    Remembered,
    Read,
}

/// Other writes that are to travel with the first writes of the loop, which they do if each job is to be written.
#[derive(Default)]
pub(super) struct Along {
    /// The writes, until they are made.
    pub(super) writes: Vec<JobWrite>,
    /// The results of the writes once they are made.
    pub(super) results: Vec<Result<Versioned, WriteError>>,
}

impl Manager {
    /// Changes many jobs, each by `decide(its index, the job, now)`, and returns the changed jobs in the same order.
    pub(crate) async fn update<F>(&self, ids: &[JobId], decide: F) -> Vec<Result<Versioned, ManagerError>>
    where
        F: Fn(usize, &Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let item = |id| Item { known: self.remembered(id), body: None, outcome: None };
        let items = ids.iter().map(item).collect();
        self.update_items(ids, items, decide, &mut Along::default()).await
    }

    fn remembered(&self, id: &JobId) -> Option<(Versioned, Freshness)> {
        self.shared.work.known.latest(id).map(|job| (job, Freshness::Remembered))
    }

    /// Changes jobs as [`Manager::update`] does, but decides on a real-time read instead of remembered versions.
    pub(crate) async fn update_as_read<F>(&self, ids: &[JobId], decide: F) -> Vec<Result<Versioned, ManagerError>>
    where
        F: Fn(usize, &Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let items = ids.iter().map(|_| Item { known: None, body: None, outcome: None }).collect();
        self.update_items(ids, items, decide, &mut Along::default()).await
    }

    async fn update_items<F>(
        &self,
        ids: &[JobId],
        mut items: Vec<Item>,
        decide: F,
        along: &mut Along,
    ) -> Vec<Result<Versioned, ManagerError>>
    where
        F: Fn(usize, &Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        for _ in 0..MAX_TRIES {
            self.read_unknown(ids, &mut items).await;
            let (indices, mut writes) = self.decide_all(&mut items, &decide);
            if indices.len() == items.len() {
                writes.append(&mut along.writes);
            }
            let mut results = self.write(writes).await.into_iter();
            for (index, result) in indices.into_iter().zip(&mut results) {
                self.settle_write(&mut items[index], &ids[index], result);
            }
            along.results.extend(results);
            if items.iter().all(|item| item.outcome.is_some()) {
                break;
            }
        }
        self.confirm_refusals(&mut items).await;
        let contended = || Err(ManagerError::Contended { tries: MAX_TRIES });
        items.into_iter().map(|item| item.outcome.unwrap_or_else(contended)).collect()
    }

    /// Refuses nothing on what was read from a store that others have written to since: who writes finds out by that,
    /// and who is refused would take it for an answer.
    async fn confirm_refusals(&self, items: &mut [Item]) {
        let rests_on_a_read =
            |item: &&mut Item| matches!(item.outcome, Some(Err(ManagerError::Refused(_) | ManagerError::NotFound(_))));
        let mut refused = items.iter_mut().filter(rests_on_a_read).peekable();
        if refused.peek().is_some()
            && let Err(error) = self.shared.store.confirm_now().await
        {
            refused.for_each(|item| item.outcome = Some(Err(ManagerError::Store(error.clone()))));
        }
    }

    /// Reads the jobs that are not known and have no result yet.
    async fn read_unknown(&self, ids: &[JobId], items: &mut [Item]) {
        let missing: Vec<usize> =
            (0..items.len()).filter(|&index| items[index].known.is_none() && items[index].outcome.is_none()).collect();
        if missing.is_empty() {
            return;
        }
        let wanted: Vec<Sought<'_>> = missing.iter().map(|&index| Sought::from(&ids[index])).collect();
        for (index, found) in missing.into_iter().zip(self.shared.store.look_up(&wanted).await) {
            match found {
                Ok(Some(versioned)) => {
                    self.shared.work.known.learn(&versioned);
                    items[index].known = Some((versioned, Freshness::Read));
                }
                Ok(None) => items[index].outcome = Some(Err(ManagerError::NotFound(ids[index].clone()))),
                Err(error) => items[index].outcome = Some(Err(ManagerError::Store(error))),
            }
        }
    }

    /// Decides for every job that is known and has no result yet. Returns the writes to make, and the index of the job
    /// of each.
    fn decide_all<F>(&self, items: &mut [Item], decide: &F) -> (Vec<usize>, Vec<JobWrite>)
    where
        F: Fn(usize, &Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let now = self.shared.clock.now();
        let (mut indices, mut writes) = (Vec::new(), Vec::new());
        for (index, item) in items.iter_mut().enumerate().filter(|(_, item)| item.outcome.is_none()) {
            let Some((versioned, freshness)) = item.known.take() else { continue };
            match decide(index, &versioned.job, now) {
                Ok(Change::To(mut job)) => {
                    self.announce(&versioned.job, &mut job);
                    indices.push(index);
                    writes.push(JobWrite::replace(versioned, Arc::from(job), item.body.clone().into_iter().collect()));
                }
                // A refusal or a "nothing to do" that rests on a memory is decided again on a read: somebody else may
                // have written since.
                Ok(Change::Already) | Err(_) if freshness == Freshness::Remembered => {
                    self.shared.work.known.forget(&versioned.job.id);
                }
                Ok(Change::Already) => item.outcome = Some(Ok(versioned)),
                Err(refusal) => item.outcome = Some(Err(ManagerError::Refused(refusal))),
            }
        }
        (indices, writes)
    }

    /// Records the result of a write.
    fn settle_write(&self, item: &mut Item, id: &JobId, result: Result<Versioned, WriteError>) {
        match result {
            Ok(versioned) => item.outcome = Some(Ok(versioned)),
            Err(WriteError::Conflict(Some(current))) => {
                self.shared.observe.insight.conflicted("update", self.shared.clock.now());
                self.shared.work.known.learn(&current);
                item.known = Some((current, Freshness::Read));
            }
            Err(WriteError::Conflict(None)) => item.outcome = Some(Err(ManagerError::NotFound(id.clone()))),
            Err(WriteError::Refused(error)) => {
                self.shared.work.known.forget(id);
                item.outcome = Some(Err(ManagerError::Store(error)));
            }
            Err(WriteError::Unknown(why)) => {
                self.shared.work.known.forget(id);
                item.outcome = Some(Err(ManagerError::Unknown(why)));
            }
        }
    }

    /// Counts a result that was refused because the worker had lost its lease.
    fn count_lost(&self, result: Result<Versioned, ManagerError>) -> Result<Versioned, ManagerError> {
        if let Err(ManagerError::Refused(Refusal::LeaseLost { .. })) = &result {
            metrics::counter!("leasehold_leases_lost_total").increment(1);
            self.shared.observe.insight.mismatched("fence", self.shared.clock.now());
        }
        result
    }
}

impl Manager {
    /// Renews leases, and returns the answers in the order of the heartbeats.
    pub async fn heartbeat(
        &self,
        worker: impl Into<CallingWorker>,
        beats: Vec<Heartbeat>,
    ) -> Vec<Result<HeartbeatAnswer, ManagerError>> {
        let worker = self.named(worker.into());
        self.shared.observe.insight.heard_of(&worker.id, beats.len(), self.shared.clock.now());
        self.shared.observe.workers.is_alive(&worker.id, self.shared.clock.now());
        let ids: Vec<JobId> = beats.iter().map(|beat| beat.id.clone()).collect();
        let margin = self.lease_margin();
        let results = self
            .update(&ids, |index, job, now| {
                let beat = &beats[index];
                job.heartbeat(&worker.proof(beat.fence), beat.progress.clone(), margin, now)
                    .map(|job| Change::To(Box::new(job)))
            })
            .await;
        results
            .into_iter()
            .map(|result| match &self.count_lost(result)?.job.state {
                State::Running(running) => Ok(HeartbeatAnswer {
                    lease_expires_at: running.lease.expires_at,
                    cancel_requested: running.cancel_requested_at.is_some(),
                }),
                other => Err(ManagerError::Refused(Refusal::NotRunning(other.name()))),
            })
            .collect()
    }

    /// Completes, fails or releases attempts, and returns the changed jobs in the same order. A repeated finish returns
    /// the same answer.
    pub async fn finish(
        &self,
        worker: impl Into<CallingWorker>,
        finishes: Vec<Finish>,
    ) -> Vec<Result<Versioned, ManagerError>> {
        self.finish_along(worker.into(), finishes, &mut Along::default()).await
    }

    /// Does the same as [`Manager::finish`], and makes other writes along with it.
    pub(super) async fn finish_along(
        &self,
        worker: CallingWorker,
        finishes: Vec<Finish>,
        along: &mut Along,
    ) -> Vec<Result<Versioned, ManagerError>> {
        let worker = self.named(worker);
        self.shared.observe.workers.is_alive(&worker.id, self.shared.clock.now());
        let inline_limit = self.shared.store.inline_limit();
        let (mut ids, mut items, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for Finish { id, fence, outcome } in finishes {
            let (end, body) = End::of(outcome, inline_limit);
            items.push(Item { known: self.remembered(&id), body, outcome: None });
            ends.push((end, worker.proof(fence)));
            ids.push(id);
        }
        let decide = |index: usize, job: &Job, now| ends[index].0.decide(job, &ends[index].1, now);
        let results = self.update_items(&ids, items, decide, along).await;
        results.into_iter().map(|result| self.count_lost(result)).collect()
    }

    /// Cancels a waiting job, or requests the worker of a running one to stop.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::AlreadyFinal`] when the job ended in another state.
    pub async fn cancel(&self, caller: &Caller, id: &JobId, reason: Option<String>) -> Result<Versioned, ManagerError> {
        self.cancel_at(caller, id, reason, None).await
    }

    /// Cancels a job that was not claimed anew since its fence was this one.
    ///
    /// # Errors
    /// [`Refusal::FenceMoved`]; else those of [`Manager::cancel`].
    pub async fn cancel_at(
        &self,
        caller: &Caller,
        id: &JobId,
        reason: Option<String>,
        expected: Option<Fence>,
    ) -> Result<Versioned, ManagerError> {
        let cancel = |job: &Job, now| {
            job.is_still_at(expected)?;
            job.cancel(&caller.name, reason.clone(), now)
        };
        self.change_by(caller, id, cancel).await
    }

    /// Retries a failed, cancelled or expired job.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::NotRetryable`], [`Refusal::NeverCreated`]; [`ManagerError::Duplicate`]
    /// when another job of its unique key waits or runs.
    pub async fn retry(&self, caller: &Caller, id: &JobId, reason: Option<String>) -> Result<Versioned, ManagerError> {
        let retry = |job: &Job, now| job.retry(&caller.name, reason.clone(), now);
        let decide = |job: &Job, now| match job.spec.is_keyed() {
            // It takes its keys first, and is left alone for now.
            true => Ok(Change::Already),
            false => Ok(Change::To(Box::new(retry(job, now)?))),
        };
        let found = self.change_by(caller, id, decide).await?;
        match found.job.spec.is_keyed() {
            true => self.return_keyed(found, |job| retry(job, self.shared.clock.now())).await,
            false => Ok(found),
        }
    }

    /// Ends a running job's lease without its worker.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::NotRunning`], [`Refusal::FenceMoved`].
    pub async fn admin_release(&self, id: &JobId, order: AdminRelease) -> Result<Versioned, ManagerError> {
        let release = |job: &Job, now| job.admin_release(&order, now);
        let released = self.update_one(id, |job, now| Ok(Change::To(Box::new(release(job, now)?)))).await;
        if let Err(ManagerError::Refused(Refusal::FenceMoved(_))) = &released {
            self.shared.observe.insight.mismatched("fence", self.shared.clock.now());
        }
        released
    }

    /// Releases every running job, without counting the attempt, and returns their number. A process that owns its
    /// store alone calls it at its start, since the former workers died with the former process.
    ///
    /// # Errors
    /// Returns the first failure; the jobs before it are released.
    pub async fn reclaim_all(&self, reason: &str) -> Result<usize, ManagerError> {
        let filter = Filter { states: vec![JobState::Running], ..Filter::default() };
        let sort = Sort::By(SortField::CreatedAt, Direction::Ascending);
        let mut search = Search { filter, sort, after: None, limit: RECLAIM_PAGE };
        let mut reclaimed = 0;
        // Bounded by the number of running jobs: each page starts after the one before.
        loop {
            let page = self.shared.store.search(&search).await?;
            let Some(last) = page.last() else { return Ok(reclaimed) };
            search.after = Some(sort.key(&last.job));
            let ids: Vec<JobId> = page.iter().map(|found| found.job.id.clone()).collect();
            let given_back = self.update(&ids, |_, job, now| {
                let Some(lease) = job.lease() else { return Ok(Change::Already) };
                job.release(&lease.calling_worker().proof(job.fence), reason, now)
            });
            for result in given_back.await {
                result?;
                reclaimed += 1;
            }
        }
    }

    /// Returns the worker as transitions name it. A token's name is written only where every process of the store reads
    /// it; until then no lease has a holder, and the worker alone is named.
    pub(super) fn named(&self, worker: CallingWorker) -> CallingWorker {
        let CallingWorker { id, bearer } = worker;
        CallingWorker { id, bearer: bearer.filter(|_| self.shared.store.keeps_holders()) }
    }

    pub(super) async fn update_one<F>(&self, id: &JobId, decide: F) -> Result<Versioned, ManagerError>
    where
        F: Fn(&Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let results = self.update(std::slice::from_ref(id), |_, job, now| decide(job, now)).await;
        results.into_iter().next().unwrap_or_else(|| Err(ManagerError::NotFound(id.clone())))
    }
}

/// The end of an attempt, in a form that can be decided several times.
enum End {
    Completed { result: Body },
    Failed(Failure),
    Released { reason: String, delay: Duration },
}

impl End {
    /// Returns the end, and the result's body if it is stored separately.
    fn of(outcome: Outcome, inline_limit: usize) -> (Self, Option<NewBody>) {
        match outcome {
            Outcome::Completed { result } => {
                let (result, body) = Body::place(result, inline_limit);
                (Self::Completed { result }, body)
            }
            Outcome::Failed { error, retryable, retry_after } => {
                (Self::Failed(Failure { error, retryable, retry_after, chance: rand::random() }), None)
            }
            Outcome::Released { reason, delay } => (Self::Released { reason, delay }, None),
        }
    }

    fn decide(&self, job: &Job, proof: &LeaseProof, now: Timestamp) -> Result<Change, Refusal> {
        match self {
            Self::Completed { result } => job.complete(proof, result, now),
            Self::Failed(failure) => job.fail(proof, failure, now),
            Self::Released { reason, delay } => job.postpone(proof, reason, *delay, now),
        }
    }
}

/// Returns the actor of changes that the manager makes by itself.
pub(crate) fn manager_actor() -> Actor {
    Actor::system("manager")
}
