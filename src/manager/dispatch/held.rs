//! Jobs that are held: candidates for which a limit had no slot, or that are not first in the line of their ordering
//! key, wait here, out of the way of the others, until a slot comes free or the one before has ended.
//!
//! While a limit holds jobs, the candidates under it that come later are held behind them, in the order of dispatch. In
//! a line, candidates are held behind any that is known to be before them, in the order of their places. Only a part of
//! the jobs is held; the others stay in the store, and searches leave them out.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use crate::job::{Job, JobId, LimitName, OrderingKey, Priority};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// The most jobs that are held under one limit, or in one line.
pub(in crate::manager) const MOST_HELD: usize = 1_000;

/// The number of jobs held by one below which more are searched for in the store.
const LOW: usize = MOST_HELD / 4;

/// The most jobs that are held together; beyond, each limit and each line keeps only one.
const MOST: usize = 100_000;

/// What holds a job: a limit or a line, of which each has a row of the jobs that it holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum HeldBy {
    /// A limit without a slot.
    Limit(LimitName),
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
            Self::Limit(_) => Rank::Dispatch(Sort::Dispatch.key(job)),
            Self::Line(_) => Rank::Place(job.spec.ordering().map_or(0, |ordered| ordered.seq), job.id.clone()),
        }
    }
}

/// The jobs that are held.
#[derive(Default)]
pub(super) struct Held {
    by: HashMap<HeldBy, Row>,
    /// Where each job is held.
    places: HashMap<JobId, (HeldBy, Rank)>,
}

/// The jobs that are held by one limit or in one line.
#[derive(Default)]
struct Row {
    jobs: BTreeMap<Rank, Versioned>,
    /// Those that a limit let go and that have not been claimed since.
    let_go: HashSet<JobId>,
    /// The job that is known to come first in a line: it was handed out, or found to be before one that is held.
    first: Option<Rank>,
    /// Whether nothing has come first since the row was last looked at.
    is_idle: bool,
    /// Whether the store may have more jobs of the limit or line.
    has_more: bool,
    /// The priority below which jobs are held, where the limit keeps its last places free for urgent ones.
    below: Option<Priority>,
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
        line.filter(is_behind).or_else(|| job.limit_names().map(HeldBy::Limit).find(is_full))
    }

    /// Holds a job. Of those held by the same, the last one goes where they are too many.
    pub(super) fn hold(&mut self, by: &HeldBy, candidate: Versioned) {
        self.remove(&candidate.job.id);
        let most = if self.places.len() >= MOST { 1 } else { MOST_HELD };
        let row = self.by.entry(by.clone()).or_default();
        row.let_go.remove(&candidate.job.id);
        let rank = by.rank(&candidate.job);
        row.first.take_if(|first| *first == rank);
        self.places.insert(candidate.job.id.clone(), (by.clone(), rank.clone()));
        row.jobs.insert(rank, candidate);
        while row.jobs.len() > most {
            let Some((_, last)) = row.jobs.pop_last() else { break };
            self.places.remove(&last.job.id);
            row.has_more = true;
        }
    }

    /// Records that a limit holds the jobs below a priority only; all if it is `None`.
    pub(super) fn is_full_below(&mut self, limit: &HeldBy, below: Option<Priority>) {
        if let Some(row) = self.by.get_mut(limit) {
            row.below = below;
        }
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
        }
        true
    }

    /// Takes out the first jobs that are held by this, which may go on.
    pub(super) fn let_go(&mut self, by: &HeldBy, count: usize) -> Vec<Versioned> {
        let Some(row) = self.by.get_mut(by) else { return Vec::new() };
        let mut gone = Vec::new();
        while gone.len() < count
            && let Some((_, first)) = row.jobs.pop_first()
        {
            self.places.remove(&first.job.id);
            if matches!(by, HeldBy::Limit(_)) {
                row.let_go.insert(first.job.id.clone());
            }
            gone.push(first);
        }
        if !row.is_needed() {
            self.by.remove(by);
        }
        gone
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
        self.let_go(&by, 1).pop()
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
            if let Some(row) = self.by.get_mut(&HeldBy::Limit(name)) {
                row.let_go.remove(&job.id);
            }
        }
    }

    /// Drops what is only known of lines in which nothing is held and nothing has come first since this was last
    /// called.
    pub(super) fn forget_idle_lines(&mut self) {
        self.by.retain(|by, row| {
            let is_idle = std::mem::replace(&mut row.is_idle, true);
            !is_idle || matches!(by, HeldBy::Limit(_)) || !row.jobs.is_empty() || row.has_more
        });
    }

    /// Drops all jobs, which are to be searched for anew.
    pub(super) fn forget(&mut self) {
        self.places.clear();
        // The searches for queues find the jobs of lines again.
        self.by.retain(|by, _| matches!(by, HeldBy::Limit(_)));
        for row in self.by.values_mut() {
            row.jobs.clear();
            row.let_go.clear();
            row.has_more = true;
        }
    }

    /// Returns what the store may have more jobs of, which searches leave out.
    pub(super) fn with_more(&self) -> impl Iterator<Item = &HeldBy> {
        self.by.iter().filter(|(_, row)| row.has_more).map(|(by, _)| by)
    }

    /// Returns of what hardly any jobs are left here while the store may have more.
    pub(super) fn run_out(&self) -> impl Iterator<Item = &HeldBy> {
        let has_run_out = |row: &Row| row.has_more && row.jobs.len() < LOW;
        self.by.iter().filter(move |(_, row)| has_run_out(row)).map(|(by, _)| by)
    }

    /// Returns what holds jobs, each with the first of them.
    pub(super) fn first(&self) -> impl Iterator<Item = (&HeldBy, &Arc<Job>)> {
        self.by.iter().filter_map(|(by, row)| Some((by, &row.jobs.first_key_value()?.1.job)))
    }

    /// Returns the first of the jobs that this holds.
    pub(super) fn first_of(&self, by: &HeldBy) -> Option<&Arc<Job>> {
        self.by.get(by)?.jobs.first_key_value().map(|(_, first)| &first.job)
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

    /// Adds the jobs that a search has found, all that there are unless it was cut off.
    pub(super) fn hold_again(&mut self, by: &HeldBy, found: Vec<Versioned>, is_cut_off: bool) {
        let Some(row) = self.by.get_mut(by) else { return };
        row.has_more = is_cut_off;
        for candidate in found {
            self.hold(by, candidate);
        }
        if self.by.get(by).is_some_and(|row| !row.is_needed()) {
            self.by.remove(by);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Actor, Body, Concurrency, ConcurrencyKey, Conditions, JobSpec, Kind, Ordered, QueueName};
    use crate::store::{Place, Version};

    fn limit(text: &str) -> HeldBy {
        HeldBy::Limit(text.parse().expect("a limit"))
    }

    fn in_line(number: usize, key: &str, seq: u64) -> Versioned {
        let key = OrderingKey::new(key).expect("a key");
        let mut candidate = candidate(number, "db", 0);
        let ordering = Some(Ordered { key, seq, first: seq });
        let conditions = Conditions { ordering, ..Conditions::default() }.stored();
        let job = Arc::make_mut(&mut candidate.job);
        job.spec = Arc::new(JobSpec { conditions, ..JobSpec::clone(&job.spec) });
        candidate
    }

    fn candidate(number: usize, key: &str, priority: i64) -> Versioned {
        let concurrency = Some(Concurrency { key: ConcurrencyKey::new(key).expect("a key"), max: 1 });
        let spec = JobSpec {
            priority: Priority::new(priority).expect("a priority"),
            conditions: Conditions { concurrency, ..Conditions::default() }.stored(),
            ..JobSpec::new(QueueName::system("q"), Kind::system("k"))
        };
        let id = JobId::new(format!("j{number:05}")).expect("an id");
        let at = Timestamp::from_millis(1);
        let job = Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &Actor::system("a"), at);
        let version = Version { place: Place::Main, primary_term: 1, seq_no: 1 };
        Versioned { job: Arc::new(job), version }
    }

    fn all<'a>(held: impl Iterator<Item = &'a HeldBy>) -> Vec<HeldBy> {
        held.cloned().collect()
    }

    fn ids(jobs: &[Versioned]) -> Vec<&str> {
        jobs.iter().map(|held| held.job.id.as_str()).collect()
    }

    #[test]
    fn jobs_are_held_behind_those_of_their_limit_and_go_on_in_the_order_of_dispatch() {
        let mut held = Held::default();
        assert!(held.keep(candidate(1, "db", 0)).is_some(), "nothing is held yet");
        held.hold(&limit("key:db"), candidate(1, "db", 0));
        assert!(held.keep(candidate(2, "db", 0)).is_none() && held.keep(candidate(3, "db", 9)).is_none());
        assert!(held.keep(candidate(4, "other", 0)).is_some());
        let first = held.let_go(&limit("key:db"), 1);
        assert_eq!(ids(&first), ["j00003"]);
        assert!(held.keep(first[0].clone()).is_some(), "it was let go");
        held.is_taken(&first[0].job);
        assert!(held.keep(first[0].clone()).is_none(), "it was taken, and came back without a slot");
        assert!(held.remove(&first[0].job.id) && !held.remove(&first[0].job.id));
        assert_eq!(ids(&held.let_go(&limit("key:db"), 9)), ["j00001", "j00002"]);
        assert!(held.keep(candidate(5, "db", 0)).is_some(), "none is held any more");
    }

    #[test]
    fn an_urgent_job_goes_on_while_a_limit_keeps_its_last_places_free_and_is_held_once_it_is_full() {
        let (mut held, db) = (Held::default(), limit("key:db"));
        held.hold(&db, candidate(1, "db", 0));
        held.is_full_below(&db, Priority::new(50));
        assert!(held.keep(candidate(2, "db", 49)).is_none());
        assert!(held.keep(candidate(3, "db", 50)).is_some());
        held.hold(&db, candidate(4, "db", 50));
        held.is_full_below(&db, None);
        assert!(held.keep(candidate(5, "db", 99)).is_none());
        assert_eq!(ids(&held.let_go(&db, 9)), ["j00005", "j00004", "j00002", "j00001"]);
    }

    #[test]
    fn of_more_jobs_than_are_kept_the_first_stay_and_the_rest_is_searched_for() {
        let mut held = Held::default();
        for number in (0..=MOST_HELD).rev() {
            held.hold(&limit("key:db"), candidate(number, "db", 0));
        }
        assert_eq!((all(held.with_more()), all(held.run_out())), (vec![limit("key:db")], vec![]));
        let gone = held.let_go(&limit("key:db"), MOST_HELD - LOW + 1);
        assert_eq!((gone.len(), ids(&gone)[0]), (MOST_HELD - LOW + 1, "j00000"));
        assert_eq!(all(held.run_out()), [limit("key:db")]);
        held.hold_again(&limit("key:db"), vec![candidate(MOST_HELD, "db", 0)], false);
        assert!(all(held.with_more()).is_empty() && all(held.run_out()).is_empty());
        assert_eq!(held.let_go(&limit("key:db"), MOST_HELD).last().map(|last| last.job.id.as_str()), Some("j01000"));

        held.hold(&limit("key:db"), candidate(1, "db", 0));
        held.forget();
        assert!(held.first().count() == 0 && all(held.run_out()) == [limit("key:db")], "all are to be searched for");
        held.hold_again(&limit("key:db"), Vec::new(), false);
        assert!(held.keep(candidate(1, "db", 0)).is_some());
    }

    #[test]
    fn in_a_line_what_comes_first_passes_and_the_others_are_held_behind_it() {
        let (mut held, key) = (Held::default(), OrderingKey::new("a").expect("a key"));
        let job = |seq: u64| in_line(seq as usize, "a", seq);
        assert!(held.keep(job(2)).is_some(), "nothing is known to come before it");
        held.is_taken(&job(2).job);
        assert!(held.keep(job(4)).is_none() && held.keep(job(3)).is_none() && held.keep(in_line(9, "b", 9)).is_some());
        assert!(held.keep(job(1)).is_some() && held.keep(job(2)).is_some(), "nothing comes before them");
        // It was not first after all.
        held.hold(&HeldBy::Line(key.clone()), job(2));
        held.is_first(&key, 1, &job(1).job.id);
        assert_eq!(held.next_in_line(&key, Some((3, &job(3).job.id))), None, "the first is handed out");
        let mut next = |ended: u64| held.next_in_line(&key, Some((ended, &job(ended).job.id)));
        assert_eq!(next(1), Some(job(2)));
        assert_eq!(next(2), Some(job(3)));
        assert_eq!(held.keep(job(5)), None, "one is still held before it");
        assert_eq!(held.next_in_line(&key, None), Some(job(4)));
        assert_eq!(held.next_in_line(&key, None), Some(job(5)));
        assert!(held.by.is_empty() && held.places.is_empty());
    }

    #[test]
    fn what_was_handed_out_is_forgotten_once_nobody_waits_behind_it() {
        let mut held = Held::default();
        held.is_taken(&in_line(1, "a", 1).job);
        held.forget_idle_lines();
        assert!(held.keep(in_line(2, "a", 2)).is_none());
        held.is_taken(&in_line(3, "b", 3).job);
        for _ in 0..2 {
            held.forget_idle_lines();
        }
        assert!(held.keep(in_line(4, "b", 4)).is_some(), "it is forgotten");
        assert!(held.keep(in_line(5, "a", 5)).is_none(), "one is held");
    }
}
