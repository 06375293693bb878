//! The calls of administrators: jobs that look abandoned, and changes of one job or many.

use std::time::Duration;

use super::App;
use super::call::{Admin, Answer, Call};
use super::extract::{JobPath, JsonBody, Query};
use super::items::changed;
use super::jobs::job_as_written;
use super::json::ok;
use super::lists::{decode_cursor, encode_cursor, page_of, parse, values};
use crate::job::{Actor, JobId, Kind, Owner, QueueName, Then, WorkerId};
use crate::manager::{BULK_ORDER, BulkAction, BulkBounds, ORPHAN_ORDER};
use crate::query::{Cursor, Filter};
use crate::wire::admin::Ordered;
use crate::wire::{AdminRelease, BulkChange, BulkReport, Job, JobAnswer, OrphanedJob, Page, Sight};

/// How long one call changes jobs before it answers with a cursor.
pub(super) const CHANGES_WITHIN: Duration = Duration::from_secs(10);

/// Lists the running jobs that look abandoned, with the evidence and what happens to them next.
///
/// The latest changes may be missing for a moment.
#[utoipa::path(get, path = "/v1/admin/orphans", tag = "admin",
    params(
        ("queue" = Option<Vec<QueueName>>, Query, max_items = 100, description = "Selects jobs of these queues"),
        ("kind" = Option<Vec<Kind>>, Query, max_items = 100, description = "Selects jobs of these kinds"),
        ("owner" = Option<Vec<Owner>>, Query, max_items = 100, description = "Selects jobs of these owners"),
        ("worker" = Option<WorkerId>, Query, description = "Selects jobs whose lease this worker holds"),
        ("limit" = Option<u64>, Query, minimum = 1, maximum = 1000,
            description = "The size of the page; 100 by default"),
        ("cursor" = Option<String>, Query, description = "The `next_cursor` of the page before"),
    ),
    responses((status = 200, description = "A page of jobs", body = Page<OrphanedJob>)))]
pub(crate) async fn orphans(call: Call<Admin>, query: Query) -> Answer {
    query.only(&["queue", "kind", "owner", "worker", "limit", "cursor"])?;
    let filter = Filter {
        queues: values(&query, "queue")?,
        kinds: values(&query, "kind")?,
        owners: values(&query, "owner")?,
        worker_id: query.one("worker")?.map(|text| parse("worker", text)).transpose()?,
        ..Filter::default()
    };
    let find = |after, limit| call.app.manager.orphans(filter, after, limit);
    let Page { items, next_cursor } = page_of(&query, ORPHAN_ORDER, find, |(key, _)| key.clone()).await?;
    let items: Vec<OrphanedJob> = items.into_iter().map(|(_, orphan)| orphan).collect();
    ok(&Page { items, next_cursor })
}

/// Releases a running job: ends its lease without its worker.
///
/// With `expected_fence`, the release of a job that was claimed again is refused: 409 `fence_moved`, with the current
/// fence.
#[utoipa::path(post, path = "/v1/admin/jobs/{id}/release", operation_id = "admin_release", tag = "admin",
    request_body = AdminRelease,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`not_running` or `fence_moved`"),
    ))]
pub(crate) async fn release(
    call: Call<Admin>,
    JobPath(id): JobPath,
    JsonBody(release): JsonBody<AdminRelease>,
) -> Answer {
    let order = release.into_order(call.caller.name)?;
    let job = call.app.manager.admin_release(&id, order).await?;
    job_as_written(&call.app, job, call.sight).await
}

/// Releases many running jobs: ends their leases without their workers.
///
/// The call is a dry run, which counts the jobs and shows a few, unless `dry_run` is false. Otherwise the jobs are
/// changed page by page; a job that no longer matches the filter by then is skipped. A call takes about ten seconds at
/// most: if `done` is false, the same call with `cursor` continues.
#[utoipa::path(post, path = "/v1/admin/jobs/release", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn release_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Release(Then::Requeue), order).await
}

/// Cancels many jobs; running ones are requested to stop.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/cancel", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn cancel_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Cancel, order).await
}

/// Retries many failed, cancelled or expired jobs, each with all its attempts.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/retry", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn retry_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Retry, order).await
}

/// Holds many jobs, so that they are not claimed; running ones are held when they are available again.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/hold", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn hold_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Hold, order).await
}

/// Lets many held jobs go.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/unhold", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn unhold_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Unhold, order).await
}

/// Makes many waiting jobs due now.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/run-now", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn run_many_now(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::RunNow, order).await
}

/// Changes fields of many jobs that have not ended, as `edit` says.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/edit", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn edit_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Edit(Box::default()), order).await
}

/// Submits jobs that run many ended ones again. Under the same `key` none is made twice.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/rerun", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn rerun_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Rerun(String::new()), order).await
}

/// Removes many jobs that do not run; waiting ones are cancelled first.
///
/// Like a release of many jobs, the call is a dry run unless `dry_run` is false, and takes about ten seconds at most.
#[utoipa::path(post, path = "/v1/admin/jobs/delete", tag = "admin", request_body = BulkChange,
    responses((status = 200, description = "The result of the call", body = BulkReport<Job>)))]
pub(crate) async fn delete_many(call: Call<Admin>, JsonBody(order): JsonBody<BulkChange>) -> Answer {
    bulk_change(&call.app, call.caller.name, BulkAction::Delete, order).await
}

async fn bulk_change(app: &App, caller: Actor, action: BulkAction, order: BulkChange) -> Answer {
    let Ordered { action, selection, order, max_jobs, cursor } = order.into_order(action, caller, app.manager.now())?;
    let Some(order) = order else {
        let preview = app.manager.preview(&action, &selection).await?;
        let sample = preview.sample.iter().map(|job| JobAnswer::of(job, Sight::Reader)).collect();
        return ok(&BulkReport::previewed(preview.matched, sample));
    };
    let after = cursor.map(|text| decode_cursor(&text, BULK_ORDER)).transpose()?.map(|cursor| cursor.after);
    let bounds = BulkBounds { after, max_items: max_jobs, within: CHANGES_WITHIN };
    let report = app.manager.bulk_change(order, &selection, bounds).await?;
    ok(&changed::<Job, _, _, _>(report, |after| encode_cursor(&Cursor { sort: BULK_ORDER, after })))
}
