//! The calls about queues: their state and their settings.

use super::App;
use super::call::{Admin, Answer, Call, Read};
use super::extract::{JsonBody, OptionalJsonBody, Query, QueuePath};
use super::json::ok;
use crate::job::QueueName;
use crate::manager::ChangeName;
use crate::wire::{ChangeQueue, ChangeReason, Page, Queue};

/// A body without fields: `{}`.
#[derive(Default, serde::Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoFields {}

/// Lists the queues that have jobs or settings.
#[utoipa::path(get, path = "/v1/queues", tag = "queues",
    responses((status = 200, description = "The queues, by name", body = Page<Queue>)))]
pub(crate) async fn queues(call: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    ok(&Page { items: call.app.manager.queues().await?, next_cursor: None })
}

/// Returns a queue, which need not have jobs.
#[utoipa::path(get, path = "/v1/queues/{name}", tag = "queues",
    params(("name" = QueueName, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue", body = Queue)))]
pub(crate) async fn queue(call: Call<Read>, QueuePath(name): QueuePath, query: Query) -> Answer {
    query.only(&[])?;
    show(&call.app, &name).await
}

/// Pauses a queue: none of its jobs is claimed until it is resumed.
///
/// Running jobs go on, submissions are accepted, and waiting workers keep waiting. Every server on the same store
/// pauses the queue within a second. A second pause changes the reason, and not the time of the pause.
#[utoipa::path(post, path = "/v1/queues/{name}/pause", tag = "queues", request_body = Option<ChangeReason>,
    params(("name" = QueueName, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn pause_queue(
    call: Call<Admin>,
    QueuePath(name): QueuePath,
    OptionalJsonBody(pause): OptionalJsonBody<ChangeReason>,
) -> Answer {
    let reason = pause.into_reason()?;
    let change = call.change(ChangeName::QueuePaused).of(&name).because(reason.clone());
    call.audited(change, call.app.manager.pause(&call.caller, &name, reason.as_deref())).await?;
    show(&call.app, &name).await
}

/// Resumes a queue. Waiting workers get its jobs at once.
#[utoipa::path(post, path = "/v1/queues/{name}/resume", tag = "queues", request_body = Option<NoFields>,
    params(("name" = QueueName, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn resume_queue(
    call: Call<Admin>,
    QueuePath(name): QueuePath,
    _: OptionalJsonBody<NoFields>,
) -> Answer {
    call.audited(call.change(ChangeName::QueueResumed).of(&name), call.app.manager.resume(&name)).await?;
    show(&call.app, &name).await
}

/// Changes a queue's settings.
///
/// Every server on the same store knows of the change within a second. Where the owners take turns, each server lets
/// them do so over the jobs that it hands out.
#[utoipa::path(patch, path = "/v1/queues/{name}", tag = "queues", request_body = ChangeQueue,
    params(("name" = QueueName, Path, description = "The queue's name")),
    responses((status = 200, description = "The queue after the call", body = Queue)))]
pub(crate) async fn change_queue(
    call: Call<Admin>,
    QueuePath(name): QueuePath,
    JsonBody(change): JsonBody<ChangeQueue>,
) -> Answer {
    let entry = call.change(ChangeName::QueueChanged).of(&name).to(&change);
    let change = change.into_change()?;
    call.audited(entry, call.app.manager.set_up_queue(&name, &change)).await?;
    show(&call.app, &name).await
}

async fn show(app: &App, name: &QueueName) -> Answer {
    ok(&app.manager.queue(name).await?)
}
