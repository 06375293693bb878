//! Claiming: candidates become leases by conditional writes, and leases reach the worker or come back.
//!
//! A claim's connection can break at any time, and none may cost a job its time:
//! - before the write, the call is dropped and its candidates go back to the dispatch ([`Offer`]);
//! - during or after the write, the jobs are given back, attempt and all ([`Claimed`]), since the write runs in a
//!   task of its own that outlives the call;
//! - unless the worker named the call: then the jobs wait for the same `request_id` to be asked again
//!   ([`super::named_claims`]).

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use tracing::{debug, warn};

use crate::job::{Change, Claim, Fence, Job, JobId, LeaseProof, Refusal, State, WorkerId};
use crate::store::{Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::dispatch::{Offer, Wish};
use crate::manager::request::{ClaimRequest, Finish, JobView, ManagerError, Outcome};
use crate::manager::work::named_claims::NamedClaim;
use crate::manager::work::update::manager_actor;
use crate::manager::work::write::JobWrite;

/// The most offers that one claim loses to other claims before it answers with no jobs.
const MAX_LOST_OFFERS: usize = 100;

/// Why a job is released whose worker was not told of its claim.
const NOT_DELIVERED: &str = "the claim's answer was not delivered";

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
        self.know_members().await?;
        self.have_workers_for(&request.queues);
        let call = match &request.request_id {
            None => None,
            Some(request_id) => {
                let name = (request.worker_id.clone(), request_id.clone());
                let call = self.shared.work.named_claims.lock().enter(name);
                if let Some(jobs) = self.deliver_again(&request, &call).await? {
                    return Ok(Claimed { jobs, give_back: None });
                }
                Some(call)
            }
        };
        let request = Arc::new(request);
        let deadline = started + request.wait;
        for _ in 0..MAX_LOST_OFFERS {
            let Some(offer) = self.next_offer(&request, call.as_ref(), deadline).await? else { break };
            let claimed = self.take_leases(offer, Arc::clone(&request), call.clone()).await?;
            if !claimed.jobs.is_empty() {
                self.shared.observe.insight.claim_waited(started.elapsed(), self.shared.clock.now());
                return Ok(claimed);
            }
        }
        if let Some(call) = &call {
            call.answer_with_none().await;
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

    /// Returns the next candidates, or `None` when the time is up, the server stops, or the same call was repeated.
    async fn next_offer(
        &self,
        request: &ClaimRequest,
        call: Option<&NamedClaim>,
        deadline: Instant,
    ) -> Result<Option<Offer>, ManagerError> {
        let dispatch = &self.shared.dispatch;
        let wish = request.wish();
        if let Some(offer) = dispatch.take(&wish) {
            return Ok(Some(offer));
        }
        self.refresh_candidates(&request.queues).await?;
        if request.wait.is_zero() {
            if let Some(offer) = dispatch.take(&wish) {
                return Ok(Some(offer));
            }
            self.reach_out(&request.queues).await?;
            return Ok(dispatch.take(&wish));
        }
        let mut waiting = match dispatch.take_or_wait(&wish) {
            Ok(offer) => return Ok(Some(offer)),
            Err(waiting) => waiting,
        };
        let _waits = self.shared.observe.workers.waits(&request.worker_id);
        let superseded = async {
            match call {
                Some(call) => call.superseded().await,
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
        call: Option<NamedClaim>,
    ) -> Result<Claimed, ManagerError> {
        let manager = self.clone();
        // The answer to a caller that is gone is dropped, and `Claimed` gives the jobs back.
        let claimed = self.shared.tasks.spawn(async move { manager.write_claims(offer, &request, call).await });
        claimed.await.unwrap_or(Err(ManagerError::ShuttingDown))
    }

    async fn write_claims(
        &self,
        offer: Offer,
        request: &ClaimRequest,
        call: Option<NamedClaim>,
    ) -> Result<Claimed, ManagerError> {
        let mut turn = None;
        if let Some(call) = &call {
            turn = call.turn().await;
            if turn.is_none() {
                return Ok(Claimed::none());
            }
        }
        let (jobs, failure) = self.claim_all(offer.take(), request).await;
        if let Some(turn) = turn.filter(|_| !jobs.is_empty()) {
            turn.answer_with(&jobs);
        }
        if let Some(error) = failure.filter(|_| jobs.is_empty()) {
            return Err(error);
        }
        let leases = jobs.iter().map(|claimed| (claimed.job.id.clone(), claimed.job.fence)).collect();
        match self.view(jobs).await {
            Ok(jobs) => {
                let give_back = || GiveBack { manager: self.clone(), worker_id: request.worker_id.clone() };
                Ok(Claimed { jobs, give_back: call.is_none().then(give_back) })
            }
            Err(error) => {
                if call.is_none() {
                    self.give_back(&request.worker_id, leases).await;
                }
                Err(error)
            }
        }
    }

    /// Releases leases whose worker was not reached.
    async fn give_back(&self, worker_id: &WorkerId, leases: Vec<(JobId, Fence)>) {
        let outcome = || Outcome::Released { reason: NOT_DELIVERED.to_owned(), delay: Duration::ZERO };
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
                        if matches!(current.job.state, State::Running(_)) {
                            self.shared.dispatch.yield_to_others(&current.job);
                        }
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
        let claim = Claim {
            worker_id: request.worker_id.clone(),
            request_id: request.request_id.clone(),
            term: request.lease,
            margin: self.lease_margin(),
        };
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

/// Finds out whether a claim with an unknown outcome was written, and releases its job if nobody was told of it.
///
/// Who repeats a named claim is told of the job by any manager, which renews the lease first. So a lease that is as it
/// was claimed was delivered to nobody; and of the renewal and the release, which are both written under the version of
/// the claim, one is accepted.
async fn resolve_unknown_claim(manager: Manager, claimed: Arc<Job>) {
    let Some(lease) = claimed.lease() else { return };
    let proof = LeaseProof { worker_id: lease.worker_id.clone(), fence: claimed.fence };
    let give_back = |_: usize, job: &Job, now| {
        let is_untouched = job.fence == claimed.fence && job.lease() == claimed.lease();
        if is_untouched { job.release(&proof, NOT_DELIVERED, now) } else { Ok(Change::Already) }
    };
    for tried in 1..=RESOLVE_TRIES {
        tokio::time::sleep(RESOLVE_PAUSE * tried).await;
        match manager.update_as_read(std::slice::from_ref(&claimed.id), give_back).await.pop() {
            // The claim is not written yet, but a delayed request may still arrive.
            Some(Ok(found)) if found.job.fence == claimed.fence.before() && found.job.state == State::Available => {}
            Some(Err(ManagerError::Store(_) | ManagerError::Unknown(_))) => {}
            _ => return,
        }
    }
}
