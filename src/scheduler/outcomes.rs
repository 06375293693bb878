//! What has become of the due times of a schedule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::backfill::MAX_DUE_TIMES;
use super::trigger::{self, Outcome, Performed};
use crate::clock::{Timestamp, millis};
use crate::job::{Job, JobId, JobState, Json};
use crate::manager::{Manager, ManagerError};
use crate::schedule::{NotRun, Schedule, Timetable};
use crate::store::{Store, StoreError, Versioned};

/// How many due times from before a schedule had its present period are looked at by one call.
const LOOKED_AT: usize = 1_000;

/// A due time of a schedule, with what has become of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DueTime {
    /// When the schedule was due.
    pub due_at: Timestamp,
    /// What has become of it.
    pub outcome: Outcome,
    /// The trigger, which is a job in the queue `leasehold.triggers`; null when there is none.
    pub trigger_id: Option<JobId>,
    /// The job that the trigger has submitted; null when there is none.
    pub job_id: Option<JobId>,
    /// How late it began, in milliseconds; null when it has not begun.
    pub late_ms: Option<u64>,
    /// Why it was not performed, or what was answered; null when there is nothing to say.
    pub message: Option<String>,
    /// Whether this is what a backfill has made of it.
    pub backfilled: bool,
}

/// Returns what became of triggers that have ended; `None` for one without a result.
pub(super) async fn performed(
    manager: &Manager,
    triggers: Vec<Versioned>,
) -> Result<Vec<Option<Performed>>, ManagerError> {
    let views = manager.view(triggers).await?;
    let read = |result: Option<Json>| serde_json::from_str(result?.as_str()).ok();
    Ok(views.into_iter().map(|view| read(view.result)).collect())
}

/// Due times of a schedule, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueTimes {
    /// The due times, each with what has become of it.
    pub items: Vec<DueTime>,
    /// The due time at which the list goes on; `None` at its end.
    pub next: Option<Timestamp>,
}

/// Returns the first `limit` due times of a schedule from `from` to `to`, in order, each with its outcome. Of those
/// from before the schedule had its present period, those are listed that a backfill has run. The latest
/// [`MAX_DUE_TIMES`] of them are looked at, [`LOOKED_AT`] with each call, so that it may return fewer than there are.
pub(super) async fn due_times(
    stores: (&Manager, &dyn Store),
    (schedule, timetable): (&Schedule, &Timetable),
    (from, to): (Timestamp, Timestamp),
    limit: usize,
) -> Result<DueTimes, ManagerError> {
    let (after, since) = (Timestamp::from_millis(from.as_millis() - 1), schedule.period_since);
    // What was due at the moment of the change was not due for this period.
    let before = timetable.last_until(since.min(to), MAX_DUE_TIMES, after.min(since));
    let looked_at = &before[..before.len().min(LOOKED_AT)];
    let mut items = page_of(stores, schedule, looked_at).await?;
    items.retain(|due_time| due_time.backfilled);
    let rest = items.get(limit).map(|first| first.due_at).or(before.get(LOOKED_AT).copied());
    items.truncate(limit);
    if rest.is_some() {
        return Ok(DueTimes { items, next: rest });
    }
    let mut due = timetable.due_after(after.max(since)).take_while(|due| *due <= to);
    let page: Vec<Timestamp> = due.by_ref().take(limit - items.len()).collect();
    items.extend(page_of(stores, schedule, &page).await?);
    Ok(DueTimes { items, next: due.next() })
}

/// Returns these due times of a schedule, each with its outcome.
async fn page_of(
    (manager, store): (&Manager, &dyn Store),
    schedule: &Schedule,
    due: &[Timestamp],
) -> Result<Vec<DueTime>, ManagerError> {
    let ids_of = |due: &Timestamp| [trigger::id(&schedule.id, *due), trigger::backfilled_id(&schedule.id, *due)];
    let ids: Vec<JobId> = due.iter().flat_map(ids_of).collect();
    let found = known(store, &ids).await?;
    let mut ended = performed(manager, found.iter().flatten().cloned().collect()).await?.into_iter();
    let mut found = found.into_iter().map(|found| {
        let trigger = found?;
        let performed = ended.next().flatten();
        Some(Told { trigger, performed })
    });
    let mut next = || found.next().flatten();
    let due_time = |due_at: &Timestamp| match (next(), next()) {
        // What was performed when it was due was not backfilled, whatever a backfill has tried.
        (Some(told), backfilled) if backfilled.is_none() || told.is_done() => told.due_time(*due_at, false),
        (_, Some(told)) => told.due_time(*due_at, true),
        (_, None) => DueTime {
            due_at: *due_at,
            outcome: without_trigger(schedule, *due_at),
            trigger_id: None,
            job_id: None,
            late_ms: None,
            message: None,
            backfilled: false,
        },
    };
    Ok(due.iter().map(due_time).collect())
}

/// A trigger, with what has become of it if it has ended.
struct Told {
    trigger: Versioned,
    performed: Option<Performed>,
}

impl Told {
    fn is_done(&self) -> bool {
        self.performed.as_ref().is_some_and(Performed::is_done)
    }

    fn due_time(self, due_at: Timestamp, backfilled: bool) -> DueTime {
        let Self { trigger: Versioned { job, .. }, performed } = self;
        let outcome = performed.as_ref().map_or_else(|| outcome_of(&job), |ended| ended.outcome);
        let late = job.started_at.map(|started| millis(started.since(due_at)));
        DueTime {
            due_at,
            outcome,
            trigger_id: Some(job.id.clone()),
            late_ms: performed.as_ref().map(|ended| ended.late_ms).or(late),
            job_id: performed.as_ref().and_then(|ended| ended.job_id.clone()),
            message: performed.and_then(|ended| ended.message),
            backfilled,
        }
    }
}

async fn known(store: &dyn Store, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
    if ids.is_empty() { Ok(Vec::new()) } else { store.get(ids).await }
}

/// Returns what is known of a due time that has no trigger.
fn without_trigger(schedule: &Schedule, due_at: Timestamp) -> Outcome {
    let range = schedule.course.not_run.iter().find(|range| (range.first..=range.last).contains(&due_at));
    match range.map(|range| range.reason) {
        Some(NotRun::Missed) => Outcome::Missed,
        Some(NotRun::Overlap) => Outcome::Skipped,
        None if schedule.course.next_due_at.is_some_and(|next| due_at >= next) => Outcome::Waiting,
        None => Outcome::Removed,
    }
}

/// Returns what the state of a trigger without a result means.
pub(super) fn outcome_of(trigger: &Job) -> Outcome {
    match trigger.state.name() {
        JobState::Available => Outcome::Waiting,
        JobState::Running => Outcome::Running,
        JobState::Completed => Outcome::Fired,
        JobState::Failed => Outcome::Failed,
        JobState::Cancelled => Outcome::Skipped,
        JobState::Expired if trigger.attempt.get() > 0 => Outcome::Failed,
        JobState::Expired => Outcome::Missed,
    }
}
