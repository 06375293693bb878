//! Which of the jobs that a limit holds go on: the first that somebody can take.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::{Held, HeldBy, LOW, Rank, Row};
use crate::clock::Timestamp;
use crate::job::{Job, JobId, LimitName, Priority, QueueName};
use crate::manager::dispatch::offers::LaneOffers;
use crate::manager::dispatch::open_queues::OpenQueues;
use crate::manager::dispatch::since_look::SinceLook;
use crate::store::Versioned;

/// A search of the store for the due jobs of a limit in one queue.
pub(in crate::manager) struct LimitSearch {
    pub(in crate::manager) limit: LimitName,
    pub(in crate::manager) queue: QueueName,
}

impl Row {
    /// Returns the rank of the first job that suits a claim.
    fn first_suiting(&mut self, offers: &LaneOffers, now: Timestamp) -> Option<Rank> {
        let generation = offers.generation();
        let mut passed = self.in_vain.take().filter(|(of, _)| *of == generation).map(|(_, rank)| rank);
        let from = passed.clone().map_or(Bound::Unbounded, Bound::Excluded);
        let mut first = None;
        for (rank, held) in self.jobs.range((from, Bound::Unbounded)) {
            if offers.suit(&held.job, now) {
                first = Some(rank.clone());
                break;
            }
            passed = Some(rank.clone());
        }
        self.in_vain = passed.map(|rank| (generation, rank));
        first
    }
}

impl Row {
    /// Returns the jobs that are held, in their order.
    pub(in crate::manager::dispatch) fn held_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(|held| &*held.job)
    }

    /// Returns how many jobs of a higher priority are held.
    pub(in crate::manager::dispatch) fn above(&self, than: Priority) -> usize {
        self.held_jobs().take_while(|job| job.spec.priority > than).count()
    }
}

impl Held {
    /// Returns the limits that have a row for a queue, with it.
    pub(in crate::manager::dispatch) fn limits_in(
        &self,
        queue: &QueueName,
    ) -> impl Iterator<Item = (&LimitName, &Row)> {
        let limits = self.limits.get(queue).into_iter().flatten();
        limits.filter_map(|limit| Some((limit, self.by.get(&HeldBy::Limit(limit.clone(), queue.clone()))?)))
    }

    /// Returns what a row let go since more urgent jobs were last looked for.
    pub(in crate::manager::dispatch) fn since_look(&mut self, by: &HeldBy) -> Option<&mut SinceLook> {
        self.by.get_mut(by).map(|row| &mut row.since_look)
    }

    /// Begins a look for what is more urgent than the jobs of a queue's rows that lack none.
    pub(in crate::manager::dispatch) fn begin_look_in(&mut self, queue: &QueueName, now: Timestamp) {
        for limit in self.limits.get(queue).into_iter().flatten() {
            let row = self.by.get_mut(&HeldBy::Limit(limit.clone(), queue.clone()));
            if let Some(row) = row.filter(|row| !row.has_more) {
                row.since_look.begin(now);
            }
        }
    }

    /// Holds an urgent job of another manager's partition, until the next look.
    pub(in crate::manager::dispatch) fn hold_foreign(&mut self, by: &HeldBy, candidate: Versioned) {
        self.foreign.insert(candidate.job.id.clone(), by.clone());
        self.hold(by, candidate);
    }

    /// Returns whether a job of another manager's partition may be held here.
    pub(in crate::manager::dispatch) fn is_foreign(&self, id: &JobId) -> bool {
        self.foreign.contains_key(id)
    }

    /// Drops the jobs of other managers' partitions that are held in a queue, of one limit if it is named, else of
    /// those that have no look of their own, since a new look shows which of them are still there. Those that went on
    /// stay known as such, and those that are this manager's own by now stay.
    pub(in crate::manager::dispatch) fn drop_foreign(
        &mut self,
        queue: &QueueName,
        limit: Option<&LimitName>,
        (went_on, is_own): (impl Fn(&JobId) -> bool, impl Fn(&Job) -> bool),
    ) {
        let Self { by: rows, foreign, places, .. } = self;
        let is_of_look = |by: &HeldBy| match (by, limit) {
            (HeldBy::Limit(of, in_queue), Some(limit)) => in_queue == queue && limit == of,
            (HeldBy::Limit(_, in_queue), None) => in_queue == queue && !rows.get(by).is_some_and(|row| row.has_more),
            (HeldBy::Line(_), _) => false,
        };
        let dropped = foreign.extract_if(|id, by| is_of_look(by) && !went_on(id));
        let dropped: Vec<(JobId, HeldBy)> = dropped.collect();
        let is_kept = |(id, by): &(JobId, HeldBy)| {
            let rank = places.get(id).filter(|(of, _)| of == by).map(|(_, rank)| rank);
            let job = rank.and_then(|rank| rows.get(by)?.jobs.get(rank));
            job.is_some_and(|held| is_own(&held.job))
        };
        let gone: Vec<JobId> = dropped.into_iter().filter(|entry| !is_kept(entry)).map(|(id, _)| id).collect();
        for id in &gone {
            self.remove(id);
        }
    }

    fn rows_of(&self, limit: &LimitName) -> Vec<HeldBy> {
        let queues = self.queues.get(limit).into_iter().flatten();
        queues.map(|queue| HeldBy::Limit(limit.clone(), queue.clone())).collect()
    }

    /// Returns the limits that hold jobs.
    pub(in crate::manager::dispatch) fn limits(&self) -> impl Iterator<Item = &LimitName> {
        self.queues.keys()
    }

    /// Records that a limit holds the jobs below a priority only; all if it is `None`.
    pub(in crate::manager::dispatch) fn is_full_below(&mut self, limit: &LimitName, below: Option<Priority>) {
        for by in self.rows_of(limit) {
            if let Some(row) = self.by.get_mut(&by) {
                row.below = below;
            }
        }
    }

    /// Takes out the first jobs that a limit holds and somebody can take, which may go on.
    pub(in crate::manager::dispatch) fn let_go(
        &mut self,
        limit: &LimitName,
        count: usize,
        open: &OpenQueues<'_>,
    ) -> Vec<Versioned> {
        let mut next: BTreeSet<(Rank, HeldBy)> = BTreeSet::new();
        for by in self.rows_of(limit) {
            next.extend(self.first_suiting(&by, open).map(|rank| (rank, by)));
        }
        let mut gone = Vec::new();
        while gone.len() < count
            && let Some((rank, by)) = next.pop_first()
        {
            let Some(row) = self.by.get_mut(&by) else { continue };
            let Some(candidate) = row.jobs.remove(&rank) else { continue };
            row.let_go.insert(candidate.job.id.clone());
            row.since_look.note(&candidate.job);
            if !row.is_needed() {
                self.drop_row(&by);
            }
            self.places.remove(&candidate.job.id);
            gone.push(candidate);
            next.extend(self.first_suiting(&by, open).map(|rank| (rank, by)));
        }
        gone
    }

    /// Returns whether jobs that a limit let go have not been claimed since.
    pub(in crate::manager::dispatch) fn has_let_go(&self, limit: &LimitName) -> bool {
        self.count_let_go(limit) > 0
    }

    /// Returns the number of jobs that a limit let go and that have not been claimed since.
    pub(in crate::manager::dispatch) fn count_let_go(&self, limit: &LimitName) -> usize {
        self.rows_of(limit).iter().filter_map(|by| self.by.get(by)).map(|row| row.let_go.len()).sum()
    }

    /// Returns whether somebody can take a job that a limit holds.
    pub(in crate::manager::dispatch) fn has_suiting(&mut self, limit: &LimitName, open: &OpenQueues<'_>) -> bool {
        self.rows_of(limit).iter().any(|by| self.first_suiting(by, open).is_some())
    }

    fn first_suiting(&mut self, by: &HeldBy, open: &OpenQueues<'_>) -> Option<Rank> {
        let HeldBy::Limit(_, queue) = by else { return None };
        let row = self.by.get_mut(by)?;
        row.first_suiting(open.offers(queue)?, open.now)
    }

    /// Returns the job of a limit that is next: of those that somebody can take, if there are any.
    pub(in crate::manager::dispatch) fn next_of(
        &mut self,
        limit: &LimitName,
        open: &OpenQueues<'_>,
    ) -> Option<Arc<Job>> {
        let rows = self.rows_of(limit);
        let suiting = rows.iter().filter_map(|by| Some((self.first_suiting(by, open)?, by))).min();
        let first = || rows.iter().filter_map(|by| Some((self.by.get(by)?.jobs.keys().next()?.clone(), by))).min();
        let (rank, by) = suiting.or_else(first)?;
        Some(Arc::clone(&self.by.get(by)?.jobs.get(&rank)?.job))
    }

    /// Takes apart the rows of a limit that has room for more than what was let go, but for those of queues that are
    /// held back: nobody can take what is left in them, and it is no longer the limit that holds it. Returns the jobs,
    /// and the queues of which the store may have more.
    pub(in crate::manager::dispatch) fn take_apart(
        &mut self,
        limit: &LimitName,
        open: &OpenQueues<'_>,
    ) -> (Vec<Versioned>, Vec<QueueName>) {
        let (mut jobs, mut with_more) = (Vec::new(), Vec::new());
        for by in self.rows_of(limit) {
            let HeldBy::Limit(_, queue) = &by else { continue };
            if open.offers(queue).is_none() && !open.is_deserted(queue) {
                continue;
            }
            let Some(row) = self.drop_row(&by) else { continue };
            if row.has_more {
                with_more.push(queue.clone());
            }
            jobs.extend(row.jobs.into_values());
        }
        (jobs, with_more)
    }

    /// Begins searches for jobs of limits of which hardly any are left here: at most this many, of those that were
    /// searched for longest ago.
    pub(in crate::manager::dispatch) fn begin_searches(
        &mut self,
        most: usize,
        open: &OpenQueues<'_>,
    ) -> Vec<LimitSearch> {
        let run_out = self.by.iter().filter(|(_, row)| row.has_more && row.jobs.len() < LOW);
        let mut due: Vec<(Option<Timestamp>, HeldBy)> =
            run_out.map(|(by, row)| (row.searched_at, by.clone())).collect();
        due.retain(|(_, by)| matches!(by, HeldBy::Limit(_, queue) if open.offers(queue).is_some()));
        due.sort_unstable();
        due.truncate(most);
        let begin = |(_, by): (Option<Timestamp>, HeldBy)| {
            self.by.get_mut(&by)?.searched_at = Some(open.now);
            let HeldBy::Limit(limit, queue) = by else { return None };
            Some(LimitSearch { limit, queue })
        };
        due.into_iter().filter_map(begin).collect()
    }
}
