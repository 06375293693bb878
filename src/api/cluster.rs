//! The group that a server is a member of, and the calls of other managers of the same store. These calls are no part
//! of the public API: whoever holds the secret of the cluster makes them, and no token opens them.

use axum::extract::{Request, State};
use axum::response::IntoResponse;
use http::StatusCode;
use serde::de::DeserializeOwned;

use super::App;
use super::call::{Admin, Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::{Query, parse, read};
use super::json::ok;
use crate::peers::{AskWorkers, Hints, MAX_HINTS_BYTES};
use crate::wire::{ChangeCluster, ClusterStatus};

/// The longest body of a call that only asks, in bytes.
const MAX_QUESTION_BYTES: usize = 4 * 1024;

/// Reads a call that is signed by another manager of the store.
async fn of_a_peer<T: DeserializeOwned>(app: &App, request: Request, max_bytes: usize) -> Result<T, ApiError> {
    let Some(peers) = &app.peers else {
        return Err(ApiError::new(Code::NoSuchRoute, "this server takes no calls of other servers"));
    };
    let (parts, body) = request.into_parts();
    let body = read(&parts, body, max_bytes, app).await?;
    peers
        .verify(&parts.headers, &body.bytes, app.manager.now())
        .map_err(|why| ApiError::new(Code::Unauthorized, format!("the call is not one of another server: {why}")))?;
    parse(&body.bytes)
}

/// Tells another manager which workers call this one.
pub(super) async fn workers(State(app): State<App>, request: Request) -> Answer {
    let AskWorkers { id } = of_a_peer(&app, request, MAX_QUESTION_BYTES).await?;
    ok(&app.manager.workers_seen_here(id.as_ref()))
}

/// Takes hints of jobs that another manager has written.
pub(super) async fn hints(State(app): State<App>, request: Request) -> Answer {
    let hints: Hints = of_a_peer(&app, request, MAX_HINTS_BYTES).await?;
    app.manager.take_recalls(&hints.recalls);
    app.manager.take_hints(&hints.available)?;
    Ok(StatusCode::NO_CONTENT.into_response())
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
