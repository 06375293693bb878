//! The calls about queues: their state and their settings.

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;

use super::App;
use super::allowed::{Admin, Allowed, Read};
use super::error::ApiError;
use super::extract::{JsonBody, OptionalJsonBody, Query, QueuePath};
use super::json::json;
use crate::job::QueueName;
use crate::wire::{ChangeQueue, ChangeReason, Queue, QueueList};

/// A body without fields: `{}`.
#[derive(Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoFields {}

/// Lists the queues that have jobs or settings.
#[utoipa::path(get, path = "/v1/queues", tag = "queues",
    responses((status = 200, description = "The queues, by name", body = QueueList)))]
pub(crate) async fn queues(_: Allowed<Read>, State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    query.only(&[])?;
    let items = app.manager.queues().await?.into_iter().map(Queue::from).collect();
    Ok(json(StatusCode::OK, &QueueList { items, next_cursor: None }))
}

/// Returns a queue, which need not have jobs.
#[utoipa::path(get, path = "/v1/queues/{name}", tag = "queues",
    params(("name" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue", body = Queue)))]
pub(crate) async fn queue(
    _: Allowed<Read>,
    State(app): State<App>,
    QueuePath(name): QueuePath,
    query: Query,
) -> Result<Response, ApiError> {
    query.only(&[])?;
    show(&app, &name).await
}

/// Pauses a queue: none of its jobs is claimed until it is resumed.
///
/// Running jobs go on, submissions are accepted, and waiting workers keep waiting. Every server on the same store
/// pauses the queue within a second. A second pause changes the reason, and not the time of the pause.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", request_body = Option<ChangeReason>,
    params(("name" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn pause_queue(
    Allowed { caller, .. }: Allowed<Admin>,
    State(app): State<App>,
    QueuePath(name): QueuePath,
    OptionalJsonBody(pause): OptionalJsonBody<ChangeReason>,
) -> Result<Response, ApiError> {
    let reason = pause.into_reason()?;
    app.manager.pause(&caller, &name, reason.as_deref()).await?;
    show(&app, &name).await
}

/// Resumes a queue. Waiting workers get its jobs at once.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues",
    params(("name" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn resume_queue(
    _: Allowed<Admin>,
    State(app): State<App>,
    QueuePath(name): QueuePath,
    _: OptionalJsonBody<NoFields>,
) -> Result<Response, ApiError> {
    app.manager.resume(&name).await?;
    show(&app, &name).await
}

/// Changes a queue's settings.
#[utoipa::path(patch, path = "/v1/queues/{name}", tag = "queues", request_body = ChangeQueue,
    params(("name" = String, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn change_queue(
    _: Allowed<Admin>,
    State(app): State<App>,
    QueuePath(name): QueuePath,
    JsonBody(change): JsonBody<ChangeQueue>,
) -> Result<Response, ApiError> {
    app.manager.set_orphan_policy(&name, change.orphan_policy).await?;
    show(&app, &name).await
}

async fn show(app: &App, name: &QueueName) -> Result<Response, ApiError> {
    Ok(json(StatusCode::OK, &Queue::from(app.manager.queue(name).await?)))
}
