//! The workers' calls: claims, heartbeats, and how attempts end.

use std::time::Duration;

use super::call::{Answer, Call, Work};
use super::delivery::{deliver, deliver_with_items, deliver_with_job};
use super::denied::DeniedItems;
use super::error::ApiError;
use super::extract::{BulkBody, JobPath, JsonBody, Query, UserAgent, WorkerPath};
use super::items::{in_order, only, sort_out};
use super::jobs::{as_written, job_as_written};
use super::json::ok;
use crate::job::{JobId, WorkerId};
use crate::manager::{ClaimRequest, Finish};
use crate::wire::check::MAX_WAIT_MS;
use crate::wire::{
    AwaitRecalls, BulkAnswer, ClaimAnswer, ClaimJobs, CompleteJob, CompletionItem, EndAnswer, EndsAnswer, FailJob,
    FinishJobs, HeartbeatAnswer, HeartbeatItem, HeartbeatJob, HeartbeatJobs, Job, RecallList, ReleaseJob,
};

/// Claims jobs, and waits for them if requested.
///
/// The answer comes as soon as there is at least one job, or when the time is up. If the connection breaks before the
/// answer, the jobs are given back at once; with a `request_id` they are kept for a repetition of the call. If an
/// answer is lost on the network, the jobs' leases expire.
#[utoipa::path(post, path = "/v1/claims", tag = "work", request_body = ClaimJobs,
    responses((status = 200, description = "The jobs, each with its lease; empty when none came in time",
        body = ClaimAnswer)))]
pub(crate) async fn claim(
    call: Call<Work>,
    UserAgent(user_agent): UserAgent,
    JsonBody(claim): JsonBody<ClaimJobs>,
) -> Answer {
    let claim = claim.into_claim()?;
    if let Some(user_agent) = user_agent {
        call.app.manager.worker_calls_by(&claim.worker_id, &user_agent);
    }
    let claimed = call.app.manager.claim(call.claim(claim)).await?;
    deliver(claimed)
}

/// Prolongs the lease of a job.
#[utoipa::path(post, path = "/v1/jobs/{id}/heartbeat", tag = "work", request_body = HeartbeatJob,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The lease is prolonged", body = HeartbeatAnswer),
        (status = 409, description = "`lease_lost`"),
    ))]
pub(crate) async fn heartbeat(
    call: Call<Work>,
    JobPath(id): JobPath,
    JsonBody(beat): JsonBody<HeartbeatJob>,
) -> Answer {
    let (worker, beat) = beat.into_beat(id)?;
    ok(&only(call.app.manager.heartbeat(call.worker(worker), vec![beat]).await)?)
}

/// Prolongs the leases of many jobs of one worker.
#[utoipa::path(post, path = "/v1/heartbeats", tag = "work", request_body = HeartbeatJobs,
    responses((status = 200, description = "An item for each lease, in order", body = BulkAnswer<HeartbeatItem>)))]
pub(crate) async fn heartbeats(call: Call<Work>, JsonBody(beats): BulkBody<HeartbeatJobs>) -> Answer {
    let ids: Vec<String> = beats.leases.iter().map(|lease| lease.id.clone()).collect();
    let (worker, beats) = beats.into_beats()?;
    let (beats, refused) = sort_out(beats);
    let answers = call.app.manager.heartbeat(call.worker(worker), beats).await;
    let mut denied = DeniedItems::default();
    let answers = in_order(refused, answers).inspect(|answer| denied.look_at(answer));
    let items = ids.into_iter().zip(answers).map(|(id, answer)| match answer {
        Ok(HeartbeatAnswer { lease_expires_at, cancel_requested }) => HeartbeatItem {
            id,
            status: 200,
            lease_expires_at: Some(lease_expires_at),
            cancel_requested: Some(cancel_requested),
            error: None,
        },
        Err(error) => {
            let (status, error) = error.into_item();
            HeartbeatItem { id, status, lease_expires_at: None, cancel_requested: None, error: Some(error) }
        }
    });
    let answer = ok(&BulkAnswer { items: items.collect() });
    denied.in_answer(answer)
}

/// Waits until attempts of a worker have to end early.
///
/// One call serves all jobs of a worker: it is answered as soon as the cancellation of one is requested or a lease is
/// lost, also of a job that was claimed after the call was made, or when the time is up. A worker makes it again and
/// again while it runs jobs, and hears of the same by its heartbeats, but later.
#[utoipa::path(post, path = "/v1/workers/{worker_id}/recalls", tag = "work", request_body = AwaitRecalls,
    params(
        ("worker_id" = WorkerId, Path, description = "The worker's name"),
        ("wait_ms" = Option<u64>, Query, description = "The longest wait; 0 by default", maximum = 60_000),
    ),
    responses((status = 200, description = "The attempts that have to end; empty when none had to in time",
        body = RecallList)))]
pub(crate) async fn recalls(
    call: Call<Work>,
    WorkerPath(worker): WorkerPath,
    query: Query,
    JsonBody(held): BulkBody<AwaitRecalls>,
) -> Answer {
    query.only(&["wait_ms"])?;
    let wait = query.number("wait_ms", 0..=MAX_WAIT_MS)?.unwrap_or_default();
    if worker.is_reserved() {
        return Err(ApiError::field("worker_id", "is a name under which the system itself acts"));
    }
    let leases = held.into_leases()?;
    let items = call.app.manager.recalls(call.worker(worker), &leases, Duration::from_millis(wait)).await?;
    ok(&RecallList { items })
}

/// Completes a job.
///
/// The same completion again gets the same answer. A late completion is accepted as long as its fence is the job's
/// current one. With `next`, the call claims jobs as well, in the same write where they are there.
#[utoipa::path(post, path = "/v1/jobs/{id}/complete", tag = "work", request_body = CompleteJob,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call; with `next`, the job and the next ones",
            body = EndAnswer),
        (status = 409, description = "`lease_lost`"),
        (status = 413, description = "`payload_too_large` or `body_too_large`"),
    ))]
pub(crate) async fn complete(call: Call<Work>, JobPath(id): JobPath, JsonBody(done): JsonBody<CompleteJob>) -> Answer {
    end_one(&call, done.into_finish(id)?).await
}

/// Fails an attempt.
///
/// The job waits for its next attempt, or fails when the failure is not `retryable` or no attempt is left. With `next`,
/// the call claims jobs as well.
#[utoipa::path(post, path = "/v1/jobs/{id}/fail", tag = "work", request_body = FailJob,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call; with `next`, the job and the next ones",
            body = EndAnswer),
        (status = 409, description = "`lease_lost`"),
    ))]
pub(crate) async fn fail(call: Call<Work>, JobPath(id): JobPath, JsonBody(failure): JsonBody<FailJob>) -> Answer {
    end_one(&call, failure.into_finish(id)?).await
}

/// Gives a job back to its queue: the attempt does not count.
#[utoipa::path(post, path = "/v1/jobs/{id}/release", tag = "work", request_body = ReleaseJob,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 200, description = "The job after the call", body = Job),
        (status = 409, description = "`lease_lost`"),
    ))]
pub(crate) async fn release(call: Call<Work>, JobPath(id): JobPath, JsonBody(release): JsonBody<ReleaseJob>) -> Answer {
    let (worker, finish) = release.into_finish(id)?;
    end_one(&call, (worker, finish, None)).await
}

async fn end_one(call: &Call<Work>, (worker, finish, next): (WorkerId, Finish, Option<ClaimRequest>)) -> Answer {
    let (app, worker) = (&call.app, call.worker(worker));
    let Some(next) = next else {
        let job = only(app.manager.finish(worker, vec![finish]).await)?;
        return job_as_written(app, job, call.sight).await;
    };
    let (ended, claimed) = app.manager.finish_and_claim(worker, vec![finish], call.claim(next)).await;
    as_written(app, only(ended)?, call.sight, |job| deliver_with_job(job, claimed)).await
}

/// Completes or fails many jobs of one worker.
///
/// With `next`, the call claims jobs as well, unless none of its items is accepted.
#[utoipa::path(post, path = "/v1/completions", tag = "work", request_body = FinishJobs,
    responses((status = 200, description = "An item for each job, in order; with `next`, the next jobs",
        body = EndsAnswer)))]
pub(crate) async fn completions(call: Call<Work>, JsonBody(finishes): BulkBody<FinishJobs>) -> Answer {
    let ids: Vec<String> = finishes.items.iter().map(|item| item.id.clone()).collect();
    let (worker, finishes, next) = finishes.into_finishes()?;
    let (finishes, refused) = sort_out(finishes);
    let worker = call.worker(worker);
    let (answers, claimed) = match next {
        None => (call.app.manager.finish(worker, finishes).await, None),
        Some(next) => {
            let (answers, claimed) = call.app.manager.finish_and_claim(worker, finishes, call.claim(next)).await;
            (answers, Some(claimed))
        }
    };
    let mut denied = DeniedItems::default();
    let answers = in_order(refused, answers).inspect(|answer| denied.look_at(answer));
    let items = ids.into_iter().zip(answers).map(|(id, answer)| match answer {
        Ok(job) => CompletionItem { id, status: 200, state: Some(job.job.state.name()), error: None },
        Err(error) => {
            let (status, error) = error.into_item();
            CompletionItem { id, status, state: None, error: Some(error) }
        }
    });
    let items: Vec<CompletionItem> = items.collect();
    denied.in_answer(match claimed {
        None => ok(&BulkAnswer { items }),
        Some(claimed) => deliver_with_items(&items, claimed),
    })
}
