//! Removing the records of unique keys whose jobs are over.

use std::time::Duration;

use tokio::time::Instant;

use super::holder::{Holder, is_live, record_key};
use crate::job::JobId;
use crate::manager::Manager;
use crate::manager::announced::Evidence;
use crate::manager::sweep::Swept;
use crate::store::record::body;
use crate::store::{Record, RecordKey, RecordKind, StoreError, Versioned};

/// How old a record is, at the least, whose job is made to be over by the sweep: far older than any request that is
/// under way.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

impl Swept for Holder {
    const KIND: RecordKind = RecordKind::Unique;
    const AT_ONCE: usize = 500;

    fn is_in_use(&self, _: &Manager) -> bool {
        false
    }

    fn jobs(&self) -> Vec<JobId> {
        vec![self.announced.job.clone()]
    }

    async fn is_over(&self, manager: &Manager, jobs: &[Option<Versioned>]) -> bool {
        let job = jobs.first().and_then(Option::as_ref).map(|found| &*found.job);
        if job.is_some_and(is_live) {
            return false;
        }
        match self.announced.evidence(job) {
            Evidence::Over => true,
            Evidence::MayReturn | Evidence::MayBeCreated => {
                let is_left = self.at.plus(LEFT_BEHIND) <= manager.shared.clock.now();
                is_left && matches!(manager.make_over(&self.announced, is_live, Instant::now()).await, Ok(None))
            }
        }
    }
}

impl Manager {
    /// Notes of ended jobs that are about to be removed in these versions that they have no need of their unique keys
    /// any more: of a job that does not exist nobody could say whether it was ever created. A job that is not in its
    /// version any more, read later than the record of its key, is left: one of its id may be live.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be noted; jobs with keys are not to be removed then.
    pub(in crate::manager) async fn leave_keys(&self, jobs: &[Versioned]) -> Result<(), StoreError> {
        let with_keys: Vec<(&Versioned, RecordKey)> =
            jobs.iter().filter_map(|found| Some((found, record_key(found.job.spec.unique()?)))).collect();
        for some in with_keys.chunks(Holder::AT_ONCE) {
            let keys: Vec<RecordKey> = some.iter().map(|(_, key)| key.clone()).collect();
            let records = self.shared.store.records_of(&keys).await?;
            let naming = some.iter().zip(records).filter_map(|((found, _), record)| {
                // Of a record in the form of a later version nothing is known, and the job is removed all the same.
                let record = record?;
                let holder = record.read::<Holder>().ok().filter(|holder| holder.announced.job == found.job.id)?;
                Some((*found, record, holder))
            });
            let naming: Vec<(&Versioned, Record, Holder)> = naming.collect();
            let ids: Vec<JobId> = naming.iter().map(|(found, ..)| found.job.id.clone()).collect();
            let current = if ids.is_empty() { Vec::new() } else { self.shared.store.get(&ids).await? };
            let mut writes = Vec::new();
            for ((found, record, holder), current) in naming.iter().zip(current) {
                if current.is_none_or(|current| current.version != found.version) {
                    continue;
                }
                writes.push(match holder.announced.evidence(Some(&found.job)) {
                    Evidence::Over => record.removal(),
                    // Its return may be under way, and meets a conflict once the job is removed.
                    Evidence::MayReturn | Evidence::MayBeCreated => record.replaced_by(body(&holder.of_existing())?),
                });
            }
            // Where another write was first, somebody else has the key now, or the job returns.
            self.write_where_unchanged(writes).await?;
        }
        Ok(())
    }

    /// Removes the records whose jobs are over, until the manager stops.
    pub(in crate::manager) async fn keep_unique_keys(self) {
        self.keep_swept(|manager, after| async move { manager.sweep::<Holder>(after).await }).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock, ManualClock, Timestamp};
    use crate::job::{Conditions, JobSpec, JobState, Kind, QueueName, UniqueKey};
    use crate::manager::unique::holder::record_key;
    use crate::manager::{Caller, ManagerConfig, NewJob};
    use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
    use crate::store::{RecordWrite, Store};

    fn key(text: &str) -> UniqueKey {
        UniqueKey::new(text).expect("a key")
    }

    fn new_job(text: &str) -> NewJob {
        let conditions = Conditions { unique: Some(key(text)), ..Conditions::default() }.stored();
        let spec = JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
        NewJob::of(JobSpec { conditions, ..spec })
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_record_is_removed_once_its_job_is_over_and_not_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let store: Arc<dyn Store> =
            Arc::new(EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("a store"));
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let manager =
            Manager::start(Arc::clone(&store), Arc::clone(&clock) as Arc<dyn Clock>, ManagerConfig::default());
        let caller = Caller::system("tester");
        let mut ids = Vec::new();
        for text in ["ended", "live", "returned"] {
            let submitted = manager.submit(&caller, vec![new_job(text)]).await.remove(0).expect("submitted");
            ids.push(submitted.job.versioned.job.id.clone());
        }
        for id in [&ids[0], &ids[2]] {
            manager.cancel(&caller, id, None).await.expect("cancelled");
        }
        manager.retry(&caller, &ids[2], None).await.expect("retried");
        manager.cancel(&caller, &ids[2], None).await.expect("cancelled");
        // Of a job that was never created.
        let mut left = Holder::new(&manager.get(&ids[0]).await.expect("a job").versioned.job, false, clock.now());
        left.announced.job = JobId::new("never").expect("an id");
        let create = RecordWrite::Create { key: record_key(&key("left")), body: body(&left).expect("JSON") };
        store.write_record(create).await.expect("written");

        let records = async || {
            let records = store.records(RecordKind::Unique).await.expect("listed");
            records.iter().map(|record| record.key.name.as_str().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(records().await, ["ended", "left", "live", "returned"]);
        let last = manager.sweep::<Holder>(None).await.after;
        assert_eq!(records().await, ["left", "live", "returned"]);
        assert_eq!(manager.sweep::<Holder>(last).await.after, None, "there was one page");
        clock.advance(LEFT_BEHIND);
        manager.sweep::<Holder>(None).await;
        assert_eq!(records().await, ["live"]);
        let stands = manager.get(&left.announced.job).await.expect("it stands for the job").versioned.job;
        assert_eq!((stands.state.name(), stands.is_never_created()), (JobState::Cancelled, true));
    }
}
