//! What has become of the due times of a schedule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::backfill::MAX_DUE_TIMES;
use super::earlier::Earlier;
use super::trigger::{BACKFILL_LABEL, LATE, Performed, Trace};
use crate::clock::{Timestamp, millis};
use crate::job::{Due, Job, JobId, JobState, Json};
use crate::manager::own::SoughtOwn;
use crate::manager::{JobView, Manager, ManagerError};
use crate::schedule::{KeptOutcome, MissReason, NotRun, Outcome, Schedule, Timetable};
use crate::store::{StoreError, Versioned};

/// How many due times from before a schedule had its present period are looked at by one call.
const LOOKED_AT: usize = 1_000;

/// A due time of a schedule, with what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DueTime {
    /// When the schedule was due.
    pub due_at: Timestamp,
    /// What has become of it.
    pub outcome: Outcome,
    /// The trigger, which is a job in the queue `leasehold.triggers`; null when there is none, or none any more.
    pub trigger_id: Option<JobId>,
    /// The job that the trigger has submitted; null when there is none, or neither it nor the trigger any more.
    pub job_id: Option<JobId>,
    /// How late it began, in milliseconds; null when it has not begun.
    pub late_ms: Option<u64>,
    /// Why it was not performed, or what was answered; null when there is nothing to say.
    pub message: Option<String>,
    /// What has kept a call that was missed from beginning in time: `limit` or `host_down`; null when it is not known,
    /// and for any other outcome.
    pub reason: Option<MissReason>,
    /// Whether this is what a backfill has made of it.
    pub backfilled: bool,
}

/// Returns what became of triggers that have ended; `None` for one without a result. One that has begun and expired
/// since has none, and was performed if its job is there.
pub(super) async fn performed(
    manager: &Manager,
    triggers: Vec<Versioned>,
) -> Result<Vec<Option<Performed>>, ManagerError> {
    let read = |result: Option<Json>| serde_json::from_str(result?.as_str()).ok();
    let views = manager.view(triggers).await?;
    let (mut performed, mut not_reported) = (Vec::new(), Vec::new());
    for (place, JobView { versioned, result, .. }) in views.into_iter().enumerate() {
        performed.push(read(result));
        let job = &*versioned.job;
        if job.state.name() == JobState::Expired && job.started_at.is_some() {
            let due = job.spec.due.as_deref().cloned();
            not_reported.extend(due.map(|due| (place, (due, job.spec.labels.contains_key(BACKFILL_LABEL)))));
        }
    }
    let (places, due): (Vec<usize>, Vec<(Due, bool)>) = not_reported.into_iter().unzip();
    for (place, submitted) in places.into_iter().zip(submitted(manager, &due).await?) {
        performed[place] = performed[place].take().or(submitted);
    }
    Ok(performed)
}

/// Returns what became of due times, each with whether a backfill has run it, whose jobs are there though no attempt
/// has reported that it submitted them; `None` for one without a job.
pub(super) async fn submitted(manager: &Manager, due: &[(Due, bool)]) -> Result<Vec<Option<Performed>>, StoreError> {
    if due.is_empty() {
        return Ok(Vec::new());
    }
    let sought_of = |(due, backfilled): &(Due, bool)| trace_of_job(*backfilled).sought(&due.schedule_id, due.due_at);
    let sought: Vec<SoughtOwn> = due.iter().map(sought_of).collect();
    let found = manager.find_own(&sought).await?;
    let of = |(found, (due, _)): (Option<Versioned>, &(Due, bool))| {
        let job = found?.job;
        let late = job.created_at.since(due.due_at);
        Some(Performed {
            outcome: if late > LATE { Outcome::Late } else { Outcome::Fired },
            late_ms: millis(late),
            job_id: Some(job.id.clone()),
            message: Some("its job was submitted, and its process ended before it said so".to_owned()),
            reason: None,
            behind: None,
        })
    };
    Ok(found.into_iter().zip(due).map(of).collect())
}

fn trace_of_job(backfilled: bool) -> Trace {
    if backfilled { Trace::BackfilledJob } else { Trace::Job }
}

impl DueTime {
    /// Returns what has become of a trigger's due time, which a trigger that was performed says itself.
    pub(super) fn of(trigger: &Job, due_at: Timestamp, performed: Option<Performed>) -> Self {
        let outcome = performed.as_ref().map_or_else(|| outcome_of(trigger), |performed| performed.outcome);
        let late_ms = performed.as_ref().map(|performed| performed.late_ms);
        let reason = performed.as_ref().and_then(|performed| performed.reason);
        let (job_id, message) = performed.map_or((None, None), |performed| (performed.job_id, performed.message));
        Self {
            due_at,
            outcome,
            trigger_id: Some(trigger.id.clone()),
            job_id,
            late_ms: late_ms.or_else(|| trigger.started_at.map(|started| millis(started.since(due_at)))),
            message,
            reason,
            backfilled: trigger.spec.labels.contains_key(BACKFILL_LABEL),
        }
    }

    /// Returns what is kept of it when the trigger is removed.
    pub(super) fn into_kept(self) -> KeptOutcome {
        let Self { due_at, outcome, job_id, late_ms, message, backfilled, .. } = self;
        KeptOutcome { due_at, outcome, late_ms, has_job: job_id.is_some(), backfilled, message }.shortened()
    }

    /// Returns what is known at `now` of a due time that has no trigger. Of a job that was submitted it has the first
    /// id, which a job of somebody else may have.
    fn without_trigger(schedule: &Schedule, due_at: Timestamp, now: Timestamp) -> Self {
        let course = &schedule.course;
        let (trigger_id, job_id, late_ms, message, reason) = (None, None, None, None, None);
        let (outcome, backfilled) = (Outcome::Removed, false);
        let unknown = Self { due_at, outcome, trigger_id, job_id, late_ms, message, reason, backfilled };
        if let Some(KeptOutcome { outcome, late_ms, has_job, backfilled, message, .. }) = course.kept_at(due_at) {
            let job_id = has_job.then(|| trace_of_job(*backfilled).sought(&schedule.id, due_at).id);
            let (outcome, late_ms, message, backfilled) = (*outcome, *late_ms, message.clone(), *backfilled);
            return Self { outcome, job_id, late_ms, message, backfilled, ..unknown };
        }
        let in_pause = schedule.is_in_pause(due_at, now).then_some(NotRun::Paused);
        if let Some(reason) = course.not_run_at(due_at).map(|range| range.reason).or(in_pause) {
            let outcome = if reason == NotRun::Missed { Outcome::Missed } else { Outcome::Skipped };
            return Self { outcome, message: Some(reason.why().to_owned()), ..unknown };
        }
        let is_to_come = course.next_due_at.is_some_and(|next| due_at >= next);
        Self { outcome: if is_to_come { Outcome::Waiting } else { Outcome::Removed }, ..unknown }
    }
}

/// Due times of a schedule, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTimes {
    /// The due times, each with what has become of it.
    pub items: Vec<DueTime>,
    /// The due time at which the list goes on; `None` at its end.
    pub next: Option<Timestamp>,
}

/// Returns the first `limit` due times of a schedule from `from` to `to`, in order, each with its outcome at `now`. Of
/// those from before the schedule had its present period, those are listed that a backfill has run. The latest
/// [`MAX_DUE_TIMES`] of them are looked at, [`LOOKED_AT`] with each call, so that it may return fewer than there are.
pub(super) async fn due_times(
    manager: &Manager,
    (schedule, timetable): (&Schedule, &Timetable),
    (from, to): (Timestamp, Timestamp),
    limit: usize,
    now: Timestamp,
) -> Result<DueTimes, ManagerError> {
    let (after, since) = (Timestamp::from_millis(from.as_millis() - 1), schedule.period_since);
    // What was due at the moment of the change was not due for this period.
    let before = timetable.last_until(since.min(to), MAX_DUE_TIMES, after.min(since));
    let looked_at = &before[..before.len().min(LOOKED_AT)];
    let mut items = page_of(manager, schedule, looked_at, now).await?;
    items.retain(|due_time| due_time.backfilled);
    let rest = items.get(limit).map(|first| first.due_at).or(before.get(LOOKED_AT).copied());
    items.truncate(limit);
    if rest.is_some() {
        return Ok(DueTimes { items, next: rest });
    }
    let mut due = timetable.due_after(after.max(since)).take_while(|due| *due <= to);
    let page: Vec<Timestamp> = due.by_ref().take(limit - items.len()).collect();
    items.extend(page_of(manager, schedule, &page, now).await?);
    Ok(DueTimes { items, next: due.next() })
}

/// Returns these due times of a schedule, each with its outcome at `now`.
async fn page_of(
    manager: &Manager,
    schedule: &Schedule,
    due: &[Timestamp],
    now: Timestamp,
) -> Result<Vec<DueTime>, ManagerError> {
    let of = |due: &Timestamp| [Trace::Trigger, Trace::Backfilled].map(|trace| trace.sought(&schedule.id, *due));
    let found = manager.find_own(&due.iter().flat_map(of).collect::<Vec<_>>()).await?;
    let mut ended = performed(manager, found.iter().flatten().cloned().collect()).await?.into_iter();
    let mut found = found.into_iter().map(|found| Some((found?, ended.next().flatten())));
    let mut next = |due_at: Timestamp| {
        let (trigger, performed) = found.next().flatten()?;
        Some(DueTime::of(&trigger.job, due_at, performed))
    };
    let due_time = |due_at: &Timestamp| {
        let (when_due, backfilled) = (next(*due_at), next(*due_at));
        let noted = DueTime::without_trigger(schedule, *due_at, now);
        match when_due {
            // What was performed when it was due was not backfilled, whatever a backfill has tried.
            Some(when_due) if when_due.outcome.is_done() => when_due,
            _ if noted.outcome.is_done() => noted,
            when_due => backfilled.or(when_due).unwrap_or(noted),
        }
    };
    let mut due_times: Vec<DueTime> = due.iter().map(due_time).collect();
    find_jobs(manager, schedule, &mut due_times).await?;
    Ok(due_times)
}

/// Finds the jobs of due times whose triggers were removed, each under the id that it has.
async fn find_jobs(manager: &Manager, schedule: &Schedule, due_times: &mut [DueTime]) -> Result<(), StoreError> {
    let of_kept = |due_time: &&mut DueTime| due_time.trigger_id.is_none() && due_time.job_id.is_some();
    let kept: Vec<&mut DueTime> = due_times.iter_mut().filter(of_kept).collect();
    let sought = kept.iter().map(|kept| trace_of_job(kept.backfilled).sought(&schedule.id, kept.due_at));
    let sought: Vec<SoughtOwn> = sought.collect();
    if !sought.is_empty() {
        for (kept, found) in kept.into_iter().zip(manager.find_own(&sought).await?) {
            kept.job_id = found.map(|found| found.job.id.clone());
        }
    }
    Ok(())
}

/// Returns what the state of a trigger without a result means.
pub(super) fn outcome_of(trigger: &Job) -> Outcome {
    match trigger.state.name() {
        JobState::Available => Outcome::Waiting,
        JobState::Running => Outcome::Running,
        JobState::Completed => Outcome::Fired,
        JobState::Failed => Outcome::Failed,
        JobState::Cancelled => Outcome::Skipped,
        JobState::Expired if Earlier::has_begun(trigger) => Outcome::Failed,
        JobState::Expired => Outcome::Missed,
    }
}
