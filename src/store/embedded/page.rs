//! One page of a list: the first jobs in an order, of many that come in any.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crate::query::{Search, SortKey};
use crate::store::Versioned;

/// A receiver of the jobs that match a search.
pub(super) trait Sink {
    /// Returns whether a job could be wanted whose ranks ([`SortKey::ranks`]) lie between these.
    fn may_want(&self, _first: (i64, i64), _last: (i64, i64)) -> bool {
        true
    }

    /// Returns whether the job with this key is wanted if it matches.
    fn wants(&self, _key: &SortKey) -> bool {
        true
    }

    /// Returns whether the receiver is a page: it needs only the key of a job that is known to match, and the first
    /// jobs are often enough.
    fn is_page(&self) -> bool {
        false
    }

    /// Takes in the key of a job that matches and is wanted, if it is a page.
    fn take_key(&mut self, _key: SortKey) {}

    /// Takes in a job that matches. Returns a break when no more jobs are wanted.
    fn take(&mut self, head: &Versioned) -> ControlFlow<()>;
}

impl<F: FnMut(&Versioned) -> ControlFlow<()>> Sink for F {
    fn take(&mut self, head: &Versioned) -> ControlFlow<()> {
        self(head)
    }
}

/// The first jobs of a search, of all that were taken in.
pub(super) struct Page<'s> {
    search: &'s Search,
    /// The job itself where it has been read; the others are read when the page is complete.
    pub(super) found: BTreeMap<SortKey, Option<Versioned>>,
}

impl<'s> Page<'s> {
    pub(super) fn of(search: &'s Search) -> Self {
        Self { search, found: BTreeMap::new() }
    }

    /// The last job of the page, when the page is full.
    fn last(&self) -> Option<&SortKey> {
        if self.found.len() < self.search.limit { None } else { self.found.last_key_value().map(|(key, _)| key) }
    }

    fn put(&mut self, key: SortKey, head: Option<Versioned>) {
        self.found.insert(key, head);
        if self.found.len() > self.search.limit {
            self.found.pop_last();
        }
    }
}

impl Sink for Page<'_> {
    fn may_want(&self, first: (i64, i64), last: (i64, i64)) -> bool {
        self.search.after.as_ref().is_none_or(|after| last >= after.ranks())
            && self.last().is_none_or(|worst| first <= worst.ranks())
    }

    fn wants(&self, key: &SortKey) -> bool {
        self.search.after.as_ref().is_none_or(|after| key > after) && self.last().is_none_or(|worst| key < worst)
    }

    fn is_page(&self) -> bool {
        true
    }

    fn take_key(&mut self, key: SortKey) {
        self.put(key, None);
    }

    fn take(&mut self, head: &Versioned) -> ControlFlow<()> {
        let key = self.search.sort.key(&head.job);
        if self.wants(&key) {
            self.put(key, Some(head.clone()));
        }
        ControlFlow::Continue(())
    }
}
