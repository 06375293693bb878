//! What the monitor asks of the manager: changes that nobody who works on a job has asked for.

use std::collections::BTreeSet;

use crate::clock::Timestamp;
use crate::job::{Change, EventName, Job, JobId, Refusal};
use crate::store::{Archived, Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::manager::work::write::JobWrite;

impl Manager {
    /// Changes many jobs as `decide(the job, now)` says. Every decision is made on a real-time read right before the
    /// write, and made anew when somebody else wrote in between. Answers in order with each job as it is then.
    pub async fn change_each<F>(&self, ids: &[JobId], decide: F) -> Vec<Result<Versioned, ManagerError>>
    where
        F: Fn(&Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        self.update_as_read(ids, |_, job, now| decide(job, now)).await
    }

    /// Removes jobs in the versions given, with their bodies, and answers in order whether each is gone. One that was
    /// written since stays, which is no failure.
    ///
    /// # Errors
    /// Why the store could not.
    pub async fn remove(&self, jobs: &[Versioned]) -> Vec<Result<bool, ManagerError>> {
        let results = self.write(jobs.iter().map(JobWrite::remove).collect()).await;
        let removed = jobs.iter().zip(results).map(|(versioned, result)| {
            // Whatever it came to, the job is no longer known to be as it was.
            self.shared.work.known.forget(&versioned.job.id);
            match result {
                Ok(_) | Err(WriteError::Conflict(None)) => Ok(true),
                Err(WriteError::Conflict(Some(_))) => Ok(false),
                Err(WriteError::Refused(error)) => Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => Err(ManagerError::Unknown(why)),
            }
        });
        removed.collect()
    }

    /// Lets the store take one step in keeping live jobs apart from those that have ended.
    ///
    /// # Errors
    /// The store's.
    pub async fn archive(&self, now: Timestamp, limit: usize) -> Result<Archived, ManagerError> {
        Ok(self.shared.store.archive(now, limit).await?)
    }

    /// Sets the events that are to be told of whichever job they happen to.
    pub fn subscribe_to(&self, events: BTreeSet<EventName>) {
        *self.shared.work.subscribed.write() = events;
    }
}

impl Manager {
    /// Puts into the outbox of `after` what happened since `before` and somebody wants to be told of.
    pub(crate) fn announce(&self, before: &Job, after: &mut Job) {
        after.announce(before, |event| self.shared.work.subscribed.read().contains(&event));
    }
}
