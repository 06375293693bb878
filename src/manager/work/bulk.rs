//! Bulk changes by an administrator: the jobs of a filter are changed page by page ([`super::in_pages`]). A job that no
//! longer matches is left alone.

use std::sync::atomic::{AtomicBool, Ordering};

use futures::future::join_all;

use crate::clock::Timestamp;
use crate::job::{Actor, AdminRelease, Change, Edit, Job, JobId, JobState, Refusal, Then};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::{Refresh, StoreError, Versioned};

use super::in_pages::{BULK_SAMPLE, BulkBounds, BulkReport, Fate, InPages};
use crate::manager::Manager;
use crate::manager::request::{Caller, ManagerError, Reach};

/// The order in which jobs are changed. A change does not move a job within it, and jobs that are submitted meanwhile
/// sort before the first page.
pub const BULK_ORDER: Sort = Sort::By(SortField::CreatedAt, Direction::Descending);

/// How many ended jobs are run again at once.
const RERUNS_AT_ONCE: usize = 50;

/// The change to each job.
#[derive(Clone, Debug, PartialEq)]
pub enum BulkAction {
    /// Ends the leases of running jobs.
    Release(Then),
    /// Cancels jobs that have not ended.
    Cancel,
    /// Retries jobs that failed, expired or were cancelled.
    Retry,
    /// Holds jobs that have not ended.
    Hold,
    /// Lets held jobs go.
    Unhold,
    /// Makes jobs that wait due now.
    RunNow,
    /// Edits jobs that have not ended.
    Edit(Box<Edit>),
    /// Submits jobs that run ended ones again; none is made twice under the same key.
    Rerun(String),
    /// Removes jobs that do not run.
    Delete,
}

impl BulkAction {
    /// Returns the name of the action in metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Release(_) => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Hold => "hold",
            Self::Unhold => "unhold",
            Self::RunNow => "run_now",
            Self::Edit(_) => "edit",
            Self::Rerun(_) => "rerun",
            Self::Delete => "delete",
        }
    }

    /// Returns the states of the jobs that the action applies to.
    #[must_use]
    pub const fn states(&self) -> &'static [JobState] {
        match self {
            Self::Release(_) => &[JobState::Running],
            Self::Cancel | Self::Hold | Self::Unhold | Self::Edit(_) => &[JobState::Available, JobState::Running],
            Self::RunNow => &[JobState::Available],
            Self::Rerun(_) => &[JobState::Completed, JobState::Failed, JobState::Cancelled, JobState::Expired],
            Self::Delete => {
                &[JobState::Available, JobState::Completed, JobState::Failed, JobState::Cancelled, JobState::Expired]
            }
            Self::Retry => &[JobState::Failed, JobState::Cancelled, JobState::Expired],
        }
    }

    /// Returns whether only held jobs, or only others, can be changed.
    const fn held(&self) -> Option<bool> {
        match self {
            Self::Hold => Some(false),
            Self::Unhold => Some(true),
            _ => None,
        }
    }

    fn decide(&self, order: &BulkOrder, job: &Job, now: Timestamp) -> Result<Change, Refusal> {
        let BulkOrder { actor, reason, .. } = order;
        let noted = || Some(reason.clone());
        Ok(match self {
            &Self::Release(then) => {
                let order = AdminRelease { actor: actor.clone(), reason: reason.clone(), then, expected_fence: None };
                Change::To(Box::new(job.admin_release(&order, now)?))
            }
            Self::Cancel => job.cancel(actor, Some(reason.clone()), now)?,
            Self::Retry => Change::To(Box::new(job.retry(actor, Some(reason.clone()), now)?)),
            Self::Hold => job.hold(actor, noted(), now)?,
            Self::Unhold => job.unhold(actor, noted(), now)?,
            Self::RunNow => job.run_now(actor, Some(reason), now)?,
            Self::Edit(edit) => job.edit(edit, actor, Some(reason), now)?,
            // More than one write each.
            Self::Rerun(_) | Self::Delete => Change::Already,
        })
    }
}

/// An administrator's order to change many jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkOrder {
    /// The change to each job.
    pub action: BulkAction,
    /// The administrator who gives the order.
    pub actor: Actor,
    /// The reason, for each job's history.
    pub reason: String,
}

/// The jobs that an order changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BulkSelection {
    /// Selects the jobs that satisfy this filter.
    pub filter: Filter,
    /// Selects only these jobs, read in real time; an empty list selects any job.
    pub ids: Vec<JobId>,
}

/// The jobs that an order would change.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkPreview {
    /// The number of jobs.
    pub matched: u64,
    /// Up to 20 of the matching jobs, the youngest first.
    pub sample: Vec<Versioned>,
}

impl Manager {
    /// Counts the jobs that `action` would change, and returns up to 20 of them.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the action applies to none of the selected states; otherwise the store's error.
    pub async fn preview(&self, action: &BulkAction, selection: &BulkSelection) -> Result<BulkPreview, ManagerError> {
        let BulkSelection { filter, ids } = narrow(action, selection)?;
        let store = &self.shared.store;
        store.refresh(Refresh::Jobs(&filter)).await?;
        if !ids.is_empty() {
            let mut found = self.those_of(&ids, &filter).await?;
            let matched = found.len() as u64;
            found.truncate(BULK_SAMPLE);
            return Ok(BulkPreview { matched, sample: found });
        }
        let search = Search { filter, sort: BULK_ORDER, after: None, limit: BULK_SAMPLE };
        let matched = store.count(&search.filter, &[]).await?.iter().map(|group| group.count).sum();
        Ok(BulkPreview { matched, sample: store.search(&search).await? })
    }

    /// Changes the selected jobs as ordered, within the bounds of one call.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the action applies to none of the selected states; the store's error when nothing
    /// was changed.
    pub async fn bulk_change(
        &self,
        order: BulkOrder,
        selection: &BulkSelection,
        bounds: BulkBounds,
    ) -> Result<BulkReport, ManagerError> {
        let selection = narrow(&order.action, selection)?;
        if bounds.after.is_none() {
            // The caller may have seen these jobs by a real-time read, so the search must find them too.
            self.shared.store.refresh(Refresh::Jobs(&selection.filter)).await?;
        }
        let change = BulkChange { manager: self.clone(), order, selection };
        Ok(self.change_in_pages(change, bounds).await?)
    }

    /// Returns the jobs with these ids that match, in [`BULK_ORDER`], each once.
    async fn those_of(&self, ids: &[JobId], filter: &Filter) -> Result<Vec<Versioned>, StoreError> {
        let mut found: Vec<Versioned> = self.shared.store.get(ids).await?.into_iter().flatten().collect();
        found.retain(|found| filter.matches(&found.job));
        found.sort_by_cached_key(|found| BULK_ORDER.key(&found.job));
        found.dedup_by(|one, other| one.job.id == other.job.id);
        Ok(found)
    }
}

/// An order on its way through the jobs that it changes.
struct BulkChange {
    manager: Manager,
    order: BulkOrder,
    selection: BulkSelection,
}

impl InPages for BulkChange {
    type Id = JobId;
    type Place = SortKey;
    type Error = ManagerError;

    fn action(&self) -> &'static str {
        self.order.action.as_str()
    }

    /// Finds the next jobs in [`BULK_ORDER`].
    async fn page(&self, after: Option<SortKey>, limit: usize) -> Result<Vec<(SortKey, JobId)>, StoreError> {
        let BulkSelection { filter, ids } = &self.selection;
        let found = if ids.is_empty() {
            let search = Search { filter: filter.clone(), sort: BULK_ORDER, after, limit };
            self.manager.shared.store.search(&search).await?
        } else {
            let mut found = self.manager.those_of(ids, filter).await?;
            found.retain(|found| after.as_ref().is_none_or(|after| BULK_ORDER.key(&found.job) > *after));
            found.truncate(limit);
            found
        };
        Ok(found.into_iter().map(|found| (BULK_ORDER.key(&found.job), found.job.id.clone())).collect())
    }

    async fn change(&self, ids: Vec<JobId>) -> Vec<Fate<ManagerError>> {
        let Self { manager, order, selection } = self;
        match &order.action {
            BulkAction::Delete => return self.delete(ids).await,
            BulkAction::Rerun(key) => return self.rerun(ids, key).await,
            _ => {}
        }
        // Says for each job whether the latest decision was to write it.
        let wrote: Vec<AtomicBool> = ids.iter().map(|_| AtomicBool::new(false)).collect();
        let decide = |index: usize, job: &Job, now: Timestamp| {
            let is_wanted = selection.filter.matches(job) && !self.takes_keys(job);
            let decision = if is_wanted { order.action.decide(order, job, now)? } else { Change::Already };
            wrote[index].store(matches!(decision, Change::To(_)), Ordering::Relaxed);
            Ok(decision)
        };
        let results = manager.update_as_read(&ids, decide).await;
        let mut fates = Vec::with_capacity(results.len());
        for (result, wrote) in results.into_iter().zip(&wrote) {
            fates.push(match result {
                Ok(found) if self.takes_keys(&found.job) && selection.filter.matches(&found.job) => {
                    self.retry_keyed(found).await
                }
                Ok(_) if wrote.load(Ordering::Relaxed) => Fate::Changed,
                Ok(_) | Err(ManagerError::Refused(_) | ManagerError::NotFound(_)) => Fate::Skipped,
                Err(error) => Fate::Failed(error),
            });
        }
        fates
    }

    fn is_of_store(error: &ManagerError) -> bool {
        matches!(error, ManagerError::Store(_) | ManagerError::Unknown(_))
    }
}

impl BulkChange {
    /// Returns whether the job has to take its keys before it is changed.
    fn takes_keys(&self, job: &Job) -> bool {
        self.order.action == BulkAction::Retry && job.spec.is_keyed()
    }

    async fn delete(&self, ids: Vec<JobId>) -> Vec<Fate<ManagerError>> {
        let BulkOrder { actor, reason, .. } = &self.order;
        let is_wanted = |job: &Job| self.selection.filter.matches(job);
        let deleted = self.manager.delete_each(actor, Some(reason), &ids, is_wanted).await;
        deleted.into_iter().map(fate).collect()
    }

    async fn rerun(&self, ids: Vec<JobId>, key: &str) -> Vec<Fate<ManagerError>> {
        let mut fates = Vec::with_capacity(ids.len());
        for some in ids.chunks(RERUNS_AT_ONCE) {
            let caller = Caller { name: self.order.actor.clone(), reach: Reach::All };
            let reruns = some.iter().map(|id| self.manager.rerun(&caller, id, Some(key)));
            let reruns = join_all(reruns).await.into_iter();
            fates.extend(reruns.map(|rerun| fate(rerun.map(|submitted| submitted.created))));
        }
        fates
    }

    /// Retries a job with keys.
    async fn retry_keyed(&self, found: Versioned) -> Fate<ManagerError> {
        let BulkOrder { actor, reason, .. } = &self.order;
        let retry = |job: &Job| job.retry(actor, Some(reason.clone()), self.manager.shared.clock.now());
        fate(self.manager.return_keyed(found, retry).await.map(|_| true))
    }
}

/// Returns the fate of a job that was changed, or was not.
fn fate(changed: Result<bool, ManagerError>) -> Fate<ManagerError> {
    match changed {
        Ok(true) => Fate::Changed,
        Ok(false) | Err(ManagerError::Refused(_) | ManagerError::NotFound(_) | ManagerError::Duplicate(_)) => {
            Fate::Skipped
        }
        Err(error) => Fate::Failed(error),
    }
}

/// Narrows the selection to the states that the action applies to.
fn narrow(action: &BulkAction, selection: &BulkSelection) -> Result<BulkSelection, ManagerError> {
    let asked = &selection.filter.states;
    let possible = action.states().iter().copied().filter(|state| asked.is_empty() || asked.contains(state));
    let states: Vec<JobState> = possible.collect();
    if states.is_empty() {
        let words: Vec<&str> = action.states().iter().map(|state| state.as_str()).collect();
        let message = format!("names no state that this can be done in: {}", words.join(", "));
        return Err(ManagerError::Invalid { field: "filter.states", message });
    }
    let filter = Filter { states, held: action.held(), ..selection.filter.clone() };
    Ok(BulkSelection { filter, ids: selection.ids.clone() })
}
