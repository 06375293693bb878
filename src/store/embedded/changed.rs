//! The schedules that have changed since the database was written last: what of it they hide, and their own keys.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use foldhash::quality::RandomState;

use super::machine::Change;
use super::schedules::{Index, Keys, keys};
use crate::job::ScheduleId;
use crate::store::StoredSchedule;

/// Schedules that have changed. Each is in it once, however often it was written.
#[derive(Debug, Default)]
pub(super) struct ChangedSchedules {
    by_id: HashMap<ScheduleId, ChangedSchedule, RandomState>,
    /// The keys of those that exist, in the order of [`Index::ALL`].
    by_key: [BTreeMap<Vec<u8>, ScheduleId>; 3],
}

/// A schedule that has changed.
#[derive(Debug)]
pub(super) struct ChangedSchedule {
    /// The keys under which the database has it; none when it does not have it.
    pub(super) was: Keys,
    /// The schedule as it is now; `None` when it was removed.
    pub(super) now: Option<StoredSchedule>,
}

impl ChangedSchedules {
    /// Returns what has become of a schedule: `Some(None)` when it was removed, and `None` when it has not changed.
    pub(super) fn get(&self, id: &ScheduleId) -> Option<&Option<StoredSchedule>> {
        self.by_id.get(id).map(|changed| &changed.now)
    }

    /// Returns whether a schedule has changed.
    pub(super) fn has(&self, id: &ScheduleId) -> bool {
        self.by_id.contains_key(id)
    }

    /// Returns how many schedules have changed.
    pub(super) fn len(&self) -> usize {
        self.by_id.len()
    }

    /// Returns all schedules that have changed, by id.
    pub(super) fn all(&self) -> Vec<(&ScheduleId, &ChangedSchedule)> {
        let mut all: Vec<_> = self.by_id.iter().collect();
        all.sort_unstable_by_key(|(id, _)| *id);
        all
    }

    /// Takes over a change.
    pub(super) fn put(&mut self, id: &ScheduleId, Change { before, after }: &Change<StoredSchedule>) {
        let keys_of =
            |stored: &Option<StoredSchedule>| stored.as_ref().map(|stored| keys(&stored.schedule)).unwrap_or_default();
        let changed = self.by_id.entry(id.clone());
        let changed = changed.or_insert_with(|| ChangedSchedule { was: keys_of(before), now: None });
        for (by_key, key) in self.by_key.iter_mut().zip(keys_of(&changed.now)) {
            key.map(|key| by_key.remove(&key));
        }
        changed.now.clone_from(after);
        for (by_key, key) in self.by_key.iter_mut().zip(keys_of(after)) {
            key.map(|key| by_key.insert(key, id.clone()));
        }
    }

    /// Returns the schedules with keys in a range of an index, in the order of their keys.
    pub(super) fn in_range<'c>(
        &'c self,
        index: Index,
        range: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl Iterator<Item = (&'c [u8], &'c StoredSchedule)> {
        let by_key = self.by_key[index as usize].range::<[u8], _>(range);
        by_key.filter_map(|(key, id)| Some((key.as_slice(), self.get(id)?.as_ref()?)))
    }

    /// Returns the least key in an index.
    pub(super) fn first(&self, index: Index) -> Option<&[u8]> {
        self.by_key[index as usize].keys().next().map(Vec::as_slice)
    }
}
