//! What the dispatch does for claims that name kinds ([`super::kinds`]): what they are given, and what is searched for.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::Dispatch;
use super::board::{Board, Waiter};
use super::kinds::{BEYOND, LaneKinds};
use super::lane::{LANE_IDLE, Lane, Position, WaiterId};
use super::room::{Walk, Wish};
use crate::clock::Timestamp;
use crate::job::{JobId, Kind, PartitionSet, QueueName};
use crate::query::{Sort, SortKey};
use crate::store::Versioned;

/// The most kinds that one look searches for.
const SEARCHES: usize = 16;

/// How long a search for a kind goes on after its last hit before it begins with the first job again.
const RESTART: Duration = Duration::from_secs(2);

/// The most waiting claims whose kinds are looked at, for a search for jobs of others' partitions.
const ASKED: usize = 64;

impl Lane {
    /// Makes the index by kind, for a claim that names these kinds.
    pub(super) fn index_kinds(&mut self, named: &[Kind], now: Timestamp) {
        let kinds = self.kinds.get_or_insert_with(|| {
            let mut kinds = LaneKinds::default();
            for (key, candidate) in &self.due {
                kinds.insert_due(&candidate.job.spec.kind, key);
            }
            if let Some(turns) = &mut self.turns {
                turns.index_kinds(&self.due);
            }
            Box::new(kinds)
        });
        kinds.ask(named, now);
    }

    /// Drops the index by kind if no claim has needed it in a while.
    pub(super) fn forget_kinds(&mut self, now: Timestamp) {
        let Some(kinds) = &mut self.kinds else { return };
        let is_idle = |at: Timestamp| now.since(at) >= LANE_IDLE;
        kinds.wanted.retain(|_, wanted| !wanted.beyond.is_empty() || !is_idle(wanted.asked_at));
        if is_idle(kinds.asked_at) && self.waiting.is_empty() {
            let beyond: Vec<JobId> = kinds.beyond().map(|candidate| candidate.job.id.clone()).collect();
            self.incomplete |= !beyond.is_empty();
            beyond.iter().for_each(|id| self.remove(id));
            self.kinds = None;
            if let Some(turns) = &mut self.turns {
                turns.forget_kinds();
            }
        }
    }

    /// Keeps a due job beyond the end of the lane, if claims name its kind and no job of the kind is missing before it.
    pub(super) fn keep_beyond(&mut self, candidate: Versioned, key: SortKey, is_foreign: bool) {
        let Some(kinds) = &mut self.kinds else { return };
        let Some(wanted) = kinds.wanted.get_mut(&candidate.job.spec.kind) else { return };
        // What another manager comes first for is let in as it is found.
        if !is_foreign && !wanted.admits(&key) {
            return;
        }
        let (id, kind) = (candidate.job.id.clone(), candidate.job.spec.kind.clone());
        self.positions.insert(id, Position::Beyond(kind, key.clone()));
        if let Some(dropped) = wanted.keep(key, candidate) {
            self.positions.remove(&dropped.job.id);
        }
    }

    /// Returns whether there is nothing to hand out.
    pub(super) fn has_none(&self) -> bool {
        self.due.is_empty() && self.kinds.as_ref().is_none_or(|kinds| kinds.beyond().next().is_none())
    }

    /// Returns the key of a candidate that a claim for these kinds may take; for any claim, of the next one.
    pub(super) fn next_of(&self, named: &[Kind]) -> Option<&SortKey> {
        match &self.kinds {
            Some(kinds) if !named.is_empty() => kinds.first_after(named, None),
            _ => self.next(),
        }
    }

    /// Returns the next candidate that suits a claim which names kinds, unless the key `before` comes first. `index` is
    /// the place of the queue in the claim.
    pub(super) fn next_suiting_of_kinds(
        &self,
        index: usize,
        before: Option<&SortKey>,
        walk: &mut Walk<'_>,
    ) -> Option<&SortKey> {
        let (kinds, named) = (self.kinds.as_ref()?, walk.kinds());
        if let Some(turns) = &self.turns
            && kinds.due.first_after(named, None).is_some()
            && let Some(next) = turns.next_suiting(&self.due, index, walk)
        {
            return Some(next);
        }
        loop {
            let passed = walk.passed[index].as_ref();
            let key = match self.turns.is_some() {
                true => kinds.beyond_after(named, passed)?,
                false => kinds.first_after(named, passed)?,
            };
            if before.is_some_and(|before| before < key) {
                return None;
            }
            if self.candidate(key, named).is_some_and(|candidate| walk.suits(&candidate.job)) {
                return Some(key);
            }
            walk.passed[index] = Some(key.clone());
            if !walk.step() {
                return None;
            }
        }
    }

    /// Returns the due candidate with this key, which may be beyond the end of the lane.
    pub(super) fn candidate(&self, key: &SortKey, named: &[Kind]) -> Option<&Versioned> {
        let beyond = || named.iter().find_map(|kind| self.kinds.as_ref()?.get(kind, key));
        self.due.get(key).or_else(beyond)
    }

    /// Takes out the candidate with this key that is beyond the end of the lane. If it `is_handed_out`, its owner has
    /// had a turn.
    pub(super) fn take_beyond(&mut self, key: &SortKey, is_handed_out: bool) -> Option<Versioned> {
        let Some(Position::Beyond(kind, key)) = self.positions.remove(key.id()) else { return None };
        let taken = self.kinds.as_mut()?.remove(&kind, &key)?;
        if let Some(turns) = self.turns.as_mut().filter(|_| is_handed_out) {
            turns.hand_out(&taken.job);
        }
        Some(taken)
    }

    /// Returns whether the store is to be searched for kinds of which the lane has no job.
    pub(super) fn needs_look_for_kinds(&self, now: Timestamp) -> bool {
        self.next_look_for_kinds().is_none_or(|at| at <= now)
    }

    /// Returns when the store is to be searched for kinds; `None` for at once, and [`Timestamp::MAX`] for never.
    pub(super) fn next_look_for_kinds(&self) -> Option<Timestamp> {
        match &self.kinds {
            Some(kinds) if self.incomplete => kinds.next_look(),
            _ => Some(Timestamp::MAX),
        }
    }
}

/// Returns the kinds of the jobs that the claims take which wait for the queue of `lane`; none if any takes all.
pub(super) fn waited_for<Handed>(lane: &Lane, waiters: &HashMap<WaiterId, Waiter<Handed>>) -> Vec<Kind> {
    if lane.waiting.len() > ASKED {
        return Vec::new();
    }
    let mut named = BTreeSet::new();
    for waiter in lane.waiting.iter().filter_map(|id| waiters.get(id)) {
        if waiter.wish().kinds.is_empty() {
            return Vec::new();
        }
        named.extend(waiter.wish().kinds);
    }
    named.into_iter().cloned().collect()
}

/// A search for the due jobs of one kind.
pub(super) struct KindSearch {
    pub(super) kind: Kind,
    /// The key after which the search begins.
    pub(super) after: Option<SortKey>,
    pub(super) limit: usize,
}

/// The searches of a lane for kinds of which it has no job.
pub(super) struct KindSearches {
    /// The time by which the jobs are due.
    pub(super) now: Timestamp,
    pub(super) searches: Vec<KindSearch>,
    /// The partitions whose jobs are searched for; `None` for all.
    pub(super) partitions: Option<PartitionSet>,
}

impl<Handed> Board<Handed> {
    /// Returns whether a claim names kinds and one of its queues has an index of them.
    pub(super) fn has_kinds_of(&self, wish: &Wish<'_>) -> bool {
        let is_indexed = |queue| self.lanes.get(queue).is_some_and(|lane| lane.kinds.is_some());
        !wish.kinds.is_empty() && wish.queues.iter().any(is_indexed)
    }

    /// Makes the indexes by kind of a claim's queues, if it names kinds.
    pub(super) fn index_kinds(&mut self, wish: &Wish<'_>, now: Timestamp) {
        if wish.kinds.is_empty() {
            return;
        }
        for queue in wish.queues {
            if let Some(lane) = self.lanes.get_mut(queue) {
                lane.index_kinds(wish.kinds, now);
            }
        }
    }
}

impl Dispatch {
    /// Begins searches of the store for those kinds of which claims have found no job in a queue, and returns `None`
    /// when none is due. Jobs that are added from now on are kept.
    pub(super) fn begin_look_for_kinds(&self, queue: &QueueName) -> Option<KindSearches> {
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        let lane = board.lane(queue);
        if !lane.needs_look_for_kinds(now) {
            return None;
        }
        let partitions = Some(lane.shares.own).filter(|own| !own.is_full());
        let kinds = lane.kinds.as_mut()?;
        let mut due: Vec<(Option<Timestamp>, Kind)> = kinds
            .in_vain()
            .filter(|(_, wanted)| wanted.next_look().is_none_or(|at| at <= now))
            .map(|(kind, wanted)| (wanted.looked_at, kind.clone()))
            .collect();
        due.sort_unstable();
        due.truncate(SEARCHES);
        let searches = due.into_iter().filter_map(|(_, kind)| {
            let wanted = kinds.wanted.get_mut(&kind)?;
            // To go on finds more, where the first jobs are held here, or where searches still show claimed ones.
            let after = wanted.end.take().filter(|_| now.since(wanted.from_first_at) < RESTART);
            if after.is_none() {
                wanted.from_first_at = now;
            }
            wanted.looked_at = Some(now);
            Some(KindSearch { kind, after, limit: BEYOND.min(self.shared.config.page) })
        });
        let searches = searches.collect();
        Some(KindSearches { now, searches, partitions })
    }

    /// Ends a search for a kind and adds what it has found, apart from what `fresh` rejects as outdated.
    pub(super) fn end_look_for_kind(
        &self,
        queue: &QueueName,
        search: &KindSearch,
        found: Vec<Versioned>,
        fresh: impl Fn(&Versioned) -> bool,
    ) {
        let end = found.last().filter(|_| found.len() >= search.limit).map(|last| Sort::Dispatch.key(&last.job));
        self.add(found.into_iter().filter(fresh));
        let now = self.shared.clock.now();
        let mut board = self.shared.board.lock();
        if let Some(kinds) = &mut board.lane(queue).kinds
            && let Some(wanted) = kinds.wanted.get_mut(&search.kind)
        {
            wanted.end = wanted.end.take().into_iter().chain(end).min();
        }
        self.wake_if_sooner(&mut board, std::slice::from_ref(queue), now);
    }
}
