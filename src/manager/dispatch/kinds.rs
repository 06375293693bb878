//! Claims that name the kinds of jobs that they take.
//!
//! Most claims find a job of one of their kinds at the head of a queue, and cost what others do. The first that does
//! not makes an index of the lane's candidates by kind, so that no claim steps over those of other kinds. Jobs of a
//! kind may also lie in the store, behind more jobs of other kinds than a lane keeps; claims that name the kind would
//! wait until those have gone. So the store is searched for the kinds of which the lane has none, each by itself, and
//! what it has is kept *beyond* the end of the lane: it is for claims that name its kind, since for all others it
//! would overtake the jobs that are missing before it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;
use std::time::Duration;

use foldhash::quality::RandomState;

use crate::clock::Timestamp;
use crate::job::Kind;
use crate::query::SortKey;
use crate::store::Versioned;

/// The most kinds whose jobs are searched for in one queue; of more, those that claims named last.
const MOST_KINDS: usize = 256;

/// The most jobs of one kind that a search finds, and that are kept beyond the end of a lane.
pub(super) const BEYOND: usize = 500;

/// The time between two searches for a kind of which a claim has found no job: of all its jobs, and of those after the
/// last hit of a search that was cut off.
const LOOK_EVERY: Duration = Duration::from_secs(1);
const GO_ON_AFTER: Duration = Duration::from_millis(50);

/// Candidates by kind, by their places in an order.
pub(super) struct ByKind<P>(HashMap<Kind, BTreeSet<P>, RandomState>);

impl<P> Default for ByKind<P> {
    fn default() -> Self {
        Self(HashMap::default())
    }
}

impl<P: Ord> ByKind<P> {
    pub(super) fn insert(&mut self, kind: &Kind, place: P) {
        match self.0.get_mut(kind) {
            Some(places) => drop(places.insert(place)),
            None => drop(self.0.insert(kind.clone(), BTreeSet::from([place]))),
        }
    }

    pub(super) fn remove(&mut self, kind: &Kind, place: &P) {
        if let Some(places) = self.0.get_mut(kind) {
            places.remove(place);
            if places.is_empty() {
                self.0.remove(kind);
            }
        }
    }

    /// Returns the first place of a candidate of these kinds after `passed`.
    pub(super) fn first_after(&self, kinds: &[Kind], passed: Option<&P>) -> Option<&P> {
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        let of_kind = |kind: &Kind| self.0.get(kind)?.range((from, Bound::Unbounded)).next();
        kinds.iter().filter_map(of_kind).min()
    }

    fn has(&self, kind: &Kind) -> bool {
        self.0.contains_key(kind)
    }
}

/// What a lane keeps for claims that name kinds.
#[derive(Default)]
pub(super) struct LaneKinds {
    /// The lane's due candidates by kind.
    pub(super) due: ByKind<SortKey>,
    /// The kinds that claims have named lately.
    pub(super) wanted: HashMap<Kind, Wanted, RandomState>,
    /// When a claim last named kinds.
    pub(super) asked_at: Timestamp,
}

/// A kind that claims have named.
#[derive(Default)]
pub(super) struct Wanted {
    /// The jobs that were found beyond the end of the lane.
    pub(super) beyond: BTreeMap<SortKey, Versioned>,
    /// When a claim last named the kind.
    pub(super) asked_at: Timestamp,
    /// When the store was last searched for the kind.
    pub(super) looked_at: Option<Timestamp>,
    /// When it was last searched from the first job on.
    pub(super) from_first_at: Timestamp,
    /// The key after which jobs of the kind may be missing.
    pub(super) end: Option<SortKey>,
}

impl Wanted {
    /// Returns whether no job is missing that comes before this key.
    pub(super) fn admits(&self, key: &SortKey) -> bool {
        self.looked_at.is_some() && self.end.as_ref().is_none_or(|end| key <= end)
    }

    pub(super) fn keep(&mut self, key: SortKey, candidate: Versioned) -> Option<Versioned> {
        self.beyond.insert(key, candidate);
        if self.beyond.len() <= BEYOND {
            return None;
        }
        let dropped = self.beyond.pop_last().map(|(_, dropped)| dropped);
        self.end = self.beyond.last_key_value().map(|(last, _)| last.clone());
        dropped
    }

    fn forget(&mut self) {
        self.beyond.clear();
        self.unknown();
    }

    fn unknown(&mut self) {
        (self.looked_at, self.end) = (None, None);
    }

    /// Returns when the store is to be searched for the kind.
    pub(super) fn next_look(&self) -> Option<Timestamp> {
        self.looked_at.map(|at| at.plus(if self.end.is_some() { GO_ON_AFTER } else { LOOK_EVERY }))
    }
}

impl LaneKinds {
    /// Takes note of the kinds that a claim names.
    pub(super) fn ask(&mut self, kinds: &[Kind], now: Timestamp) {
        self.asked_at = now;
        for kind in kinds {
            if !self.wanted.contains_key(kind) && self.wanted.len() >= MOST_KINDS {
                let longest_ago = self.wanted.iter().filter(|(_, wanted)| wanted.beyond.is_empty());
                let longest_ago = longest_ago.min_by_key(|(_, wanted)| wanted.asked_at).map(|(kind, _)| kind.clone());
                let Some(longest_ago) = longest_ago else { continue };
                self.wanted.remove(&longest_ago);
            }
            self.wanted.entry(kind.clone()).or_default().asked_at = now;
        }
    }

    /// Returns the kinds of which nothing is here, though claims name them, with what is known of them.
    pub(super) fn in_vain(&self) -> impl Iterator<Item = (&Kind, &Wanted)> {
        self.wanted.iter().filter(|(kind, wanted)| wanted.beyond.is_empty() && !self.due.has(kind))
    }

    pub(super) fn beyond_after(&self, kinds: &[Kind], passed: Option<&SortKey>) -> Option<&SortKey> {
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        let of_kind = |kind: &Kind| Some(self.wanted.get(kind)?.beyond.range((from, Bound::Unbounded)).next()?.0);
        kinds.iter().filter_map(of_kind).min()
    }

    /// Returns the first candidate of these kinds after `passed` in the order of dispatch.
    pub(super) fn first_after(&self, kinds: &[Kind], passed: Option<&SortKey>) -> Option<&SortKey> {
        let due = self.due.first_after(kinds, passed);
        due.into_iter().chain(self.beyond_after(kinds, passed)).min()
    }

    pub(super) fn insert_due(&mut self, kind: &Kind, key: &SortKey) {
        self.due.insert(kind, key.clone());
    }

    pub(super) fn remove_due(&mut self, kind: &Kind, key: &SortKey) {
        self.due.remove(kind, key);
    }

    pub(super) fn get(&self, kind: &Kind, key: &SortKey) -> Option<&Versioned> {
        self.wanted.get(kind)?.beyond.get(key)
    }

    pub(super) fn remove(&mut self, kind: &Kind, key: &SortKey) -> Option<Versioned> {
        self.wanted.get_mut(kind)?.beyond.remove(key)
    }

    pub(super) fn beyond(&self) -> impl Iterator<Item = &Versioned> {
        self.wanted.values().flat_map(|wanted| wanted.beyond.values())
    }

    /// Drops all candidates, due ones and those beyond the end of the lane.
    pub(super) fn forget(&mut self) {
        self.due = ByKind::default();
        self.wanted.values_mut().for_each(Wanted::forget);
    }

    /// Records that jobs of any kind may be missing.
    pub(super) fn unknown(&mut self) {
        self.wanted.values_mut().for_each(Wanted::unknown);
    }

    /// Returns when the store is next to be searched for kinds of which the lane has none; `None` for at once, and
    /// [`Timestamp::MAX`] for never.
    pub(super) fn next_look(&self) -> Option<Timestamp> {
        let mut next = Timestamp::MAX;
        for (_, wanted) in self.in_vain() {
            next = next.min(wanted.next_look()?);
        }
        Some(next)
    }
}
