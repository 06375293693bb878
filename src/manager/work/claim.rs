//! Claiming: candidates become leases by conditional writes, and leases reach the worker or come back.
//!
//! A claim's connection can break at any time, and none may cost a job its time:
//! - before the write, the call is dropped and its candidates go back to the dispatch ([`Offer`]);
//! - during or after the write, the jobs are given back, attempt and all ([`Claimed`]), since the write runs in a
//!   task of its own that outlives the call;
//! - unless the worker named the call: then the jobs wait for the same `request_id` to be asked again
//!   ([`NamedClaims`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex as AsyncMutex;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::job::{Claim, Fence, Job, JobId, Refusal, RequestId, State, WorkerId};
use crate::query::{Filter, Search, Sort};
use crate::store::recent::RecentMap;
use crate::store::{StoreError, Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::dispatch::{Offer, Wish};
use crate::manager::request::{ClaimRequest, Finish, JobView, ManagerError, Outcome};
use crate::manager::work::update::manager_actor;
use crate::manager::work::write::JobWrite;

/// The most offers that one claim loses to other claims before it answers with no jobs.
const MAX_LOST_OFFERS: usize = 100;

/// The number of named claims that are remembered at least; for older ones, the store is searched.
const REMEMBERED: usize = 50_000;

/// The most jobs that are searched for one named claim.
const JOBS_OF_A_CLAIM: usize = 10_000;

/// How often, and how far apart, the job of a claim with an unknown outcome is read.
const RESOLVE_TRIES: u32 = 8;
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);

/// Claimed jobs on their way to the worker. If this is dropped before [`Claimed::delivered`], the jobs are released
/// at once without counting the attempt, unless the claim was named, so that the worker can repeat it.
pub struct Claimed {
    jobs: Vec<JobView>,
    give_back: Option<GiveBack>,
}

struct GiveBack {
    manager: Manager,
    worker_id: WorkerId,
}

impl Claimed {
    fn none() -> Self {
        Self { jobs: Vec::new(), give_back: None }
    }

    /// Returns the claimed jobs; it is empty when no job became available in time.
    #[must_use]
    pub fn jobs(&self) -> &[JobView] {
        &self.jobs
    }

    /// Confirms that the answer is on its way to the worker, which keeps the leases.
    pub fn delivered(mut self) {
        self.give_back = None;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Some(GiveBack { manager, worker_id }) = self.give_back.take() else { return };
        if self.jobs.is_empty() {
            return;
        }
        metrics::counter!("leasehold_claims_undelivered_total").increment(self.jobs.len() as u64);
        let leases: Vec<(JobId, Fence)> =
            self.jobs.iter().map(|view| (view.versioned.job.id.clone(), view.versioned.job.fence)).collect();
        let tasks = manager.shared.tasks.clone();
        tasks.spawn(async move { manager.give_back(&worker_id, leases).await });
    }
}

/// The latest named claims, and the jobs they took.
#[derive(Default)]
pub(crate) struct NamedClaims(RecentMap<(WorkerId, RequestId), NamedClaim, REMEMBERED>);

#[derive(Clone)]
struct NamedClaim {
    /// Cancelled when the same claim is made again; the former call then takes no more jobs.
    superseded: CancellationToken,
    /// The jobs that the claim took. It is locked while they are being taken, so that a repeated call waits for them.
    taken: Arc<AsyncMutex<Option<Vec<JobId>>>>,
}

impl NamedClaims {
    /// Registers a call and supersedes an earlier one of the same name.
    fn enter(&mut self, name: (WorkerId, RequestId)) -> NamedClaim {
        let earlier = self.0.remove(&name);
        if let Some(earlier) = &earlier {
            earlier.superseded.cancel();
        }
        let taken = earlier.map(|earlier| earlier.taken).unwrap_or_default();
        let claim = NamedClaim { superseded: CancellationToken::new(), taken };
        self.0.insert(name, claim.clone());
        claim
    }
}

impl Manager {
    /// Claims up to `max_jobs` jobs, and waits up to `wait` for the first. A call that is dropped takes no job; see
    /// [`Claimed`] for an answer that is dropped.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`]; [`ManagerError::ShuttingDown`]; the store's error when it prevented every claim.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ManagerError> {
        if request.queues.is_empty() || request.max_jobs == 0 {
            let field = if request.queues.is_empty() { "queues" } else { "max_jobs" };
            return Err(ManagerError::Invalid { field, message: "must be at least one".to_owned() });
        }
        if self.shared.work.no_claims.is_cancelled() {
            return Err(ManagerError::ShuttingDown);
        }
        let started = Instant::now();
        self.shared.observe.workers.claims(&request, self.shared.clock.now());
        self.know_queues().await?;
        let delivery = match &request.request_id {
            None => None,
            Some(request_id) => {
                let name = (request.worker_id.clone(), request_id.clone());
                let delivery = self.shared.work.named_claims.lock().enter(name);
                if let Some(again) = self.deliver_again(&request, &delivery).await? {
                    return Ok(again);
                }
                Some(delivery)
            }
        };
        let request = Arc::new(request);
        let deadline = started + request.wait;
        for _ in 0..MAX_LOST_OFFERS {
            let Some(offer) = self.next_offer(&request, delivery.as_ref(), deadline).await? else {
                return Ok(Claimed::none());
            };
            let claimed = self.take_leases(offer, Arc::clone(&request), delivery.clone()).await?;
            if !claimed.jobs.is_empty() {
                self.shared.observe.insight.claim_waited(started.elapsed(), self.shared.clock.now());
                return Ok(claimed);
            }
        }
        Ok(Claimed::none())
    }

    /// Returns the number of claims that wait for a job now.
    #[must_use]
    pub fn waiting_claims(&self) -> usize {
        self.shared.dispatch.waiting()
    }

    /// Answers waiting claims with no jobs, and refuses new claims. All other work continues.
    pub fn stop_claims(&self) {
        self.shared.work.no_claims.cancel();
    }

    /// Returns the jobs that an earlier call of the same name took, as far as the worker still holds them.
    async fn deliver_again(
        &self,
        request: &ClaimRequest,
        delivery: &NamedClaim,
    ) -> Result<Option<Claimed>, ManagerError> {
        let remembered = delivery.taken.lock().await.clone();
        let found = match remembered {
            Some(ids) => self.shared.store.get(&ids).await?.into_iter().flatten().collect(),
            // Another manager may have answered, or this one before it was restarted.
            None => {
                let filter = Filter {
                    worker_id: Some(request.worker_id.clone()),
                    request_id: request.request_id.clone(),
                    ..Filter::default()
                };
                self.see_former_claims(request.repeated).await?;
                let search = Search { filter, sort: Sort::Dispatch, after: None, limit: JOBS_OF_A_CLAIM };
                self.shared.store.search(&search).await?
            }
        };
        let of_this_claim = |found: &Versioned| {
            found
                .job
                .lease()
                .is_some_and(|lease| lease.worker_id == request.worker_id && lease.request_id == request.request_id)
                && !self.shared.work.known.is_outdated(found)
        };
        let jobs: Vec<Versioned> = found.into_iter().filter(of_this_claim).collect();
        if jobs.is_empty() {
            return Ok(None);
        }
        metrics::counter!("leasehold_claims_redelivered_total").increment(jobs.len() as u64);
        Ok(Some(Claimed { jobs: self.view(jobs).await?, give_back: None }))
    }

    /// Returns the next candidates, or `None` when the time is up, the server stops, or the same call was repeated.
    async fn next_offer(
        &self,
        request: &ClaimRequest,
        delivery: Option<&NamedClaim>,
        deadline: Instant,
    ) -> Result<Option<Offer>, ManagerError> {
        let dispatch = &self.shared.dispatch;
        let wish = request.wish();
        if let Some(offer) = dispatch.take(&wish) {
            return Ok(Some(offer));
        }
        self.refresh_candidates(&request.queues).await?;
        if request.wait.is_zero() {
            return Ok(dispatch.take(&wish));
        }
        let mut waiting = match dispatch.take_or_wait(&wish) {
            Ok(offer) => return Ok(Some(offer)),
            Err(waiting) => waiting,
        };
        let _waits = self.shared.observe.workers.waits(&request.worker_id);
        let superseded = async {
            match delivery {
                Some(delivery) => delivery.superseded.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            offer = timeout_at(deadline, waiting.offer()) => Ok(offer.ok().flatten()),
            () = superseded => Ok(None),
            () = self.shared.work.no_claims.cancelled() => Ok(None),
        }
    }

    /// Writes the claims in a task of its own, so that a dropped call leaves no claim half done.
    async fn take_leases(
        &self,
        offer: Offer,
        request: Arc<ClaimRequest>,
        delivery: Option<NamedClaim>,
    ) -> Result<Claimed, ManagerError> {
        let manager = self.clone();
        // The answer to a caller that is gone is dropped, and `Claimed` gives the jobs back.
        let claimed = self.shared.tasks.spawn(async move { manager.write_claims(offer, &request, delivery).await });
        claimed.await.unwrap_or(Err(ManagerError::ShuttingDown))
    }

    async fn write_claims(
        &self,
        offer: Offer,
        request: &ClaimRequest,
        delivery: Option<NamedClaim>,
    ) -> Result<Claimed, ManagerError> {
        let mut taken = None;
        if let Some(delivery) = delivery {
            let guard = delivery.taken.lock_owned().await;
            if delivery.superseded.is_cancelled() {
                return Ok(Claimed::none());
            }
            taken = Some(guard);
        }
        let (jobs, failure) = self.claim_all(offer.take(), request).await;
        if let Some(taken) = &mut taken {
            **taken = (!jobs.is_empty()).then(|| jobs.iter().map(|claimed| claimed.job.id.clone()).collect());
        }
        let give_back = request
            .request_id
            .is_none()
            .then(|| GiveBack { manager: self.clone(), worker_id: request.worker_id.clone() });
        match failure {
            Some(error) if jobs.is_empty() => Err(error),
            _ => match self.view(jobs.clone()).await {
                Ok(jobs) => Ok(Claimed { jobs, give_back }),
                Err(error) => {
                    let leases = jobs.iter().map(|claimed| (claimed.job.id.clone(), claimed.job.fence)).collect();
                    self.give_back(&request.worker_id, leases).await;
                    Err(error)
                }
            },
        }
    }

    /// Releases leases whose worker was not reached.
    async fn give_back(&self, worker_id: &WorkerId, leases: Vec<(JobId, Fence)>) {
        let outcome = || Outcome::Released { reason: "the claim's answer was not delivered".to_owned() };
        let finishes = leases.into_iter().map(|(id, fence)| Finish { id, fence, outcome: outcome() }).collect();
        for result in self.finish(worker_id, finishes).await {
            match result {
                Ok(_) => {}
                Err(ManagerError::Refused(refusal)) => debug!(%refusal, "an undelivered job has moved on by itself"),
                Err(error) => warn!(%error, "an undelivered job was not given back; its lease has to run out"),
            }
        }
    }
}

impl ClaimRequest {
    fn wish(&self) -> Wish<'_> {
        Wish { queues: &self.queues, max_jobs: self.max_jobs, resources: &self.resources }
    }
}

impl Manager {
    /// Ensures that a search for a named claim finds the jobs that were claimed before this manager started and, if
    /// `repeated`, those that any manager has claimed until now.
    async fn see_former_claims(&self, repeated: bool) -> Result<(), StoreError> {
        if repeated {
            return self.shared.store.refresh().await;
        }
        self.shared.work.caught_up.get_or_try_init(|| self.shared.store.refresh()).await?;
        Ok(())
    }

    /// Writes a claim for each candidate. Returns the granted claims, and the first failure that is not a conflict.
    async fn claim_all(
        &self,
        candidates: Vec<Versioned>,
        request: &ClaimRequest,
    ) -> (Vec<Versioned>, Option<ManagerError>) {
        let decided = self.decide_claims(candidates, request);
        let jobs: Vec<(Versioned, Arc<Job>)> = decided.clone();
        let writes = decided.into_iter().map(|(candidate, job)| JobWrite::replace(candidate, job, Vec::new()));
        let results = self.write_in_task(writes.collect()).await;
        let mut claimed = Vec::with_capacity(results.len());
        let mut failure = None;
        for ((candidate, job), result) in jobs.into_iter().zip(results) {
            match result {
                Ok(written) if matches!(written.job.state, State::Running(_)) => claimed.push(written),
                // The job was expired instead.
                Ok(_) => {}
                Err(WriteError::Conflict(current)) => {
                    self.shared.observe.insight.conflicted("claim", self.shared.clock.now());
                    if let Some(current) = &current {
                        self.shared.work.known.learn(current);
                    }
                    self.shared.dispatch.settle(&candidate.job.id, current);
                }
                Err(error) => {
                    self.shared.work.known.forget(&candidate.job.id);
                    self.shared.dispatch.settle(&candidate.job.id, None);
                    self.shared.dispatch.mark_incomplete(&candidate.job.spec.queue);
                    failure.get_or_insert(match error {
                        WriteError::Unknown(why) => {
                            self.shared.tasks.spawn(resolve_unknown_claim(self.clone(), job));
                            ManagerError::Unknown(why)
                        }
                        WriteError::Refused(error) => ManagerError::Store(error),
                        WriteError::Conflict(_) => ManagerError::Contended { tries: 1 },
                    });
                }
            }
        }
        (claimed, failure)
    }

    /// Returns the write for each candidate: a claim, or its expiry when its start deadline has passed. Candidates that
    /// can no longer be claimed are dropped.
    fn decide_claims(&self, candidates: Vec<Versioned>, request: &ClaimRequest) -> Vec<(Versioned, Arc<Job>)> {
        let now = self.shared.clock.now();
        let claim =
            Claim { worker_id: request.worker_id.clone(), request_id: request.request_id.clone(), term: request.lease };
        let mut decided = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let job = match candidate.job.claim(&claim, now) {
                Err(Refusal::StartDeadlinePassed(_)) => candidate.job.expire(&manager_actor(), now),
                job => job,
            };
            match job {
                Ok(mut job) => {
                    self.announce(&candidate.job, &mut job);
                    decided.push((candidate, Arc::new(job)));
                }
                Err(Refusal::NotDue(_)) => {
                    let id = candidate.job.id.clone();
                    self.shared.dispatch.settle(&id, Some(candidate));
                }
                Err(_) => self.shared.dispatch.settle(&candidate.job.id, None),
            }
        }
        decided
    }
}

/// Reads the job of a claim with an unknown outcome, and releases the job if the claim was written, since no worker
/// was informed of it.
async fn resolve_unknown_claim(manager: Manager, claimed: Arc<Job>) {
    let Some(lease) = claimed.lease() else { return };
    for tried in 1..=RESOLVE_TRIES {
        tokio::time::sleep(RESOLVE_PAUSE * tried).await;
        let found: Result<Vec<Option<Versioned>>, StoreError> =
            manager.shared.store.get(std::slice::from_ref(&claimed.id)).await;
        let Ok(found) = found else { continue };
        let Some(found) = found.into_iter().flatten().next() else { return };
        let ours = found.job.fence == claimed.fence
            && found.job.lease().is_some_and(|held| {
                held.worker_id == lease.worker_id
                    && held.request_id == lease.request_id
                    && held.acquired_at == lease.acquired_at
            });
        if ours {
            manager.give_back(&lease.worker_id, vec![(claimed.id.clone(), claimed.fence)]).await;
        } else if found.job.fence == claimed.fence.before() && found.job.state == State::Available {
            // The claim is not written yet, but a delayed request may still arrive.
            continue;
        }
        return;
    }
}
