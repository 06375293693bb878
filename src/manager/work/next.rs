//! The end of an attempt and the claim of the next job in one call and, where a job is there, in one write.
//!
//! The end comes first: it is written at once, however long the claim waits, and a call whose end is not accepted takes
//! no job.

use std::pin::pin;
use std::task::Poll;

use futures::poll;
use tokio::time::Instant;

use super::claim::Admitted;
use super::update::Along;
use crate::job::CallingWorker;
use crate::manager::Manager;
use crate::manager::claimant::{Claimant, Claimed};
use crate::manager::dispatch::{Offer, Wish};
use crate::manager::request::{ClaimRequest, Finish, ManagerError};
use crate::store::Versioned;

/// The ends of attempts as they were answered, and the answer to the claim of the next jobs.
type FinishedAndClaimed = (Vec<Result<Versioned, ManagerError>>, Result<Claimed, ManagerError>);

impl Manager {
    /// Ends attempts as [`Manager::finish`] does, and claims jobs as [`Manager::claim`] does, unless none of the ends
    /// is accepted.
    pub async fn finish_and_claim(
        &self,
        worker: impl Into<CallingWorker>,
        finishes: Vec<Finish>,
        next: ClaimRequest,
    ) -> FinishedAndClaimed {
        let worker = worker.into();
        let started = Instant::now();
        let mut admission = pin!(self.admit(next));
        let admitted = poll!(admission.as_mut());
        if let Poll::Ready(Ok(Admitted::New(claimant))) = &admitted
            && let wish = Wish::of(&claimant.request)
            && self.is_known_for(&wish)
            && let Some(offer) = self.shared.dispatch.take(&wish)
            // One that goes back at once: to find out who is first in a line would keep the ends waiting, and who ends
            // now may be first.
            && !offer.is_ordered()
        {
            // In a task of its own, so that a dropped call leaves nothing half done.
            let (manager, worker, caller, count) = (self.clone(), worker, claimant.clone(), finishes.len());
            let write = async move { manager.write_ends_and_claims(worker, finishes, offer, &caller).await };
            let unknown = || Err(ManagerError::Unknown("the server stopped".to_owned()));
            let ended = |_| ((0..count).map(|_| unknown()).collect(), Ok(Claimed::none()));
            let (results, claimed) = self.shared.tasks.spawn(write).await.unwrap_or_else(ended);
            let claimed = match claimed {
                Ok(claimed) if !claimed.jobs().is_empty() => {
                    self.claim_waited(started);
                    Ok(claimed)
                }
                Ok(_) if is_accepted(&results) => self.claim_for(claimant, started).await,
                claimed => claimed,
            };
            return (results, claimed);
        }
        let results = self.finish(worker, finishes).await;
        // What the claim has to find out first does not keep the ends waiting.
        let admitted = match admitted {
            Poll::Ready(admitted) => admitted,
            Poll::Pending if is_accepted(&results) => admission.await,
            Poll::Pending => return (results, Ok(Claimed::none())),
        };
        let claimed = match admitted {
            Err(error) => Err(error),
            Ok(Admitted::Again(claimed)) => Ok(claimed),
            Ok(Admitted::New(claimant)) if is_accepted(&results) => self.claim_for(&claimant, started).await,
            Ok(Admitted::New(_)) => Ok(Claimed::none()),
        };
        (results, claimed)
    }

    /// Writes ends and claims together.
    async fn write_ends_and_claims(
        &self,
        worker: CallingWorker,
        finishes: Vec<Finish>,
        offer: Offer,
        claimant: &Claimant,
    ) -> FinishedAndClaimed {
        let Some(turn) = claimant.turn_at_once() else {
            drop(offer);
            return (self.finish(worker, finishes).await, Ok(Claimed::none()));
        };
        let (candidates, slots) = self.within_limits(self.still_open(offer.take()).await).await;
        let decided = self.decide_claims(candidates, &claimant.request);
        let mut along = Along { writes: decided.iter().map(|claim| claim.write()).collect(), ..Along::default() };
        let results = self.finish_along(worker, finishes, &mut along).await;
        if !along.writes.is_empty() && !is_accepted(&results) {
            self.shared.dispatch.put_back(decided.into_iter().map(|claim| claim.give_up()).collect());
            return (results, Ok(Claimed::none()));
        }
        along.results.extend(self.write_in_task(along.writes).await);
        let (jobs, failure) = self.settle_claims(decided, along.results);
        slots.settle(&jobs);
        if !is_accepted(&results) {
            self.give_back(&jobs).await;
            return (results, Ok(Claimed::none()));
        }
        (results, self.answer_claims((jobs, failure), claimant, turn).await)
    }
}

fn is_accepted(results: &[Result<Versioned, ManagerError>]) -> bool {
    results.iter().any(Result::is_ok)
}
