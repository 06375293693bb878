//! Performing a trigger that is due: whether it may, and its action.
//!
//! Nothing that was known when the trigger was made counts. The schedule is read in real time, and the trigger is
//! judged by what the schedule is now: a pause, a change or a removal holds from when it was acknowledged.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::action::{Actions, End};
use super::overlap::{Overlaps, Verdict};
use super::trigger::{Outcome, Performed, Trigger};
use super::troubles::Troubles;
use crate::clock::{Clock, Timestamp, millis};
use crate::job::Json;
use crate::manager::{Caller, Manager};
use crate::notify::ScheduleNotifier;
use crate::schedule::{ActionType, NotRun, NotRunRange, Occasion, SCHEDULER, Schedule, TriggerEnd};
use crate::store::{ScheduleWrite, Store, StoredSchedule, WriteError};
use crate::worker::{Attempt, Handler, HandlerError};

/// From when on a trigger counts as late.
const LATE: Duration = Duration::from_secs(1);
/// How often a change of a schedule's course is tried against changes by others.
const TRIES: usize = 10;
/// How long a trigger waits until it looks again for the end of the one before it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Performs triggers.
pub(super) struct Perform {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) actions: Actions,
    pub(super) overlaps: Overlaps,
    pub(super) notifier: ScheduleNotifier,
    pub(super) troubles: Troubles,
}

#[async_trait]
impl Handler for Perform {
    async fn run(&self, attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let text = attempt.job.payload.as_ref().map_or("null", Json::as_str);
        let trigger: Trigger = serde_json::from_str(text)
            .map_err(|error| HandlerError::permanent("unreadable", format!("this is no trigger: {error}")))?;
        let performed = self.perform(&trigger, &attempt).await?;
        let outcome = performed.outcome.as_str();
        metrics::counter!("leasehold_triggers_performed_total", "outcome" => outcome).increment(1);
        Ok(Json::of(&performed).ok())
    }
}

impl Perform {
    async fn perform(&self, trigger: &Trigger, attempt: &Attempt) -> Result<Performed, HandlerError> {
        let now = self.clock.now();
        let late = now.since(trigger.due_at);
        let skipped = |why: &str| Performed::not(Outcome::Skipped, late, why);
        let found = self.store.schedules(std::slice::from_ref(&trigger.schedule_id)).await.map_err(later)?;
        let Some(found) = found.into_iter().next().flatten() else {
            return Ok(skipped("the schedule was removed"));
        };
        let schedule = &found.schedule;
        if schedule.paused.is_some() && !trigger.on_request {
            return Ok(skipped("the schedule is paused"));
        }
        let is_foreseen =
            schedule.created_at == trigger.created_at && (trigger.on_request || schedule.revision == trigger.revision);
        if !is_foreseen && (trigger.on_request || !is_due(schedule, trigger.due_at)) {
            return Ok(skipped("the schedule was changed, and is not due then any more"));
        }
        if late > schedule.margin() {
            if attempt.job.attempt > 1 {
                let why = "it was tried until its margin of error was over";
                self.ended(&found, TriggerEnd::GivenUp(why)).await?;
                return Ok(Performed::not(Outcome::Failed, late, why));
            }
            self.note_not_run(&found, trigger.due_at, NotRun::Missed).await?;
            return Ok(Performed::not(Outcome::Missed, late, "it could not begin within the margin of error"));
        }
        match self.overlaps.judge(schedule, trigger).await.map_err(later)? {
            Verdict::Go => {}
            Verdict::Wait(job) => {
                let why = format!("it waits for the end of {job}");
                return Err(HandlerError::postponed("overlap", why, LOOK_AGAIN));
            }
            Verdict::Skip(behind) => {
                self.note_not_run(&found, trigger.due_at, NotRun::Overlap).await?;
                let performed = skipped("an earlier one had not ended");
                return Ok(Performed { behind: Some(behind), ..performed });
            }
        }
        metrics::histogram!("leasehold_trigger_lateness_seconds").record(late);
        let end = match schedule.definition.action.kind {
            ActionType::Job => self.actions.submit(&self.manager, schedule, trigger).await?,
            ActionType::Http => {
                let until = trigger.due_at.plus(schedule.margin());
                self.actions.call(schedule, trigger, attempt, (&*self.clock, until)).await?
            }
        };
        // The action is done: to do it again for the sake of a count would be worse than a count that is off.
        let ended = match &end {
            End::Done { .. } => TriggerEnd::Succeeded,
            End::Consumed { message, .. } => TriggerEnd::Refused(message.as_deref()),
            End::Failed { message, .. } => TriggerEnd::GivenUp(message.as_deref().unwrap_or("no answer")),
        };
        if let Err(error) = self.ended(&found, ended).await {
            tracing::warn!(%error, schedule = %schedule.id, "how an action has ended is not counted");
        }
        let outcome = match end {
            End::Failed { .. } => Outcome::Failed,
            End::Consumed { .. } => Outcome::Consumed,
            End::Done { .. } if late > LATE => Outcome::Late,
            End::Done { .. } => Outcome::Fired,
        };
        let (End::Done { job_id, message } | End::Consumed { job_id, message } | End::Failed { job_id, message }) = end;
        Ok(Performed { outcome, late_ms: millis(late), job_id, message, behind: None })
    }

    /// Records that a due time did not run.
    async fn note_not_run(&self, found: &StoredSchedule, due: Timestamp, reason: NotRun) -> Result<(), HandlerError> {
        let range = NotRunRange { first: due, last: due, count: 1, reason };
        self.change(found, |schedule, occasion| {
            // The loader may have found it missed as well.
            let is_new = !schedule.course.has_not_run(due);
            if is_new {
                schedule.course.add_not_run(range.clone());
                if reason == NotRun::Missed {
                    schedule.note_missed(&range, occasion);
                }
            }
            is_new
        })
        .await
    }

    /// Records in the schedule how a trigger has ended.
    async fn ended(&self, found: &StoredSchedule, end: TriggerEnd<'_>) -> Result<(), HandlerError> {
        self.change(found, |schedule, occasion| schedule.note_end(end, occasion)).await
    }

    /// Changes a schedule as it is now; `change` returns whether it has changed anything.
    async fn change(
        &self,
        found: &StoredSchedule,
        change: impl Fn(&mut Schedule, &Occasion<'_>) -> bool,
    ) -> Result<(), HandlerError> {
        let (mut current, caller, now) = (found.clone(), Caller::system(SCHEDULER), self.clock.now());
        for _ in 0..TRIES {
            let mut schedule = (*current.schedule).clone();
            let is_wanted = |event| self.notifier.is_wanted(&current.schedule.definition, event);
            if !change(&mut schedule, &Occasion { at: now, by: &caller, is_wanted: &is_wanted }) {
                return Ok(());
            }
            let schedule = Arc::new(schedule);
            let write = ScheduleWrite::Replace { schedule: Arc::clone(&schedule), expected: current.version };
            match self.store.write_schedules(vec![write]).await.into_iter().next() {
                Some(Ok(_)) => {
                    self.changed(&current.schedule, &schedule);
                    return Ok(());
                }
                Some(Err(WriteError::Conflict(Some(other)))) => current = other,
                // It was removed, and nobody asks any more.
                Some(Err(WriteError::Conflict(None))) => return Ok(()),
                Some(Err(error)) => return Err(HandlerError::retryable("store", error.to_string())),
                None => break,
            }
        }
        Err(HandlerError::retryable("contended", "the schedule was changed by others again and again"))
    }

    /// Takes note of a change that was written.
    fn changed(&self, before: &Schedule, after: &Schedule) {
        if let Some(pause) = after.paused.as_ref().filter(|_| before.paused.is_none()) {
            tracing::warn!(schedule = %after.id, reason = pause.reason, "a schedule is paused");
        }
        self.troubles.note(std::iter::once(after));
    }
}

impl Performed {
    fn not(outcome: Outcome, late: Duration, why: &str) -> Self {
        Self { outcome, late_ms: millis(late), job_id: None, message: Some(why.to_owned()), behind: None }
    }
}

fn is_due(schedule: &Schedule, at: Timestamp) -> bool {
    let timetable = schedule.definition.timetable(&schedule.id, &mut Vec::new());
    at > schedule.period_since && timetable.is_some_and(|timetable| timetable.is_due_at(at))
}

fn later(error: impl std::fmt::Display) -> HandlerError {
    HandlerError::retryable("store", error.to_string())
}
