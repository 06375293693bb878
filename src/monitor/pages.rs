//! A search that is followed page by page, a bounded number of them in one run.

use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::Versioned;

/// The most jobs on one page.
pub(super) const PAGE: usize = 1_000;

/// A check whether this process may still act. It is made between a page's search and the actions on its jobs.
pub(super) type MayAct<'a> = &'a (dyn Fn() -> bool + Send + Sync);

/// The pages of one search, smallest first. Each round of a loop takes the [`next`](Self::next) search and notes what
/// it found with [`passed`](Self::passed).
pub(super) struct Pages {
    search: Search,
    left: usize,
    is_last: bool,
}

impl Pages {
    /// Creates at most `max` pages of the jobs that `filter` selects, in the order of `field`.
    pub(super) fn of(filter: Filter, field: SortField, max: usize) -> Self {
        let sort = Sort::By(field, Direction::Ascending);
        Self { search: Search { filter, sort, after: None, limit: PAGE }, left: max, is_last: false }
    }

    /// Returns the pages that begin after the job with this key.
    pub(super) fn after(mut self, key: Option<SortKey>) -> Self {
        self.search.after = key;
        self
    }

    /// Returns the search for the next page, or `None` after the last page or the most pages of one run.
    pub(super) fn next(&mut self) -> Option<&Search> {
        if self.is_last || self.left == 0 {
            return None;
        }
        self.left -= 1;
        Some(&self.search)
    }

    /// Records the page that the search has found.
    pub(super) fn passed(&mut self, page: &[Versioned]) {
        self.is_last = page.len() < PAGE;
        if let Some(last) = page.last() {
            self.search.after = Some(self.search.sort.key(&last.job));
        }
    }

    /// Returns the key after which the next run continues, or `None` when the last page was reached.
    pub(super) fn rest(&self) -> Option<&SortKey> {
        self.search.after.as_ref().filter(|_| !self.is_last)
    }
}
