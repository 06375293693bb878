//! What has become of the due times of a schedule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::trigger::{self, Outcome, Performed};
use crate::clock::{Timestamp, millis};
use crate::job::{Job, JobId, JobState, Json};
use crate::manager::{Manager, ManagerError};
use crate::schedule::{NotRun, Schedule, Timetable};
use crate::store::{Store, StoreError, Versioned};

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

/// Returns the first `limit` due times of a schedule from `from` to `to`, in order, each with its outcome.
pub(super) async fn due_times(
    (manager, store): (&Manager, &dyn Store),
    (schedule, timetable): (&Schedule, &Timetable),
    (from, to): (Timestamp, Timestamp),
    limit: usize,
) -> Result<Vec<DueTime>, ManagerError> {
    // What was due at the moment of the change was not due for this period.
    let after = schedule.period_since.max(Timestamp::from_millis(from.as_millis() - 1));
    let due = timetable.due_after(after);
    let due: Vec<Timestamp> = due.take_while(|due| *due <= to).take(limit).collect();
    let ids: Vec<JobId> = due.iter().map(|due| trigger::id(&schedule.id, *due)).collect();
    let found = known(store, &ids).await?;
    let mut ended = performed(manager, found.iter().flatten().cloned().collect()).await?.into_iter();
    let due_time = |((due_at, id), found): ((Timestamp, JobId), Option<Versioned>)| match found {
        None => DueTime {
            due_at,
            outcome: without_trigger(schedule, due_at),
            trigger_id: None,
            job_id: None,
            late_ms: None,
            message: None,
        },
        Some(found) => {
            let performed = ended.next().flatten();
            let outcome = performed.as_ref().map_or_else(|| outcome_of(&found.job), |ended| ended.outcome);
            let late = found.job.started_at.map(|started| millis(started.since(due_at)));
            DueTime {
                due_at,
                outcome,
                trigger_id: Some(id),
                late_ms: performed.as_ref().map(|ended| ended.late_ms).or(late),
                job_id: performed.as_ref().and_then(|ended| ended.job_id.clone()),
                message: performed.and_then(|ended| ended.message),
            }
        }
    };
    Ok(due.into_iter().zip(ids).zip(found).map(due_time).collect())
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
fn outcome_of(trigger: &Job) -> Outcome {
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
