//! The latest versions of jobs that the manager has written or read.
//!
//! A search engine's search lags behind what was acknowledged, so a hit may show a job as it was before a write that
//! this manager knows of. It remembers the latest versions it has written or read, drops hits that are older, and
//! spares itself a read before it writes a job again. A memory, not a truth: every decision made on it is checked by
//! the conditional write, and every refusal is decided again on a fresh read.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::job::{Job, JobId};
use crate::store::recent::RecentMap;
use crate::store::{Version, Versioned};

/// The number of jobs that are remembered at least.
const REMEMBERED: usize = 50_000;

/// The latest known versions of the jobs that were written or read lately.
pub(crate) struct KnownVersions {
    /// The versions; `None` for a store that answers as fast from its own memory.
    recent: Option<Mutex<RecentMap<JobId, Known, REMEMBERED>>>,
}

struct Known {
    version: Version,
    /// The job, unless it has ended: it is seldom written again, and would be most of what is remembered.
    job: Option<Arc<Job>>,
}

impl KnownVersions {
    /// Creates a memory that stays empty unless `useful` is set.
    pub(crate) fn new(useful: bool) -> Self {
        Self { recent: useful.then(Mutex::default) }
    }

    /// Remembers a version, unless a later one is known. Of two versions that cannot be compared, the one learnt last
    /// is remembered.
    pub(crate) fn learn(&self, versioned: &Versioned) {
        let Some(recent) = &self.recent else { return };
        let mut recent = recent.lock();
        let is_news = recent
            .get(&versioned.job.id)
            .is_none_or(|known| known.version != versioned.version && !known.version.is_later_than(versioned.version));
        if is_news {
            let job = (!versioned.job.state.name().is_final()).then(|| Arc::clone(&versioned.job));
            recent.insert(versioned.job.id.clone(), Known { version: versioned.version, job });
        }
    }

    /// Returns the latest known version of a job, unless it has ended.
    pub(crate) fn latest(&self, id: &JobId) -> Option<Versioned> {
        let recent = self.recent.as_ref()?.lock();
        let Known { version, job } = recent.get(id)?;
        Some(Versioned { job: job.clone()?, version: *version })
    }

    /// Returns the job in the later version that is known, if there is one: `None` in it for one that has ended.
    #[expect(clippy::option_option, reason = "no later version, and a later one of which the job is not kept")]
    pub(crate) fn later(&self, found: &Versioned) -> Option<Option<Arc<Job>>> {
        let recent = self.recent.as_ref()?.lock();
        let known = recent.get(&found.job.id)?;
        known.version.is_later_than(found.version).then(|| known.job.clone())
    }

    /// Returns whether a later version than this one is known.
    pub(crate) fn is_outdated(&self, found: &Versioned) -> bool {
        let Some(recent) = &self.recent else { return false };
        recent.lock().get(&found.job.id).is_some_and(|known| known.version.is_later_than(found.version))
    }

    /// Forgets a job, so that it is read again before its next change.
    pub(crate) fn forget(&self, id: &JobId) {
        if let Some(recent) = &self.recent {
            recent.lock().remove(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Timestamp;
    use crate::job::{Actor, Body, Change, JobSpec, Kind, QueueName};
    use crate::store::Place;

    fn at(seq_no: u64, job: Job) -> Versioned {
        Versioned { job: Arc::new(job), version: Version { place: Place::Main, primary_term: 1, seq_no } }
    }

    #[test]
    fn of_a_job_that_has_ended_only_the_version_is_known() {
        let (known, user, now) = (KnownVersions::new(true), Actor::system("test"), Timestamp::from_millis(1_000));
        let spec = Arc::new(JobSpec::new(QueueName::system("q"), Kind::new("k").expect("a name")));
        let id = JobId::new("1").expect("an id");
        let job = Job::submit(id.clone(), spec, Body::Empty, (now, None), &user, now);
        let Ok(Change::To(ended)) = job.cancel(&user, None, now) else { panic!("it was not cancelled") };

        let (available, ended) = (at(1, job), at(2, *ended));
        known.learn(&available);
        assert_eq!(known.latest(&id), Some(available.clone()));
        known.learn(&ended);
        known.learn(&available);
        assert_eq!(known.latest(&id), None);
        assert!(known.is_outdated(&available) && !known.is_outdated(&ended));
    }
}
