//! Bulk changes of schedules: those of a filter are paused, resumed or removed page by page, as jobs are cancelled. One
//! that no longer matches is left alone.
//!
//! Each page is written as one batch, and again what others have changed meanwhile. The loader hears of a page once,
//! and where searches lag the store is refreshed once.

use super::refusal::{ScheduleError, failed};
use super::schedules::{Schedules, paused, removed};
use crate::clock::Timestamp;
use crate::job::ScheduleId;
use crate::manager::{BULK_SAMPLE, BulkBounds, BulkReport, Caller, Fate, InPages, ManagerError};
use crate::query::ScheduleFilter;
use crate::store::{ListSchedules, Refresh, ScheduleWrite, StoreError, StoredSchedule, WriteError};

/// How often a page is written again for those of its schedules that others keep changing.
const TRIES: usize = 10;

/// The change to each schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleAction {
    /// Pauses schedules that are not paused.
    Pause,
    /// Ends the pauses of schedules.
    Resume,
    /// Removes schedules.
    Remove,
}

impl ScheduleAction {
    /// Returns the name of the action in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause_schedule",
            Self::Resume => "resume_schedule",
            Self::Remove => "remove_schedule",
        }
    }

    /// Returns whether the action applies to paused schedules, or to others; `None` when it applies to both.
    const fn applies_to_paused(self) -> Option<bool> {
        match self {
            Self::Pause => Some(false),
            Self::Resume => Some(true),
            Self::Remove => None,
        }
    }
}

/// An order to change many schedules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScheduleOrder {
    /// The change to each schedule.
    pub action: ScheduleAction,
    /// Who gives the order.
    pub caller: Caller,
    /// The reason of a pause, which is shown with each schedule.
    pub reason: String,
}

/// The schedules that an order changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleSelection {
    /// Selects the schedules that satisfy this filter.
    pub filter: ScheduleFilter,
    /// Selects only these schedules, read in real time; an empty list selects any schedule.
    pub ids: Vec<ScheduleId>,
}

/// The schedules that an order would change.
#[derive(Clone, Debug, PartialEq)]
pub struct SchedulePreview {
    /// The number of schedules.
    pub matched: u64,
    /// Up to 20 of them, by id.
    pub sample: Vec<StoredSchedule>,
}

/// The result of one call.
pub type ScheduleReport = BulkReport<ScheduleId, ScheduleId, ScheduleError>;

impl Schedules {
    /// Counts the schedules that `action` would change, and returns up to 20 of them.
    ///
    /// # Errors
    /// The errors of a read.
    pub async fn preview(
        &self,
        action: ScheduleAction,
        selection: ScheduleSelection,
    ) -> Result<SchedulePreview, ScheduleError> {
        let ScheduleSelection { filter, ids } = selection.for_action(action);
        if !ids.is_empty() {
            let mut found = self.those_of(ids, &filter).await?;
            let matched = found.len() as u64;
            found.truncate(BULK_SAMPLE);
            return Ok(SchedulePreview { matched, sample: found });
        }
        self.store.refresh(Refresh::Schedules).await?;
        let matched = self.store.count_schedules(&filter).await?;
        let list = ListSchedules { filter, after: None, limit: BULK_SAMPLE };
        Ok(SchedulePreview { matched, sample: self.store.list_schedules(&list).await? })
    }

    /// Changes the selected schedules as ordered, by id and within the bounds of one call.
    ///
    /// # Errors
    /// The store's error when nothing was changed.
    pub async fn change_many(
        &self,
        order: ScheduleOrder,
        selection: ScheduleSelection,
        bounds: BulkBounds<ScheduleId>,
    ) -> Result<ScheduleReport, ScheduleError> {
        let selection = selection.for_action(order.action);
        if bounds.after.is_none() {
            // The caller may have seen these schedules by a real-time read, so the lists must have them too.
            self.store.refresh(Refresh::Schedules).await?;
        }
        let change = ManySchedules { schedules: self.clone(), order, selection };
        Ok(self.manager.change_in_pages(change, bounds).await?)
    }

    /// Returns the schedules with these ids that match, by id, each once.
    async fn those_of(
        &self,
        mut ids: Vec<ScheduleId>,
        filter: &ScheduleFilter,
    ) -> Result<Vec<StoredSchedule>, StoreError> {
        ids.sort_unstable();
        ids.dedup();
        let mut found: Vec<StoredSchedule> = self.store.schedules(&ids).await?.into_iter().flatten().collect();
        found.retain(|found| filter.matches(&found.schedule));
        Ok(found)
    }
}

impl ScheduleSelection {
    /// Leaves out the schedules that are already as the action makes them.
    fn for_action(self, action: ScheduleAction) -> Self {
        Self { filter: ScheduleFilter { paused: action.applies_to_paused(), ..self.filter }, ..self }
    }
}

/// An order on its way through the schedules that it changes.
struct ManySchedules {
    schedules: Schedules,
    order: ScheduleOrder,
    selection: ScheduleSelection,
}

impl ManySchedules {
    /// Returns the write that changes a schedule; `None` where there is nothing to change any more.
    ///
    /// # Errors
    /// Why the schedule cannot be changed.
    fn decide(&self, current: &StoredSchedule, now: Timestamp) -> Result<Option<ScheduleWrite>, ScheduleError> {
        if !self.selection.filter.matches(&current.schedule) {
            return Ok(None);
        }
        match self.order.action {
            ScheduleAction::Pause => Ok(paused(current, &self.order.caller, &self.order.reason, now)),
            ScheduleAction::Resume => self.schedules.resumed(current, &self.order.caller, now),
            ScheduleAction::Remove => Ok(Some(removed(current))),
        }
    }

    /// Changes the schedules as they are now, those with an index in `open` and their latest version.
    async fn write_all(&self, mut open: Vec<(usize, StoredSchedule)>, fates: &mut [Fate<ScheduleError>]) {
        for _ in 0..TRIES {
            let now = self.schedules.clock.now();
            let (mut indices, mut writes) = (Vec::new(), Vec::new());
            for (index, current) in std::mem::take(&mut open) {
                fates[index] = Fate::Skipped;
                match self.decide(&current, now) {
                    Ok(Some(write)) => {
                        indices.push(index);
                        writes.push(write);
                    }
                    Ok(None) => {}
                    Err(error) => fates[index] = Fate::Failed(error),
                }
            }
            if writes.is_empty() {
                return;
            }
            let written = self.schedules.store.write_schedules(writes).await;
            for (index, written) in indices.into_iter().zip(written) {
                fates[index] = match written {
                    Ok(_) => Fate::Changed,
                    Err(WriteError::Conflict(None)) => Fate::Skipped,
                    Err(WriteError::Conflict(Some(other))) => {
                        open.push((index, other));
                        Fate::Failed(ScheduleError::Contended)
                    }
                    Err(error) => Fate::Failed(failed(error)),
                };
            }
            if open.is_empty() {
                return;
            }
        }
    }
}

impl InPages for ManySchedules {
    type Id = ScheduleId;
    type Place = ScheduleId;
    type Error = ScheduleError;

    fn action(&self) -> &'static str {
        self.order.action.as_str()
    }

    async fn page(&self, after: Option<ScheduleId>, limit: usize) -> Result<Vec<(ScheduleId, ScheduleId)>, StoreError> {
        let ScheduleSelection { filter, ids } = &self.selection;
        let found = if ids.is_empty() {
            let list = ListSchedules { filter: filter.clone(), after, limit };
            self.schedules.store.list_schedules(&list).await?
        } else {
            let mut found = self.schedules.those_of(ids.clone(), filter).await?;
            found.retain(|found| after.as_ref().is_none_or(|after| found.schedule.id > *after));
            found.truncate(limit);
            found
        };
        let id = |found: StoredSchedule| found.schedule.id.clone();
        Ok(found.into_iter().map(id).map(|id| (id.clone(), id)).collect())
    }

    async fn change(&self, ids: Vec<ScheduleId>) -> Vec<Fate<ScheduleError>> {
        let found = match self.schedules.store.schedules(&ids).await {
            Ok(found) => found,
            Err(error) => return ids.iter().map(|_| Fate::Failed(error.clone().into())).collect(),
        };
        let mut fates: Vec<_> = ids.iter().map(|_| Fate::Skipped).collect();
        let open = found.into_iter().enumerate().filter_map(|(index, found)| Some((index, found?))).collect();
        self.write_all(open, &mut fates).await;
        if fates.iter().any(|fate| matches!(fate, Fate::Changed)) {
            self.schedules.announce().await;
        }
        fates
    }

    fn is_of_store(error: &ScheduleError) -> bool {
        matches!(error, ScheduleError::Manager(ManagerError::Store(_) | ManagerError::Unknown(_)))
    }
}
