//! The loop of bulk changes, whatever they change: what matches is searched page by page, and each page is decided on a
//! real-time read right before its write.
//!
//! One call takes a bounded time and returns where to go on, so that a million documents do not hold one request for
//! minutes. Each page is changed in a task of its own: a caller who goes away leaves no page half done.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::JobId;
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::query::SortKey;
use crate::store::StoreError;

/// The most documents that are changed together.
pub const BULK_PAGE: usize = 500;

/// The most documents that a preview shows.
pub(crate) const BULK_SAMPLE: usize = 20;

/// The most failures that one report names.
const NAMED_FAILURES: usize = 100;

/// A change of many documents.
pub(crate) trait InPages: Sized + Send + Sync + 'static {
    /// What names a document.
    type Id: Clone + Send;
    /// The place of a document in the order in which the documents are changed. A change does not move it.
    type Place: Clone + Send + Sync;
    /// Why a document could not be changed.
    type Error: From<ManagerError> + Send;

    /// Returns the name of the action in metrics.
    fn action(&self) -> &'static str;

    /// Finds the next documents after a place, in order, up to `limit`.
    fn page(
        &self,
        after: Option<Self::Place>,
        limit: usize,
    ) -> impl Future<Output = Result<BulkItems<Self>, StoreError>> + Send;

    /// Changes those of the documents that still match, and returns the results in the order of `ids`.
    fn change(&self, ids: Vec<Self::Id>) -> impl Future<Output = Vec<Fate<Self::Error>>> + Send;

    /// Returns whether an error is the store's, after which the call should stop.
    fn is_of_store(error: &Self::Error) -> bool;
}

/// The documents of a page: the place and the id of each.
pub(crate) type BulkItems<C> = Vec<(<C as InPages>::Place, <C as InPages>::Id)>;

/// The bounds of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BulkBounds<Place = SortKey> {
    /// The place after which the call starts.
    pub after: Option<Place>,
    /// The most documents that one call changes.
    pub max_items: usize,
    /// The time after which no further page is begun.
    pub within: Duration,
}

/// The result of one call.
#[derive(Debug)]
pub struct BulkReport<Id = JobId, Place = SortKey, Error = ManagerError> {
    /// The number of documents found.
    pub matched: u64,
    /// The number of documents changed.
    pub changed: u64,
    /// The number of documents that were skipped because they no longer matched or needed no change.
    pub skipped: u64,
    /// The number of documents that could not be changed.
    pub failed: u64,
    /// The first 100 documents that could not be changed, and why.
    pub failures: Vec<(Id, Error)>,
    /// The place after which the next call continues; `None` when all documents are done.
    pub next: Option<Place>,
}

/// The result for one document.
#[derive(Debug)]
pub(crate) enum Fate<Error> {
    Changed,
    Skipped,
    Failed(Error),
}

/// The result of one call of a change.
type Report<C> = BulkReport<<C as InPages>::Id, <C as InPages>::Place, <C as InPages>::Error>;

impl Manager {
    /// Makes a change within the bounds of one call.
    ///
    /// # Errors
    /// The store's error when nothing was changed.
    pub(crate) async fn change_in_pages<C: InPages>(
        &self,
        change: C,
        bounds: BulkBounds<C::Place>,
    ) -> Result<Report<C>, StoreError> {
        let deadline = Instant::now() + bounds.within;
        let change = Arc::new(change);
        let mut report = Report::<C>::from(bounds.after);
        let mut left = bounds.max_items;
        // Bounded by the deadline: each turn starts after the page before.
        loop {
            let limit = left.min(BULK_PAGE);
            let page = match change.page(report.next.clone(), limit).await {
                Ok(page) => page,
                Err(error) if report.matched == 0 => return Err(error),
                // The report says what was done. The next call meets the store's error again if it lasts.
                Err(_) => return Ok(report),
            };
            let more = page.len() == limit;
            let Some((last, _)) = page.last() else { return Ok(Report::<C> { next: None, ..report }) };
            report.next = Some(last.clone());
            left -= page.len();
            let ids: Vec<C::Id> = page.into_iter().map(|(_, id)| id).collect();
            let fates = self.change_page(&change, ids.clone()).await;
            let store_failed = report.add::<C>(change.action(), ids.into_iter().zip(fates));
            if !more {
                return Ok(Report::<C> { next: None, ..report });
            }
            if left == 0 || store_failed || Instant::now() >= deadline || self.shared.stopping.is_cancelled() {
                return Ok(report);
            }
        }
    }

    /// Changes the documents of one page in a task of its own.
    async fn change_page<C: InPages>(&self, change: &Arc<C>, ids: Vec<C::Id>) -> Vec<Fate<C::Error>> {
        let (change, count) = (Arc::clone(change), ids.len());
        let fates = self.shared.tasks.spawn(async move { change.change(ids).await }).await;
        let unknown = || Fate::Failed(ManagerError::Unknown("the server stopped".to_owned()).into());
        fates.unwrap_or_else(|_| (0..count).map(|_| unknown()).collect())
    }
}

impl<Id, Place, Error> BulkReport<Id, Place, Error> {
    /// Returns the report of a call that has done nothing yet and starts after a place.
    fn from(after: Option<Place>) -> Self {
        Self { matched: 0, changed: 0, skipped: 0, failed: 0, failures: Vec::new(), next: after }
    }

    /// Adds a page's results. Returns whether the store failed for any document, so that the call should stop.
    fn add<C: InPages<Error = Error>>(
        &mut self,
        action: &'static str,
        fates: impl Iterator<Item = (Id, Fate<Error>)>,
    ) -> bool {
        let mut store_failed = false;
        for (id, fate) in fates {
            self.matched += 1;
            let outcome = match &fate {
                Fate::Changed => "changed",
                Fate::Skipped => "skipped",
                Fate::Failed(_) => "failed",
            };
            metrics::counter!("leasehold_bulk_changes_total", "action" => action, "outcome" => outcome).increment(1);
            match fate {
                Fate::Changed => self.changed += 1,
                Fate::Skipped => self.skipped += 1,
                Fate::Failed(error) => {
                    store_failed |= C::is_of_store(&error);
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
