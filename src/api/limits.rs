//! The calls about limits: how many jobs of a queue, kind, owner or key run at once.

use axum::response::IntoResponse;
use http::StatusCode;

use super::call::{Admin, Answer, Call, Read};
use super::extract::{JsonBody, LimitPath, Query};
use super::json::ok;
use crate::job::{ConcurrencyKey, LimitScope};
use crate::manager::{ChangeName, LimitState};
use crate::wire::{Page, SetLimit};

/// Lists the limits that are set, by scope and name, each with the jobs that run under it.
///
/// Keys that only jobs name (`concurrency_key`) are not listed: there may be millions. Each can be asked for by its
/// name.
#[utoipa::path(get, path = "/v1/limits", tag = "limits",
    responses((status = 200, description = "The limits, by scope and name", body = Page<LimitState>)))]
pub(crate) async fn limits(call: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    ok(&Page { items: call.app.manager.limits().await?, next_cursor: None })
}

/// Returns a limit with the jobs that run under it, whether it is set or only named by jobs.
#[utoipa::path(get, path = "/v1/limits/{scope}/{name}", tag = "limits",
    params(("scope" = LimitScope, Path, description = "What the jobs have in common"),
        ("name" = ConcurrencyKey, Path, description = "The name of the queue, kind, owner or key")),
    responses((status = 200, description = "The limit", body = LimitState)))]
pub(crate) async fn limit(call: Call<Read>, LimitPath(name): LimitPath, query: Query) -> Answer {
    query.only(&[])?;
    ok(&call.app.manager.limit(&name).await?)
}

/// Sets how many jobs of a queue, kind, owner or key run at once, or begin in a time, over all servers on one store.
///
/// The limit holds instead of what the jobs of a key say themselves (`max_concurrent`). Jobs that run already go on,
/// and count: no job begins while as many run as may. In any time, a rate lets at most `burst` jobs begin and `count`
/// more for each `per_ms`. With `urgent`, jobs below `min_priority` leave `places` of `max_concurrent` free. With
/// `paused_until` none begins before that time. Every server knows of the change within a second.
#[utoipa::path(put, path = "/v1/limits/{scope}/{name}", tag = "limits", request_body = SetLimit,
    params(("scope" = LimitScope, Path, description = "What the jobs have in common"),
        ("name" = ConcurrencyKey, Path, description = "The name of the queue, kind, owner or key")),
    responses((status = 200, description = "The limit after the call", body = LimitState)))]
pub(crate) async fn set_limit(
    call: Call<Admin>,
    LimitPath(name): LimitPath,
    JsonBody(set): JsonBody<SetLimit>,
) -> Answer {
    let change = call.change(ChangeName::LimitSet).of(&name).to(&set);
    let set = set.into_new_limit()?;
    call.audited(change, call.app.manager.set_limit(&call.caller, &name, set)).await?;
    ok(&call.app.manager.limit(&name).await?)
}

/// Takes a limit away. What the jobs of a key say themselves holds again.
#[utoipa::path(delete, path = "/v1/limits/{scope}/{name}", tag = "limits",
    params(("scope" = LimitScope, Path, description = "What the jobs have in common"),
        ("name" = ConcurrencyKey, Path, description = "The name of the queue, kind, owner or key")),
    responses((status = 204, description = "The limit is not set any more, or was not set")))]
pub(crate) async fn remove_limit(call: Call<Admin>, LimitPath(name): LimitPath) -> Answer {
    call.audited(call.change(ChangeName::LimitRemoved).of(&name), call.app.manager.remove_limit(&name)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
