//! The candidates of one priority in a queue whose jobs do not go in the order of dispatch ([`super::turns`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::kinds::ByKind;
use super::order::{Group, Order, Place, Turn, VirtualTimes};
use crate::job::Kind;
use crate::query::SortKey;

/// The candidates of one priority.
#[derive(Default)]
pub(super) struct Level {
    pub(super) times: VirtualTimes<Group>,
    pub(super) lines: HashMap<Group, Line>,
    /// The owners that have candidates, by whose turn it is.
    pub(super) turns: BTreeMap<Turn, Group>,
}

/// The candidates of one owner, which are never none.
#[derive(Default)]
pub(super) struct Line {
    pub(super) places: BTreeSet<Place>,
    /// Their places in the order of dispatch, where they go in another.
    pub(super) keys: BTreeSet<SortKey>,
    /// The places by kind, if the turns are to know them.
    pub(super) kinds: ByKind<Place>,
    /// The virtual time to which the owner has come.
    pub(super) start: u64,
}

impl Line {
    /// Returns the first candidate after `passed`, of these kinds if any are named.
    pub(super) fn next_after(&self, kinds: &[Kind], passed: Option<&Place>) -> Option<&Place> {
        if !kinds.is_empty() {
            return self.kinds.first_after(kinds, passed);
        }
        let from = passed.map_or(Bound::Unbounded, Bound::Excluded);
        self.places.range((from, Bound::Unbounded)).next()
    }

    /// Returns the candidates in the order of dispatch, the last first.
    pub(super) fn backwards(&self, order: Order) -> Box<dyn Iterator<Item = &SortKey> + '_> {
        match order.shortest_first {
            true => Box::new(self.keys.iter().rev()),
            false => Box::new(self.places.iter().rev().map(|place| &place.key)),
        }
    }
}

impl Level {
    /// Changes the line of an owner and gives it its place among the others.
    pub(super) fn change(
        &mut self,
        order: Order,
        owner: &Group,
        change: impl FnOnce(&mut Line, &mut VirtualTimes<Group>) -> bool,
    ) -> bool {
        let mut line = self.lines.remove(owner).unwrap_or_default();
        if let Some(first) = line.places.first() {
            self.turns.remove(&order.turn(line.start, first.clone()));
        }
        let is_changed = change(&mut line, &mut self.times);
        match line.places.first() {
            None => self.times.rest(owner.clone(), line.start),
            Some(first) => {
                self.turns.insert(order.turn(line.start, first.clone()), owner.clone());
                self.lines.insert(owner.clone(), line);
            }
        }
        is_changed
    }

    pub(super) fn forget(&mut self) {
        self.turns.clear();
        for (owner, line) in self.lines.drain() {
            self.times.rest(owner, line.start);
        }
    }
}
