//! The sum of a state as it is kept while entries are applied: see [`sum`](super::sum).

use std::collections::VecDeque;

use super::sum::Sum;
use crate::store::Membership;

/// How many of the last sums are known. The leader says one that it had a moment ago.
const LATELY: usize = 1_024;

/// The sum over the documents, and the last sums over the whole state.
///
/// The sum is that of a moment and what has moved since. So the documents as they were at the end of a flush can be
/// counted while others are written.
#[derive(Debug, Default)]
pub(crate) struct Summed {
    /// The sum over the documents without what has moved since the store was opened; `None` while it is not known.
    base: Option<Sum>,
    /// By how much it has changed since then.
    moved: Sum,
    /// The hash of the members of the group.
    members: Sum,
    lately: VecDeque<(u64, Sum)>,
}

impl Summed {
    /// Returns the sum of a state that was opened, with the sum over its documents where that is known.
    pub(crate) fn of(documents: Option<Sum>) -> Self {
        Self { base: documents, ..Self::default() }
    }

    /// Returns the sum over the documents; `None` while it is not known.
    pub(crate) fn documents(&self) -> Option<Sum> {
        Some(self.base? + self.moved)
    }

    /// Returns by how much the sum over the documents has changed since the store was opened.
    pub(crate) fn moved(&self) -> Sum {
        self.moved
    }

    /// Takes note of the members of the group.
    pub(crate) fn has_members(&mut self, members: &Membership) {
        self.members = Sum::of_members(members);
    }

    /// Adds what an entry changes, the last one that was applied, in a state whose other parts have the sum `rest`.
    pub(crate) fn has_applied(&mut self, entry: u64, by: Sum, rest: Sum) {
        self.moved += by;
        let Some(documents) = self.documents() else { return };
        if self.lately.len() == LATELY {
            self.lately.pop_front();
        }
        self.lately.push_back((entry, documents + self.members + rest));
    }

    /// Returns the sum over the whole state after an entry; `None` where that is not known, or not any more.
    pub(crate) fn at(&self, entry: u64) -> Option<Sum> {
        let place = self.lately.binary_search_by_key(&entry, |(of, _)| *of).ok()?;
        self.lately.get(place).map(|(_, sum)| *sum)
    }

    /// Returns the last entry after which the sum is known, and that sum.
    pub(crate) fn last(&self) -> Option<(u64, Sum)> {
        self.lately.back().copied()
    }

    /// Takes over the sum over the documents as they were counted when so much had moved, where none is known: one
    /// that follows from the entries is never replaced by what lies on disk.
    pub(crate) fn count(&mut self, counted: Sum, moved: Sum) {
        self.base.get_or_insert(counted - moved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_before_is_moved_on() {
        let mut summed = Summed::of(None);
        summed.has_applied(1, Sum(3), Sum(100));
        assert_eq!((summed.documents(), summed.at(1), summed.last()), (None, None, None));
        let moved = summed.moved();
        summed.has_applied(2, Sum(4), Sum(100));
        summed.count(Sum(50), moved);
        assert_eq!(summed.documents(), Some(Sum(54)));
        summed.has_applied(3, Sum(0), Sum(100));
        summed.has_applied(5, Sum(1), Sum(200));
        assert_eq!((summed.at(3), summed.at(5), summed.at(4)), (Some(Sum(154)), Some(Sum(255)), None));
        assert_eq!(summed.last(), Some((5, Sum(255))));
    }

    #[test]
    fn a_sum_that_follows_from_the_entries_is_not_replaced_by_what_lies_on_disk() {
        let mut summed = Summed::of(Some(Sum(7)));
        summed.has_applied(1, Sum(3), Sum(100));
        summed.count(Sum(55), summed.moved());
        assert_eq!((summed.documents(), summed.at(1)), (Some(Sum(10)), Some(Sum(110))));
    }

    #[test]
    fn the_last_sums_are_known() {
        let mut summed = Summed::of(Some(Sum::default()));
        (1..=LATELY as u64 + 3).for_each(|entry| summed.has_applied(entry, Sum::default(), Sum(entry.into())));
        assert_eq!((summed.at(3), summed.at(4)), (None, Some(Sum(4))));
    }
}
