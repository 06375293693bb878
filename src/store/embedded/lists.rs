//! Lists of schedules, in the order of an index: what is in memory and what the database has, put together as of one
//! moment.
//!
//! The database is read first and without a lock, a page of keys at a time. Then, under the lock, those are dropped
//! whose schedules have changed since, and the changed ones are put between the others. So the lock is held for about
//! a page, however slow the disk is. What goes through many pages sees each as of its own moment: since it goes by the
//! key, it meets a schedule at most once by id, and misses none that is there all along.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::time::Duration;

use fjall::Snapshot;

use super::engine::Engine;
use super::schedules::{Index, owner_key, time_key};
use super::state::Published;
use crate::job::{Owner, Partition, PartitionSet, ScheduleId};
use crate::store::{DueSchedules, StoreError, StoredSchedule};

/// How often a read begins anew when a flush ends meanwhile, which takes longer than to read a page.
const ATTEMPTS: usize = 8;

/// How long a caller should wait before it reads again when that was not enough.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The least keys that are read from the database at a time.
const KEYS_AT_A_TIME: usize = 64;

/// Schedules that are asked for, so many at a time.
pub(super) struct Wanted {
    index: Index,
    from: Bound<Vec<u8>>,
    to: Bound<Vec<u8>>,
    partitions: Option<PartitionSet>,
    limit: usize,
}

/// One of a page: its key, its id, and the schedule where it is in memory.
pub(super) type Found = (Vec<u8>, ScheduleId, Option<StoredSchedule>);

impl From<&DueSchedules> for Wanted {
    fn from(due: &DueSchedules) -> Self {
        let DueSchedules { partitions, until, limit } = *due;
        // A key of that time is longer, and so a greater one.
        let end = u64::from_be_bytes(time_key(until)) + 1;
        let to = Bound::Excluded(end.to_be_bytes().to_vec());
        let partitions = Some(partitions).filter(|partitions| !partitions.is_full());
        Self { index: Index::Due, from: Bound::Unbounded, to, partitions, limit }
    }
}

impl Wanted {
    /// Returns the schedules of an owner, or all, after this id.
    pub(super) fn by_id(owner: Option<&Owner>, after: Option<&ScheduleId>, limit: usize) -> Self {
        let (index, from, to) = match owner {
            None => {
                let after = after.map(|after| after.as_str().as_bytes().to_vec());
                (Index::Id, after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
            }
            Some(owner) => {
                // Right after the zero byte at its end.
                let mut end = owner_key(owner, None);
                end.pop();
                end.push(1);
                let from = Bound::Excluded(owner_key(owner, after));
                (Index::Owner, from, Bound::Excluded(end))
            }
        };
        Self { index, from, to, partitions: None, limit }
    }
}

/// Reads as many schedules as are asked for. One that cannot be read is passed over, and the next one is in its place.
///
/// # Errors
/// The errors of [`pages`].
pub(super) fn read(engine: &Engine, wanted: Wanted) -> Result<Vec<StoredSchedule>, StoreError> {
    let (limit, mut found) = (wanted.limit, Vec::new());
    walk(engine, wanted, |stored| {
        found.push(stored);
        Ok(if found.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    })?;
    Ok(found)
}

/// Visits all schedules of the range, so many at a time, until `visit` returns a break. One that cannot be read is
/// passed over.
///
/// # Errors
/// The errors of [`pages`], and of `visit`.
pub(super) fn walk(
    engine: &Engine,
    wanted: Wanted,
    mut visit: impl FnMut(StoredSchedule) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    pages(engine, wanted, |snapshot, page| {
        for (_, id, in_memory) in page {
            let read = match in_memory {
                Some(stored) => Ok(Some(stored)),
                None => engine.disk.schedule(snapshot, &id),
            };
            match read {
                Ok(Some(stored)) => {
                    if visit(stored)?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Ok(None) => tracing::error!(%id, "a schedule is listed and not stored"),
                Err(StoreError::Corrupt(what)) => tracing::error!(what, "a schedule cannot be read"),
                Err(error) => return Err(error),
            }
        }
        Ok(ControlFlow::Continue(()))
    })
}

/// Finds all schedules of the range, a page after the other, until `visit` returns a break.
///
/// # Errors
/// [`StoreError`] when the database cannot be read, or flushes follow on each other too fast; the errors of `visit`.
pub(super) fn pages(
    engine: &Engine,
    mut wanted: Wanted,
    mut visit: impl FnMut(&Snapshot, Vec<Found>) -> Result<ControlFlow<()>, StoreError>,
) -> Result<(), StoreError> {
    let mut attempts = 0;
    // Each round begins behind the one before, or is one of its attempts.
    while wanted.limit > 0 {
        let snapshot = Arc::clone(&engine.published.read().view.snapshot);
        let Some(page) = wanted.find(engine, &snapshot)? else {
            attempts += 1;
            if attempts >= ATTEMPTS {
                return Err(StoreError::Overloaded { retry_after: RETRY_AFTER });
            }
            continue;
        };
        attempts = 0;
        let is_end = page.len() < wanted.limit;
        if let Some((last, ..)) = page.last() {
            wanted.from = Bound::Excluded(last.clone());
        }
        if visit(&snapshot, page)?.is_break() || is_end {
            break;
        }
    }
    Ok(())
}

impl Wanted {
    /// Finds the page as of one moment; `None` when a flush has ended meanwhile, so that what is in memory does not go
    /// with the snapshot any more.
    pub(super) fn find(&self, engine: &Engine, snapshot: &Arc<Snapshot>) -> Result<Option<Vec<Found>>, StoreError> {
        let begin = self.begin(&engine.published.read());
        let mut rest = engine.disk.schedule_keys(snapshot, self.index, (as_slice(&begin), as_slice(&self.to)));
        // The keys under which the database has schedules as they are.
        let mut current: Vec<Found> = Vec::new();
        loop {
            let count = self.limit.saturating_sub(current.len()).max(KEYS_AT_A_TIME);
            let keys = rest.by_ref().take(count).collect::<Result<Vec<_>, _>>()?;
            let is_end = keys.len() < count;
            let mut read = Vec::with_capacity(keys.len());
            for key in keys {
                match self.index.id_of(&key) {
                    Ok(id) => read.push((key.to_vec(), id, None)),
                    Err(error) => tracing::error!(what = error.0, "a schedule cannot be found"),
                }
            }
            let published = engine.published.read();
            if !Arc::ptr_eq(&published.view.snapshot, snapshot) {
                return Ok(None);
            }
            current.extend(read);
            current.retain(|(_, id, _)| published.schedule(id).is_none() && self.has(id));
            if is_end || current.len() >= self.limit {
                self.pass_over(&published, current.first().map(|(key, ..)| key.as_slice()));
                return Ok(Some(self.with_changed(&published, current)));
            }
        }
    }

    /// Returns where the database is read from.
    fn begin(&self, published: &Published) -> Bound<Vec<u8>> {
        match (self.index, &self.from, &self.to) {
            (Index::Due, Bound::Unbounded, Bound::Excluded(to)) => {
                // No range ends before it begins.
                let due_from = published.due_from.lock().clone();
                Bound::Included(due_from.min(to.clone()))
            }
            (_, from, _) => from.clone(),
        }
    }

    /// Notes that before its key `first`, or in all of what is wanted, the database has nothing that is current.
    fn pass_over(&self, published: &Published, first: Option<&[u8]>) {
        let (Index::Due, Bound::Unbounded, None, Bound::Excluded(to)) =
            (self.index, &self.from, self.partitions, &self.to)
        else {
            return;
        };
        let first = first.unwrap_or(to);
        let mut due_from = published.due_from.lock();
        if due_from.as_slice() < first {
            *due_from = first.to_vec();
        }
    }

    /// Returns the page with what is in memory.
    fn with_changed(&self, published: &Published, mut found: Vec<Found>) -> Vec<Found> {
        let range = || (as_slice(&self.from), as_slice(&self.to));
        let unflushed = &published.unflushed.schedules;
        let in_memory =
            |(key, stored): (&[u8], &StoredSchedule)| (key.to_vec(), stored.schedule.id.clone(), Some(stored.clone()));
        let changed = unflushed.in_range(self.index, range());
        let changed = changed.filter(|(_, stored)| self.has(&stored.schedule.id)).take(self.limit);
        found.extend(changed.map(in_memory));
        if let Some(flushing) = &published.flushing {
            let changed = flushing.schedules.in_range(self.index, range());
            let is_current = |stored: &StoredSchedule| !unflushed.has(&stored.schedule.id);
            let changed = changed.filter(|(_, stored)| is_current(stored) && self.has(&stored.schedule.id));
            found.extend(changed.take(self.limit).map(in_memory));
        }
        found.sort_unstable_by(|(one, ..), (other, ..)| one.cmp(other));
        found.truncate(self.limit);
        found
    }

    fn has(&self, id: &ScheduleId) -> bool {
        self.partitions.is_none_or(|partitions| partitions.contains(Partition::of(id.as_str())))
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
