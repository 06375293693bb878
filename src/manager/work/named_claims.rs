//! Named claims: a worker that lost a claim's answer makes the call again under the same `request_id`.
//!
//! A name is answered once. Its answer is the jobs that the call took, or that there were none; the same call again is
//! given those of the jobs that the worker still holds, and never takes others, since the second call may be a
//! duplicate that comes late, when nobody waits for its answer any more. A call that failed has no answer yet.
//!
//! What this manager does not remember is searched for among the leases: another manager may have taken the jobs, or
//! this one before it was restarted, or their claim was written without an acknowledgement.

use std::sync::Arc;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use crate::job::{Change, Job, JobId, RequestId, WorkerId};
use crate::query::{Filter, Search, Sort};
use crate::store::recent::RecentMap;
use crate::store::{Refresh, StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::request::{ClaimRequest, JobView, ManagerError};

/// The number of named claims that are remembered at least; for older ones, the store is searched.
const REMEMBERED: usize = 50_000;

/// The most jobs that are searched for one named claim.
const JOBS_OF_A_CLAIM: usize = 10_000;

/// The latest named claims.
#[derive(Default)]
pub(super) struct NamedClaims(RecentMap<(WorkerId, RequestId), NamedClaim, REMEMBERED>);

/// One call of a named claim.
#[derive(Clone)]
pub(super) struct NamedClaim {
    /// Cancelled when the same claim is made again; the former call then takes no more jobs.
    superseded: CancellationToken,
    /// The jobs that the name was answered with. It is locked while they are being taken, so that a repeated call waits
    /// for them.
    answer: Arc<AsyncMutex<Option<Vec<JobId>>>>,
}

/// The right to answer a name, which one call has at a time.
pub(super) struct Turn(OwnedMutexGuard<Option<Vec<JobId>>>);

impl NamedClaims {
    /// Registers a call and supersedes an earlier one of the same name.
    pub(super) fn enter(&mut self, name: (WorkerId, RequestId)) -> NamedClaim {
        let earlier = self.0.remove(&name);
        if let Some(earlier) = &earlier {
            earlier.superseded.cancel();
        }
        let answer = earlier.map(|earlier| earlier.answer).unwrap_or_default();
        let call = NamedClaim { superseded: CancellationToken::new(), answer };
        self.0.insert(name, call.clone());
        call
    }
}

impl NamedClaim {
    /// Waits until the call is superseded.
    pub(super) async fn superseded(&self) {
        self.superseded.cancelled().await;
    }

    /// Waits for the right to answer, and returns `None` when the call is superseded.
    pub(super) async fn turn(&self) -> Option<Turn> {
        let turn = Turn(Arc::clone(&self.answer).lock_owned().await);
        (!self.superseded.is_cancelled()).then_some(turn)
    }

    /// Answers the name with no jobs, unless the call is superseded.
    pub(super) async fn answer_with_none(&self) {
        if let Some(turn) = self.turn().await {
            turn.answer_with(&[]);
        }
    }
}

impl Turn {
    /// Answers the name with these jobs, unless it has been answered.
    pub(super) fn answer_with(mut self, jobs: &[Versioned]) {
        self.0.get_or_insert_with(|| jobs.iter().map(|claimed| claimed.job.id.clone()).collect());
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
        let turn = Turn(Arc::clone(&call.answer).lock_owned().await);
        let ids = match &*turn.0 {
            Some(taken) => taken.clone(),
            None => self.claimed_before(request).await?,
        };
        let jobs = self.renew_claim(request, &ids).await?;
        if jobs.is_empty() {
            return Ok(turn.0.is_some().then(Vec::new));
        }
        metrics::counter!("leasehold_claims_redelivered_total").increment(jobs.len() as u64);
        let views = self.view(jobs.clone()).await?;
        turn.answer_with(&jobs);
        Ok(Some(views))
    }

    /// Searches for the jobs whose lease bears the name of this claim.
    async fn claimed_before(&self, request: &ClaimRequest) -> Result<Vec<JobId>, StoreError> {
        let store = &self.shared.store;
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
        let renew = |_, job: &Job, now| {
            let renewed = job.deliver_again(&request.worker_id, request.request_id.as_ref(), margin, now)?;
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
