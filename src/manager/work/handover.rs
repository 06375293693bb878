//! The shorter way of a job from its submission to a worker that waits for it: it is created as already claimed, so
//! that one write does for both, and both are answered.
//!
//! The claim that the job is for is kept from other jobs meanwhile, and the name of a named one is locked, so that it
//! is answered once. When nothing was created, since the id or the key existed or the store refused, it waits on. A
//! creation of unknown outcome is resolved as a claim of unknown outcome is. When the worker has gone, its jobs are
//! given back as from any claim.

use std::sync::Arc;

use futures::future::join_all;

use super::claim::resolve_unknown_claim;
use super::write::JobWrite;
use crate::clock::Timestamp;
use crate::job::Job;
use crate::manager::Manager;
use crate::manager::claimant::Turn;
use crate::manager::dispatch::Reservation;
use crate::store::{Versioned, WriteError};

/// Jobs that are created as claimed by one call that waits for them.
pub(super) struct Handover {
    reservation: Reservation,
    turn: Turn,
    /// The jobs, each with the place of its write among those that are made together.
    jobs: Vec<(usize, Arc<Job>)>,
}

impl Handover {
    /// Returns which of the new jobs it is for, by their numbers.
    pub(super) fn wanted(&self) -> &[usize] {
        self.reservation.jobs()
    }

    /// Adds a job that [`Manager::claim_new`] has claimed, and the place of its write.
    pub(super) fn add(&mut self, place: usize, job: &Arc<Job>) {
        self.jobs.push((place, Arc::clone(job)));
    }
}

impl Manager {
    /// Returns a handover for each call that waits here for some of these new jobs, which each come with a number.
    pub(super) fn handovers<'a>(&self, new: impl IntoIterator<Item = (usize, &'a Arc<Job>)>) -> Vec<Handover> {
        let reservations = self.shared.dispatch.reserve(new).into_iter();
        let with_turn = reservations.filter_map(|reservation| {
            // A call that was made again takes no more jobs, and leaves by itself.
            let turn = reservation.claimant().turn_at_once()?;
            Some(Handover { reservation, turn, jobs: Vec::new() })
        });
        with_turn.collect()
    }

    /// Returns a job that is not written yet as the handover's call has claimed it; `None` when it cannot be claimed.
    pub(super) fn claim_new(&self, job: &Job, handover: &Handover, now: Timestamp) -> Option<Arc<Job>> {
        if self.cannot_tell_whether_due(job, now) {
            return None;
        }
        let claim = self.claim_of(&handover.reservation.claimant().request);
        let mut claimed = job.claim(&claim, now).ok()?;
        self.announce(job, &mut claimed);
        Some(Arc::new(claimed))
    }

    /// Makes writes as [`Manager::write`] does, and hands over the jobs among them that are created as claimed.
    pub(super) async fn write_and_hand_over(
        &self,
        writes: Vec<JobWrite>,
        handovers: Vec<Handover>,
    ) -> Vec<Result<Versioned, WriteError>> {
        let (manager, count) = (self.clone(), writes.len());
        let written = async move {
            let results = manager.write_in_task(writes).await;
            join_all(handovers.into_iter().map(|handover| manager.hand_over(handover, &results))).await;
            results
        };
        self.in_task(count, written).await
    }

    async fn hand_over(&self, handover: Handover, results: &[Result<Versioned, WriteError>]) {
        let Handover { reservation, turn, jobs } = handover;
        let mut created = Vec::with_capacity(jobs.len());
        for (place, job) in jobs {
            match results.get(place) {
                Some(Ok(versioned)) => created.push(versioned.clone()),
                Some(Err(WriteError::Unknown(_))) | None => {
                    self.shared.tasks.spawn(resolve_unknown_claim(self.clone(), job));
                }
                Some(Err(WriteError::Conflict(_) | WriteError::Refused(_))) => {}
            }
        }
        metrics::counter!("leasehold_claims_with_submission_total").increment(created.len() as u64);
        if !created.is_empty() {
            let claimed = self.deliver(created, reservation.claimant(), turn).await;
            reservation.hand(claimed);
        }
    }
}
