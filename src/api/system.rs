//! The calls about the server itself.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::App;
use super::access::{Allowed, Read};
use super::error::{ApiError, Code};
use super::extract::Query;
use super::json::{json, with_body};
use crate::wire::{Health, ServerHealth};

fn healthy() -> Response {
    json(StatusCode::OK, &Health { status: "ok".to_owned() })
}

/// Says that the process lives. Never asks the store.
#[utoipa::path(get, path = "/livez", tag = "server",
    responses((status = 200, description = "It does", body = Health)))]
pub(crate) async fn livez() -> Response {
    healthy()
}

/// Says whether the server could serve now. Asks the store.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses(
        (status = 200, description = "It could", body = Health),
        (status = 503, description = "`store_unavailable` or `shutting_down`"),
    ))]
pub(crate) async fn readyz(State(app): State<App>) -> Result<Response, ApiError> {
    if app.shutdown.is_cancelled() {
        return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
    }
    app.manager.ready().await?;
    Ok(healthy())
}

/// Tells how the server is: whether something is wrong and what, how fast jobs get to workers, how much there is to do
/// and of what kind, and how many workers that needs.
///
/// Never asks the store, and answers 200 whatever there is to tell: probes ask `/livez` and `/readyz`.
#[utoipa::path(get, path = "/v1/health", tag = "server",
    responses((status = 200, description = "How it is", body = ServerHealth)))]
pub(crate) async fn health(_: Allowed<Read>, State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    query.only(&[])?;
    let manager = &app.manager;
    let (insights, survey) = (manager.insights(), manager.survey());
    let configuration = app.configuration.as_ref().clone();
    let told = ServerHealth::new(configuration, &insights, &survey, manager.waiting_claims(), manager.now());
    Ok(json(StatusCode::OK, &told))
}

/// Gives the server's metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(_: Allowed<Read>, State(app): State<App>) -> Response {
    ::metrics::gauge!("leasehold_claims_waiting").set(app.manager.waiting_claims() as f64);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render()).into_response()
}

/// Gives this description.
#[utoipa::path(get, path = "/openapi.json", tag = "server",
    responses((status = 200, description = "The OpenAPI 3.1 description of the API", body = Value)))]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    with_body(StatusCode::OK, Body::from(app.openapi.clone()))
}
