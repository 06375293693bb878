//! The sweep of records: removes those that nobody needs any more, such as what a killed manager has left.

use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::sleep;
use tracing::debug;

use super::Manager;
use crate::job::{JobId, RecordName};
use crate::store::{Record, RecordKind, RecordWrite, Sought, StoreError, Versioned, WriteError};

/// The content of a record that is needed as long as jobs are as it says.
pub(super) trait Swept: DeserializeOwned + Send + Sync {
    /// The kind of the records.
    const KIND: RecordKind;

    /// For how many records jobs are read at once.
    const AT_ONCE: usize;

    /// Returns whether the record is left alone, whatever its jobs are.
    fn is_in_use(&self, manager: &Manager) -> bool;

    /// Returns the jobs that the record is about.
    fn jobs(&self) -> Vec<JobId>;

    /// Returns whether nobody needs the record any more, by its jobs as they were read in real time.
    fn is_over(&self, manager: &Manager, jobs: &[Option<Versioned>]) -> impl Future<Output = bool> + Send;
}

/// The time between two sweeps, and where the last one found nothing to remove.
const EVERY: Duration = Duration::from_secs(20);
const EVERY_AT_REST: Duration = Duration::from_secs(60);

/// The most pages that one sweep goes through, apart from those after a page of which most was removed.
const PAGES: usize = 20;

/// How many records are removed at once: not as many as a store has room for, so that other records get through.
const REMOVED_AT_ONCE: usize = 500;

/// How far a sweep has come.
#[derive(Default)]
pub(super) struct SweptPage {
    /// The name after which the next page begins; `None` after the last one.
    pub(super) after: Option<RecordName>,
    /// How many records were on the page, and how many of them were removed.
    pub(super) found: usize,
    pub(super) removed: usize,
    /// Whether the page could not be looked through.
    pub(super) has_failed: bool,
}

impl Manager {
    /// Sweeps again and again, page by page, until the manager stops: more pages at a time while there is much to
    /// remove, so that records are removed faster than they come.
    pub(super) async fn keep_swept<F: Future<Output = SweptPage> + Send>(
        self,
        mut page: impl FnMut(Self, Option<RecordName>) -> F + Send,
    ) {
        let (mut after, mut rest) = (None, EVERY);
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                () = sleep(rest) => {}
            }
            let (mut pages, mut removed) = (0, 0);
            rest = loop {
                let swept = page(self.clone(), after.take()).await;
                (pages, removed) = (pages + 1, removed + swept.removed);
                after = swept.after;
                let is_mostly_removed = swept.removed > swept.found / 2;
                let is_enough = pages >= PAGES && !is_mostly_removed;
                if after.is_none() || is_enough || swept.has_failed || self.shared.stopping.is_cancelled() {
                    let is_at_rest = removed == 0 && after.is_none() && !swept.has_failed;
                    break if is_at_rest { EVERY_AT_REST } else { EVERY };
                }
            };
        }
    }

    /// Removes the records of a page after this name that nobody needs.
    pub(super) async fn sweep<T: Swept>(&self, after: Option<RecordName>) -> SweptPage {
        let page = match self.shared.store.records_after(T::KIND, after.as_ref()).await {
            Ok(page) => page,
            Err(error) => {
                debug!(%error, kind = %T::KIND, "cannot list records");
                return SweptPage { after, has_failed: true, ..SweptPage::default() };
            }
        };
        let read = page.iter().filter_map(|record| Some((record, record.read::<T>().ok()?)));
        let unused: Vec<(&Record, T)> = read.filter(|(_, content)| !content.is_in_use(self)).collect();
        let mut over: Vec<&Record> = Vec::new();
        for some in unused.chunks(T::AT_ONCE) {
            let counted: Vec<Vec<JobId>> = some.iter().map(|(_, content)| content.jobs()).collect();
            let sought: Vec<Sought<'_>> = counted.iter().flatten().map(Sought::from).collect();
            let mut jobs = self.shared.store.look_up(&sought).await.into_iter();
            for ((record, content), ids) in some.iter().zip(&counted) {
                let own: Result<Vec<_>, _> = jobs.by_ref().take(ids.len()).collect::<Vec<_>>().into_iter().collect();
                // What a job is that cannot be looked up is found out with a later sweep.
                let Ok(own) = own else { continue };
                if content.is_over(self, &own).await {
                    over.push(record);
                }
            }
        }
        let removed = self.remove_records(&over).await;
        let after = page.last().map(|record| record.key.name.clone());
        SweptPage { after, found: page.len(), removed, has_failed: false }
    }

    /// Writes records where nobody else has written them since.
    ///
    /// # Errors
    /// [`StoreError`] when a record was not written for another reason, or nobody knows whether it was.
    pub(super) async fn write_where_unchanged(&self, writes: Vec<RecordWrite>) -> Result<(), StoreError> {
        for result in self.shared.store.write_records(writes).await {
            match result {
                Ok(_) | Err(WriteError::Conflict(_)) => {}
                Err(WriteError::Refused(error)) => return Err(error),
                Err(WriteError::Unknown(why)) => return Err(StoreError::Unavailable(why)),
            }
        }
        Ok(())
    }

    /// Removes these versions of records, and returns how many were removed.
    pub(super) async fn remove_records(&self, records: &[&Record]) -> usize {
        let mut removed = 0;
        for some in records.chunks(REMOVED_AT_ONCE) {
            let removals = some.iter().map(|record| record.removal()).collect();
            for (record, result) in some.iter().zip(self.shared.store.write_records(removals).await) {
                match result {
                    Ok(_) => removed += 1,
                    Err(error) => debug!(%error, record = %record.key, "a record that nobody needs is left"),
                }
            }
        }
        removed
    }
}
