//! The group that a server is a member of, and the calls of other managers of the same store. These calls are no part
//! of the public API: whoever holds the secret of the cluster makes them, and no token opens them.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::App;
use super::call::{Admin, Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::{Query, parse};
use super::json::ok;
use super::of_peers::{HINTS, PeerRoute, QUESTIONS};
use crate::peers::{AskWorkers, Hints};
use crate::wire::{ChangeCluster, ClusterStatus};

/// Answers a call of another manager of the store, whose body it reads.
async fn answer<T: DeserializeOwned>(
    app: &App,
    request: Request,
    route: &PeerRoute,
    answer: impl FnOnce(T) -> Answer,
) -> Response {
    let Some(peers) = &app.of_peers else {
        return ApiError::new(Code::NoSuchRoute, "this server takes no calls of other servers").into_response();
    };
    let takes_earlier = || if app.manager.is_any_earlier() { usize::MAX } else { 0 };
    let read = peers.read(request, route, takes_earlier).await;
    peers.answer(read.and_then(|body| parse(&body.bytes)).and_then(answer))
}

/// Tells another manager which workers call this one.
pub(super) async fn workers(State(app): State<App>, request: Request) -> Response {
    let tell = |AskWorkers { id }| ok(&app.manager.workers_seen_here(id.as_ref()));
    answer(&app, request, &QUESTIONS, tell).await
}

/// Takes hints of jobs that another manager has written.
pub(super) async fn hints(State(app): State<App>, request: Request) -> Response {
    let take = |hints: Hints| {
        app.manager.take_recalls(&hints.recalls);
        app.manager.take_hints(&hints.available)?;
        Ok(StatusCode::NO_CONTENT.into_response())
    };
    answer(&app, request, &HINTS, take).await
}

/// Returns where the member that is asked stands in its cluster: who leads, who else there is, and how far the member
/// has come. Every member answers for itself. A server on a store of its own, or on Elasticsearch, is in no cluster.
#[utoipa::path(get, path = "/v1/cluster", tag = "server",
    responses(
        (status = 200, description = "Where the member stands", body = ClusterStatus),
        (status = 404, description = "`no_such_route`: this server is not a member of a cluster"),
    ))]
pub(crate) async fn status(_: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    Err(no_member())
}

/// Changes the members of the cluster, or who leads it, and returns where the leader that has done it stands then.
#[utoipa::path(post, path = "/v1/admin/cluster", tag = "admin", request_body = ChangeCluster,
    responses(
        (status = 200, description = "It is done, or was done before", body = ClusterStatus),
        (status = 404, description = "`no_such_route`: this server is not a member of a cluster"),
        (status = 409, description = "`members_unchanged`: it cannot be done now; the detail says what to do first"),
    ))]
pub(crate) async fn change(_: Call<Admin>) -> Answer {
    Err(no_member())
}

/// A member of a group answers these calls before they come here.
fn no_member() -> ApiError {
    ApiError::new(Code::NoSuchRoute, "this server is not a member of a cluster")
}
