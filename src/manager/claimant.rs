//! Who claims jobs: a call that may wait for them, the name under which it can be made again, and the jobs on their way
//! back to it.

use std::sync::Arc;

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};
use tokio_util::sync::CancellationToken;

use crate::job::JobId;
use crate::manager::Manager;
use crate::manager::request::{ClaimRequest, JobView};
use crate::store::Versioned;

/// A call that claims jobs. Cheap to clone.
#[derive(Clone)]
pub(super) struct Claimant {
    pub(super) request: Arc<ClaimRequest>,
    /// The call's name; `None` when it has none.
    pub(super) call: Option<NamedClaim>,
}

impl Claimant {
    /// Waits for the right to answer the call, and returns `None` when it was made again since: that one is answered.
    pub(super) async fn turn(&self) -> Option<Turn> {
        match &self.call {
            None => Some(Turn(None)),
            Some(call) => call.turn().await,
        }
    }

    /// Returns the right to answer the call if it need not be waited for.
    pub(super) fn turn_at_once(&self) -> Option<Turn> {
        match &self.call {
            None => Some(Turn(None)),
            Some(call) => {
                let answer = Arc::clone(&call.answer).try_lock_owned().ok()?;
                (!call.superseded.is_cancelled()).then_some(Turn(Some(answer)))
            }
        }
    }

    /// Waits until the same call is made again.
    pub(super) async fn superseded(&self) {
        match &self.call {
            None => std::future::pending().await,
            Some(call) => call.superseded.cancelled().await,
        }
    }
}

/// One call of a named claim.
#[derive(Clone, Default)]
pub(super) struct NamedClaim {
    /// Cancelled when the same claim is made again; the former call then takes no more jobs.
    superseded: CancellationToken,
    /// The jobs that the name was answered with. It is locked while they are being taken, so that a repeated call waits
    /// for them.
    answer: Arc<AsyncMutex<Option<Vec<JobId>>>>,
}

impl NamedClaim {
    /// Makes the call again. This one takes no more jobs.
    pub(super) fn again(&self) -> Self {
        self.superseded.cancel();
        Self { superseded: CancellationToken::new(), answer: Arc::clone(&self.answer) }
    }

    /// Waits for the right to answer, even if the call was made again since.
    pub(super) async fn turn_in_any_case(&self) -> Turn {
        Turn(Some(Arc::clone(&self.answer).lock_owned().await))
    }

    async fn turn(&self) -> Option<Turn> {
        let turn = self.turn_in_any_case().await;
        (!self.superseded.is_cancelled()).then_some(turn)
    }
}

/// The right to answer a call. Of the calls of one name, one has it at a time.
pub(super) struct Turn(Option<OwnedMutexGuard<Option<Vec<JobId>>>>);

impl Turn {
    /// Returns what the name was answered with; `None` when it has no answer yet.
    pub(super) fn answer(&self) -> Option<&[JobId]> {
        self.0.as_ref()?.as_deref()
    }

    /// Answers the name with these jobs, unless it has been answered.
    pub(super) fn answer_with(mut self, jobs: &[Versioned]) {
        if let Some(answer) = &mut self.0 {
            answer.get_or_insert_with(|| jobs.iter().map(|claimed| claimed.job.id.clone()).collect());
        }
    }
}

/// Claimed jobs on their way to the worker. If this is dropped before [`Claimed::delivered`], the jobs are released
/// at once without counting the attempt, unless the claim was named, so that the worker can repeat it.
pub struct Claimed {
    jobs: Vec<JobView>,
    /// What gives them back.
    give_back: Option<Manager>,
}

impl Claimed {
    /// Returns an answer without jobs.
    #[must_use]
    pub const fn none() -> Self {
        Self::again(Vec::new())
    }

    /// Returns the jobs that an earlier call of the same name has claimed.
    pub(super) const fn again(jobs: Vec<JobView>) -> Self {
        Self { jobs, give_back: None }
    }

    /// Returns the jobs that a call has claimed.
    pub(super) fn by(claimant: &Claimant, jobs: Vec<JobView>, manager: &Manager) -> Self {
        Self { jobs, give_back: claimant.call.is_none().then(|| manager.clone()) }
    }

    /// Returns the claimed jobs; it is empty when no job became available in time.
    #[must_use]
    pub fn jobs(&self) -> &[JobView] {
        &self.jobs
    }

    /// Returns whether there are jobs, and they are given back when their answer is not delivered.
    #[must_use]
    pub fn is_given_back(&self) -> bool {
        self.give_back.is_some() && !self.jobs.is_empty()
    }

    /// Confirms that the answer is on its way to the worker, which keeps the leases.
    pub fn delivered(mut self) {
        self.give_back = None;
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let Some(manager) = self.give_back.take() else { return };
        if self.jobs.is_empty() {
            return;
        }
        metrics::counter!("leasehold_claims_undelivered_total").increment(self.jobs.len() as u64);
        let jobs: Vec<Versioned> = self.jobs.iter().map(|view| view.versioned.clone()).collect();
        let tasks = manager.shared.tasks.clone();
        tasks.spawn(async move { manager.give_back(&jobs).await });
    }
}
