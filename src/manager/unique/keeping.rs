//! Removing the records of unique keys whose jobs are over.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::holder::{Holder, is_live, record_key};
use crate::job::{Job, JobId};
use crate::manager::Manager;
use crate::manager::announced::Evidence;
use crate::manager::request::ManagerError;
use crate::manager::sweep::Swept;
use crate::store::{RecordKind, Versioned};

/// The time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(20);

/// The most pages that one sweep goes through.
const PAGES: usize = 20;

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
    /// Removes the record of an ended job's unique key, as the sweep would, since the job is about to be removed: of a
    /// job that does not exist nobody can say whether it was ever created.
    pub(in crate::manager) async fn leave_key(&self, job: &Job) -> Result<(), ManagerError> {
        let Some(key) = job.spec.unique() else { return Ok(()) };
        let Some(record) = self.shared.store.record(&record_key(key)).await? else { return Ok(()) };
        let holder: Holder = record.read()?;
        if holder.announced.job == job.id && holder.announced.evidence(Some(job)) == Evidence::Over {
            self.give_key_back(key, record.version).await;
        }
        Ok(())
    }

    /// Removes the records whose jobs are over, until the manager stops.
    pub(in crate::manager) async fn keep_unique_keys(self) {
        let mut ticks = interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = None;
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            for _ in 0..PAGES {
                swept = self.sweep::<Holder>(swept).await;
                if swept.is_none() || self.shared.stopping.is_cancelled() {
                    break;
                }
            }
        }
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
    use crate::store::record::body;
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
        let last = manager.sweep::<Holder>(None).await;
        assert_eq!(records().await, ["left", "live", "returned"]);
        assert_eq!(manager.sweep::<Holder>(last).await, None, "there was one page");
        clock.advance(LEFT_BEHIND);
        manager.sweep::<Holder>(None).await;
        assert_eq!(records().await, ["live"]);
        let stands = manager.get(&left.announced.job).await.expect("it stands for the job").versioned.job;
        assert_eq!((stands.state.name(), stands.is_never_created()), (JobState::Cancelled, true));
    }
}
