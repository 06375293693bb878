//! Writes that make jobs live and that a record announces: whether one was made, and how one is barred that was not.
//!
//! A job becomes live by its creation, or by its return from an end on request. Where something has to be known of all
//! jobs that are or may become live, a record announces the write before it is made. Whoever reads the record later
//! finds out what became of the write, and may see to it that it never comes: a job that does not exist is created as a
//! cancelled one ([`Job::never_created`]), so that its creation meets a conflict; one that has ended is written again,
//! so that its return meets a conflict. So it does not matter how long a manager stands still between the two writes.
//! What stands for a job that was never created is removed as ended jobs are, after a time that no request is under way
//! for.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::Manager;
use super::request::ManagerError;
use super::work::update::manager_actor;
use super::work::write::JobWrite;
use crate::clock::Timestamp;
use crate::job::{Actor, Job, JobId, JobSpec, Kind, QueueName};
use crate::store::{Versioned, WriteError};

/// How often one job is written while others write it too.
const TRIES: usize = 8;

/// The time between two looks at a job that is about to be written.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The job that a record announces, and what is about to be done with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Announced {
    /// The job, which exists or is about to be created.
    pub(super) job: JobId,
    /// The job's queue and kind, for the job that stands for it if it is never created.
    pub(super) queue: QueueName,
    pub(super) kind: Kind,
    /// Whether the job is created.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) creates: bool,
    /// Whether the job returns from its end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) returns: bool,
}

/// What a job that is not as announced, as it is read in real time, says of the write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Evidence {
    /// No write that is under way makes the job live.
    Over,
    /// The job has ended, and may be about to return. Once it is written again, that return meets a conflict.
    MayReturn,
    /// The job does not exist, and may be about to be created. Once a job is created under its id, that creation meets
    /// a conflict.
    MayBeCreated,
}

impl Announced {
    /// Announces that a job returns from its end, or that it is created.
    pub(super) fn new(job: &Job, returns: bool) -> Self {
        let (queue, kind) = (job.spec.queue.clone(), job.spec.kind.clone());
        Self { job: job.id.clone(), queue, kind, creates: !returns, returns }
    }

    /// Returns the announcement of what this one and another one of the same job announce.
    pub(super) fn and(&self, other: &Self) -> Self {
        Self { creates: self.creates || other.creates, returns: self.returns || other.returns, ..other.clone() }
    }

    /// Returns the job that is to stand for the one that was never created.
    fn never_created(&self, actor: &Actor, now: Timestamp) -> Job {
        let spec = JobSpec::new(self.queue.clone(), self.kind.clone());
        Job::never_created(self.job.clone(), Arc::new(spec), actor, now)
    }

    /// Returns what the job, as it is read in real time, says of the write, if the job is not as announced.
    pub(super) fn evidence(&self, job: Option<&Job>) -> Evidence {
        match job {
            Some(_) if self.returns => Evidence::MayReturn,
            Some(_) => Evidence::Over,
            None if self.creates => Evidence::MayBeCreated,
            // It existed when the record was written: it was removed since, and its return meets a conflict.
            None => Evidence::Over,
        }
    }
}

impl Manager {
    /// Waits until a write that was announced is made, which `is_made` says of the job as it is, or sees to it that it
    /// never will be. Returns the job in the first case. The write has until this time to come.
    pub(super) async fn make_over(
        &self,
        announced: &Announced,
        is_made: impl Fn(&Job) -> bool,
        until: Instant,
    ) -> Result<Option<Versioned>, ManagerError> {
        let mut tries = 0;
        while tries < TRIES {
            let found = self.shared.store.get(std::slice::from_ref(&announced.job)).await?.into_iter().flatten().next();
            if found.as_ref().is_some_and(|found| is_made(&found.job)) {
                return Ok(found);
            }
            let write = match (announced.evidence(found.as_ref().map(|found| &*found.job)), found) {
                (Evidence::Over, _) => return Ok(None),
                (Evidence::MayReturn, Some(ended)) => {
                    let same = Arc::clone(&ended.job);
                    JobWrite::replace(ended, same, Vec::new())
                }
                (Evidence::MayReturn | Evidence::MayBeCreated, _) if Instant::now() < until => {
                    sleep(LOOK_EVERY).await;
                    continue;
                }
                (Evidence::MayReturn | Evidence::MayBeCreated, _) => {
                    let job = announced.never_created(&manager_actor(), self.shared.clock.now());
                    JobWrite::create(Arc::new(job), Vec::new())
                }
            };
            tries += 1;
            match self.write_one(write).await {
                Ok(_) => return Ok(None),
                // It was created, or has returned: what it is now is read again.
                Err(WriteError::Conflict(_)) => {}
                Err(WriteError::Refused(error)) => return Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => return Err(ManagerError::Unknown(why)),
            }
        }
        Err(ManagerError::Contended { tries: TRIES })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Body, Change};

    #[test]
    fn a_write_is_over_only_when_it_can_make_its_job_live_no_more() {
        let at = Timestamp::from_millis(1_000);
        let spec = JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"));
        let (id, actor) = (JobId::new("j").expect("an id"), Actor::system("tester"));
        let live = Job::submit(id, Arc::new(spec), Body::Empty, (at, None), &actor, at);
        let Ok(Change::To(ended)) = live.cancel(&actor, None, at) else { panic!("it is cancelled") };
        let [new, returns] = [false, true].map(|returns| Announced::new(&live, returns));
        let evidence = |job| [&new, &returns].map(|announced| announced.evidence(job));
        assert_eq!(evidence(Some(&*ended)), [Evidence::Over, Evidence::MayReturn]);
        assert_eq!(evidence(None), [Evidence::MayBeCreated, Evidence::Over]);
        let both = new.and(&returns);
        assert_eq!(both, returns.and(&new));
        assert_eq!([Some(&*ended), None].map(|job| both.evidence(job)), [Evidence::MayReturn, Evidence::MayBeCreated]);
    }
}
