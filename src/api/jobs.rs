//! The calls that submit, read, explain, cancel and retry jobs.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::header::{ETAG, IF_NONE_MATCH, LOCATION};
use http::{HeaderMap, HeaderValue, StatusCode};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use std::time::Duration;

use super::App;
use super::call::{Answer, Call, Read, Submit};
use super::denied::DeniedItems;
use super::error::ApiError;
use super::extract::{JobPath, JsonBody, Lines, OptionalJsonBody, Query, parse};
use super::items::{in_order, only, sort_out};
use super::json::{json, ok, with_body};
use super::trim::Fields;
use crate::job::{IdempotencyKey, JobId};
use crate::manager::{ChangeName, NewJob, Submitted};
use crate::notify::SubscriptionError;
use crate::store::{Place, Version, Versioned};
use crate::wire::check::{MAX_SUBMITTED_JOBS, MAX_WAIT_MS};
use crate::wire::job::JobAnswer;
use crate::wire::selected::SelectedJob;
use crate::wire::submit::SubmitLines;
use crate::wire::{BulkAnswer, CancelJob, ChangeReason, Explanation, Job, Sight, SubmitItem, SubmitJob};

/// The header with the key under which a submission can be repeated.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The characters of an id that need no escaping in a path (RFC 3986, unreserved characters).
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Submits a job.
///
/// Under a client's `id`, or with an `Idempotency-Key` header, the same request again returns the first job. Of the
/// jobs of one `unique_key` at most one waits or runs. A job that a worker waits for is running already when the call
/// is answered.
#[utoipa::path(post, path = "/v1/jobs", tag = "jobs", request_body = SubmitJob,
    params(("Idempotency-Key" = Option<IdempotencyKey>, Header, description = "The client's key for this submission")),
    responses(
        (status = 201, description = "Submitted", body = Job, headers(("Location" = String, description = "The job"))),
        (status = 200, body = Job,
            description = "Submitted before, or answered with the job of its unique key; the job as it is now"),
        (status = 409, description = "`submission_differs` or `duplicate_job`"),
        (status = 413, description = "`payload_too_large` or `body_too_large`"),
    ))]
pub(crate) async fn submit(call: Call<Submit>, headers: HeaderMap, JsonBody(mut job): JsonBody<SubmitJob>) -> Answer {
    take_key(&mut job, &headers)?;
    let job = new_job(&call.app, job)?;
    Ok(submitted_answer(&only(call.app.manager.submit(&call.caller, vec![job]).await)?, call.sight))
}

/// Returns the answer to a submission, with the job's address.
pub(super) fn submitted_answer(Submitted { job, created }: &Submitted, sight: Sight) -> Response {
    let status = if *created { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = json(status, &JobAnswer::with_bodies(job, sight));
    let id = utf8_percent_encode(job.versioned.job.id.as_str(), ESCAPED);
    if let Ok(location) = HeaderValue::try_from(format!("/v1/jobs/{id}")) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// Moves the key from its header into the job.
fn take_key(job: &mut SubmitJob, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(text) = key(headers)? else { return Ok(()) };
    if job.idempotency_key.as_ref().is_some_and(|given| *given != text) {
        return Err(ApiError::field("idempotency_key", "is another than the one in the `Idempotency-Key` header"));
    }
    job.idempotency_key = Some(text);
    Ok(())
}

/// Submits up to 10,000 jobs, one per line.
///
/// Each line is a submission of its own: a refused one does not affect the others. Empty lines are ignored.
#[utoipa::path(post, path = "/v1/jobs/bulk", tag = "jobs",
    request_body(content = SubmitLines, content_type = "application/x-ndjson", description = "One job per line"),
    responses(
        (status = 200, description = "An item for each line, in order", body = BulkAnswer<SubmitItem>),
        (status = 413, description = "`body_too_large`"),
    ))]
pub(crate) async fn submit_bulk(call: Call<Submit>, lines: Lines) -> Answer {
    let count = lines.iter().take(MAX_SUBMITTED_JOBS + 1).count();
    if count > MAX_SUBMITTED_JOBS {
        return Err(ApiError::field("", format!("a call submits at most {MAX_SUBMITTED_JOBS} jobs")));
    }
    let (jobs, refused) = sort_out(lines.iter().map(|line| new_job(&call.app, parse(line)?)));
    drop(lines);
    let answers = call.app.manager.submit(&call.caller, jobs).await;
    let mut denied = DeniedItems::default();
    let answers = in_order(refused, answers).inspect(|answer| denied.look_at(answer));
    let items = answers.map(|answer| answer.map_or_else(refused_item, submitted_item)).collect();
    denied.in_answer(ok(&BulkAnswer { items }))
}

/// Checks a submission: its fields, and that the receivers of its notifications may be called.
fn new_job(app: &App, job: SubmitJob) -> Result<NewJob, ApiError> {
    let job = job.into_new_job()?;
    if let Some(subscriptions) = &app.subscriptions {
        for (index, target) in job.spec.oversight.notify.iter().enumerate() {
            let refused =
                |error: SubscriptionError| ApiError::field(&format!("notify[{index}].url"), error.to_string());
            subscriptions.check(&target.url).map_err(refused)?;
        }
    }
    Ok(job)
}

/// Returns the key under which the request can be repeated.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let text = |key: &HeaderValue| std::str::from_utf8(key.as_bytes()).map(str::to_owned);
    let key = headers.get(IDEMPOTENCY_KEY).map(text).transpose();
    key.map_err(|_| ApiError::field("Idempotency-Key", "is not UTF-8"))
}

fn submitted_item(submitted: Submitted) -> SubmitItem {
    let status = if submitted.created { StatusCode::CREATED } else { StatusCode::OK };
    let id = submitted.job.versioned.job.id.as_str().to_owned();
    SubmitItem { status: status.as_u16(), id: Some(id), error: None }
}

pub(crate) fn refused_item(error: ApiError) -> SubmitItem {
    let (status, error) = error.into_item();
    SubmitItem { status, id: None, error: Some(error) }
}

/// Returns a job.
///
/// With `wait_ms` the answer comes once the job has ended, or when the time is up.
#[utoipa::path(get, path = "/v1/jobs/{id}", tag = "jobs",
    params(
        ("id" = JobId, Path, description = "The job's id"),
        ("wait_ms" = Option<u64>, Query, description = "The longest wait for its end", maximum = 60_000),
        ("fields" = Option<Vec<String>>, Query, max_items = 100, example = json!(["state", "result"]),
            description = "Selects only these fields of the job, with dots for nested ones"),
        ("reveal" = Option<bool>, Query,
            description = "Whether to show the values of `env` and addresses too, which needs the role `admin`"),
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of the version that the client has"),
    ),
    responses(
        (status = 200, description = "The job", body = SelectedJob,
            headers(("ETag" = String, description = "Its version"))),
        (status = 304, description = "The client's version is the latest"),
    ))]
pub(crate) async fn get(call: Call<Read>, JobPath(id): JobPath, query: Query, headers: HeaderMap) -> Answer {
    query.only(&["wait_ms", "fields", "reveal"])?;
    let (fields, sight) = (Fields::of(&query)?, call.revealing(&query)?);
    let job = match query.number("wait_ms", 0..=MAX_WAIT_MS)? {
        Some(wait) if wait > 0 => call.app.manager.wait(&id, Duration::from_millis(wait)).await?,
        _ => call.app.manager.get(&id).await?,
    };
    let tag = entity_tag(job.versioned.version);
    let mut response = if is_at_hand(&headers, &tag) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        if sight == Sight::Everything {
            call.app.manager.audit_changes(&[call.change(ChangeName::JobsRevealed).of(&id)]).await?;
        }
        let mut text = Vec::new();
        fields.write(&JobAnswer::with_bodies(&job, sight), &mut text)?;
        with_body(StatusCode::OK, Body::from(text))
    };
    if let Ok(tag) = HeaderValue::try_from(tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    Ok(response)
}

/// Explains why a job does not run, or how it is doing.
///
/// The reasons come as sentences, the most important first, each with a stable `code` and the facts that it rests on.
/// Workers that call another server are not known to this one.
#[utoipa::path(get, path = "/v1/jobs/{id}/explain", tag = "jobs",
    params(("id" = JobId, Path, description = "The job's id")),
    responses((status = 200, description = "The explanation", body = Explanation)))]
pub(crate) async fn explain(call: Call<Read>, JobPath(id): JobPath, query: Query) -> Answer {
    query.only(&[])?;
    ok(&call.app.manager.explain(&id).await?)
}

pub(super) fn entity_tag(version: Version) -> String {
    let place = match version.place {
        Place::Main => 0,
        Place::Other(place) => place,
        Place::Superseded => u32::MAX,
    };
    format!("\"{place}-{}-{}\"", version.primary_term, version.seq_no)
}

/// Returns whether the client has this version already (RFC 9110, section 13.1.2).
fn is_at_hand(headers: &HeaderMap, tag: &str) -> bool {
    let lists = headers.get_all(IF_NONE_MATCH).into_iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|given| {
        let given = given.trim();
        given == "*" || given.strip_prefix("W/").unwrap_or(given) == tag
    })
}

/// Cancels a job.
///
/// A waiting job is cancelled at once. A running job is requested to stop: the answer to its worker's next heartbeat
/// says so. With `expected_fence`, the cancellation of a job that was claimed again is refused.
#[utoipa::path(post, path = "/v1/jobs/{id}/cancel", tag = "jobs", request_body = Option<CancelJob>,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`already_final` or `fence_moved`"),
    ))]
pub(crate) async fn cancel(
    call: Call<Submit>,
    JobPath(id): JobPath,
    OptionalJsonBody(cancel): OptionalJsonBody<CancelJob>,
) -> Answer {
    let (reason, expected) = cancel.into_order()?;
    let job = call.app.manager.cancel_at(&call.caller, &id, reason, expected).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Retries a failed, cancelled or expired job, with all its attempts.
#[utoipa::path(post, path = "/v1/jobs/{id}/retry", tag = "jobs", request_body = Option<ChangeReason>,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`not_retryable` or `duplicate_job`"),
    ))]
pub(crate) async fn retry(
    call: Call<Submit>,
    JobPath(id): JobPath,
    OptionalJsonBody(retry): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let reason = retry.into_reason()?;
    let job = call.app.manager.retry(&call.caller, &id, reason).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Answers with a job just written, with its bodies.
pub(crate) async fn job_as_written(app: &App, job: Versioned, sight: Sight) -> Answer {
    as_written(app, job, sight, |job| Ok(json(StatusCode::OK, &job))).await
}

/// Makes an answer of a job just written, with its bodies. The write is done in any case: when the bodies cannot be
/// read now, the job is shown without those that are stored apart.
pub(crate) async fn as_written(
    app: &App,
    job: Versioned,
    sight: Sight,
    answer: impl FnOnce(JobAnswer<'_>) -> Answer,
) -> Answer {
    let views = app.manager.view(vec![job.clone()]).await.unwrap_or_default();
    match views.first() {
        Some(view) => answer(JobAnswer::with_bodies(view, sight)),
        None => answer(JobAnswer::of(&job, sight)),
    }
}
