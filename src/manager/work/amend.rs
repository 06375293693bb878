//! What people do to jobs beside their course: hold them, edit them, make them due, run them again, delete them.

use std::collections::HashSet;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use uuid::Uuid;

use crate::clock::Timestamp;
use crate::job::{
    Actor, Change, Conditions, Edit, EventName, HistoryEntry, Job, JobId, JobSpec, Ordered, Refusal, State,
};
use crate::manager::Manager;
use crate::manager::audit_entry;
use crate::manager::request::{Caller, JobView, ManagerError, NewJob, Submitted};
use crate::manager::work::write::JobWrite;
use crate::store::{Versioned, WriteError};

/// The namespace of the ids of jobs that run others again (RFC 9562, section 5.5).
const RERUN_NAMESPACE: Uuid = Uuid::from_u128(0x2c4d_9d0e_5b1f_4c52_8f5e_7a63_11d0_4e9b);

/// The most tries to delete a job while other writers keep changing it.
const MAX_TRIES: usize = 10;

impl Manager {
    /// Holds a job, so that it is not claimed.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::AlreadyFinal`].
    pub async fn hold(&self, caller: &Caller, id: &JobId, reason: Option<String>) -> Result<Versioned, ManagerError> {
        self.change_by(caller, id, |job, now| job.hold(&caller.name, reason.clone(), now)).await
    }

    /// Lets a held job go.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::AlreadyFinal`].
    pub async fn unhold(&self, caller: &Caller, id: &JobId, reason: Option<String>) -> Result<Versioned, ManagerError> {
        self.change_by(caller, id, |job, now| job.unhold(&caller.name, reason.clone(), now)).await
    }

    /// Makes a waiting job due now.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::AlreadyFinal`], [`Refusal::NotAvailable`].
    pub async fn run_now(&self, caller: &Caller, id: &JobId, reason: Option<&str>) -> Result<Versioned, ManagerError> {
        self.change_by(caller, id, |job, now| job.run_now(&caller.name, reason, now)).await
    }

    /// Edits a job that has not ended.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::AlreadyFinal`], [`Refusal::NotAvailable`].
    pub async fn edit(
        &self,
        caller: &Caller,
        id: &JobId,
        edit: &Edit,
        reason: Option<&str>,
    ) -> Result<Versioned, ManagerError> {
        self.change_by(caller, id, |job, now| job.edit(edit, &caller.name, reason, now)).await
    }

    /// Edits a job in exactly this version.
    ///
    /// # Errors
    /// [`ManagerError::VersionDiffers`] when it was written since; else those of [`Manager::edit`].
    pub async fn edit_version(
        &self,
        caller: &Caller,
        known: Versioned,
        edit: &Edit,
        reason: Option<&str>,
    ) -> Result<Versioned, ManagerError> {
        let id = known.job.id.clone();
        self.check_own(caller, &known.job).await?;
        let mut edited = match known.job.edit(edit, &caller.name, reason, self.shared.clock.now())? {
            Change::To(edited) => edited,
            Change::Already => return Ok(known),
        };
        self.announce(&known.job, &mut edited);
        match self.write_one(JobWrite::replace(known, Arc::from(edited), Vec::new())).await {
            Ok(written) => Ok(written),
            Err(WriteError::Conflict(_)) => Err(ManagerError::VersionDiffers(id)),
            Err(WriteError::Refused(error)) => Err(ManagerError::Store(error)),
            Err(WriteError::Unknown(why)) => Err(ManagerError::Unknown(why)),
        }
    }

    /// Submits a job that runs an ended one again. Under the same `key` the same caller gets the same job.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::NotEnded`], [`Refusal::NeverCreated`]; and those of a submission.
    pub async fn rerun(&self, caller: &Caller, id: &JobId, key: Option<&str>) -> Result<Submitted, ManagerError> {
        let origin = self.get(id).await?;
        self.check_own(caller, &origin.versioned.job).await?;
        let new = rerun_of(origin, &caller.name, key)?;
        let unanswered = || Err(ManagerError::Unknown("the manager gave no answer".to_owned()));
        self.submit(caller, vec![new]).await.pop().unwrap_or_else(unanswered)
    }

    /// Removes a job that does not run. One that waits is cancelled first, so that its keys are free.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`]; [`Refusal::StillRunning`].
    pub async fn delete(&self, caller: &Caller, id: &JobId, reason: Option<&str>) -> Result<(), ManagerError> {
        for _ in 0..MAX_TRIES {
            let deleted = self.delete_each(&caller.name, reason, slice::from_ref(id), |_| true).await.pop();
            if deleted.transpose()?.unwrap_or(false) {
                return Ok(());
            }
        }
        Err(ManagerError::Contended { tries: MAX_TRIES })
    }

    /// Removes those of these jobs that are wanted and do not run. Returns, in the same order, whether each was: one
    /// that somebody else writes meanwhile is left.
    pub(super) async fn delete_each(
        &self,
        actor: &Actor,
        reason: Option<&str>,
        ids: &[JobId],
        is_wanted: impl Fn(&Job) -> bool + Send + Sync,
    ) -> Vec<Result<bool, ManagerError>> {
        let left: Vec<AtomicBool> = ids.iter().map(|_| AtomicBool::new(false)).collect();
        let end = |index: usize, job: &Job, now: Timestamp| {
            let is_left = !is_wanted(job);
            left[index].store(is_left, Ordering::Relaxed);
            match &job.state {
                _ if is_left => Ok(Change::Already),
                State::Running(_) => Err(Refusal::StillRunning),
                State::Available => job.cancel(actor, Some(because("deleted", reason)), now),
                _ => Ok(Change::Already),
            }
        };
        let ended = self.update_as_read(ids, end).await;
        let mut named = HashSet::new();
        let mut leaving = Vec::new();
        for (ended, left) in ended.iter().zip(&left) {
            if let Ok(ended) = ended
                && !left.load(Ordering::Relaxed)
                && named.insert(ended.job.id.clone())
            {
                leaving.push(ended.clone());
            }
        }
        let removed = match self.before_deletion(actor, reason, &leaving).await {
            Ok(()) => self.remove(&leaving).await,
            Err(error) => leaving.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut removed = leaving.iter().map(|job| &job.job.id).zip(removed).peekable();
        let outcome = |(id, ended): (&JobId, Result<Versioned, ManagerError>)| {
            ended?;
            removed.next_if(|(next, _)| *next == id).map_or(Ok(false), |(_, removed)| removed)
        };
        ids.iter().zip(ended).map(outcome).collect()
    }

    /// Notes in the audit that jobs are about to be removed.
    async fn before_deletion(
        &self,
        actor: &Actor,
        reason: Option<&str>,
        jobs: &[Versioned],
    ) -> Result<(), ManagerError> {
        // What may fail comes before the audit says that they are deleted.
        self.leave_keys_and_lines(jobs).await?;
        if !self.shared.keeps_audit {
            return Ok(());
        }
        let at = self.shared.clock.now();
        let entry = |found: &Versioned| {
            let (job, state) = (&*found.job, found.job.state.name());
            let removal = HistoryEntry {
                at,
                from: Some(state),
                to: state,
                fence: job.fence,
                attempt: job.attempt,
                event: EventName::Deleted,
                actor: actor.clone(),
                worker_id: None,
                reason: reason.map(str::to_owned),
            };
            let next = u32::try_from(job.history.len() + 1).unwrap_or(u32::MAX);
            let numbered = job.history.numbered().chain([(next, &removal)]);
            numbered.map(|(number, entry)| audit_entry::entry(job, number, entry)).collect::<Vec<_>>()
        };
        // With all that the audit may not have copied yet: an entry that it has is the same entry.
        let entries: Vec<_> = jobs.iter().filter(|found| !found.job.spec.queue.is_internal()).flat_map(entry).collect();
        Ok(self.shared.store.append_audit(&entries).await?)
    }
}

/// Returns the submission that runs an ended job again.
fn rerun_of(origin: JobView, caller: &Actor, key: Option<&str>) -> Result<NewJob, ManagerError> {
    let job = &*origin.versioned.job;
    if job.is_never_created() {
        return Err(Refusal::NeverCreated.into());
    }
    if !job.state.name().is_final() {
        return Err(Refusal::NotEnded(job.state.name()).into());
    }
    let conditions = job.spec.conditions.as_deref().cloned().map(|conditions| Conditions {
        ordering: conditions.ordering.map(|ordered| Ordered::without_place(ordered.key)),
        ..conditions
    });
    let spec = JobSpec {
        due: None,
        rerun_of: Some(job.id.clone()),
        conditions: conditions.map(Box::new),
        fingerprint: None,
        ..JobSpec::clone(&job.spec)
    };
    let id = key.map(|key| id_of_rerun(caller, &job.id, key));
    Ok(NewJob { id, payload: origin.payload, ..NewJob::of(spec) })
}

/// Returns the id of the job that runs another one again, under a caller's key for this.
fn id_of_rerun(caller: &Actor, origin: &JobId, key: &str) -> JobId {
    let name = format!("{caller}\u{0}{origin}\u{0}{key}");
    JobId::of_uuid(Uuid::new_v5(&RERUN_NAMESPACE, name.as_bytes()))
}

fn because(what: &str, reason: Option<&str>) -> String {
    reason.map_or_else(|| what.to_owned(), |reason| format!("{what}: {reason}"))
}
