//! Statistics of the last minutes, kept in slices of time.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Timestamp;

/// The last `COUNT` slices with entries, of `MILLIS` milliseconds each.
pub(super) struct SlidingWindow<T, const MILLIS: i64, const COUNT: i64> {
    /// The slices by number, the latest last.
    slices: VecDeque<(i64, T)>,
}

impl<T, const MILLIS: i64, const COUNT: i64> Default for SlidingWindow<T, MILLIS, COUNT> {
    fn default() -> Self {
        Self { slices: VecDeque::new() }
    }
}

impl<T: Default, const MILLIS: i64, const COUNT: i64> SlidingWindow<T, MILLIS, COUNT> {
    /// Applies `note` to the slice of `now`, or to the latest slice if that is later.
    pub(super) fn note(&mut self, now: Timestamp, note: impl FnOnce(&mut T)) {
        let number = number(now, MILLIS);
        if self.slices.back().is_none_or(|(latest, _)| *latest < number) {
            while self.slices.front().is_some_and(|(oldest, _)| *oldest <= number - COUNT) {
                self.slices.pop_front();
            }
            self.slices.push_back((number, T::default()));
        }
        if let Some((_, latest)) = self.slices.back_mut() {
            note(latest);
        }
    }

    /// Returns the slices that began within `window` up to `now`.
    pub(super) fn within(&self, window: Duration, now: Timestamp) -> impl Iterator<Item = &T> {
        let after = number(now.minus(window), MILLIS);
        self.slices.iter().filter(move |(number, _)| *number > after).map(|(_, slice)| slice)
    }
}

fn number(at: Timestamp, millis: i64) -> i64 {
    at.as_millis().div_euclid(millis)
}
