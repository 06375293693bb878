//! What a client may change: everything, or what was submitted under one name. The jobs that a schedule has submitted
//! belong to who created the schedule.

use crate::clock::Timestamp;
use crate::job::{Change, Job, JobId, Refusal, ScheduleId};
use crate::manager::Manager;
use crate::manager::request::{Caller, ManagerError};
use crate::store::Versioned;

/// A schedule that is a client's own. Jobs of before it was created are of another one that had its id.
struct OwnSchedule {
    id: ScheduleId,
    created_at: Timestamp,
}

impl OwnSchedule {
    fn has_submitted(&self, job: &Job) -> bool {
        schedule_of(job) == Some(&self.id) && self.created_at <= job.created_at
    }
}

impl Manager {
    /// Changes a job as [`Manager::update`] does, if the client may change it.
    ///
    /// # Errors
    /// [`Refusal::NotOwn`], and those of the change.
    pub(super) async fn change_by<F>(&self, caller: &Caller, id: &JobId, decide: F) -> Result<Versioned, ManagerError>
    where
        F: Fn(&Job, Timestamp) -> Result<Change, Refusal> + Send + Sync,
    {
        let change = |schedule: Option<OwnSchedule>| {
            let decide = &decide;
            let if_own = move |job: &Job, now| {
                let is_own =
                    caller.may_change(job.submitter()) || schedule.as_ref().is_some_and(|own| own.has_submitted(job));
                if is_own { decide(job, now) } else { Err(Refusal::NotOwn) }
            };
            self.update_one(id, if_own)
        };
        match change(None).await {
            Err(ManagerError::Refused(Refusal::NotOwn)) => {
                let found = self.get(id).await?.versioned.job;
                change(self.own_schedule_of(caller, &found).await?).await
            }
            changed => changed,
        }
    }

    /// Checks that a client may change a job.
    ///
    /// # Errors
    /// [`Refusal::NotOwn`], and those of a read.
    pub(super) async fn check_own(&self, caller: &Caller, job: &Job) -> Result<(), ManagerError> {
        if caller.may_change(job.submitter()) || self.own_schedule_of(caller, job).await?.is_some() {
            Ok(())
        } else {
            Err(Refusal::NotOwn.into())
        }
    }

    /// Returns the schedule that has submitted a job, if there is one and it is the client's.
    async fn own_schedule_of(&self, caller: &Caller, job: &Job) -> Result<Option<OwnSchedule>, ManagerError> {
        let Some(id) = schedule_of(job) else { return Ok(None) };
        let found = self.shared.store.schedules(std::slice::from_ref(id)).await?.pop().flatten();
        let found = found.filter(|found| caller.may_change(found.schedule.created_by.as_ref()));
        let own = found.map(|found| OwnSchedule { id: id.clone(), created_at: found.schedule.created_at });
        Ok(own.filter(|own| own.has_submitted(job)))
    }
}

fn schedule_of(job: &Job) -> Option<&ScheduleId> {
    job.spec.due.as_ref().map(|due| &due.schedule_id)
}
