//! Claiming: candidates become leases by conditional writes, and leases reach the worker or come back.
//!
//! A claim's connection can break at any time, and none may cost a job its time:
//! - before the write, the call is dropped and its candidates go back to the dispatch ([`Offer`]);
//! - during or after the write, the jobs are given back, attempt and all ([`Claimed`]), since the write runs in a
//!   task of its own that outlives the call;
//! - unless the worker named the call: then the jobs wait for the same `request_id` to be asked again
//!   ([`super::named_claims`]).
//!
//! A job that is submitted while a call waits for it takes the shorter way of [`super::handover`].

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tracing::{debug, warn};

use crate::clock::Timestamp;
use crate::job::{Change, Claim, Fence, Job, Lease, Refusal, State};
use crate::store::{StoreError, Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::changes::CLAIMED_WITHIN;
use crate::manager::claimant::{Claimant, Claimed, Turn};
use crate::manager::dispatch::{Handed, Offer, Wish};
use crate::manager::request::{ClaimRequest, Finish, ManagerError, Outcome};
use crate::manager::work::update::manager_actor;
use crate::manager::work::write::JobWrite;

/// A claim that has begun.
pub(super) enum Admitted {
    /// A call of its name was answered before, with these jobs.
    Again(Claimed),
    New(Claimant),
}

/// The most offers that one claim loses to other claims before it answers with no jobs.
const MAX_LOST_OFFERS: usize = 100;

/// How long a claim waits at least for the first search of its queues: "no job" may end a worker.
const FIRST_SEARCH: Duration = Duration::from_secs(10);

/// Why a job is released whose worker was not told of its claim.
pub(crate) const NOT_DELIVERED: &str = "the claim's answer was not delivered";

/// How often, and how far apart, the job of a claim with an unknown outcome is read.
const RESOLVE_TRIES: u32 = 8;
const RESOLVE_PAUSE: Duration = Duration::from_millis(500);

impl Manager {
    /// Claims up to `max_jobs` jobs, and waits up to `wait` for the first. A call that is dropped takes no job; see
    /// [`Claimed`] for an answer that is dropped.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`]; [`ManagerError::ShuttingDown`]; the store's error when it prevented every claim.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ManagerError> {
        let started = Instant::now();
        match self.admit(request).await? {
            Admitted::Again(claimed) => Ok(claimed),
            Admitted::New(claimant) => self.claim_for(&claimant, started).await,
        }
    }

    /// Begins a claim: takes note of who makes it, and finds out whether it was made before.
    pub(super) async fn admit(&self, request: ClaimRequest) -> Result<Admitted, ManagerError> {
        if request.queues.is_empty() || request.max_jobs == 0 {
            let field = if request.queues.is_empty() { "queues" } else { "max_jobs" };
            return Err(ManagerError::Invalid { field, message: "must be at least one".to_owned() });
        }
        if self.shared.work.no_claims.is_cancelled() {
            return Err(ManagerError::ShuttingDown);
        }
        self.shared.observe.workers.claims(&request, self.shared.clock.now());
        self.know_queues().await?;
        self.know_members().await?;
        self.have_workers_for(&request.queues);
        let call = match &request.request_id {
            None => None,
            Some(request_id) => {
                let name = (request.calling_worker(), request_id.clone());
                let call = self.shared.work.named_claims.lock().enter(name);
                // In a box: a call that waits later on would keep room for it.
                if let Some(jobs) = Box::pin(self.deliver_again(&request, &call)).await? {
                    return Ok(Admitted::Again(Claimed::again(jobs)));
                }
                Some(call)
            }
        };
        Ok(Admitted::New(Claimant { request: Arc::new(request), call }))
    }

    /// Claims jobs for a call that began at `started`, and waits for them if it does.
    pub(super) async fn claim_for(&self, claimant: &Claimant, started: Instant) -> Result<Claimed, ManagerError> {
        let deadline = started + claimant.request.wait;
        for _ in 0..MAX_LOST_OFFERS {
            let claimed = match self.next_offer(claimant, deadline).await? {
                None => break,
                Some(Handed::Offer(offer)) => self.take_leases(offer, claimant.clone()).await?,
                Some(Handed::Claimed(claimed)) => claimed?,
            };
            if !claimed.jobs().is_empty() {
                self.claim_waited(started);
                return Ok(claimed);
            }
        }
        // Another member that leads by now may have given jobs to a call of the same name.
        if claimant.request.request_id.is_some() && self.shared.store.confirm_now().await.is_err() {
            return Ok(Claimed::none());
        }
        if let Some(turn) = claimant.turn().await {
            turn.answer_with(&[]);
        }
        Ok(Claimed::none())
    }

    /// Records how long a claim waited that received a job.
    pub(super) fn claim_waited(&self, started: Instant) {
        self.shared.observe.insight.claim_waited(started.elapsed(), self.shared.clock.now());
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

    /// Returns the next candidates or jobs, or `None` when the time is up, the server stops, or the same call was
    /// repeated.
    async fn next_offer(&self, claimant: &Claimant, deadline: Instant) -> Result<Option<Handed>, ManagerError> {
        let dispatch = &self.shared.dispatch;
        let queues = &claimant.request.queues;
        let wish = Wish::of(&claimant.request);
        if !self.is_known_for(&wish) {
            tokio::select! {
                () = Box::pin(self.know(&wish)) => {}
                () = sleep_until(deadline.max(Instant::now() + FIRST_SEARCH)) => {
                    let offer = dispatch.take(&wish).map(Handed::Offer);
                    let is_answer = offer.is_some() || dispatch.were_searched(queues);
                    let late = || StoreError::Unavailable("the queues were not searched in time".to_owned());
                    return if is_answer { Ok(offer) } else { Err(ManagerError::Store(late())) };
                }
                () = claimant.superseded() => return Ok(None),
                () = self.shared.work.no_claims.cancelled() => return Ok(None),
            }
        }
        if let Some(offer) = dispatch.take(&wish) {
            return Ok(Some(Handed::Offer(offer)));
        }
        self.refresh_candidates(queues, !claimant.request.wait.is_zero()).await?;
        if claimant.request.wait.is_zero() {
            if let Some(offer) = dispatch.take(&wish) {
                return Ok(Some(Handed::Offer(offer)));
            }
            self.reach_out(&wish).await?;
            return Ok(dispatch.take(&wish).map(Handed::Offer));
        }
        let mut waiting = match dispatch.take_or_wait(claimant) {
            Ok(offer) => return Ok(Some(Handed::Offer(offer))),
            Err(waiting) => waiting,
        };
        let _waits = self.shared.observe.workers.waits(&claimant.request.worker_id);
        tokio::select! {
            handed = waiting.handed() => return Ok(handed),
            () = sleep_until(deadline) => {}
            () = claimant.superseded() => {}
            () = self.shared.work.no_claims.cancelled() => {}
        }
        Ok(waiting.withdraw().await)
    }

    /// Writes the claims in a task of its own, so that a dropped call leaves no claim half done.
    async fn take_leases(&self, offer: Offer, claimant: Claimant) -> Result<Claimed, ManagerError> {
        let manager = self.clone();
        // The answer to a caller that is gone is dropped, and `Claimed` gives the jobs back.
        let claimed = self.shared.tasks.spawn(async move { manager.write_claims(offer, &claimant).await });
        claimed.await.unwrap_or(Err(ManagerError::ShuttingDown))
    }

    async fn write_claims(&self, offer: Offer, claimant: &Claimant) -> Result<Claimed, ManagerError> {
        let Some(turn) = claimant.turn().await else { return Ok(Claimed::none()) };
        let written = self.claim_all(offer.take(), &claimant.request).await;
        self.answer_claims(written, claimant, turn).await
    }

    /// Returns the answer to a call whose claims were written.
    pub(super) async fn answer_claims(
        &self,
        (jobs, failure): (Vec<Versioned>, Option<ManagerError>),
        claimant: &Claimant,
        turn: Turn,
    ) -> Result<Claimed, ManagerError> {
        match failure {
            _ if !jobs.is_empty() => self.deliver(jobs, claimant, turn).await,
            Some(error) => Err(error),
            None => Ok(Claimed::none()),
        }
    }

    /// Returns the jobs that were claimed for a call as its answer.
    pub(super) async fn deliver(
        &self,
        jobs: Vec<Versioned>,
        claimant: &Claimant,
        turn: Turn,
    ) -> Result<Claimed, ManagerError> {
        turn.answer_with(&jobs);
        match self.view(jobs.clone()).await {
            Ok(views) => Ok(Claimed::by(claimant, views, self)),
            Err(error) => {
                if claimant.call.is_none() {
                    self.give_back(&jobs).await;
                }
                Err(error)
            }
        }
    }

    /// Releases jobs whose worker was not reached.
    pub(in crate::manager) async fn give_back(&self, jobs: &[Versioned]) {
        // They were claimed by one call.
        let lease = jobs.iter().find_map(|claimed| claimed.job.lease());
        let Some(worker) = lease.map(Lease::calling_worker) else { return };
        let outcome = || Outcome::Released { reason: NOT_DELIVERED.to_owned(), delay: Duration::ZERO };
        let finish =
            |Versioned { job, .. }: &Versioned| Finish { id: job.id.clone(), fence: job.fence, outcome: outcome() };
        for result in self.finish(worker, jobs.iter().map(finish).collect()).await {
            match result {
                Ok(_) => {}
                Err(ManagerError::Refused(refusal)) => debug!(%refusal, "an undelivered job has moved on by itself"),
                Err(error) => warn!(%error, "an undelivered job was not given back; its lease has to run out"),
            }
        }
    }
}

/// A candidate, and what is to be written over it: a claim, or its expiry.
pub(super) struct DecidedClaim {
    candidate: Versioned,
    job: Arc<Job>,
}

impl DecidedClaim {
    pub(super) fn write(&self) -> JobWrite {
        JobWrite::replace(self.candidate.clone(), Arc::clone(&self.job), Vec::new())
    }

    /// Returns the candidate, of which nothing was written.
    pub(super) fn give_up(self) -> Versioned {
        self.candidate
    }
}

impl Manager {
    /// Writes a claim for each candidate. Returns the granted claims, and the first failure that is not a conflict.
    async fn claim_all(
        &self,
        candidates: Vec<Versioned>,
        request: &ClaimRequest,
    ) -> (Vec<Versioned>, Option<ManagerError>) {
        let candidates = self.in_order(self.still_open(candidates).await).await;
        let (candidates, slots) = self.within_limits(candidates).await;
        let decided = self.decide_claims(candidates, request);
        let results = self.write_in_task(decided.iter().map(DecidedClaim::write).collect()).await;
        let (claimed, failure) = self.settle_claims(decided, results);
        slots.settle(&claimed);
        (claimed, failure)
    }

    /// Returns those of these candidates whose queues nobody has paused, here or elsewhere. The others go back.
    pub(super) async fn still_open(&self, candidates: Vec<Versioned>) -> Vec<Versioned> {
        if self.shared.store.is_exclusive() {
            return candidates;
        }
        self.know_changes(CLAIMED_WITHIN).await;
        self.shared.dispatch.not_held_back(candidates)
    }

    /// Records the results of the writes of claims. Returns what [`Manager::claim_all`] does.
    pub(super) fn settle_claims(
        &self,
        decided: Vec<DecidedClaim>,
        results: Vec<Result<Versioned, WriteError>>,
    ) -> (Vec<Versioned>, Option<ManagerError>) {
        let mut claimed = Vec::with_capacity(results.len());
        let mut failure = None;
        for (DecidedClaim { candidate, job }, result) in decided.into_iter().zip(results) {
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

    /// Returns the claim that a call makes of each of its jobs.
    pub(super) fn claim_of(&self, request: &ClaimRequest) -> Claim {
        Claim {
            worker_id: request.worker_id.clone(),
            holder: self.named(request.calling_worker()).bearer.map(|bearer| bearer.name),
            request_id: request.request_id.clone(),
            term: request.lease,
            margin: self.lease_margin(),
        }
    }

    /// Returns the write for each candidate: a claim, or its expiry when its start deadline has passed. Candidates that
    /// can no longer be claimed are dropped, and those of which nobody knows whether they can be are kept for later.
    pub(super) fn decide_claims(&self, candidates: Vec<Versioned>, request: &ClaimRequest) -> Vec<DecidedClaim> {
        let now = self.shared.clock.now();
        let claim = self.claim_of(request);
        let mut decided = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            if self.cannot_tell_whether_due(&candidate.job, now) {
                let id = candidate.job.id.clone();
                self.shared.dispatch.settle(&id, Some(candidate));
                continue;
            }
            let job = match candidate.job.claim(&claim, now) {
                Err(Refusal::StartDeadlinePassed(_)) => candidate.job.expire(&manager_actor(), now),
                job => job,
            };
            match job {
                Ok(mut job) => {
                    self.announce(&candidate.job, &mut job);
                    decided.push(DecidedClaim { candidate, job: Arc::new(job) });
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

    /// Returns whether the job may be claimed only at a time that this manager's clock does not know.
    pub(super) fn cannot_tell_whether_due(&self, job: &Job, now: Timestamp) -> bool {
        job.awaits_a_right_clock(now) && self.clock_is_far_off()
    }
}

/// Finds out whether a claim with an unknown outcome was written, and releases its job if nobody was told of it.
///
/// Who repeats a named claim is told of the job by any manager, which renews the lease first. So a lease that is as it
/// was claimed was delivered to nobody; and of the renewal and the release, which are both written under the version of
/// the claim, one is accepted.
pub(super) async fn resolve_unknown_claim(manager: Manager, claimed: Arc<Job>) {
    let Some(lease) = claimed.lease() else { return };
    let proof = lease.calling_worker().proof(claimed.fence);
    // The job may have been claimed in the write that created it.
    let is_new = claimed.fence.before() == Fence::default();
    let give_back = |_: usize, job: &Job, now| {
        let is_untouched = job.fence == claimed.fence && job.lease() == claimed.lease();
        if is_untouched { job.release(&proof, NOT_DELIVERED, now) } else { Ok(Change::Already) }
    };
    for tried in 1..=RESOLVE_TRIES {
        tokio::time::sleep(RESOLVE_PAUSE * tried).await;
        match manager.update_as_read(std::slice::from_ref(&claimed.id), give_back).await.pop() {
            // The claim is not written yet, but a delayed request may still arrive.
            Some(Ok(found)) if found.job.fence == claimed.fence.before() && found.job.state == State::Available => {}
            Some(Err(ManagerError::NotFound(_))) if is_new => {}
            Some(Err(ManagerError::Store(_) | ManagerError::Unknown(_))) => {}
            _ => return,
        }
    }
}
