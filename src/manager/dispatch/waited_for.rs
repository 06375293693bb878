//! What claims wait for, and what is kept from them, for those who look whether the dispatch does its part.

use super::Dispatch;
use super::board::Waiter;
use crate::clock::Timestamp;
use crate::job::{Job, Kind, QueueName, Requirement};

/// The most waiting claims of a queue that are asked.
const ASKED: usize = 64;

impl Dispatch {
    /// Returns whether a claim that waits for the job's queue satisfies this, of those that are asked.
    fn is_any_waiting(&self, queue: &QueueName, mut asked: impl FnMut(&Waiter<super::Handed>) -> bool) -> bool {
        let board = self.shared.board.lock();
        let Some(lane) = board.lanes.get(queue) else { return false };
        lane.waiting.iter().take(ASKED).filter_map(|id| board.waiters.get(id)).any(&mut asked)
    }

    /// Returns the kinds that claims wait for in a queue, none for any kind; `None` where no claim waits.
    pub(in crate::manager) fn kinds_waited_for(&self, queue: &QueueName) -> Option<Vec<Kind>> {
        let (mut waits, mut kinds) = (false, Vec::new());
        let takes_all = self.is_any_waiting(queue, |waiter| {
            waits = true;
            kinds.extend_from_slice(&waiter.claimant.request.kinds);
            waiter.claimant.request.kinds.is_empty()
        });
        kinds.sort_unstable();
        kinds.dedup();
        waits.then(|| if takes_all { Vec::new() } else { kinds })
    }

    /// Returns whether a claim waits that could be given the job.
    pub(in crate::manager) fn suits_a_waiting_claim(&self, job: &Job) -> bool {
        let suits = |waiter: &Waiter<_>| waiter.wish().suits(job, &waiter.claimant.request.resources);
        self.is_any_waiting(&job.spec.queue, suits)
    }

    /// Returns whether no claim that waits for the job's queue meets this requirement.
    pub(in crate::manager) fn is_met_by_none(&self, job: &Job, requirement: &Requirement) -> bool {
        !self.is_any_waiting(&job.spec.queue, |waiter| requirement.is_met_by(waiter.wish().labels))
    }

    /// Returns how many jobs limits hold here that were due at this time or before.
    pub(in crate::manager) fn held_by_limits(&self, due_by: Timestamp) -> usize {
        self.shared.board.lock().held.by_limits().filter(|job| job.run_at <= due_by).count()
    }
}
