//! The calls by which people hold, edit, rerun and delete jobs, one by one.

use axum::response::IntoResponse;
use http::header::{ETAG, IF_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};

use super::App;
use super::call::{Admin, Answer, Call, Submit};
use super::error::{ApiError, Code};
use super::extract::{JobPath, JsonBody, OptionalJsonBody, Query};
use super::jobs::{entity_tag, job_as_written, key, submitted_answer};
use crate::job::{IdempotencyKey, JobId};
use crate::store::Versioned;
use crate::wire::check::{Checks, MAX_TEXT_BYTES};
use crate::wire::{ChangeReason, EditJob, Job};

/// Holds a job, so that it is not claimed.
///
/// A running job runs on, and is held when it is available again. A start deadline goes on running.
#[utoipa::path(post, path = "/v1/jobs/{id}/hold", tag = "jobs", request_body = Option<ChangeReason>,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`already_final`"),
    ))]
pub(crate) async fn hold(
    call: Call<Submit>,
    JobPath(id): JobPath,
    OptionalJsonBody(hold): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let reason = hold.into_reason()?;
    let job = call.app.manager.hold(&call.caller, &id, reason).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Lets a held job go: it can be claimed at once if it is due.
#[utoipa::path(post, path = "/v1/jobs/{id}/unhold", tag = "jobs", request_body = Option<ChangeReason>,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`already_final`"),
    ))]
pub(crate) async fn unhold(
    call: Call<Submit>,
    JobPath(id): JobPath,
    OptionalJsonBody(unhold): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let reason = unhold.into_reason()?;
    let job = call.app.manager.unhold(&call.caller, &id, reason).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Makes a job due now that is due later or waits for its retry.
#[utoipa::path(post, path = "/v1/jobs/{id}/run-now", tag = "jobs", request_body = Option<ChangeReason>,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`already_final` or `not_available`"),
    ))]
pub(crate) async fn run_now(
    call: Call<Submit>,
    JobPath(id): JobPath,
    OptionalJsonBody(run): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let reason = run.into_reason()?;
    let job = call.app.manager.run_now(&call.caller, &id, reason.as_deref()).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Submits a job that runs an ended one again: with its specification and its payload, due now.
///
/// The new job names its origin in `rerun_of`. With an `Idempotency-Key`, the same call again returns the same job.
#[utoipa::path(post, path = "/v1/jobs/{id}/rerun", tag = "jobs",
    params(
        ("id" = JobId, Path, description = "The id of the ended job"),
        ("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "The client's key for this rerun"),
    ),
    responses(
        (status = 201, description = "Submitted", body = Job, headers(("Location" = String, description = "The job"))),
        (status = 200, description = "Submitted before under this key; the job as it is now", body = Job),
        (status = 409, description = "`not_ended`, `not_retryable` or `duplicate_job`"),
    ))]
pub(crate) async fn rerun(call: Call<Submit>, JobPath(id): JobPath, headers: HeaderMap) -> Answer {
    let key = key(&headers)?;
    let mut checks = Checks::default();
    let key: Option<IdempotencyKey> = checks.optional_name("Idempotency-Key", key.as_deref());
    let key = checks.finish(Some(key))?;
    let submitted = call.app.manager.rerun(&call.caller, &id, key.as_ref().map(IdempotencyKey::as_str)).await?;
    Ok(submitted_answer(&submitted, call.sight))
}

/// Changes fields of a job that has not ended.
///
/// Only what is named changes. A submission that is repeated under its id or key is still recognised. With `If-Match`,
/// the job is changed in that version alone; a running job has another one after each heartbeat.
#[utoipa::path(patch, path = "/v1/jobs/{id}", operation_id = "edit", tag = "jobs", request_body = EditJob,
    params(
        ("id" = JobId, Path, description = "The job's id"),
        ("If-Match" = Option<String>, Header, description = "The `ETag` of the version to change"),
    ),
    responses(
        (status = 200, description = "The job after the call", body = Job,
            headers(("ETag" = String, description = "Its version"))),
        (status = 409, description = "`already_final` or `not_available`"),
        (status = 412, description = "`version_differs`: it has another version"),
    ))]
pub(crate) async fn edit(
    call: Call<Submit>,
    JobPath(id): JobPath,
    headers: HeaderMap,
    JsonBody(edit): JsonBody<EditJob>,
) -> Answer {
    let (edit, reason) = edit.into_edit()?;
    let manager = &call.app.manager;
    let edited = match known(&call.app, &id, &headers).await? {
        Some(known) => manager.edit_version(&call.caller, known, &edit, reason.as_deref()).await?,
        None => manager.edit(&call.caller, &id, &edit, reason.as_deref()).await?,
    };
    let tag = entity_tag(edited.version);
    let mut response = job_as_written(&call.app, edited, call.sight).await?;
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Returns the job in the version that a change is for (RFC 9110, section 13.1.1); `None` for any version.
async fn known(app: &App, id: &JobId, headers: &HeaderMap) -> Result<Option<Versioned>, ApiError> {
    let Some(given) = headers.get(IF_MATCH) else { return Ok(None) };
    let given = given.to_str().unwrap_or_default().trim();
    if given == "*" {
        return Ok(None);
    }
    let found = app.manager.get(id).await?.versioned;
    match entity_tag(found.version) == given {
        true => Ok(Some(found)),
        false => Err(ApiError::new(Code::VersionDiffers, format!("job {id} has changed since it was read"))),
    }
}

/// Removes a job that does not run, with its payload and its result.
///
/// A waiting job is cancelled first. Notifications about the job that are not handed on yet go with it. The audit, if
/// there is one, keeps who removed the job and why.
#[utoipa::path(delete, path = "/v1/jobs/{id}", operation_id = "delete", tag = "jobs",
    params(
        ("id" = JobId, Path, description = "The job's id"),
        ("reason" = Option<String>, Query, max_length = 4096, description = "The reason, for the audit"),
    ),
    responses(
        (status = 204, description = "The job is removed"),
        (status = 409, description = "`still_running`"),
    ))]
pub(crate) async fn delete(call: Call<Admin>, JobPath(id): JobPath, query: Query) -> Answer {
    query.only(&["reason"])?;
    let reason = query.one("reason")?;
    let mut checks = Checks::default();
    checks.text("reason", reason.unwrap_or_default(), MAX_TEXT_BYTES);
    checks.finish(Some(()))?;
    call.app.manager.delete(&call.caller, &id, reason).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
