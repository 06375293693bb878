//! Waiting claims are reserved for new jobs before these are written: such a job is created as already claimed, one
//! write instead of two.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::board::{Board, MAX_CLAIM_BYTES, Waiter};
use super::lane::{Lane, WaiterId};
use super::room::{Resources, STEPS_PER_SERVING, use_up};
use super::{Dispatch, Handed};
use crate::clock::Timestamp;
use crate::job::{Job, QueueName};
use crate::manager::claimant::{Claimant, Claimed};
use crate::manager::request::ManagerError;
use crate::query::Sort;

/// A waiting claim for which jobs are being written. It waits on when this is dropped.
pub(in crate::manager) struct Reservation {
    id: WaiterId,
    waiter: Option<Waiter<Handed>>,
    claimant: Claimant,
    dispatch: Dispatch,
    jobs: Vec<usize>,
}

impl Reservation {
    pub(in crate::manager) fn claimant(&self) -> &Claimant {
        &self.claimant
    }

    /// Returns which of the new jobs the claim is to get, by their numbers.
    pub(in crate::manager) fn jobs(&self) -> &[usize] {
        &self.jobs
    }

    /// Gives the claim its jobs, or why they cannot be given. If its call went away, they are dropped.
    pub(in crate::manager) fn hand(mut self, claimed: Result<Claimed, ManagerError>) {
        if let Some(waiter) = self.waiter.take() {
            let mut board = self.dispatch.shared.board.lock();
            board.reserved.remove(&self.id);
            // Under the lock, so that a claim which is not reserved any more has what it was given.
            let unwanted = waiter.hand.send(Handed::Claimed(claimed));
            drop(board);
            // Jobs for a call that is gone are given back by their drop.
            drop(unwanted);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let Some(waiter) = self.waiter.take() else { return };
        let dispatch = &self.dispatch;
        let now = dispatch.shared.clock.now();
        let mut board = dispatch.shared.board.lock();
        if board.reserved.remove(&self.id) {
            board.wait(self.id, waiter);
            let queues = &self.claimant.request.queues;
            queues.iter().for_each(|queue| dispatch.serve(&mut board, queue, now));
            dispatch.wake_if_sooner(&mut board, queues, now);
        }
    }
}

/// A claim for which jobs are being chosen.
struct Chosen {
    room: Resources,
    bytes: usize,
    jobs: Vec<usize>,
}

impl Dispatch {
    /// Reserves claims that wait here for these new jobs, each with a number of its own: the most urgent job is for the
    /// claim that has waited longest of those that offer what it asks for. The claims wait no more until their
    /// reservation ends.
    pub(in crate::manager) fn reserve<'a>(
        &self,
        new: impl IntoIterator<Item = (usize, &'a Arc<Job>)>,
    ) -> Vec<Reservation> {
        let mut board = self.shared.board.lock();
        if board.waiters.is_empty() {
            return Vec::new();
        }
        let now = self.shared.clock.now();
        let mut waited_for: Vec<_> = new.into_iter().filter(|(_, job)| board.is_waited_for(job, now)).collect();
        if board.is_for_others_to_say(&waited_for) {
            return Vec::new();
        }
        waited_for.sort_by_cached_key(|(_, job)| Sort::Dispatch.key(job));
        let mut chosen: BTreeMap<WaiterId, Chosen> = BTreeMap::new();
        let mut steps = STEPS_PER_SERVING;
        for (number, job) in waited_for {
            board.choose((number, job), now, &mut chosen, &mut steps);
        }
        let reservations = chosen.into_iter().filter_map(|(id, chosen)| {
            let waiter = board.take_waiter(id)?;
            board.reserved.insert(id);
            let claimant = waiter.claimant.clone();
            Some(Reservation { id, waiter: Some(waiter), claimant, dispatch: self.clone(), jobs: chosen.jobs })
        });
        reservations.collect()
    }
}

impl Board<Handed> {
    /// Returns whether a new job is one that claims wait for now, and that overtakes none that the store may have.
    fn is_waited_for(&self, job: &Job, now: Timestamp) -> bool {
        let queue = &job.spec.queue;
        let is_next = |lane: &Lane| {
            !lane.waiting.is_empty() && lane.first_search.is_over() && lane.admits(job, &Sort::Dispatch.key(job))
        };
        job.run_at <= now && !self.paused.contains(queue) && self.lanes.get(queue).is_some_and(is_next)
    }

    /// Returns whether it is not the order of dispatch which says what is next among these new jobs: shorter jobs go
    /// first in one of their queues, or they are of several queues, and claims wait for any of them that go by the
    /// queues. Such jobs are created first, so that each claim is given what is next.
    fn is_for_others_to_say(&self, waited_for: &[(usize, &Arc<Job>)]) -> bool {
        if waited_for.len() < 2 {
            return false;
        }
        let mut queues: Vec<&QueueName> = waited_for.iter().map(|(_, job)| &job.spec.queue).collect();
        // Most submissions are for one queue.
        queues.dedup();
        queues.sort_unstable();
        queues.dedup();
        let goes_by_length = |queue: &&QueueName| self.rules.get(*queue).is_some_and(|rule| rule.order.shortest_first);
        if queues.iter().any(goes_by_length) {
            return true;
        }
        if queues.len() < 2 {
            return false;
        }
        let waiting = queues.into_iter().filter_map(|queue| self.lanes.get(queue)).flat_map(|lane| &lane.waiting);
        let mut waiting = waiting.filter_map(|id| self.waiters.get(id));
        waiting.any(|waiter| waiter.claimant.request.order.is_by_queue())
    }

    /// Chooses a claim for a job.
    fn choose(
        &mut self,
        (number, job): (usize, &Job),
        now: Timestamp,
        chosen: &mut BTreeMap<WaiterId, Chosen>,
        steps: &mut usize,
    ) {
        let Some(lane) = self.lanes.get(&job.spec.queue) else { return };
        let mut found = None;
        for id in &lane.waiting {
            let Some(waiter) = self.waiters.get(id) else { continue };
            let offered = &waiter.claimant.request.resources;
            let room = chosen.get(id).map_or(offered, |chosen| &chosen.room);
            let bytes = chosen.get(id).map_or(0, |chosen| chosen.bytes) + job.payload.bytes();
            if waiter.wish().suits(job, room) && (bytes <= MAX_CLAIM_BYTES || !chosen.contains_key(id)) {
                found = Some((*id, waiter));
                break;
            }
            if *steps == 0 {
                return;
            }
            *steps -= 1;
        }
        let Some((id, waiter)) = found else { return };
        let request = Arc::clone(&waiter.claimant.request);
        if let Some(turns) = self.lanes.get_mut(&job.spec.queue).and_then(|lane| lane.turns.as_mut()) {
            turns.hand_out(job);
        }
        if let Some(weights) = request.order.weights() {
            self.queue_turns.hand_out(weights, &job.spec.queue, now);
        }
        let first = || Chosen { room: request.resources.clone(), bytes: 0, jobs: Vec::new() };
        let chosen = chosen.entry(id).or_insert_with(first);
        use_up(&mut chosen.room, job);
        chosen.bytes += job.payload.bytes();
        chosen.jobs.push(number);
        if chosen.jobs.len() >= request.max_jobs {
            // It has all that it wants, so the next job is for the next claim.
            self.leave_lanes(id, &request.queues);
        }
    }
}
