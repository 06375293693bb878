//! The calls for the output of attempts: workers send it in pieces, and it is read while it grows.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Path;
use axum::response::IntoResponse;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};

use super::call::{Answer, Call, Read, Work};
use super::denied::DeniedItems;
use super::error::ApiError;
use super::extract::{BulkBody, JobPath, JsonBody, Query};
use super::items::{in_order, only, sort_out};
use super::json::ok;
use crate::job::{Fence, InvalidName, JobId};
use crate::manager::{AttemptChoice, OutputFrom};
use crate::store::Stream;
use crate::store::output::left_out;
use crate::wire::check::MAX_WAIT_MS;
use crate::wire::output::MAX_OFFSET;
use crate::wire::{AttemptOutput, BulkAnswer, OutputItem, PutOutput, PutOutputs};

/// Keeps a piece of the output of an attempt.
///
/// The first 64 KiB and the last 192 KiB of each stream are kept, and removed with the job. The same piece again
/// changes nothing. Output is worth less than jobs: a crash may lose the last seconds of it.
#[utoipa::path(post, path = "/v1/jobs/{id}/output", tag = "work", operation_id = "put_output", request_body = PutOutput,
    params(("id" = JobId, Path, description = "The job's id")),
    responses(
        (status = 204, description = "The piece is kept"),
        (status = 409, description = "`lease_lost`"),
    ))]
pub(crate) async fn put(call: Call<Work>, JobPath(id): JobPath, JsonBody(piece): JsonBody<PutOutput>) -> Answer {
    let (worker, piece) = piece.into_piece(id)?;
    only(call.app.manager.put_output(call.worker(worker), &[piece]).await)?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Keeps pieces of the output of many attempts of one worker.
#[utoipa::path(post, path = "/v1/outputs", tag = "work", operation_id = "put_outputs", request_body = PutOutputs,
    responses((status = 200, description = "An item for each piece, in order", body = BulkAnswer<OutputItem>)))]
pub(crate) async fn put_many(call: Call<Work>, JsonBody(outputs): BulkBody<PutOutputs>) -> Answer {
    let ids: Vec<String> = outputs.pieces.iter().map(|piece| piece.id.clone()).collect();
    let (worker, pieces) = outputs.into_pieces()?;
    let (pieces, refused) = sort_out(pieces);
    let answers = call.app.manager.put_output(call.worker(worker), &pieces).await;
    let mut denied = DeniedItems::default();
    let answers = in_order(refused, answers).inspect(|answer| denied.look_at(answer));
    let items = ids.into_iter().zip(answers).map(|(id, answer)| match answer {
        Ok(()) => OutputItem { id, status: 204, error: None },
        Err(error) => {
            let (status, error) = error.into_item();
            OutputItem { id, status, error: Some(error) }
        }
    });
    let answer = ok(&BulkAnswer { items: items.collect() });
    denied.in_answer(answer)
}

/// Returns the output of a job's latest attempt.
///
/// With `wait_ms` the answer comes once there is output after `stdout_from` or `stderr_from`, the attempt is over, or
/// the time is up: to follow a running attempt, call again with the `bytes` of the last answer.
#[utoipa::path(get, path = "/v1/jobs/{id}/output", tag = "jobs", operation_id = "output",
    params(
        ("id" = JobId, Path, description = "The job's id"),
        ("fence" = Option<u64>, Query, description = "The fence of the attempt, in the place of the latest one's"),
        ("stdout_from" = Option<u64>, Query, description = "Leaves out bytes of `stdout` before this place",
            maximum = 1_125_899_906_842_624_u64),
        ("stderr_from" = Option<u64>, Query, description = "Leaves out bytes of `stderr` before this place",
            maximum = 1_125_899_906_842_624_u64),
        ("wait_ms" = Option<u64>, Query, description = "The longest wait for more", maximum = 60_000),
        ("as_text" = Option<Stream>, Query,
            description = "Answers with this stream alone, as `text/plain`, with a line where bytes are left out"),
    ),
    responses((status = 200, description = "The output", content(
        (AttemptOutput = "application/json"),
        (String = "text/plain"),
    ))))]
pub(crate) async fn get(call: Call<Read>, JobPath(id): JobPath, query: Query) -> Answer {
    query.only(&["fence", "stdout_from", "stderr_from", "wait_ms", "as_text"])?;
    let fence = query.number("fence", 0..=u64::MAX)?;
    let choice = fence.map_or(AttemptChoice::Latest, |fence| AttemptChoice::Fence(Fence::new(fence)));
    answer(&call, &id, choice, &query).await
}

/// Returns the output of an attempt of a job.
///
/// Attempts that were released do not count, so that a number may come back: then the latest attempt with it is meant,
/// and `GET /v1/jobs/{id}/output` has the others by their fences.
#[utoipa::path(get, path = "/v1/jobs/{id}/attempts/{n}/output", tag = "jobs", operation_id = "attempt_output",
    params(
        ("id" = JobId, Path, description = "The job's id"),
        ("n" = u32, Path, description = "The number of the attempt, from 1", minimum = 1),
        ("stdout_from" = Option<u64>, Query, description = "Leaves out bytes of `stdout` before this place",
            maximum = 1_125_899_906_842_624_u64),
        ("stderr_from" = Option<u64>, Query, description = "Leaves out bytes of `stderr` before this place",
            maximum = 1_125_899_906_842_624_u64),
        ("wait_ms" = Option<u64>, Query, description = "The longest wait for more", maximum = 60_000),
        ("as_text" = Option<Stream>, Query,
            description = "Answers with this stream alone, as `text/plain`, with a line where bytes are left out"),
    ),
    responses((status = 200, description = "The output", content(
        (AttemptOutput = "application/json"),
        (String = "text/plain"),
    ))))]
pub(crate) async fn of_attempt(call: Call<Read>, Path((id, n)): Path<(String, String)>, query: Query) -> Answer {
    query.only(&["stdout_from", "stderr_from", "wait_ms", "as_text"])?;
    let id: JobId = id.parse().map_err(|error: InvalidName| ApiError::field("id", error.to_string()))?;
    let n =
        n.parse().ok().filter(|n| *n > 0).ok_or_else(|| ApiError::field("n", "must be a whole number from 1 on"))?;
    answer(&call, &id, AttemptChoice::Number(n), &query).await
}

async fn answer(call: &Call<Read>, id: &JobId, choice: AttemptChoice, query: &Query) -> Answer {
    let place = |name| query.number(name, 0..=MAX_OFFSET).map(Option::unwrap_or_default);
    let from = OutputFrom { stdout: place("stdout_from")?, stderr: place("stderr_from")? };
    let wait = Duration::from_millis(query.number("wait_ms", 0..=MAX_WAIT_MS)?.unwrap_or(0));
    let as_text = query.one("as_text")?.map(str::parse::<Stream>).transpose();
    let as_text = as_text.map_err(|error| ApiError::field("as_text", error))?;
    let output = call.app.manager.output(id, choice, from, wait).await?;
    let Some(wanted) = as_text else { return ok(&AttemptOutput::of(id, output)) };
    let (mut text, mut at) = (Vec::new(), from.of(wanted));
    for stream in output.streams.into_iter().filter(|stream| stream.stream == wanted) {
        for (offset, bytes) in stream.parts {
            if offset > at {
                text.extend_from_slice(left_out(offset - at).as_bytes());
            }
            at = offset + bytes.len() as u64;
            text.extend_from_slice(&bytes);
        }
        if stream.length > at {
            text.extend_from_slice(left_out(stream.length - at).as_bytes());
        }
    }
    let mut response = Body::from(text).into_response();
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    Ok(response)
}
