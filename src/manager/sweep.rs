//! The sweep of records: removes those that nobody needs any more, such as what a killed manager has left.

use serde::de::DeserializeOwned;
use tracing::debug;

use super::Manager;
use crate::job::{JobId, RecordName};
use crate::store::{Record, RecordKind, Sought, Versioned};

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

impl Manager {
    /// Removes the records of a page after this name that nobody needs. Returns the name after which the next page
    /// begins.
    pub(super) async fn sweep<T: Swept>(&self, after: Option<RecordName>) -> Option<RecordName> {
        let page = match self.shared.store.records_after(T::KIND, after.as_ref()).await {
            Ok(page) => page,
            Err(error) => {
                debug!(%error, kind = %T::KIND, "cannot list records");
                return after;
            }
        };
        let read = page.iter().filter_map(|record| Some((record, record.read::<T>().ok()?)));
        let unused: Vec<(&Record, T)> = read.filter(|(_, content)| !content.is_in_use(self)).collect();
        for some in unused.chunks(T::AT_ONCE) {
            let counted: Vec<Vec<JobId>> = some.iter().map(|(_, content)| content.jobs()).collect();
            let sought: Vec<Sought<'_>> = counted.iter().flatten().map(Sought::from).collect();
            let mut jobs = self.shared.store.look_up(&sought).await.into_iter();
            for ((record, content), ids) in some.iter().zip(&counted) {
                let own: Result<Vec<_>, _> = jobs.by_ref().take(ids.len()).collect::<Vec<_>>().into_iter().collect();
                // What a job is that cannot be looked up is found out with a later sweep.
                let Ok(own) = own else { continue };
                let own = own.as_slice();
                if content.is_over(self, own).await
                    && let Err(error) = self.shared.store.write_record(record.removal()).await
                {
                    debug!(%error, record = %record.key, "a record that nobody needs is left");
                }
            }
        }
        page.last().map(|record| record.key.name.clone())
    }
}
