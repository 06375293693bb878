//! The call that backfills a schedule.

use http::{HeaderMap, StatusCode};

use super::call::{Answer, Call, Submit};
use super::error::ApiError;
use super::extract::{JsonBody, SchedulePath};
use super::jobs::key;
use super::json::json;
use super::schedules::schedules;
use crate::job::{IdempotencyKey, ScheduleId};
use crate::scheduler::NewBackfill;
use crate::wire::{BackfillSchedule, StartedBackfill};

/// Runs the due times of a schedule between two moments that were not performed.
///
/// These are those that were missed or skipped, that failed, from before the schedule existed, and of which nothing is
/// known any more. At most 100,000 due times may be in between. The backfill is a job, whose result says what was
/// done. While one of the same schedule, `from` and `to` is under way, the same request finds it; with an
/// `Idempotency-Key` it does so whenever it is repeated.
#[utoipa::path(post, path = "/v1/schedules/{id}/backfill", operation_id = "backfill_schedule", tag = "schedules",
    request_body = BackfillSchedule,
    params(
        ("id" = ScheduleId, Path, description = "The schedule's id"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "The client's key for this backfill"),
    ),
    responses(
        (status = 202, description = "The backfill is started", body = StartedBackfill),
        (status = 200, description = "It was started before", body = StartedBackfill),
        (status = 409, description = "`submission_differs`: another backfill was started under this key"),
    ))]
pub(crate) async fn backfill(
    call: Call<Submit>,
    SchedulePath(id): SchedulePath,
    headers: HeaderMap,
    JsonBody(backfill): JsonBody<BackfillSchedule>,
) -> Answer {
    let (from, to, max_concurrent) = backfill.into_parts()?;
    let idempotency_key = key(&headers)?.map(IdempotencyKey::new).transpose();
    let idempotency_key = idempotency_key.map_err(|error| ApiError::field("Idempotency-Key", error.to_string()))?;
    let new = NewBackfill { from, to, max_concurrent, idempotency_key };
    let started = schedules(&call.app)?.backfill(&call.caller, &id, new).await?;
    let status = if started.is_new { StatusCode::ACCEPTED } else { StatusCode::OK };
    Ok(json(status, &StartedBackfill { backfill_id: started.id, due: started.due }))
}
