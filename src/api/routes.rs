//! The routes, and with them the API's description.

use axum::Router;
use bytes::Bytes;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::observe::observe;
use super::{App, admin, jobs, lists, openapi, system, work};

/// Every route, before anything surrounds it.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(jobs::submit, lists::list))
        .routes(routes!(jobs::submit_bulk))
        .routes(routes!(lists::count))
        .routes(routes!(jobs::get))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(work::claim))
        .routes(routes!(work::heartbeat))
        .routes(routes!(work::heartbeats))
        .routes(routes!(work::complete))
        .routes(routes!(work::fail))
        .routes(routes!(work::release))
        .routes(routes!(work::completions))
        .routes(routes!(lists::queues))
        .routes(routes!(admin::orphans))
        .routes(routes!(admin::release))
        .routes(routes!(admin::release_many))
        .routes(routes!(admin::cancel_many))
        .routes(routes!(admin::retry_many))
        .routes(routes!(system::livez))
        .routes(routes!(system::readyz))
        .routes(routes!(system::health))
        .routes(routes!(system::metrics))
        .routes(routes!(system::openapi))
}

/// The server's router.
pub(super) fn router(app: App) -> Router {
    let (router, _) = routes().split_for_parts();
    surround(router, app)
}

/// Puts around the routes, and around requests that have none, what surrounds every call.
pub(super) fn surround(router: Router<App>, app: App) -> Router {
    let app_state = app.clone();
    router.layer(axum::middleware::from_fn_with_state(app, observe)).with_state(app_state)
}

/// The API's description.
fn description() -> OpenApi {
    let mut openapi = routes().into_openapi();
    openapi::round_off(&mut openapi);
    openapi
}

/// The API's description as JSON: OpenAPI 3.1.
///
/// # Errors
/// When it cannot be written, which would be an oversight in this program.
pub fn openapi_json() -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec_pretty(&description()).map(Bytes::from)
}
