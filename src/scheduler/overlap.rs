//! Overlaps: what becomes of a trigger while an earlier one of its schedule has not ended.
//!
//! A trigger knows the one before it, and one that was skipped knows the one for whose sake it was. The schedule knows
//! which ones did not run, and what became of those that are not kept any more. So what may still run is found in a few
//! steps, without a search, and for as long as it runs.

use super::trigger::{Performed, Trace, Trigger};
use crate::clock::Timestamp;
use crate::job::{JobId, Json, ScheduleId};
use crate::manager::{Caller, JobView, Manager, ManagerError};
use crate::schedule::{KeptOutcome, Overlap, Schedule};
use crate::store::Versioned;

/// How many triggers that were not performed are passed over to find the one before them.
const MAX_PASSED_OVER: usize = 20;

/// What becomes of a trigger.
pub(super) enum Verdict {
    /// It is performed.
    Go,
    /// It waits for the end of this job.
    Wait(JobId),
    /// It is skipped for the sake of the trigger that was due then.
    Skip(Timestamp),
}

/// An earlier trigger that has not ended, or whose job has not.
struct Unended {
    /// When the trigger was due.
    due_at: Timestamp,
    /// Which of the two has not ended.
    id: JobId,
    /// The trigger, while it is kept.
    trigger: Option<Versioned>,
}

/// Judges triggers by what became of those before them.
pub(super) struct Overlaps {
    pub(super) manager: Manager,
}

impl Overlaps {
    /// Judges a trigger that is due by the rule of its schedule.
    pub(super) async fn judge(&self, schedule: &Schedule, trigger: &Trigger) -> Result<Verdict, ManagerError> {
        let rule = schedule.definition.overlap;
        if rule == Overlap::Allow {
            return Ok(Verdict::Go);
        }
        let Some(unended) = self.unended(schedule, trigger).await? else { return Ok(Verdict::Go) };
        Ok(match rule {
            Overlap::Allow => Verdict::Go,
            Overlap::Skip => Verdict::Skip(unended.due_at),
            Overlap::QueueOne if self.is_queued(schedule, &unended).await? => Verdict::Skip(unended.due_at),
            Overlap::QueueOne => Verdict::Wait(unended.id),
            Overlap::CancelPrevious => {
                let caller = Caller::system("scheduler");
                let reason = Some("the next one of its schedule is due".to_owned());
                // What has ended meanwhile needs no cancellation, and what cannot be told of it ends by its own lease.
                if let Err(error) = self.manager.cancel(&caller, &unended.id, reason).await {
                    tracing::debug!(%error, job = %unended.id, "an earlier job of a schedule is not cancelled");
                }
                Verdict::Go
            }
        })
    }

    /// Returns what has not ended of the triggers before this one. Those that were not performed are passed over.
    async fn unended(&self, schedule: &Schedule, trigger: &Trigger) -> Result<Option<Unended>, ManagerError> {
        let mut before = trigger.previous;
        for _ in 0..MAX_PASSED_OVER {
            let Some(due_at) = before else { return Ok(None) };
            let (unended, ended) = self.unended_at(&trigger.schedule_id, due_at).await?;
            if unended.is_some() {
                return Ok(unended);
            }
            let view = match ended {
                Some(ended) => self.manager.view(vec![ended]).await?.pop(),
                None => None,
            };
            before = before_ended(schedule, due_at, view);
        }
        Ok(None)
    }

    /// Returns what has not ended of the trigger that was due then and of its job, and else the trigger.
    async fn unended_at(
        &self,
        schedule: &ScheduleId,
        due_at: Timestamp,
    ) -> Result<(Option<Unended>, Option<Versioned>), ManagerError> {
        let sought = [Trace::Trigger, Trace::Job].map(|trace| trace.sought(schedule, due_at));
        let mut found = self.manager.find_own(&sought).await?.into_iter();
        let (trigger, job) = (found.next().flatten(), found.next().flatten());
        let open = job.iter().chain(&trigger).find(|found| !found.job.state.name().is_final());
        let unended = open.map(|open| Unended { due_at, id: open.job.id.clone(), trigger: trigger.clone() });
        Ok((unended, trigger))
    }

    /// Returns whether an earlier trigger waits for a still earlier one.
    async fn is_queued(&self, schedule: &Schedule, unended: &Unended) -> Result<bool, ManagerError> {
        // One that has ended was performed, and its job runs.
        let waiting = unended.trigger.as_ref().filter(|found| !found.job.state.name().is_final());
        let Some(found) = waiting else { return Ok(false) };
        let payload = self.manager.view(vec![found.clone()]).await?.pop().and_then(|view| view.payload);
        match payload.as_ref().and_then(read) {
            Some(trigger) => Ok(self.unended(schedule, &trigger).await?.is_some()),
            None => Ok(false),
        }
    }
}

/// Returns the due time before one whose trigger has ended at which something may have begun that goes on. Nothing has
/// when the trigger itself was performed, since it was judged by the same rule.
fn before_ended(schedule: &Schedule, due_at: Timestamp, trigger: Option<JobView>) -> Option<Timestamp> {
    let course = &schedule.course;
    let passed_over = || {
        let timetable = course.has_not_run(due_at).then(|| schedule.timetable().ok()).flatten()?;
        schedule.may_have_run_before(&timetable, due_at)
    };
    let Some(JobView { payload, result, .. }) = trigger else {
        let is_done = course.kept_at(due_at).is_some_and(KeptOutcome::was_performed_when_due);
        return if is_done { None } else { passed_over().or_else(|| course.kept_before(due_at)) };
    };
    match result.and_then(|result| serde_json::from_str::<Performed>(result.as_str()).ok()) {
        Some(performed) if performed.outcome.is_done() => None,
        Some(Performed { behind: Some(behind), .. }) => Some(behind),
        _ => passed_over().or_else(|| payload.as_ref().and_then(read)?.previous),
    }
}

fn read(payload: &Json) -> Option<Trigger> {
    serde_json::from_str(payload.as_str()).ok()
}
