//! The jobs that other managers of the store come first for: which of them are handed out here, and when.

use std::time::Duration;

use super::Dispatch;
use super::lane::{Lane, PATIENCE};
use super::shares::Members;
use crate::clock::Timestamp;
use crate::job::{PartitionSet, QueueName};
use crate::query::{Direction, Sort, SortField};
use crate::store::Versioned;

/// A search of the store for jobs of one queue in partitions that other managers hand out first.
pub(super) struct LookElsewhere {
    /// The time by which the jobs are due.
    pub(super) due_by: Timestamp,
    /// The partitions whose jobs are searched for.
    pub(super) partitions: PartitionSet,
    pub(super) sort: Sort,
    /// The most jobs to find.
    pub(super) limit: usize,
    /// Whether all jobs are let in that are found, also those that other managers are about to hand out.
    lets_in_all: bool,
}

/// The most jobs of others' partitions that one search finds: for claims that wait in vain, and to compare with own
/// ones.
const LEFTOVERS: usize = 500;
const MORE_URGENT: usize = 100;

impl Dispatch {
    /// Begins a search for jobs of `queue` that other managers come first for, and returns `None` when none is due.
    ///
    /// Claims that wait in vain are given what others have left lying. That is searched from its end, so that two
    /// managers that work on the same partition meet as late as possible. Else the most urgent jobs are searched for,
    /// as some may be more urgent than the own ones.
    pub(super) fn begin_look_elsewhere(&self, queue: &QueueName) -> Option<LookElsewhere> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        if !lane.needs_look_elsewhere(now) {
            return None;
        }
        let partitions = lane.elsewhere();
        lane.looked_elsewhere = Some(now);
        lane.looks_elsewhere = lane.looks_elsewhere.wrapping_add(1);
        lane.drop_foreign();
        let lets_in_all = false;
        Some(match lane.first_wanted().is_none() {
            true => {
                let sort = Sort::By(SortField::RunAt, Direction::Descending);
                LookElsewhere { due_by: now.minus(PATIENCE), partitions, sort, limit: LEFTOVERS, lets_in_all }
            }
            false => LookElsewhere { due_by: now, partitions, sort: Sort::Dispatch, limit: MORE_URGENT, lets_in_all },
        })
    }

    /// Begins a search for jobs of `queue` for a claim that does not wait: any due job will do, whoever comes first for
    /// it. Returns `None` when there are no other managers with workers for the queue.
    pub(super) fn begin_reach_out(&self, queue: &QueueName) -> Option<LookElsewhere> {
        let due_by = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let paused = board.paused.contains(queue);
        let partitions = board.lane(queue).shares.foreign;
        let wanted = !paused && !partitions.is_empty();
        wanted.then_some(LookElsewhere {
            due_by,
            partitions,
            sort: Sort::Dispatch,
            limit: MORE_URGENT,
            lets_in_all: true,
        })
    }

    /// Ends a search for jobs of other managers' partitions, and lets in those that may be handed out here, apart from
    /// those that `fresh` rejects as outdated.
    pub(super) fn end_look_elsewhere(
        &self,
        queue: &QueueName,
        look: &LookElsewhere,
        found: Vec<Versioned>,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        let may_go_first = |candidate: &Versioned| look.lets_in_all || lane.lets_in(&candidate.job, now);
        let let_in: Vec<Versioned> = found.into_iter().filter(may_go_first).filter(fresh).collect();
        for candidate in let_in {
            if !board.out.contains(&candidate.job.id) {
                board.lane(queue).add_foreign(candidate, now, self.shared.config.capacity);
            }
        }
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Shares out the queues between these managers.
    pub(crate) fn share(&self, members: Members) {
        let mut board = self.shared.board.lock();
        board.share(members);
        self.shared.sooner.notify_one();
    }

    /// Drops all candidates, which other managers may have handed out meanwhile. They are searched for again.
    pub(crate) fn forget(&self) {
        let mut board = self.shared.board.lock();
        board.lanes.values_mut().for_each(Lane::forget);
        self.shared.sooner.notify_one();
    }

    /// Returns the queues from which claims wait or have come within this time.
    pub(crate) fn claimed_within(&self, within: Duration) -> Vec<QueueName> {
        let now = self.shared.clock.now();
        let board = self.shared.board.lock();
        let claimed = |lane: &Lane| !lane.waiting.is_empty() || (lane.asked && now.since(lane.last_claim_at) <= within);
        board.lanes.iter().filter(|(_, lane)| claimed(lane)).map(|(queue, _)| queue.clone()).collect()
    }
}
