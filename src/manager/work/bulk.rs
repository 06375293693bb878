//! Bulk changes by an administrator: the jobs of a filter are searched page by page, and each is decided on a
//! real-time read right before its write. A job that no longer matches is left alone.
//!
//! One call takes a bounded time and returns where to go on, so that a million jobs do not hold one request for
//! minutes. Each page is changed in a task of its own: a caller who goes away leaves no page half done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::job::{Actor, AdminRelease, Change, Job, JobId, JobState, Refusal, Then};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};
use crate::store::{Refresh, StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::request::ManagerError;

/// The order in which jobs are changed. A change does not move a job within it, and jobs that are submitted meanwhile
/// sort before the first page.
pub const BULK_ORDER: Sort = Sort::By(SortField::CreatedAt, Direction::Descending);

/// The most jobs that are changed together.
pub const BULK_PAGE: usize = 500;

/// The most failures that one report names.
const NAMED_FAILURES: usize = 100;

/// The most jobs that a preview shows.
const SAMPLE: usize = 20;

/// The change to each job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BulkAction {
    /// Ends the leases of running jobs.
    Release(Then),
    /// Cancels jobs that have not ended.
    Cancel,
    /// Retries jobs that failed, expired or were cancelled.
    Retry,
}

impl BulkAction {
    /// Returns the name of the action in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release(_) => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }

    /// Returns the states of the jobs that the action applies to.
    #[must_use]
    pub const fn states(self) -> &'static [JobState] {
        match self {
            Self::Release(_) => &[JobState::Running],
            Self::Cancel => &[JobState::Available, JobState::Running],
            Self::Retry => &[JobState::Failed, JobState::Cancelled, JobState::Expired],
        }
    }

    fn decide(self, order: &BulkOrder, job: &Job, now: Timestamp) -> Result<Change, Refusal> {
        let BulkOrder { actor, reason, .. } = order;
        Ok(match self {
            Self::Release(then) => {
                let order = AdminRelease { actor: actor.clone(), reason: reason.clone(), then, expected_fence: None };
                Change::To(Box::new(job.admin_release(&order, now)?))
            }
            Self::Cancel => job.cancel(actor, Some(reason.clone()), now)?,
            Self::Retry => Change::To(Box::new(job.retry(actor, Some(reason.clone()), now)?)),
        })
    }
}

/// An administrator's order to change many jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
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

/// The bounds of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkBounds {
    /// The key in [`BULK_ORDER`] of the job after which the call starts.
    pub after: Option<SortKey>,
    /// The most jobs that one call changes.
    pub max_jobs: usize,
    /// The time after which no further page is begun.
    pub within: Duration,
}

/// The jobs that an order would change.
#[derive(Clone, Debug, PartialEq)]
pub struct BulkPreview {
    /// The number of jobs.
    pub matched: u64,
    /// Up to 20 of the matching jobs, the youngest first.
    pub sample: Vec<Versioned>,
}

/// The result of one call.
#[derive(Debug, Default)]
pub struct BulkReport {
    /// The number of jobs found.
    pub matched: u64,
    /// The number of jobs changed.
    pub changed: u64,
    /// The number of jobs that were skipped because they no longer matched or needed no change.
    pub skipped: u64,
    /// The number of jobs that could not be changed.
    pub failed: u64,
    /// The first 100 jobs that could not be changed, and why.
    pub failures: Vec<(JobId, ManagerError)>,
    /// The key after which the next call continues; `None` when all jobs are done.
    pub next: Option<SortKey>,
}

/// The result for one job.
enum Fate {
    Changed,
    Skipped,
    Failed(ManagerError),
}

impl Manager {
    /// Counts the jobs that `action` would change, and returns up to 20 of them.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the action applies to none of the selected states; otherwise the store's error.
    pub async fn preview(&self, action: BulkAction, selection: &BulkSelection) -> Result<BulkPreview, ManagerError> {
        let BulkSelection { filter, ids } = narrow(action, selection)?;
        let store = &self.shared.store;
        store.refresh(Refresh::Jobs(&filter)).await?;
        if !ids.is_empty() {
            let mut found = self.those_of(&ids, &filter).await?;
            let matched = found.len() as u64;
            found.truncate(SAMPLE);
            return Ok(BulkPreview { matched, sample: found });
        }
        let search = Search { filter, sort: BULK_ORDER, after: None, limit: SAMPLE };
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
        let deadline = Instant::now() + bounds.within;
        let selection = narrow(order.action, selection)?;
        if bounds.after.is_none() {
            // The caller may have seen these jobs by a real-time read, so the search must find them too.
            self.shared.store.refresh(Refresh::Jobs(&selection.filter)).await?;
        }
        let (order, filter) = (Arc::new(order), Arc::new(selection.filter.clone()));
        let mut report = BulkReport { next: bounds.after, ..BulkReport::default() };
        let mut left = bounds.max_jobs;
        // Bounded by the deadline: each turn starts after the page before.
        loop {
            let limit = left.min(BULK_PAGE);
            let page = match self.page(&selection, report.next.clone(), limit).await {
                Ok(page) => page,
                Err(error) if report.matched == 0 => return Err(error.into()),
                // The report says what was done. The next call meets the store's error again if it lasts.
                Err(_) => return Ok(report),
            };
            let more = page.len() == limit;
            let Some(last) = page.last() else { return Ok(BulkReport { next: None, ..report }) };
            report.next = Some(BULK_ORDER.key(&last.job));
            left -= page.len();
            let ids: Vec<JobId> = page.into_iter().map(|found| found.job.id.clone()).collect();
            let store_failed = report.add(order.action, self.change_page(&order, &filter, ids).await);
            if !more {
                return Ok(BulkReport { next: None, ..report });
            }
            if left == 0 || store_failed || Instant::now() >= deadline || self.shared.stopping.is_cancelled() {
                return Ok(report);
            }
        }
    }

    /// Changes the jobs of one page in a task of its own.
    async fn change_page(&self, order: &Arc<BulkOrder>, filter: &Arc<Filter>, ids: Vec<JobId>) -> Vec<(JobId, Fate)> {
        let (manager, order, filter) = (self.clone(), Arc::clone(order), Arc::clone(filter));
        let asked = ids.clone();
        let fates = self.shared.tasks.spawn(async move { manager.change_all(&order, &filter, &ids).await });
        let unknown = || Fate::Failed(ManagerError::Unknown("the server stopped".to_owned()));
        let fates = fates.await.unwrap_or_else(|_| asked.iter().map(|_| unknown()).collect());
        asked.into_iter().zip(fates).collect()
    }
}

impl Manager {
    /// Returns the next jobs that match, in [`BULK_ORDER`].
    async fn page(
        &self,
        selection: &BulkSelection,
        after: Option<SortKey>,
        limit: usize,
    ) -> Result<Vec<Versioned>, StoreError> {
        if selection.ids.is_empty() {
            let search = Search { filter: selection.filter.clone(), sort: BULK_ORDER, after, limit };
            return self.shared.store.search(&search).await;
        }
        let mut found = self.those_of(&selection.ids, &selection.filter).await?;
        found.retain(|found| after.as_ref().is_none_or(|after| BULK_ORDER.key(&found.job) > *after));
        found.truncate(limit);
        Ok(found)
    }

    /// Returns the jobs with these ids that match, in [`BULK_ORDER`], each once.
    async fn those_of(&self, ids: &[JobId], filter: &Filter) -> Result<Vec<Versioned>, StoreError> {
        let mut found: Vec<Versioned> = self.shared.store.get(ids).await?.into_iter().flatten().collect();
        found.retain(|found| filter.matches(&found.job));
        found.sort_by_cached_key(|found| BULK_ORDER.key(&found.job));
        found.dedup_by(|one, other| one.job.id == other.job.id);
        Ok(found)
    }

    /// Changes the jobs that still match, and returns the results in the order of `ids`.
    async fn change_all(&self, order: &BulkOrder, filter: &Filter, ids: &[JobId]) -> Vec<Fate> {
        // Says for each job whether the latest decision was to write it.
        let wrote: Vec<AtomicBool> = ids.iter().map(|_| AtomicBool::new(false)).collect();
        let decide = |index: usize, job: &Job, now: Timestamp| {
            let decision = if filter.matches(job) { order.action.decide(order, job, now)? } else { Change::Already };
            wrote[index].store(matches!(decision, Change::To(_)), Ordering::Relaxed);
            Ok(decision)
        };
        let results = self.update_as_read(ids, decide).await;
        let fates = results.into_iter().zip(&wrote).map(|(result, wrote)| match result {
            Ok(_) if wrote.load(Ordering::Relaxed) => Fate::Changed,
            Ok(_) | Err(ManagerError::Refused(_) | ManagerError::NotFound(_)) => Fate::Skipped,
            Err(error) => Fate::Failed(error),
        });
        fates.collect()
    }
}

impl BulkReport {
    /// Adds a page's results. Returns whether the store failed for any job, so that the call should stop.
    fn add(&mut self, action: BulkAction, fates: Vec<(JobId, Fate)>) -> bool {
        let mut store_failed = false;
        for (id, fate) in fates {
            self.matched += 1;
            let outcome = match &fate {
                Fate::Changed => "changed",
                Fate::Skipped => "skipped",
                Fate::Failed(_) => "failed",
            };
            metrics::counter!("leasehold_bulk_changes_total", "action" => action.as_str(), "outcome" => outcome)
                .increment(1);
            match fate {
                Fate::Changed => self.changed += 1,
                Fate::Skipped => self.skipped += 1,
                Fate::Failed(error) => {
                    store_failed |= matches!(error, ManagerError::Store(_) | ManagerError::Unknown(_));
                    self.failed += 1;
                    if self.failures.len() < NAMED_FAILURES {
                        self.failures.push((id, error));
                    }
                }
            }
        }
        store_failed
    }
}

/// Narrows the selection to the states that the action applies to.
fn narrow(action: BulkAction, selection: &BulkSelection) -> Result<BulkSelection, ManagerError> {
    let asked = &selection.filter.states;
    let possible = action.states().iter().copied().filter(|state| asked.is_empty() || asked.contains(state));
    let states: Vec<JobState> = possible.collect();
    if states.is_empty() {
        let words: Vec<&str> = action.states().iter().map(|state| state.as_str()).collect();
        let message = format!("names no state that this can be done in: {}", words.join(", "));
        return Err(ManagerError::Invalid { field: "filter.states", message });
    }
    let filter = Filter { states, ..selection.filter.clone() };
    Ok(BulkSelection { filter, ids: selection.ids.clone() })
}
