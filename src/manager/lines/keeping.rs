//! Removing the documents of lines that have no live job any more.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;
use tracing::debug;

use super::document::{Line, live, record_key};
use crate::job::{JobId, OrderingKey, RecordName};
use crate::manager::Manager;
use crate::manager::sweep::SweptPage;
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, Refresh, StoreError, Versioned};

/// How old a document is, at the least, whose places are settled by the sweep: far older than any request that is under
/// way.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

impl Manager {
    /// Removes the documents that nobody needs, until the manager stops.
    pub(in crate::manager) async fn sweep_lines(self) {
        self.keep_swept(|manager, after| async move {
            if after.is_none() {
                manager.shared.dispatch.forget_idle_lines();
            }
            manager.sweep_page_of_lines(after.as_ref()).await.unwrap_or_else(|error| {
                debug!(%error, "cannot look for the documents of lines that nobody needs");
                SweptPage { after, has_failed: true, ..SweptPage::default() }
            })
        })
        .await;
    }

    /// Notes of ended jobs that are about to be removed that they were created, where documents of lines announce that
    /// they may be: of a job that does not exist nobody could say whether it was.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be noted; jobs of lines are not to be removed then.
    pub(in crate::manager) async fn leave_lines(&self, jobs: &[Versioned]) -> Result<(), StoreError> {
        let ordered = jobs.iter().filter_map(|found| Some((found.job.spec.ordering_key()?, &found.job.id)));
        let mut leaving: BTreeMap<&OrderingKey, Vec<&JobId>> = BTreeMap::new();
        ordered.for_each(|(key, id)| leaving.entry(key).or_default().push(id));
        let keys: Vec<RecordKey> = leaving.keys().map(|key| record_key(key)).collect();
        if keys.is_empty() {
            return Ok(());
        }
        let mut writes = Vec::new();
        for (ids, record) in leaving.values().zip(self.shared.store.records_of(&keys).await?) {
            // Of a document in the form of a later version nothing is known, and the job is removed all the same.
            let Some(record) = record else { continue };
            let Ok(line) = record.read::<Line>() else { continue };
            // Where another job of the same write is not created yet, the next write of the document finds out.
            if line.announces(ids) && self.doubtful(&line, u64::MAX).await?.is_empty() {
                writes.push(record.replaced_by(body(&line.settled())?));
            }
        }
        // Who was first has made sure of it.
        self.write_where_unchanged(writes).await
    }

    /// Removes the documents of a page after this name whose lines have no live job.
    async fn sweep_page_of_lines(&self, after: Option<&RecordName>) -> Result<SweptPage, StoreError> {
        let page = self.shared.store.records_after(RecordKind::Line, after).await?;
        let (found, after) = (page.len(), page.last().map(|record| record.key.name.clone()));
        let read =
            |record: Record| Some((OrderingKey::new(record.key.name.as_str()).ok()?, record.read().ok()?, record));
        let mut lines: Vec<(OrderingKey, Line, Record)> = page.into_iter().filter_map(read).collect();
        // Most have live jobs, and only for the others it has to be known for certain.
        self.keep_empty(&mut lines).await?;
        let mut settled = Vec::with_capacity(lines.len());
        for (key, line, record) in lines {
            // Before it is found out which lines are empty: a job that is created in between is live.
            if self.is_all_settled(&line).await? {
                settled.push((key, line, record));
            }
        }
        if settled.is_empty() {
            return Ok(SweptPage { after, found, ..SweptPage::default() });
        }
        self.shared.store.refresh(Refresh::Jobs(&live())).await?;
        self.keep_empty(&mut settled).await?;
        let over: Vec<&Record> = settled.iter().map(|(_, _, record)| record).collect();
        let removed = self.remove_records(&over).await;
        Ok(SweptPage { after, found, removed, has_failed: false })
    }

    /// Drops the lines that have live jobs, as far as a search shows.
    async fn keep_empty(&self, lines: &mut Vec<(OrderingKey, Line, Record)>) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let keys: Vec<OrderingKey> = lines.iter().map(|(key, ..)| key.clone()).collect();
        let heads = self.shared.store.heads(&keys).await?;
        let mut is_empty = heads.iter().map(Option::is_none);
        lines.retain(|_| is_empty.next().unwrap_or(false));
        Ok(())
    }

    /// Returns whether all places that a document announces are settled. In an old one those are barred that are not,
    /// and the next sweep removes it.
    async fn is_all_settled(&self, line: &Line) -> Result<bool, StoreError> {
        let doubtful = self.doubtful(line, u64::MAX).await?;
        if doubtful.is_empty() {
            return Ok(true);
        }
        if line.at.plus(LEFT_BEHIND) <= self.shared.clock.now()
            && let Err(error) = self.settle_entries(doubtful, Instant::now()).await
        {
            debug!(%error, "the places of a line are left unsettled");
        }
        Ok(false)
    }
}
