//! What a client may change: everything, or what was submitted under one name. The jobs that a schedule has submitted
//! belong to who created the schedule.

use crate::clock::Timestamp;
use crate::job::{Change, Job, JobId, Refusal, ScheduleId};
use crate::manager::Manager;
use crate::manager::request::{Caller, ManagerError};
use crate::store::Versioned;

impl Manager {
    /// Changes a job as [`Manager::update`] does, if the client may change it.
    ///
    /// # Errors
    /// [`Refusal::NotOwn`], and those of the change.
    pub(super) async fn change_by<F>(&self, caller: &Caller, id: &JobId, decide: F) -> Result<Versioned, ManagerError>
    where
        F: Fn(&Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let change = |of: Option<ScheduleId>| {
            let decide = &decide;
            let if_own = move |job: &Job, now| {
                let is_own = is_own(caller, job) || of.is_some() && schedule_of(job) == of.as_ref();
                if is_own { decide(job, now) } else { Err(Refusal::NotOwn) }
            };
            self.update_one(id, if_own)
        };
        match change(None).await {
            Err(ManagerError::Refused(Refusal::NotOwn)) => {
                let found = self.get(id).await?.versioned.job;
                self.check_own(caller, &found).await?;
                change(schedule_of(&found).cloned()).await
            }
            changed => changed,
        }
    }

    /// Checks that a client may change a job.
    ///
    /// # Errors
    /// [`Refusal::NotOwn`], and those of a read.
    pub(super) async fn check_own(&self, caller: &Caller, job: &Job) -> Result<(), ManagerError> {
        if is_own(caller, job) {
            return Ok(());
        }
        let Some(id) = schedule_of(job) else { return Err(Refusal::NotOwn.into()) };
        let found = self.shared.store.schedules(std::slice::from_ref(id)).await?.pop().flatten();
        let is_own = found.is_some_and(|found| caller.may_change(found.schedule.created_by.as_ref()));
        if is_own { Ok(()) } else { Err(Refusal::NotOwn.into()) }
    }
}

/// Returns whether a client may change a job, whatever schedule it is of.
pub(super) fn is_own(caller: &Caller, job: &Job) -> bool {
    caller.may_change(job.history.entries().first().map(|submitted| &submitted.actor))
}

fn schedule_of(job: &Job) -> Option<&ScheduleId> {
    job.spec.due.as_ref().map(|due| &due.schedule_id)
}
