//! The one way in which jobs are written, and the effects of an acknowledged write.

use std::sync::Arc;

use crate::job::{Job, NewBody};
use crate::manager::Manager;
use crate::store::{Versioned, Write, WriteError};

/// A write of a job, with the job's former version.
pub(crate) struct JobWrite {
    /// The job before the write; `None` for a new job.
    before: Option<Arc<Job>>,
    write: Write,
}

impl JobWrite {
    pub(crate) fn create(job: Arc<Job>, bodies: Vec<NewBody>) -> Self {
        Self { before: None, write: Write::Create { job, bodies } }
    }

    pub(crate) fn replace(before: Versioned, job: Arc<Job>, bodies: Vec<NewBody>) -> Self {
        let write = Write::Replace { job, expected: before.version, bodies };
        Self { before: Some(before.job), write }
    }

    pub(crate) fn remove(job: &Versioned) -> Self {
        let write = Write::Remove { job: Arc::clone(&job.job), expected: job.version };
        Self { before: Some(Arc::clone(&job.job)), write }
    }
}

/// An acknowledged write.
pub(crate) struct Acknowledged {
    /// The job before the write; `None` for a new job.
    pub(crate) before: Option<Arc<Job>>,
    /// The job after the write; `None` for a removed job.
    pub(crate) after: Option<Versioned>,
}

impl Acknowledged {
    /// Returns the job before and after the write, or `None` when it is new or was removed.
    pub(crate) fn change(&self) -> Option<(&Job, &Job)> {
        Some((self.before.as_deref()?, &*self.after.as_ref()?.job))
    }

    /// Returns the job if it may have been a candidate for claims and no longer is one.
    fn no_longer_available(&self) -> Option<&Job> {
        let before = self.before.as_deref().filter(|job| job.is_claimable())?;
        self.now_available().is_none().then_some(before)
    }

    fn now_available(&self) -> Option<&Versioned> {
        self.after.as_ref().filter(|after| after.job.is_claimable())
    }
}

impl Manager {
    /// Writes jobs and applies the effects of the writes. This runs in a task of its own that the shutdown waits for,
    /// so that a dropped call loses neither the events nor the hint to the dispatch. Returns, in the same order, each
    /// job as it was written or removed.
    pub(crate) async fn write(&self, writes: Vec<JobWrite>) -> Vec<Result<Versioned, WriteError>> {
        let (manager, count) = (self.clone(), writes.len());
        self.in_task(count, async move { manager.write_in_task(writes).await }).await
    }

    /// Applies one conditional write of a job, as [`Manager::write`] does.
    pub(crate) async fn write_one(&self, write: JobWrite) -> Result<Versioned, WriteError> {
        let unanswered = || Err(WriteError::Unknown("the store gave no answer".to_owned()));
        self.write(vec![write]).await.pop().unwrap_or_else(unanswered)
    }

    /// Runs this many writes in a task that the shutdown waits for, and returns their results.
    pub(super) async fn in_task(
        &self,
        writes: usize,
        written: impl Future<Output = Vec<Result<Versioned, WriteError>>> + Send + 'static,
    ) -> Vec<Result<Versioned, WriteError>> {
        let unknown = || Err(WriteError::Unknown("the server stopped".to_owned()));
        self.shared.tasks.spawn(written).await.unwrap_or_else(|_| (0..writes).map(|_| unknown()).collect())
    }

    /// Does the same as [`Manager::write`], for a caller that runs in such a task itself.
    pub(crate) async fn write_in_task(&self, writes: Vec<JobWrite>) -> Vec<Result<Versioned, WriteError>> {
        if writes.is_empty() {
            return Vec::new();
        }
        let (mut jobs, mut handed_over) = (Vec::with_capacity(writes.len()), Vec::with_capacity(writes.len()));
        for JobWrite { before, write } in writes {
            jobs.push((before, Arc::clone(write.job()), matches!(write, Write::Remove { .. })));
            handed_over.push(write);
        }
        let mut acknowledged = Vec::with_capacity(jobs.len());
        let mut answers = Vec::with_capacity(jobs.len());
        for ((before, job, is_removal), result) in jobs.into_iter().zip(self.shared.store.write(handed_over).await) {
            answers.push(result.map(|version| {
                let versioned = Versioned { job, version };
                acknowledged.push(Acknowledged { before, after: (!is_removal).then(|| versioned.clone()) });
                versioned
            }));
        }
        self.follow_up(&acknowledged);
        answers
    }

    /// Applies the effects of acknowledged writes, in this order:
    ///
    /// 1. The versions are remembered, so that every later step is decided on them.
    /// 2. The events are published before any caller is woken or offered the job: a caller that waited for a job's end
    ///    finds it in the feed, and a job's submission is published before its claim.
    /// 3. The writes are counted.
    /// 4. The notifier, the calls that wait for a job's end and those of workers whose attempts have to end are woken.
    /// 5. The slots of jobs that have ended are free, for the claims that come next.
    /// 6. The dispatch, with the lines of jobs that have ended, here or at the manager that is told of the job, comes
    ///    last, since it causes the next write of the same job, whose effects must not overtake the effects of this
    ///    one.
    fn follow_up(&self, writes: &[Acknowledged]) {
        for write in writes {
            match (&write.before, &write.after) {
                (_, Some(after)) => self.shared.work.known.learn(after),
                (Some(removed), None) => self.shared.work.known.forget(&removed.id),
                (None, None) => {}
            }
        }
        let written = || writes.iter().filter_map(|write| Some((write.before.as_deref(), &*write.after.as_ref()?.job)));
        let history_before = |before: Option<&Job>| before.map_or(0, |job| job.history.len());
        self.shared.observe.events.publish(written().map(|(before, after)| (after, history_before(before))));
        self.shared.observe.count(writes, self.shared.clock.now());
        for (_, job) in written() {
            self.shared.work.pending_notices.note(job);
            if job.state.name().is_final() {
                self.shared.end_watchers.wake(&job.id);
            }
        }
        self.note_recalls(writes);
        for Acknowledged { before, after } in writes {
            if let Some(before) = before {
                self.note_slots(before, after.as_ref().map(|after| &*after.job));
            }
        }
        self.shared.dispatch.remove(writes.iter().filter_map(Acknowledged::no_longer_available));
        for Acknowledged { before, after } in writes {
            if let Some(before) = before {
                self.note_line(before, after.as_ref().map(|after| &*after.job));
            }
        }
        self.hand_out(writes.iter().filter_map(Acknowledged::now_available).cloned());
    }
}
