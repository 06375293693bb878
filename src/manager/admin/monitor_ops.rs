//! What the monitor and the notifier change: on a real-time read, and without a user's or a worker's request.

use std::collections::BTreeSet;

use crate::clock::Timestamp;
use crate::job::{Change, EventName, Fence, Job, JobId, Refusal};
use crate::store::{Archived, StoreError, Versioned, WriteError};

use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::manager::work::write::JobWrite;

impl Manager {
    /// Changes each of these jobs as `decide(job, now)` says, and returns the changed jobs in the same order. Every
    /// decision is made on a real-time read right before the write, and made again when another write came first.
    pub async fn change_each<F>(&self, ids: &[JobId], decide: F) -> Vec<Result<Versioned, ManagerError>>
    where
        F: Fn(&Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        self.update_as_read(ids, |_, job, now| decide(job, now)).await
    }

    /// Removes jobs in exactly these versions, with their bodies and their output, and returns for each, in the same
    /// order, whether it was removed. A job that was written since is kept, which is not an error.
    ///
    /// # Errors
    /// Each job has its own result, with the store's error if its removal failed.
    pub async fn remove(&self, jobs: &[Versioned]) -> Vec<Result<bool, ManagerError>> {
        let kept = self.leave_keys_and_lines(jobs).await.err();
        let is_kept = |found: &&Versioned| kept.is_some() && found.job.spec.is_keyed();
        let writes = jobs.iter().filter(|found| !is_kept(found)).map(JobWrite::remove).collect();
        let mut results = self.write(writes).await.into_iter();
        let removed = jobs.iter().map(|versioned| {
            if let Some(error) = kept.as_ref().filter(|_| is_kept(&versioned)) {
                return Err(ManagerError::Store(error.clone()));
            }
            let no_answer = || Err(WriteError::Unknown("the store gave no answer".to_owned()));
            let result = results.next().unwrap_or_else(no_answer);
            // Whatever the outcome, the remembered version may be outdated.
            self.shared.work.known.forget(&versioned.job.id);
            match result {
                Ok(_) | Err(WriteError::Conflict(None)) => Ok(true),
                Err(WriteError::Conflict(Some(_))) => Ok(false),
                Err(WriteError::Refused(error)) => Err(ManagerError::Store(error)),
                Err(WriteError::Unknown(why)) => Err(ManagerError::Unknown(why)),
            }
        });
        let removed: Vec<Result<bool, ManagerError>> = removed.collect();
        let gone = jobs.iter().zip(&removed).filter(|(_, removed)| matches!(removed, Ok(true)));
        let has_run = gone.map(|(versioned, _)| &versioned.job).filter(|job| job.fence > Fence::default());
        let outputs = has_run.map(|job| (job.id.clone(), Fence::default().next()..=job.fence)).collect();
        self.shared.outputs.remove(outputs).await;
        removed
    }

    /// Notes of ended jobs that are about to be removed what has to be known of them after that.
    ///
    /// # Errors
    /// [`StoreError`] when that cannot be noted; jobs with keys are not to be removed then.
    pub(in crate::manager) async fn leave_keys_and_lines(&self, jobs: &[Versioned]) -> Result<(), StoreError> {
        self.leave_keys(jobs).await?;
        self.leave_lines(jobs).await
    }

    /// Makes the store move up to `limit` ended jobs to the archive.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn archive(&self, now: Timestamp, limit: usize) -> Result<Archived, ManagerError> {
        Ok(self.shared.store.archive(now, limit).await?)
    }

    /// Returns whether the store holds writes back, or has lately: a heartbeat that seems to be missing may wait to be
    /// written.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn has_lately_held_writes_back(&self) -> Result<bool, ManagerError> {
        Ok(self.shared.store.has_lately_held_writes_back().await?)
    }

    /// Sets the events that subscriptions select for any job.
    pub fn subscribe_to(&self, events: BTreeSet<EventName>) {
        *self.shared.work.subscribed.write() = events;
    }
}

impl Manager {
    /// Puts a notice into the outbox of `after` for every event since `before` that has a subscription.
    pub(crate) fn announce(&self, before: &Job, after: &mut Job) {
        after.announce(before, |event| self.shared.work.subscribed.read().contains(&event));
    }
}
