//! The jobs that other managers of the store come first for: which of them are handed out here, and when.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::Dispatch;
use super::board::{Board, may_suit};
use super::lane::Lane;
use super::shares::Members;
use super::taking_kinds::waited_for;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, Kind, Partition, PartitionSet, QueueName};
use crate::query::{Direction, Sort, SortField};
use crate::store::Versioned;

/// A search of the store for jobs of one queue in partitions that other managers hand out first.
pub(super) struct LookElsewhere {
    /// The time by which the jobs are due.
    pub(super) due_by: Timestamp,
    /// The partitions whose jobs are searched for.
    pub(super) partitions: PartitionSet,
    /// The kinds of the jobs; any when empty.
    pub(super) kinds: Vec<Kind>,
    pub(super) sort: Sort,
    /// The most jobs to find.
    pub(super) limit: usize,
    purpose: Purpose,
}

/// Why jobs are searched for that other managers come first for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Purpose {
    /// Claims wait in vain.
    Help,
    /// Some may be more urgent than the own ones.
    Compare,
    /// A claim does not wait.
    Any,
}

/// The most jobs of others' partitions that one search finds: for claims that wait in vain, and else.
const LEFTOVERS: usize = 500;
const MORE_URGENT: usize = 100;

/// How many jobs others are helped with at a time, as far as whole partitions allow.
const HELPED_WITH: usize = 125;

/// The time between two looks for jobs of others' partitions, and while claims wait in vain.
const ELSEWHERE_EVERY: Duration = Duration::from_secs(1);
const HELP_EVERY: Duration = Duration::from_millis(250);

/// How much longer a job of another manager's partition must have been due than the own ones, to be handed out here.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How long a search's hits in a partition are doubted after a claim for one of its jobs met another manager's: longer
/// than a search shows what was written before.
const DOUBT: Duration = Duration::from_secs(3);

impl LookElsewhere {
    /// Returns a search for the most urgent jobs.
    fn for_urgent(due_by: Timestamp, partitions: PartitionSet, purpose: Purpose) -> Self {
        Self { due_by, partitions, kinds: Vec::new(), sort: Sort::Dispatch, limit: MORE_URGENT, purpose }
    }
}

impl Lane {
    /// Returns whether a job of another's partition that was just written here is handed out here, since a claim waits
    /// in vain or the own jobs are less urgent. Others would find it by a search only.
    pub(super) fn wants_at_once(&self, job: &Job, now: Timestamp) -> bool {
        job.is_due(now)
            && match self.first_wanted() {
                None => !self.waiting.is_empty(),
                Some(own) => job.spec.priority > own.spec.priority,
            }
    }

    /// Returns whether a job of another's partition may be handed out before the own ones: it is more urgent than the
    /// first of them, or has been due for [`PATIENCE`] longer; without own ones that anybody wants, it has been due for
    /// that long.
    pub(super) fn lets_in(&self, job: &Job, now: Timestamp) -> bool {
        let long_due = job.run_at.plus(PATIENCE);
        match self.first_wanted() {
            None => long_due <= now,
            Some(own) if own.spec.priority == job.spec.priority => long_due <= own.run_at,
            Some(own) => job.spec.priority > own.spec.priority,
        }
    }

    /// Returns the first due job of the own ones; `None` while claims wait, since then they have no room for any of the
    /// due ones.
    pub(super) fn first_wanted(&self) -> Option<&Job> {
        let mut own = self.due.values().map(|due| &*due.job).filter(|job| !self.foreign.contains(&job.id));
        own.next().filter(|_| self.waiting.is_empty())
    }

    /// Drops the jobs of others' partitions that were let in.
    pub(super) fn drop_foreign(&mut self) {
        for id in std::mem::take(&mut self.foreign) {
            self.remove(&id);
        }
    }

    /// Drops those of these partitions.
    fn drop_foreign_in(&mut self, partitions: &PartitionSet) {
        let is_there = |id: &JobId| self.held(id).is_some_and(|held| partitions.contains(held.job.partition()));
        let dropped: Vec<JobId> =
            self.foreign.iter().filter(|id| is_there(id) || self.held(id).is_none()).cloned().collect();
        for id in dropped {
            self.foreign.remove(&id);
            self.remove(&id);
        }
    }

    /// Drops all jobs of others' partitions, and makes the lane one that is to be searched for.
    pub(super) fn keep_own(&mut self) {
        self.drop_foreign();
        let own = self.shares.own;
        self.drop_where(|job| !own.contains(job.partition()));
        self.unknown();
    }

    /// Drops the jobs of a partition in which a claim met another manager's: who holds some of them is handing out the
    /// others as well.
    pub(super) fn yield_partition(&mut self, partition: Partition, now: Timestamp) {
        self.met_others_in.retain(|_, at| now.since(*at) < DOUBT);
        self.met_others_in.insert(partition, now);
        self.drop_where(|job| job.partition() == partition);
    }

    /// Returns whether what a search shows of the job is to be read again before it is believed.
    pub(super) fn is_doubtful(&self, job: &Job, now: Timestamp) -> bool {
        !self.shares.has(job) || self.met_others_in.get(&job.partition()).is_some_and(|at| now.since(*at) < DOUBT)
    }

    /// Returns when the store is to be searched for jobs of others' partitions; `None` for at once.
    pub(super) fn next_look_elsewhere(&self) -> Option<Timestamp> {
        let is_in_vain = !self.waiting.is_empty();
        self.looked_elsewhere.map(|at| at.plus(if is_in_vain { HELP_EVERY } else { ELSEWHERE_EVERY }))
    }

    /// Returns whether the store is to be searched for jobs of others' partitions.
    pub(super) fn needs_look_elsewhere(&self, now: Timestamp) -> bool {
        !self.shares.has_all() && self.next_look_elsewhere().is_none_or(|at| at <= now)
    }
}

impl Dispatch {
    /// Begins a search for jobs of `queue` that other managers come first for, and returns `None` when none is due.
    ///
    /// Claims that wait in vain are given what others have left lying. That is searched from its end, so that two
    /// managers that work on the same partition meet as late as possible. Else the most urgent jobs are searched for,
    /// as some may be more urgent than the own ones.
    pub(super) fn begin_look_elsewhere(&self, queue: &QueueName) -> Option<LookElsewhere> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        if !board.lane(queue).needs_look_elsewhere(now) {
            return None;
        }
        let Board { lanes, waiters, .. } = &mut *board;
        let lane = lanes.get_mut(queue)?;
        let kinds = waited_for(lane, waiters);
        let partitions = lane.shares.to_look_at(lane.looks_elsewhere);
        lane.looked_elsewhere = Some(now);
        lane.looks_elsewhere = lane.looks_elsewhere.wrapping_add(1);
        lane.looks_in = Some(partitions);
        Some(match lane.first_wanted().is_none() {
            true => {
                let sort = Sort::By(SortField::RunAt, Direction::Descending);
                let (due_by, limit) = (now.minus(PATIENCE), LEFTOVERS);
                LookElsewhere { due_by, partitions, kinds, sort, limit, purpose: Purpose::Help }
            }
            false => LookElsewhere::for_urgent(now, partitions, Purpose::Compare),
        })
    }

    /// Begins a search for jobs of `queue` for a claim that does not wait: any due job will do, whoever comes first for
    /// it. Returns `None` when there are no other managers with workers for the queue.
    pub(super) fn begin_reach_out(&self, queue: &QueueName, kinds: &[Kind]) -> Option<LookElsewhere> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let paused = board.paused.contains(queue);
        let partitions = board.lane(queue).shares.foreign();
        let wanted = !paused && !partitions.is_empty();
        wanted.then(|| LookElsewhere {
            kinds: kinds.to_vec(),
            ..LookElsewhere::for_urgent(now, partitions, Purpose::Any)
        })
    }

    /// Returns which of the jobs found may be handed out here before the own ones. A search shows them as they were
    /// when it last caught up, so they are to be read again before they are let in: another manager is handing them
    /// out meanwhile.
    ///
    /// To help, jobs are taken from as few partitions as possible: their own manager leaves a partition to whom it
    /// meets there ([`Dispatch::yield_to_others`]), so that it meets few.
    pub(super) fn may_go_first(
        &self,
        queue: &QueueName,
        look: &LookElsewhere,
        mut found: Vec<Versioned>,
    ) -> Vec<Versioned> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let Board { lanes, waiters, .. } = &mut *board;
        let Some(lane) = lanes.get(queue) else { return Vec::new() };
        found.retain(|hit| look.purpose == Purpose::Any || lane.lets_in(&hit.job, now));
        if look.purpose == Purpose::Help {
            found.retain(|hit| may_suit(lane, waiters, &hit.job));
            let mut by_partition: BTreeMap<Partition, usize> = BTreeMap::new();
            found.iter().for_each(|hit| *by_partition.entry(hit.job.partition()).or_default() += 1);
            let mut largest: Vec<(Partition, usize)> = by_partition.into_iter().collect();
            largest.sort_by_key(|(_, count)| Reverse(*count));
            let mut helped_with = 0;
            let chosen = largest.into_iter().take_while(|(_, count)| {
                let is_wanted = helped_with < HELPED_WITH;
                helped_with += count;
                is_wanted
            });
            let chosen: PartitionSet = chosen.map(|(partition, _)| partition).collect();
            found.retain(|hit| chosen.contains(hit.job.partition()));
        }
        found
    }

    /// Lets in these jobs of other managers' partitions, apart from those that `fresh` rejects as outdated.
    pub(super) fn let_in(&self, queue: &QueueName, found: Vec<Versioned>, fresh: impl Fn(&Versioned) -> bool) {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        // Not before: what is next would go meanwhile, however urgent these are.
        let lane = board.lane(queue);
        if let Some(partitions) = lane.looks_in.take() {
            lane.drop_foreign_in(&partitions);
        }
        for candidate in found.into_iter().filter(fresh) {
            if !board.out.contains(&candidate.job.id) && board.held.holder_of(&candidate.job).is_none() {
                board.lane(queue).add_foreign(candidate, now, self.shared.config.capacity);
            }
        }
        self.serve(&mut board, queue, now);
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }

    /// Returns which of these jobs of one queue are to be read again before what a search shows of them is believed.
    pub(super) fn doubtful<'a>(&self, queue: &QueueName, found: &'a [Versioned]) -> Vec<&'a JobId> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        found.iter().filter(|hit| lane.is_doubtful(&hit.job, now)).map(|hit| &hit.job.id).collect()
    }

    /// Drops the candidates of this job's partition, since a claim for the job met another manager's. They are found
    /// again by the next search; in an exclusive store there are no others, and nobody would search.
    pub(crate) fn yield_to_others(&self, job: &Job) {
        if self.shared.config.poll_interval.is_some() {
            let now = self.shared.clock.now();
            self.shared.board.lock().lane(&job.spec.queue).yield_partition(job.partition(), now);
        }
    }

    /// Returns the partitions of a queue whose jobs this manager hands out before all others.
    pub(crate) fn own_partitions(&self, queue: &QueueName) -> PartitionSet {
        self.shared.board.lock().lane(queue).shares.own
    }

    /// Returns how many managers have workers for a queue, this one included.
    pub(crate) fn sharers(&self, queue: &QueueName) -> usize {
        self.shared.board.lock().members.others_with(queue).count() + 1
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
        board.held.forget();
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
