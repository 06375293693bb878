//! The candidates of one queue, and the claims that wait for it.
//!
//! Where managers share a store, a lane holds the due jobs of this manager's own partitions, and of the others' only
//! those that were let in ([`Lane::lets_in`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use foldhash::quality::RandomState;

use super::first_search::FirstSearch;
use super::kinds::LaneKinds;
use super::left_out::LeftOut;
use super::offers::LaneOffers;
use super::quiet::Shown;
use super::shares::Shares;
use super::since_look::SinceLook;
use super::turns::{Rule, Turns};
use crate::clock::{Clock, Timestamp};
use crate::job::{Job, JobId, Kind, Partition, PartitionSet};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// How far ahead of their due time candidates are kept, so that they can be handed out on time without a search.
pub(super) const HORIZON: Duration = Duration::from_secs(120);

/// How long before the end of its horizon a lane is filled with later candidates, if it has room.
const HORIZON_MARGIN: Duration = Duration::from_secs(60);

/// The smallest difference between two times.
pub(super) const MOMENT: Duration = Duration::from_millis(1);

/// How long a search that was cut off is continued before it starts again with the most urgent jobs. A search engine
/// still returns jobs that were claimed since, so continuing finds more, but misses jobs that others added.
pub(super) const RESTART: Duration = Duration::from_secs(2);

/// How often the owners of a fair queue's jobs are counted, in a store that other processes write to as well.
const OWNERS_EVERY: Duration = Duration::from_secs(1);

/// The most jobs that a search finds when it starts again before those ahead of it have come to their end: it is only
/// to find those that others added.
pub(super) const RESTART_PAGE: usize = 200;

/// How long a lane is kept after the last claim that named its queue.
pub(super) const LANE_IDLE: Duration = Duration::from_secs(300);

/// The divisor of a lane's capacity that gives its low-water mark: an incomplete lane with fewer due jobs is filled
/// again.
const LOW_WATER_PART: usize = 4;

/// The settings of a dispatch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DispatchConfig {
    /// The most due candidates, and the most later candidates, that a lane keeps.
    pub(crate) capacity: usize,
    /// The most candidates that one search returns.
    pub(crate) page: usize,
    /// The time between two searches for a lane while claims wait; `None` in an exclusive store, where a lane cannot
    /// become outdated.
    pub(crate) poll_interval: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WaiterId(pub(super) u64);

/// The candidates and waiting claims of one queue.
#[derive(Default)]
pub(super) struct Lane {
    pub(super) due: BTreeMap<SortKey, Versioned>,
    pub(super) later: BTreeMap<(Timestamp, JobId), Versioned>,
    pub(super) positions: HashMap<JobId, Position, RandomState>,
    pub(super) waiting: BTreeSet<WaiterId>,
    /// What claims have offered lately.
    pub(super) offers: LaneOffers,
    /// What is left to the store, since it suits hardly any claims.
    pub(super) left_out: LeftOut,
    /// The due candidates by owner and place, if they do not go in the order of dispatch.
    pub(super) turns: Option<Box<Turns>>,
    /// The candidates by kind, if claims need that.
    pub(super) kinds: Option<Box<LaneKinds>>,
    pub(super) first_search: FirstSearch,
    /// When the store was last searched for the most urgent jobs of this queue.
    pub(super) looked_up_at: Option<Timestamp>,
    /// The key after which that search was cut off.
    pub(super) resume: Option<SortKey>,
    /// The key that searches had come to before that one, until it has come as far or is known to find nothing new.
    pub(super) reached: Option<SortKey>,
    /// Whether the store may hold due jobs that the lane does not.
    pub(super) incomplete: bool,
    /// The key after which due jobs may be missing. New jobs after it are left to the store as well: kept here, they
    /// would overtake the missing ones.
    pub(super) frontier: Option<SortKey>,
    /// The partitions that this manager hands out first.
    pub(super) shares: Shares,
    /// The jobs among the due ones that are of others' partitions, as the latest look for such jobs found them.
    pub(super) foreign: HashSet<JobId>,
    /// The partitions in which such jobs are searched for now: those that are known go when others are found.
    pub(super) looks_in: Option<PartitionSet>,
    /// When the store was last searched for jobs of others' partitions, and how often.
    pub(super) looked_elsewhere: Option<Timestamp>,
    pub(super) looks_elsewhere: u32,
    /// When more urgent jobs of the queue were last looked for, and what was handed out since.
    pub(super) urgent_looked_at: Option<Timestamp>,
    pub(super) since_look: SinceLook,
    /// What overviews have shown of the queue.
    pub(super) shown: Shown,
    /// The partitions in which a claim met another manager's, and when.
    pub(super) met_others_in: BTreeMap<Partition, Timestamp>,
    /// The time from which on jobs that become due may be missing.
    pub(super) known_until: Timestamp,
    /// The clock that says how much awake time a back-off has had.
    pub(super) clock: Option<Arc<dyn Clock>>,
    /// Whether jobs were left to the store of which nobody knew whether they are due.
    pub(super) leaves_out: bool,
    /// When the candidates that are due later were last looked through for those that have become due.
    pub(super) promoted_at: Timestamp,
    /// When a claim last named the queue, or else when the lane was created.
    pub(super) last_claim_at: Timestamp,
    /// Whether a claim has ever named the queue.
    pub(super) asked: bool,
    /// The lock that is held while the store is searched for this queue, so that one search serves all its callers.
    pub(super) lookup: Arc<tokio::sync::Mutex<()>>,
}

pub(super) enum Position {
    Due(SortKey),
    Later(Timestamp),
    /// Due, and behind the end of the lane.
    Beyond(Kind, SortKey),
}

impl Lane {
    pub(super) fn add(&mut self, candidate: Versioned, now: Timestamp, capacity: usize) {
        let id = candidate.job.id.clone();
        // One beyond the end of the lane may belong to the others by now.
        let is_beyond = matches!(self.positions.get(&id), Some(Position::Beyond(..)));
        if !is_beyond && self.held(&id).is_some_and(|held| held.version >= candidate.version) {
            return;
        }
        self.remove(&id);
        if !candidate.job.is_due(now) {
            return self.keep_later(candidate, now, capacity);
        }
        if self.left_out.has(&candidate.job) || self.puts_off(&candidate, now, capacity) {
            return;
        }
        self.insert_due(candidate);
        if self.due.len() <= capacity {
            return;
        }
        if let Some(turns) = self.turns.as_mut().filter(|turns| turns.is_fair()) {
            // From now on each owner has an end of its own.
            let is_whole = self.frontier.take().is_none();
            if let Some(last) = turns.overflow(is_whole, capacity, now) {
                self.remove(last.id());
                self.incomplete = true;
            }
        } else if let Some((key, dropped)) = self.due.pop_last() {
            self.leave_due(&dropped.job, &key, false);
            self.keep_beyond(dropped, key, false);
            self.ends_at(self.due.last_key_value().map(|(key, _)| key.clone()));
        }
    }

    /// Returns whether no due jobs that come before this one are missing, of its owner if the owners take turns.
    pub(super) fn admits(&self, job: &Job, key: &SortKey) -> bool {
        let of_owner = self.turns.as_ref().and_then(|turns| turns.admits(&job.spec.owner, key));
        of_owner.unwrap_or_else(|| self.frontier.as_ref().is_none_or(|frontier| key <= frontier))
    }

    /// Lets this rule say who is next, or none. Where that changes more than weights, the store is searched anew.
    pub(super) fn set_rule(&mut self, rule: Option<&Rule>) {
        match (&mut self.turns, rule) {
            (None, None) => {}
            (Some(turns), Some(rule)) if turns.order() == rule.order => turns.set_weights(Arc::clone(&rule.weights)),
            (turns, rule) => {
                *turns = Turns::by(rule);
                self.forget();
                if let (Some(turns), true) = (&mut self.turns, self.kinds.is_some()) {
                    turns.index_kinds(&self.due);
                }
            }
        }
    }

    /// Returns the key of the next due candidate.
    pub(super) fn next(&self) -> Option<&SortKey> {
        match &self.turns {
            Some(turns) => turns.next(),
            None => self.due.first_key_value().map(|(key, _)| key),
        }
    }

    /// Returns the due candidate with this key, of one of these kinds if they are named; without a key the next one.
    pub(super) fn at_or_next(&self, key: Option<&SortKey>, kinds: &[Kind]) -> Option<&Versioned> {
        match (key, &self.turns) {
            (Some(key), _) => self.candidate(key, kinds),
            (None, Some(turns)) => self.due.get(turns.next()?),
            (None, None) => self.due.first_key_value().map(|(_, first)| first),
        }
    }

    /// Takes out the due candidate with this key, or the next one. If it `is_handed_out`, its owner has had a turn.
    pub(super) fn take_out(&mut self, key: Option<&SortKey>, is_handed_out: bool) -> Option<Versioned> {
        let (key, taken) = match (&self.turns, key) {
            (_, Some(key)) => match self.due.remove(key) {
                Some(taken) => (key.clone(), taken),
                None => return self.take_beyond(key, is_handed_out),
            },
            (Some(turns), None) => {
                let key = turns.next()?.clone();
                let taken = self.due.remove(&key)?;
                (key, taken)
            }
            (None, None) => self.due.pop_first()?,
        };
        self.leave_due(&taken.job, &key, is_handed_out);
        Some(taken)
    }

    /// Takes a job that was due off what is kept beside the due ones.
    fn leave_due(&mut self, job: &Job, key: &SortKey, is_handed_out: bool) {
        self.positions.remove(&job.id);
        if is_handed_out {
            self.since_look.note(job);
        }
        if let Some(turns) = &mut self.turns {
            turns.remove(job, key, is_handed_out);
        }
        if let Some(kinds) = &mut self.kinds {
            kinds.remove_due(&job.spec.kind, key);
        }
    }

    /// Adds a job of another's partition, unless due jobs that come before it may be missing.
    pub(super) fn add_foreign(&mut self, candidate: Versioned, now: Timestamp, capacity: usize) {
        let key = Sort::Dispatch.key(&candidate.job);
        if self.admits(&candidate.job, &key) {
            self.foreign.insert(candidate.job.id.clone());
            self.add(candidate, now, capacity);
        } else if self.kinds.is_some() && candidate.job.is_due(now) {
            self.remove(&candidate.job.id);
            self.foreign.insert(candidate.job.id.clone());
            self.keep_beyond(candidate, key, true);
        }
    }

    pub(super) fn drop_where(&mut self, is_lost: impl Fn(&Job) -> bool) {
        let beyond = self.kinds.iter().flat_map(|kinds| kinds.beyond());
        let candidates = self.due.values().chain(self.later.values()).chain(beyond).map(|candidate| &candidate.job);
        let lost: Vec<JobId> = candidates.filter(|job| is_lost(job)).map(|job| job.id.clone()).collect();
        lost.iter().for_each(|id| self.remove(id));
        self.take_all_back();
    }

    /// Drops all candidates, so that the store is to be searched for them anew.
    pub(super) fn forget(&mut self) {
        self.due.clear();
        if let Some(turns) = &mut self.turns {
            turns.forget();
        }
        if let Some(kinds) = &mut self.kinds {
            kinds.forget();
        }
        self.later.clear();
        self.positions.clear();
        self.foreign.clear();
        self.first_search = FirstSearch::NotMade;
        self.take_all_back();
        self.unknown();
    }

    /// Makes the lane one of which nothing is known, apart from the jobs that it holds.
    pub(super) fn unknown(&mut self) {
        (self.looked_up_at, self.looked_elsewhere, self.urgent_looked_at) = (None, None, None);
        (self.resume, self.reached, self.frontier) = (None, None, None);
        if let Some(turns) = &mut self.turns {
            turns.unknown();
        }
        if let Some(kinds) = &mut self.kinds {
            kinds.unknown();
        }
        self.known_until = Timestamp::MIN;
    }

    /// Records that any due jobs may be missing.
    pub(super) fn may_miss_some(&mut self) {
        self.incomplete = true;
        if let Some(turns) = &mut self.turns {
            turns.may_miss_some();
        }
    }

    /// Records that due jobs after `last` may be missing.
    pub(super) fn ends_at(&mut self, last: Option<SortKey>) {
        self.incomplete = true;
        if let Some(turns) = &mut self.turns {
            turns.may_miss_any();
        }
        if let Some(last) = last
            && self.frontier.as_ref().is_none_or(|frontier| last < *frontier)
        {
            self.frontier = Some(last);
        }
    }

    /// Records that a search has ended, after [`Lane::ends_at`] if it was cut off.
    pub(super) fn end_search(&mut self) {
        if self.first_search.end() {
            // What was submitted here before the search found its end.
            let early = self.due.iter().filter(|(key, candidate)| !self.admits(&candidate.job, key));
            let early: Vec<JobId> = early.map(|(key, _)| key.id().clone()).collect();
            early.iter().for_each(|id| self.remove(id));
        }
    }

    /// Records that a search for the jobs that are due between two times was cut off after one that is due at `last`.
    pub(super) fn ends_later(&mut self, last: Option<Timestamp>, between: Option<(Timestamp, Timestamp)>) {
        if let (Some(last), Some((after, _))) = (last, between) {
            // The time advances by at least one moment, so that a moment with more jobs than a page does not stop the
            // search. The jobs that are missed are found once they are due.
            self.known_until = self.known_until.min(last.max(after.plus(MOMENT).plus(MOMENT)));
        }
    }

    pub(super) fn insert_due(&mut self, candidate: Versioned) {
        let key = Sort::Dispatch.key(&candidate.job);
        if !self.admits(&candidate.job, &key) {
            self.incomplete = true;
            self.keep_beyond(candidate, key, false);
            return;
        }
        if let Some(turns) = &mut self.turns {
            turns.insert(&candidate.job, &key);
        }
        if let Some(kinds) = &mut self.kinds {
            kinds.insert_due(&candidate.job.spec.kind, &key);
        }
        self.positions.insert(candidate.job.id.clone(), Position::Due(key.clone()));
        self.due.insert(key, candidate);
    }

    pub(super) fn held(&self, id: &JobId) -> Option<&Versioned> {
        match self.positions.get(id)? {
            Position::Due(key) => self.due.get(key),
            Position::Later(run_at) => self.later.get(&(*run_at, id.clone())),
            Position::Beyond(kind, key) => self.kinds.as_ref()?.get(kind, key),
        }
    }

    pub(super) fn remove(&mut self, id: &JobId) {
        match self.positions.remove(id) {
            Some(Position::Due(key)) => {
                if let Some(removed) = self.due.remove(&key) {
                    self.leave_due(&removed.job, &key, false);
                }
            }
            Some(Position::Beyond(kind, key)) => drop(self.kinds.as_mut().and_then(|kinds| kinds.remove(&kind, &key))),
            Some(Position::Later(run_at)) => {
                self.later.remove(&(run_at, id.clone()));
            }
            None => {}
        }
    }

    pub(super) fn needs_lookup(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let Some(looked_up_at) = self.looked_up_at else { return true };
        let low = self.is_low(config);
        let wants_due = match config.poll_interval {
            None => self.incomplete && low,
            // Other processes write too: the lane is searched periodically, and at once only after a cut-off search.
            Some(interval) => {
                let age = now.since(looked_up_at);
                let is_fair = self.turns.as_ref().is_some_and(|turns| turns.is_fair());
                let restart = if is_fair { OWNERS_EVERY } else { RESTART };
                age >= restart.max(interval) || (low && (age >= interval || self.may_go_on()))
            }
        };
        // Searches of a store that fails are as far apart as others.
        let rests = config.poll_interval.is_some_and(|interval| self.incomplete && now.since(looked_up_at) < interval);
        wants_due || (!rests && self.needs_later(now, config))
    }

    pub(super) fn may_go_on(&self) -> bool {
        self.resume.is_some() || self.turns.as_ref().is_some_and(|turns| turns.may_go_on())
    }

    fn is_low(&self, config: &DispatchConfig) -> bool {
        let by_turns = self.turns.as_ref().and_then(|turns| turns.is_low());
        let has_few = || self.due.len() < (config.capacity / LOW_WATER_PART).max(1);
        self.left_out.is_wanted || by_turns.unwrap_or_else(has_few)
    }

    /// Returns whether a search is to be made before a claim waits for it: one that was cut off, or failed, goes on.
    pub(super) fn is_to_go_on(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        match self.first_search {
            FirstSearch::Failed => self.asked && self.needs_lookup(now, config),
            _ => config.poll_interval.is_some() && self.asked && self.may_go_on() && self.is_low(config),
        }
    }

    /// Returns whether any search of the store is due.
    pub(super) fn needs_search(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        self.needs_lookup(now, config) || self.needs_look_elsewhere(now) || self.needs_look_for_kinds(now)
    }

    pub(super) fn needs_later(&self, now: Timestamp, config: &DispatchConfig) -> bool {
        let has_room = self.later.len() <= config.capacity / 2;
        self.known_until <= now || (has_room && self.known_until <= now.plus(HORIZON_MARGIN))
    }

    pub(super) fn next_wake(&self, now: Timestamp, config: &DispatchConfig) -> Timestamp {
        if self.needs_search_of_its_own(now, config) {
            return now;
        }
        let mut wake = self.known_until.minus(HORIZON_MARGIN);
        if wake <= now {
            // The lane has no room for later candidates yet.
            wake = self.known_until;
        }
        if wake <= now {
            // The store is searched again after the poll interval.
            wake = now.plus(HORIZON);
        }
        if let Some(((run_at, _), _)) = self.later.first_key_value() {
            wake = wake.min(*run_at);
        }
        let is_searched_alone = !self.is_quiet(now);
        if let (Some(interval), Some(looked_up_at), true) = (config.poll_interval, self.looked_up_at, is_searched_alone)
        {
            wake = wake.min(looked_up_at.plus(interval));
        }
        if let Some(at) = self.next_look_elsewhere().filter(|_| is_searched_alone && !self.shares.has_all()) {
            wake = wake.min(at);
        }
        wake = wake.min(self.next_look_for_kinds().unwrap_or(now));
        wake.max(now)
    }

    /// Returns the first waiting claim after `passed`.
    pub(super) fn waiting_after(&self, passed: Option<WaiterId>) -> Option<WaiterId> {
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().copied()
    }

    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.waiting.is_empty() && now.since(self.last_claim_at) >= LANE_IDLE
    }
}
