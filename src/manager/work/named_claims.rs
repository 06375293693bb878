//! Named claims: a worker that lost a claim's answer makes the call again under the same `request_id`.
//!
//! A name is answered once. Its answer is the jobs that the call took, or that there were none; the same call again is
//! given those of the jobs that the worker still holds, and never takes others, since the second call may be a
//! duplicate that comes late, when nobody waits for its answer any more. A call that failed has no answer yet.
//!
//! What this manager does not remember is searched for among the leases: another manager may have taken the jobs, as a
//! worker says that repeats a call, or this one before it was restarted, or their claim was written without an
//! acknowledgement.

use std::time::Duration;

use crate::job::{CallingWorker, Change, Job, JobId, RequestId};
use crate::query::{Filter, Search, Sort};
use crate::store::recent::RecentMap;
use crate::store::{Refresh, StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::claimant::NamedClaim;
use crate::manager::request::{ClaimRequest, JobView, ManagerError};

/// The number of named claims that are remembered at least; for older ones, the store is searched.
const REMEMBERED: usize = 50_000;

/// For how long after its start a manager searches for the jobs of a claim that says nothing of being repeated: it may
/// have been made before the start, and its worker need not have noticed that.
const FORMER_CALLS: Duration = Duration::from_secs(600);

/// The most jobs that are searched for one named claim.
const JOBS_OF_A_CLAIM: usize = 10_000;

/// The latest named claims.
#[derive(Default)]
pub(super) struct NamedClaims(RecentMap<(CallingWorker, RequestId), NamedClaim, REMEMBERED>);

impl NamedClaims {
    /// Registers a call and supersedes an earlier one of the same name.
    pub(super) fn enter(&mut self, name: (CallingWorker, RequestId)) -> NamedClaim {
        let call = self.0.remove(&name).map_or_else(NamedClaim::default, |earlier| earlier.again());
        self.0.insert(name, call.clone());
        call
    }
}

impl Manager {
    /// Returns the jobs that an earlier call of the same name took and the worker still holds, each with its lease
    /// renewed; `None` when the name has no answer yet.
    pub(super) async fn deliver_again(
        &self,
        request: &ClaimRequest,
        call: &NamedClaim,
    ) -> Result<Option<Vec<JobView>>, ManagerError> {
        let turn = call.turn_in_any_case().await;
        let ids = match turn.answer() {
            Some(taken) => taken.to_vec(),
            None => self.claimed_before(request).await?,
        };
        let jobs = self.renew_claim(request, &ids).await?;
        if jobs.is_empty() {
            return Ok(turn.answer().is_some().then(Vec::new));
        }
        metrics::counter!("leasehold_claims_redelivered_total").increment(jobs.len() as u64);
        let views = self.view(jobs.clone()).await?;
        turn.answer_with(&jobs);
        Ok(Some(views))
    }

    /// Searches for the jobs whose lease bears the name of this claim.
    async fn claimed_before(&self, request: &ClaimRequest) -> Result<Vec<JobId>, StoreError> {
        let store = &self.shared.store;
        let may_be_former = self.shared.clock.now().since(self.shared.observe.started_at) < FORMER_CALLS;
        if !request.repeated && !may_be_former {
            return Ok(Vec::new());
        }
        let filter = Filter {
            worker_id: Some(request.worker_id.clone()),
            request_id: request.request_id.clone(),
            ..Filter::default()
        };
        let of_the_claim = Refresh::Jobs(&filter);
        if request.repeated {
            // Another manager may have claimed them a moment ago.
            store.refresh(of_the_claim).await?;
        } else {
            // Those that were claimed before this manager started are found.
            self.shared.work.caught_up.get_or_try_init(|| store.refresh(of_the_claim)).await?;
        }
        let search = Search { filter, sort: Sort::Dispatch, after: None, limit: JOBS_OF_A_CLAIM };
        Ok(store.search(&search).await?.into_iter().map(|found| found.job.id.clone()).collect())
    }

    /// Renews the leases of this claim among the jobs `ids`, and returns their jobs.
    async fn renew_claim(&self, request: &ClaimRequest, ids: &[JobId]) -> Result<Vec<Versioned>, ManagerError> {
        let margin = self.lease_margin();
        let worker = self.named(request.calling_worker());
        let renew = |_, job: &Job, now| {
            let renewed = job.deliver_again(&worker, request.request_id.as_ref(), margin, now)?;
            Ok(Change::To(Box::new(renewed)))
        };
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut renewed = Vec::with_capacity(ids.len());
        for result in self.update(ids, renew).await {
            match result {
                Ok(job) => renewed.push(job),
                Err(ManagerError::Refused(_) | ManagerError::NotFound(_)) => {}
                // The worker asks again, and hears of all of them together.
                Err(error) => return Err(error),
            }
        }
        Ok(renewed)
    }
}
