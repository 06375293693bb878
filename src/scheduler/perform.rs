//! Performing a trigger that is due: whether it may, and its action.
//!
//! Nothing that was known when the trigger was made counts. The schedule is read in real time, and the trigger is
//! judged by what the schedule is now: a pause, a change or a removal holds from when it was acknowledged.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::action::{Actions, Before, End, IN_VAIN, Until};
use super::earlier::{BACKFILLS_ARE_FULL, CHANGED_BY_OTHERS, CLOCK_IS_OFF, Earlier, WAITS_FOR, put_off};
use super::outcomes;
use super::overlap::{Overlaps, Verdict};
use super::trigger::{LATE, Performed, Trigger};
use super::troubles::Troubles;
use crate::clock::{Clock, Timestamp, millis};
use crate::job::Json;
use crate::manager::{Caller, Manager};
use crate::notify::ScheduleNotifier;
use crate::schedule::{
    ActionType, MissReason, NotRun, NotRunRange, Occasion, Outcome, SCHEDULER, Schedule, TriggerEnd,
};
use crate::store::{ScheduleWrite, Store, StoredSchedule, WriteError};
use crate::worker::{Attempt, Handler, HandlerError};

/// How often a change of a schedule's course is tried against changes by others.
const TRIES: usize = 10;
/// How long a trigger waits until it is judged again, such as for the end of the one before it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// How long a trigger of a backfill waits when others have all places.
const BUSY: Duration = Duration::from_secs(2);

/// Performs triggers.
pub(super) struct Perform {
    pub(super) manager: Manager,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) actions: Actions,
    pub(super) overlaps: Overlaps,
    pub(super) notifier: ScheduleNotifier,
    pub(super) troubles: Troubles,
    /// The places for triggers of backfills, which may not take all.
    pub(super) backfills: Semaphore,
}

#[async_trait]
impl Handler for Perform {
    async fn run(&self, attempt: Attempt) -> Result<Option<Json>, HandlerError> {
        let text = attempt.job.payload.as_ref().map_or("null", Json::as_str);
        let trigger: Trigger = serde_json::from_str(text)
            .map_err(|error| HandlerError::permanent("unreadable", format!("this is no trigger: {error}")))?;
        let performed = self.perform(&trigger, &attempt).await?;
        let outcome = performed.outcome.as_str();
        match trigger.backfill {
            None => metrics::counter!("leasehold_triggers_performed_total", "outcome" => outcome).increment(1),
            Some(_) => metrics::counter!("leasehold_triggers_backfilled_total", "outcome" => outcome).increment(1),
        }
        Ok(Json::of(&performed).ok())
    }
}

impl Perform {
    async fn perform(&self, trigger: &Trigger, attempt: &Attempt) -> Result<Performed, HandlerError> {
        if self.manager.clock_is_far_off() {
            return Err(HandlerError::postponed("clock", CLOCK_IS_OFF, LOOK_AGAIN));
        }
        let now = self.clock.now();
        let mut late = now.since(trigger.due_at);
        let found = self.store.schedules(std::slice::from_ref(&trigger.schedule_id)).await.map_err(later)?;
        let Some(found) = found.into_iter().next().flatten() else {
            return Ok(Performed::not(Outcome::Skipped, late, "the schedule was removed"));
        };
        let schedule = &found.schedule;
        if let Some(why) = why_skipped(schedule, trigger) {
            return Ok(Performed::not(Outcome::Skipped, late, why));
        }
        let is_backfilled = trigger.backfill.is_some();
        let _place = is_backfilled.then(|| self.place_of_backfill()).transpose()?;
        if !is_backfilled && let Some(performed) = self.judge(&found, trigger, attempt, now).await? {
            return Ok(performed);
        }
        let until = trigger.until(schedule);
        let end = match schedule.definition.action.kind {
            ActionType::Job => self.actions.submit(&self.manager, schedule, trigger).await?,
            ActionType::Http if is_backfilled && now > until && self.was_in_vain(attempt).await? => {
                return Ok(Performed::in_vain(late));
            }
            ActionType::Http => {
                let limit = Until { at: until, is_missed_then: !is_backfilled && now <= until };
                match self.actions.place(schedule, trigger, attempt, (&*self.clock, &limit)).await? {
                    Before::Placed(placed) => {
                        // It may have waited for its place.
                        late = self.clock.now().since(trigger.due_at);
                        self.actions.call(schedule, trigger, *placed, (&*self.clock, until)).await?
                    }
                    Before::Missed(reason) => return self.judge_without_place(&found, trigger, attempt, reason).await,
                    Before::Ended(end) => end,
                }
            }
        };
        if !is_backfilled {
            metrics::histogram!("leasehold_trigger_lateness_seconds").record(late);
        }
        // The action is done: to do it again for the sake of a count would be worse than a count that is off.
        let ended = match &end {
            End::Done { .. } => TriggerEnd::Succeeded,
            End::Consumed { message, .. } => TriggerEnd::Refused(message.as_deref()),
            End::Failed { message, .. } => TriggerEnd::GivenUp(message.as_deref().unwrap_or("no answer")),
        };
        if !is_backfilled && let Err(error) = self.ended(&found, ended).await {
            tracing::warn!(%error, schedule = %schedule.id, "how an action has ended is not counted");
        }
        let outcome = match end {
            End::Failed { .. } => Outcome::Failed,
            End::Consumed { .. } => Outcome::Consumed,
            End::Done { .. } if !is_backfilled && late > LATE => Outcome::Late,
            End::Done { .. } => Outcome::Fired,
        };
        let (End::Done { job_id, message } | End::Consumed { job_id, message } | End::Failed { job_id, message }) = end;
        Ok(Performed { outcome, late_ms: millis(late), job_id, message, reason: None, behind: None })
    }

    /// Judges a trigger whose margin of error is over, by what earlier attempts have come to.
    async fn judge_late(
        &self,
        found: &StoredSchedule,
        trigger: &Trigger,
        attempt: &Attempt,
        late: Duration,
    ) -> Result<Option<Performed>, HandlerError> {
        let kind = found.schedule.definition.action.kind;
        if kind == ActionType::Job {
            // What an earlier attempt has submitted is there, whatever has become of the process or of its answer, and
            // whether that attempt counts or was given back.
            let due = [(trigger.due(), false)];
            let submitted = outcomes::submitted(&self.manager, &due).await.map_err(later)?;
            if let Some(performed) = submitted.into_iter().next().flatten() {
                self.ended(found, TriggerEnd::Succeeded).await?;
                return Ok(Some(performed));
            }
        }
        let performed = match Earlier::of(&self.manager, attempt).await.map_err(later)? {
            // It has begun in time, and may be done: the call is made again under its key, and its answer tells.
            Earlier::Died if kind == ActionType::Http => return Ok(None),
            Earlier::Failed if attempt.job.attempt > 1 => self.in_vain(found, late).await?,
            Earlier::PutOff(reason) => self.missed(found, trigger, reason).await?,
            Earlier::Died | Earlier::Failed => self.missed(found, trigger, None).await?,
        };
        Ok(Some(performed))
    }

    /// Judges a trigger that has found no place until its margin of error was over, by what earlier attempts have come
    /// to.
    async fn judge_without_place(
        &self,
        found: &StoredSchedule,
        trigger: &Trigger,
        attempt: &Attempt,
        reason: MissReason,
    ) -> Result<Performed, HandlerError> {
        match Earlier::of(&self.manager, attempt).await.map_err(later)? {
            // It may be done: it goes on after its margin of error, as one does that is found only then.
            Earlier::Died => Err(put_off(reason, reason.why(), LOOK_AGAIN)),
            Earlier::Failed if attempt.job.attempt > 1 => {
                self.in_vain(found, self.clock.now().since(trigger.due_at)).await
            }
            Earlier::Failed | Earlier::PutOff(_) => self.missed(found, trigger, Some(reason)).await,
        }
    }

    /// Records that an action was tried until its margin of error was over.
    async fn in_vain(&self, found: &StoredSchedule, late: Duration) -> Result<Performed, HandlerError> {
        self.ended(found, TriggerEnd::GivenUp(IN_VAIN)).await?;
        Ok(Performed::in_vain(late))
    }

    /// Returns whether a call was made that had no answer, or one that drives back.
    async fn was_in_vain(&self, attempt: &Attempt) -> Result<bool, HandlerError> {
        let has_begun = attempt.job.attempt > 1;
        Ok(has_begun && !matches!(Earlier::of(&self.manager, attempt).await.map_err(later)?, Earlier::Died))
    }

    /// Records that a due time was missed.
    async fn missed(
        &self,
        found: &StoredSchedule,
        trigger: &Trigger,
        reason: Option<MissReason>,
    ) -> Result<Performed, HandlerError> {
        self.note_not_run(found, trigger.due_at, NotRun::Missed).await?;
        let late = self.clock.now().since(trigger.due_at);
        let why = reason.map_or(NotRun::Missed.why(), MissReason::why);
        Ok(Performed { reason, ..Performed::not(Outcome::Missed, late, why) })
    }

    /// Judges a trigger that was made when it was due: whether it begins within its margin of error, and whether an
    /// earlier one has ended. Returns what becomes of one that is not performed.
    async fn judge(
        &self,
        found: &StoredSchedule,
        trigger: &Trigger,
        attempt: &Attempt,
        now: Timestamp,
    ) -> Result<Option<Performed>, HandlerError> {
        let (schedule, late) = (&found.schedule, now.since(trigger.due_at));
        if schedule.is_too_late(trigger.due_at, now) {
            return self.judge_late(found, trigger, attempt, late).await;
        }
        match self.overlaps.judge(schedule, trigger).await.map_err(later)? {
            Verdict::Go => {}
            Verdict::Wait(job) => {
                let why = format!("{WAITS_FOR} {job}");
                return Err(HandlerError::postponed("overlap", why, LOOK_AGAIN));
            }
            Verdict::Skip(behind) => {
                self.note_not_run(found, trigger.due_at, NotRun::Overlap).await?;
                let performed = Performed::not(Outcome::Skipped, late, NotRun::Overlap.why());
                return Ok(Some(Performed { behind: Some(behind), ..performed }));
            }
        }
        Ok(None)
    }

    /// Takes one of the places for triggers of backfills.
    fn place_of_backfill(&self) -> Result<SemaphorePermit<'_>, HandlerError> {
        let busy = || HandlerError::postponed("busy", BACKFILLS_ARE_FULL, BUSY);
        self.backfills.try_acquire().map_err(|_| busy())
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
            if !change(&mut schedule, &Occasion { at: now, by: &caller.name, is_wanted: &is_wanted }) {
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
        // This attempt has begun nothing: the trigger is judged again as it would have been now.
        Err(HandlerError::postponed("contended", CHANGED_BY_OTHERS, LOOK_AGAIN))
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
    fn in_vain(late: Duration) -> Self {
        Self::not(Outcome::Failed, late, IN_VAIN)
    }

    fn not(outcome: Outcome, late: Duration, why: &str) -> Self {
        let (job_id, message) = (None, Some(why.to_owned()));
        Self { outcome, late_ms: millis(late), job_id, message, reason: None, behind: None }
    }
}

/// Returns why a trigger is skipped for the sake of what has become of its schedule; `None` when it is not.
fn why_skipped(schedule: &Schedule, trigger: &Trigger) -> Option<&'static str> {
    let Trigger { due_at, created_at, revision, on_request, backfill, .. } = trigger;
    let is_of_it = schedule.created_at == *created_at;
    if let Some(backfill) = backfill {
        // A person has asked for it, also while the schedule is paused.
        let is_as_then = is_of_it && schedule.updated_at == backfill.changed_at;
        return (!is_as_then).then_some("the schedule was changed after its backfill was asked for");
    }
    let is_foreseen = is_of_it && (*on_request || schedule.revision == *revision);
    // A pause that is over by now holds for what was due in it.
    let in_pause = |due| schedule.course.not_run_at(due).is_some_and(|range| range.reason == NotRun::Paused);
    if !on_request && (schedule.paused.is_some() || (!is_foreseen && in_pause(*due_at))) {
        return Some(NotRun::Paused.why());
    }
    let is_due = || !on_request && is_due(schedule, *due_at);
    (!is_foreseen && !is_due()).then_some("the schedule was changed, and is not due then any more")
}

fn is_due(schedule: &Schedule, at: Timestamp) -> bool {
    at > schedule.period_since && schedule.timetable().is_ok_and(|timetable| timetable.is_due_at(at))
}

fn later(error: impl std::fmt::Display) -> HandlerError {
    HandlerError::retryable("store", error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobId;
    use crate::schedule::SchedulePause;

    fn schedule() -> Schedule {
        serde_json::from_value(serde_json::json!({
            "id": "s", "revision": 3, "period_since": "2030-01-01T00:00:00Z",
            "created_at": "2030-01-01T00:00:00Z", "updated_at": "2030-01-02T00:00:00Z",
            "definition": {
                "action": {"type": "job", "job": {"queue": "q", "kind": "k"}}, "period": {"cron": "0 * * * *"},
                "margin_of_error_ms": 60_000,
            },
        }))
        .expect("a schedule")
    }

    fn time(text: &str) -> Timestamp {
        Timestamp::parse_rfc3339(text).expect("a time")
    }

    fn paused(schedule: Schedule) -> Schedule {
        let pause = SchedulePause { at: schedule.updated_at, by: Caller::system("test").name, reason: String::new() };
        Schedule { paused: Some(pause), revision: schedule.revision + 1, ..schedule }
    }

    fn changed(schedule: Schedule) -> Schedule {
        Schedule { updated_at: time("2030-01-03T00:00:00Z"), revision: schedule.revision + 1, ..schedule }
    }

    fn another() -> Schedule {
        Schedule { created_at: time("2030-01-01T12:00:00Z"), ..schedule() }
    }

    #[test]
    fn a_trigger_is_skipped_that_is_not_due_as_the_schedule_is_now_and_while_that_is_paused() {
        let due = Trigger::of(&schedule(), time("2030-01-04T02:00:00Z"), None);
        let other = Trigger { due_at: time("2030-01-04T02:30:00Z"), ..due.clone() };
        for trigger in [&due, &other] {
            assert_eq!(why_skipped(&schedule(), trigger), None, "it was foreseen");
            assert_eq!(why_skipped(&paused(schedule()), trigger), Some("the schedule was paused"));
        }
        let mut paused_then = Schedule { revision: 5, ..schedule() };
        let [first, last] = [due.due_at; 2];
        paused_then.course.add_not_run(NotRunRange { first, last, count: 1, reason: NotRun::Paused });
        assert_eq!(why_skipped(&paused_then, &due), Some("the schedule was paused"), "it was due in a pause");
        for now in [changed(schedule()), another()] {
            assert_eq!(why_skipped(&now, &due), None, "it is due all the same");
            assert!(why_skipped(&now, &other).is_some());
        }
    }

    #[test]
    fn a_run_on_request_is_skipped_only_when_its_schedule_is_gone() {
        let of = Trigger::of(&schedule(), time("2030-01-04T02:30:00Z"), None);
        let on_request = Trigger { on_request: true, ..of };
        for now in [schedule(), paused(schedule()), changed(schedule())] {
            assert_eq!(why_skipped(&now, &on_request), None);
        }
        assert!(why_skipped(&another(), &on_request).is_some());
    }

    #[test]
    fn a_trigger_of_a_backfill_is_skipped_when_the_schedule_was_changed_and_not_when_it_is_paused() {
        let (backfill, now) = (JobId::generate(), time("2030-01-05T00:00:00Z"));
        let trigger = Trigger::backfilled(&schedule(), time("2020-01-01T02:00:00Z"), backfill, now);
        assert_eq!(why_skipped(&schedule(), &trigger), None);
        assert_eq!(why_skipped(&paused(schedule()), &trigger), None);
        assert!(why_skipped(&changed(schedule()), &trigger).is_some());
        assert!(why_skipped(&another(), &trigger).is_some());
        let until = trigger.until(&schedule());
        assert_eq!(until, now.plus(Duration::from_secs(60)), "its margin begins with it");
    }
}
