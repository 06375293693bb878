//! Jobs that are held: candidates for which a limit had no slot, or that are not first in the line of their ordering
//! key, wait here, out of the way of the others, until a slot comes free or the one before has ended.
//!
//! While a limit holds jobs, the candidates under it that come later are held behind them, in the order of dispatch. In
//! a line, candidates are held behind any that is known to be before them, in the order of their places. Only a part of
//! the jobs is held; the others stay in the store, and searches leave them out.

mod limits;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::since_look::SinceLook;
use crate::clock::Timestamp;
use crate::job::{Job, JobId, LimitName, OrderingKey, Priority, QueueName};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

pub(in crate::manager) use limits::LimitSearch;

/// The most jobs of one queue that are held under one limit, and the most that are held in one line.
pub(in crate::manager) const MOST_HELD: usize = 1_000;

/// The number of jobs held in one row below which more are searched for in the store.
const LOW: usize = MOST_HELD / 4;

/// The most jobs that are held together; beyond, each row keeps only one.
const MOST: usize = 100_000;

/// What holds a job: a limit or a line. A line has one row of the jobs that it holds. A limit has one for each queue,
/// since those of a queue from which nobody takes are not to hold up the others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum HeldBy {
    /// A limit without a slot, for the jobs in this queue.
    Limit(LimitName, QueueName),
    /// The line of an ordering key, in which others come first.
    Line(OrderingKey),
}

/// The rank of a job among those that are held by the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    /// Under a limit: the place in the order of dispatch.
    Dispatch(SortKey),
    /// In a line: the place there.
    Place(u64, JobId),
}

impl HeldBy {
    fn rank(&self, job: &Job) -> Rank {
        match self {
            Self::Limit(..) => Rank::Dispatch(Sort::Dispatch.key(job)),
            Self::Line(_) => Rank::Place(job.spec.ordering().map_or(0, |ordered| ordered.seq), job.id.clone()),
        }
    }
}

/// The jobs that are held.
#[derive(Default)]
pub(super) struct Held {
    by: HashMap<HeldBy, Row>,
    /// The queues for which each limit has a row.
    queues: HashMap<LimitName, BTreeSet<QueueName>>,
    /// The limits that have a row for each queue.
    limits: HashMap<QueueName, BTreeSet<LimitName>>,
    /// Where each job is held.
    places: HashMap<JobId, (HeldBy, Rank)>,
    /// The jobs of other managers' partitions that are held too, or were, since the last look that found them.
    foreign: HashMap<JobId, HeldBy>,
}

/// The jobs that are held by one limit in one queue, or in one line.
#[derive(Default)]
pub(super) struct Row {
    jobs: BTreeMap<Rank, Versioned>,
    /// Those that a limit let go and that have not been claimed since.
    let_go: HashSet<JobId>,
    /// The job that is known to come first in a line: it was handed out, or found to be before one that is held.
    first: Option<Rank>,
    /// Whether nothing has come first since the row was last looked at.
    is_idle: bool,
    /// Whether the store may have more jobs of the limit or line.
    pub(super) has_more: bool,
    /// What a limit let go since more urgent jobs were last looked for.
    pub(super) since_look: SinceLook,
    /// The priority below which jobs are held, where the limit keeps its last places free for urgent ones.
    below: Option<Priority>,
    /// The rank up to which no job suits the offers of claims, and the generation of these.
    in_vain: Option<(u64, Rank)>,
    /// When the store was last searched for more jobs of a limit.
    searched_at: Option<Timestamp>,
}

impl Row {
    fn is_needed(&self) -> bool {
        !self.jobs.is_empty() || self.has_more || self.first.is_some()
    }

    /// Returns whether such a job is held under a limit.
    fn has_no_slot_for(&self, job: &Job) -> bool {
        !self.let_go.contains(&job.id) && self.below.is_none_or(|below| job.spec.priority < below)
    }

    /// Returns whether a job is held that has this rank in a line: another one is known to be before it.
    fn holds_back(&self, rank: &Rank) -> bool {
        self.first.as_ref().is_some_and(|first| first < rank)
            || self.jobs.first_key_value().is_some_and(|(first, _)| first < rank)
    }
}

impl Held {
    /// Returns what holds such a job; `None` for one that may go on.
    pub(super) fn holder_of(&self, job: &Job) -> Option<HeldBy> {
        if self.by.is_empty() {
            return None;
        }
        let line = job.spec.ordering_key().map(|key| HeldBy::Line(key.clone()));
        let is_behind = |line: &HeldBy| self.by.get(line).is_some_and(|row| row.holds_back(&line.rank(job)));
        let is_full = |limit: &HeldBy| self.by.get(limit).is_some_and(|row| row.has_no_slot_for(job));
        let of_queue = |limit| HeldBy::Limit(limit, job.spec.queue.clone());
        line.filter(is_behind).or_else(|| job.limit_names().map(of_queue).find(is_full))
    }

    /// Holds a job. Of those held by the same, the last one goes where they are too many.
    pub(super) fn hold(&mut self, by: &HeldBy, candidate: Versioned) {
        self.remove(&candidate.job.id);
        let most = if self.places.len() >= MOST { 1 } else { MOST_HELD };
        if let HeldBy::Limit(limit, queue) = by
            && !self.by.contains_key(by)
        {
            self.queues.entry(limit.clone()).or_default().insert(queue.clone());
            self.limits.entry(queue.clone()).or_default().insert(limit.clone());
        }
        let rank = by.rank(&candidate.job);
        self.places.insert(candidate.job.id.clone(), (by.clone(), rank.clone()));
        let row = self.by.entry(by.clone()).or_default();
        row.let_go.remove(&candidate.job.id);
        row.first.take_if(|first| *first == rank);
        row.in_vain.take_if(|(_, passed)| rank <= *passed);
        row.jobs.insert(rank, candidate);
        while row.jobs.len() > most {
            let Some((_, last)) = row.jobs.pop_last() else { break };
            self.places.remove(&last.job.id);
            row.has_more = true;
        }
    }

    /// Drops a row with its jobs, and returns it.
    fn drop_row(&mut self, by: &HeldBy) -> Option<Row> {
        let row = self.by.remove(by)?;
        for held in row.jobs.values() {
            self.places.remove(&held.job.id);
        }
        if let HeldBy::Limit(limit, queue) = by
            && let Some(queues) = self.queues.get_mut(limit)
        {
            queues.remove(queue);
            if queues.is_empty() {
                self.queues.remove(limit);
            }
            if let Some(limits) = self.limits.get_mut(queue) {
                limits.remove(limit);
                if limits.is_empty() {
                    self.limits.remove(queue);
                }
            }
        }
        Some(row)
    }

    /// Holds a candidate that is to be held, or returns it.
    pub(super) fn keep(&mut self, candidate: Versioned) -> Option<Versioned> {
        let Some(by) = self.holder_of(&candidate.job) else { return Some(candidate) };
        self.hold(&by, candidate);
        None
    }

    /// Drops a job that can be claimed no more.
    pub(super) fn remove(&mut self, id: &JobId) -> bool {
        let Some((by, rank)) = self.places.remove(id) else { return false };
        if let Some(row) = self.by.get_mut(&by) {
            row.jobs.remove(&rank);
            if !row.is_needed() {
                self.drop_row(&by);
            }
        }
        true
    }

    /// Takes out the first job of a line, which may go on since this one has ended, unless another one is known to
    /// come before the ended one. Without an ended one, it may be first for another reason.
    pub(super) fn next_in_line(&mut self, key: &OrderingKey, ended: Option<(u64, &JobId)>) -> Option<Versioned> {
        let by = HeldBy::Line(key.clone());
        let row = self.by.get_mut(&by)?;
        match ended.map(|(seq, id)| Rank::Place(seq, id.clone())) {
            Some(ended) if row.first.as_ref().is_some_and(|first| *first < ended) => return None,
            Some(ended) => drop(row.first.take_if(|first| *first == ended)),
            None => row.first = None,
        }
        let next = row.jobs.pop_first().map(|(_, next)| next);
        if !row.is_needed() {
            self.drop_row(&by);
        }
        if let Some(next) = &next {
            self.places.remove(&next.job.id);
        }
        next
    }

    /// Takes note of the job that comes first in a line, by its place and its id.
    pub(super) fn is_first(&mut self, key: &OrderingKey, seq: u64, id: &JobId) {
        self.comes_first(HeldBy::Line(key.clone()), Rank::Place(seq, id.clone()));
    }

    fn comes_first(&mut self, by: HeldBy, rank: Rank) {
        let row = self.by.entry(by).or_default();
        (row.first, row.is_idle) = (Some(rank), false);
    }

    /// Takes note that a claim has the job now.
    pub(super) fn is_taken(&mut self, job: &Job) {
        if let Some(key) = job.spec.ordering_key() {
            let by = HeldBy::Line(key.clone());
            let rank = by.rank(job);
            self.comes_first(by, rank);
        }
        if self.by.is_empty() {
            return;
        }
        for name in job.limit_names() {
            if let Some(row) = self.by.get_mut(&HeldBy::Limit(name, job.spec.queue.clone())) {
                row.let_go.remove(&job.id);
            }
        }
    }

    /// Drops what is only known of lines in which nothing is held and nothing has come first since this was last
    /// called.
    pub(super) fn forget_idle_lines(&mut self) {
        self.by.retain(|by, row| {
            let is_idle = std::mem::replace(&mut row.is_idle, true);
            !is_idle || matches!(by, HeldBy::Limit(..)) || !row.jobs.is_empty() || row.has_more
        });
    }

    /// Drops all jobs, which are to be searched for again.
    pub(super) fn forget(&mut self) {
        self.places.clear();
        self.foreign.clear();
        // The searches for queues find the jobs of lines again.
        self.by.retain(|by, _| matches!(by, HeldBy::Limit(..)));
        for row in self.by.values_mut() {
            *row = Row { has_more: true, below: row.below, ..Row::default() };
        }
    }

    /// Returns what the store may have more jobs of, which searches leave out.
    pub(super) fn with_more(&self) -> impl Iterator<Item = &HeldBy> {
        self.by.iter().filter(|(_, row)| row.has_more).map(|(by, _)| by)
    }

    /// Returns the jobs that limits hold here.
    pub(super) fn by_limits(&self) -> impl Iterator<Item = &Job> {
        let rows = self.by.iter().filter(|(by, _)| matches!(by, HeldBy::Limit(..)));
        rows.flat_map(|(_, row)| row.jobs.values().map(|held| &*held.job))
    }

    /// Returns the queues of whose jobs searches leave some out, since the store may have more of them than are held.
    pub(super) fn queues_with_more(&self) -> HashSet<QueueName> {
        let with_more = self.by.iter().filter(|(_, row)| row.has_more);
        let queue = |(by, row): (&HeldBy, &Row)| match by {
            HeldBy::Limit(_, queue) => Some(queue.clone()),
            HeldBy::Line(_) => Some(row.jobs.first_key_value()?.1.job.spec.queue.clone()),
        };
        with_more.filter_map(queue).collect()
    }

    /// Returns the lines of which hardly any jobs are left here while the store may have more.
    pub(super) fn lines_run_out(&self) -> impl Iterator<Item = &OrderingKey> {
        self.by.iter().filter_map(|(by, row)| match by {
            HeldBy::Line(key) if row.has_more && row.jobs.len() < LOW => Some(key),
            _ => None,
        })
    }

    /// Returns the lines in which jobs are held, here or in the store, each with the place of the first that is held
    /// here.
    pub(super) fn lines(&self) -> impl Iterator<Item = (&OrderingKey, Option<u64>)> {
        self.by.iter().filter_map(|(by, row)| {
            let HeldBy::Line(key) = by else { return None };
            let first = row.jobs.first_key_value().and_then(|(_, first)| Some(first.job.spec.ordering()?.seq));
            (first.is_some() || row.has_more).then_some((key, first))
        })
    }

    /// Returns how many rows, limits and jobs are known.
    #[cfg(test)]
    pub(super) fn kept_by_key(&self) -> [usize; 3] {
        [self.by.len(), self.queues.len(), self.places.len()]
    }

    /// Adds the jobs that a search has found, all that there are unless it was cut off.
    pub(super) fn hold_again(&mut self, by: &HeldBy, found: Vec<Versioned>, is_cut_off: bool) {
        let Some(row) = self.by.get_mut(by) else { return };
        row.has_more = is_cut_off;
        for candidate in found {
            self.hold(by, candidate);
        }
        if self.by.get(by).is_some_and(|row| !row.is_needed()) {
            self.drop_row(by);
        }
    }
}

#[cfg(test)]
mod tests;
