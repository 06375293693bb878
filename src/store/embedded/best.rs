//! The first jobs in an order, of many that come in any.

use std::collections::BTreeMap;

use super::Corrupt;
use crate::job::JobId;
use crate::query::{Search, Sort, SortKey, SortValues};
use crate::store::{StoreError, Versioned};

/// The first jobs after the cursor, of all that are offered, in any order.
pub(super) struct Best<'a> {
    sort: Sort,
    after: Option<&'a SortKey>,
    limit: usize,
    /// The job itself where it is live; a finished one is read when it is known to be wanted.
    pub(super) found: BTreeMap<SortKey, Option<Versioned>>,
}

impl<'a> Best<'a> {
    pub(super) fn of(search: &'a Search) -> Self {
        Self { sort: search.sort, after: search.after.as_ref(), limit: search.limit, found: BTreeMap::new() }
    }

    /// The order.
    pub(super) fn sort(&self) -> Sort {
        self.sort
    }

    /// Keeps a job if it is among the best. Its id and the job itself are asked for only when they are needed.
    pub(super) fn offer(
        &mut self,
        ranks: (i64, i64),
        id: impl FnOnce() -> Result<JobId, Corrupt>,
        job: impl FnOnce(&JobId) -> Result<Offered, StoreError>,
    ) -> Result<(), StoreError> {
        if self.is_too_late(ranks) || self.after.is_some_and(|after| ranks < after.ranks()) {
            return Ok(());
        }
        let key = SortKey::new(ranks, id()?);
        if self.after.is_some_and(|after| key <= *after) || self.worst().is_some_and(|worst| key >= *worst) {
            return Ok(());
        }
        match job(key.id())? {
            Offered::Not => return Ok(()),
            Offered::Head(head) => self.found.insert(key, Some(head)),
            Offered::Id => self.found.insert(key, None),
        };
        if self.found.len() > self.limit {
            self.found.pop_last();
        }
        Ok(())
    }

    /// Keeps a job that matches if it is among the best.
    pub(super) fn offer_head(&mut self, head: &Versioned) -> Result<(), StoreError> {
        let ranks = self.sort.ranks(&SortValues::from(&*head.job));
        self.offer(ranks, || Ok(head.job.id.clone()), |_| Ok(Offered::Head(head.clone())))
    }

    /// Whether no job of this rank, nor any that comes after it in the order, can be among the best.
    pub(super) fn is_too_late(&self, ranks: (i64, i64)) -> bool {
        self.worst().is_some_and(|worst| ranks > worst.ranks())
    }

    /// Whether a job of these first ranks can be among the best.
    pub(super) fn can_take(&self, first: i64, last: i64) -> bool {
        self.after.is_none_or(|after| last >= after.ranks().0)
            && self.worst().is_none_or(|worst| first <= worst.ranks().0)
    }

    /// The last of the best, when there are as many as are wanted.
    fn worst(&self) -> Option<&SortKey> {
        (self.found.len() >= self.limit).then(|| self.found.last_key_value().map(|(key, _)| key)).flatten()
    }
}

/// What is offered under an id that would be among the best.
pub(super) enum Offered {
    /// No match after all.
    Not,
    /// The job.
    Head(Versioned),
    /// A finished job that is to be read when it is known to be wanted.
    Id,
}
