//! How far a backfill has come, as a record beside its job.
//!
//! What is stored of a due time says where it stands, but is not kept for ever: triggers are removed a day after their
//! end by default, and a backfill may take weeks. So what is done with is written down from time to time, and what has
//! happened since is found out from the triggers. A record goes when another backfill begins after its own has ended:
//! if it went with the end, an end that is not acknowledged would be followed by a beginning without it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::order::{BackfillReport, Order};
use crate::clock::Timestamp;
use crate::job::{JobId, RecordName};
use crate::store::record::{RecordError, RecordKey, RecordKind, change_record};
use crate::store::{Store, StoreError};

/// How far a backfill has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Progress {
    /// No due time at this moment or after it was looked at.
    pub(super) next: Timestamp,
    /// The due times before it that are under way. All others are counted.
    pub(super) open: Vec<Timestamp>,
    pub(super) report: BackfillReport,
}

impl Progress {
    /// Reads how far a backfill has come; one that has not begun is at its beginning.
    pub(super) async fn load(store: &dyn Store, id: &JobId, order: &Order) -> Result<Self, StoreError> {
        let record = match key(id) {
            Some(key) => store.record(&key).await?,
            None => None,
        };
        let Order { from, to, due, .. } = *order;
        let report = BackfillReport { from, to, due, ..BackfillReport::default() };
        record.map_or(Ok(Self { next: from, open: Vec::new(), report }), |record| record.read())
    }

    /// Writes down how far a backfill has come.
    pub(super) async fn save(&self, store: &dyn Store, id: &JobId) -> Result<(), RecordError> {
        let Some(key) = key(id) else { return Ok(()) };
        change_record::<Self, RecordError>(store, &key, |_| Ok(Some(self.clone()))).await.map(drop)
    }
}

fn key(id: &JobId) -> Option<RecordKey> {
    RecordName::new(id.as_str()).ok().map(|name| RecordKey::new(RecordKind::Backfill, name))
}

/// Removes the records of backfills that have ended or do not exist any more.
pub(super) async fn sweep(store: &Arc<dyn Store>) -> Result<(), StoreError> {
    let records = store.records(RecordKind::Backfill).await?;
    let ids: Vec<JobId> = records.iter().filter_map(|record| JobId::new(record.key.name.as_str()).ok()).collect();
    if ids.len() != records.len() || ids.is_empty() {
        return Ok(());
    }
    for (record, found) in records.iter().zip(store.get(&ids).await?) {
        if found.is_none_or(|found| found.job.state.name().is_final()) {
            // One that was started again meanwhile has written its record under another version.
            if let Err(error) = store.write_record(record.removal()).await {
                tracing::debug!(%error, record = %record.key, "the record of a backfill is left for later");
            }
        }
    }
    Ok(())
}
