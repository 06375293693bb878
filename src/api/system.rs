//! The calls about the server itself.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use super::App;
use super::access::{Allowed, Read};
use super::error::{ApiError, Code};
use super::json::{json, with_body};
use super::wire::Health;

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

/// Gives the server's metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(_: Allowed<Read>, State(app): State<App>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render()).into_response()
}

/// Gives this description.
#[utoipa::path(get, path = "/openapi.json", tag = "server",
    responses((status = 200, description = "The OpenAPI 3.1 description of the API", body = Value)))]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    with_body(StatusCode::OK, Body::from(app.openapi.clone()))
}
