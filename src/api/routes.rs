//! The routes, and with them the API's description.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use bytes::Bytes;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::Guard;
use super::body::read_form;
use super::error::{ApiError, Code};
use super::observe::observe;
use super::{
    App, admin, amend, audit, backfill, cluster, events, export, fields, jobs, limits, lists, openapi, output, queues,
    schedule_bulk, schedule_lines, schedules, sessions, stats, subscriptions, system, work, workers,
};
use crate::page;
use crate::peers::{HINTS_PATH, WORKERS_PATH};
use crate::wire::cookie::{BY_PAGE, SESSION_PATH};

/// Returns every route, without the layers around it.
fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::with_openapi(openapi::base())
        .routes(routes!(jobs::submit, lists::list))
        .routes(routes!(jobs::submit_bulk))
        .routes(routes!(stats::count))
        .routes(routes!(stats::stats))
        .routes(routes!(export::export))
        .routes(routes!(jobs::get, amend::edit, amend::delete))
        .routes(routes!(jobs::explain))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(amend::hold))
        .routes(routes!(amend::unhold))
        .routes(routes!(amend::run_now))
        .routes(routes!(amend::rerun))
        .routes(routes!(work::claim))
        .routes(routes!(work::heartbeat))
        .routes(routes!(work::heartbeats))
        .routes(routes!(work::recalls))
        .routes(routes!(work::complete))
        .routes(routes!(work::fail))
        .routes(routes!(work::release))
        .routes(routes!(work::completions))
        .routes(routes!(output::put, output::get))
        .routes(routes!(output::put_many))
        .routes(routes!(output::of_attempt))
        .routes(routes!(queues::queues))
        .routes(routes!(queues::queue, queues::change_queue))
        .routes(routes!(queues::pause_queue))
        .routes(routes!(queues::resume_queue))
        .routes(routes!(limits::limits))
        .routes(routes!(limits::limit, limits::set_limit, limits::remove_limit))
        .routes(routes!(workers::workers))
        .routes(routes!(workers::worker))
        .routes(routes!(schedules::preview))
        .routes(routes!(schedules::create, schedules::list))
        .routes(routes!(schedule_lines::put_many))
        .routes(routes!(schedule_bulk::pause))
        .routes(routes!(schedule_bulk::resume))
        .routes(routes!(schedule_bulk::remove))
        .routes(routes!(schedules::get, schedules::put, schedules::remove))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run))
        .routes(routes!(backfill::backfill))
        .routes(routes!(schedules::next))
        .routes(routes!(schedules::triggers))
        .routes(routes!(subscriptions::subscribe, subscriptions::list))
        .routes(routes!(subscriptions::get, subscriptions::remove))
        .routes(routes!(subscriptions::enable))
        .routes(routes!(subscriptions::change_secret))
        .routes(routes!(subscriptions::signing_key))
        .routes(routes!(admin::orphans))
        .routes(routes!(admin::release))
        .routes(routes!(admin::release_many))
        .routes(routes!(admin::cancel_many))
        .routes(routes!(admin::retry_many))
        .routes(routes!(admin::hold_many))
        .routes(routes!(admin::unhold_many))
        .routes(routes!(admin::run_many_now))
        .routes(routes!(admin::edit_many))
        .routes(routes!(admin::rerun_many))
        .routes(routes!(admin::delete_many))
        .routes(routes!(events::events))
        .routes(routes!(audit::audit))
        .routes(routes!(fields::fields))
        .routes(routes!(system::livez))
        .routes(routes!(system::readyz))
        .routes(routes!(system::health))
        .routes(routes!(system::me))
        .routes(routes!(system::metrics))
        .routes(routes!(cluster::status))
        .routes(routes!(cluster::change))
        .routes(routes!(system::openapi))
}

/// Returns the server's router: the API, and the web page over it.
pub(super) fn router(app: App) -> Router {
    let api = surround(all_routes(), app.clone());
    let pages = page::routes(api.clone(), app.shutdown.clone());
    api.merge(surround_pages(pages, &app.guard))
}

/// Returns the routes of the API, and those of other managers and of the page, which its description leaves out.
fn all_routes() -> Router<App> {
    let (router, _) = routes().split_for_parts();
    let router = router.route(HINTS_PATH, post(cluster::hints)).route(WORKERS_PATH, post(cluster::workers));
    router.route(SESSION_PATH, post(sessions::begin).delete(sessions::end))
}

/// The paths that a monitor process serves, and the prefix of the administrators' calls, which it serves too.
const MONITOR_PATHS: [&str; 7] =
    ["/livez", "/readyz", "/metrics", "/openapi.json", "/v1/audit", HINTS_PATH, WORKERS_PATH];
const ADMIN_PREFIX: &str = "/v1/admin/";

/// Returns the router of a monitor process, which serves only some of the routes, and the web page.
pub(super) fn monitor_router(app: App) -> Router {
    let pages = page::routes(surround(all_routes(), app.clone()), app.shutdown.clone());
    let routes = all_routes().layer(axum::middleware::from_fn(only_what_a_monitor_serves));
    surround(routes, app.clone()).merge(surround_pages(pages, &app.guard))
}

async fn only_what_a_monitor_serves(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_by_page = request.headers().contains_key(BY_PAGE);
    if is_by_page || MONITOR_PATHS.contains(&path) || path.starts_with(ADMIN_PREFIX) {
        return next.run(request).await;
    }
    ApiError::new(Code::NoSuchRoute, "this process serves no jobs; ask a server").into_response()
}

/// Adds the layers of every call around the page's routes.
pub(super) fn surround_pages(pages: Router, guard: &Arc<Guard>) -> Router {
    let observe = axum::middleware::from_fn_with_state(Arc::clone(guard), observe);
    pages.layer(axum::middleware::from_fn(read_form)).layer(observe)
}

/// Adds the layers of every call around the routes and around requests without a route.
pub(super) fn surround(router: Router<App>, app: App) -> Router {
    let guard = Arc::clone(&app.guard);
    router.layer(axum::middleware::from_fn_with_state(guard, observe)).with_state(app)
}

/// Returns the API's description.
fn description() -> OpenApi {
    let mut openapi = routes().into_openapi();
    openapi::round_off(&mut openapi);
    openapi
}

/// Returns the API's description as JSON: OpenAPI 3.1.
///
/// # Errors
/// The description cannot be written, which would be a bug.
pub fn openapi_json() -> Result<Bytes, serde_json::Error> {
    serde_json::to_vec_pretty(&description()).map(Bytes::from)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::api::roles;
    use crate::wire::check::{RESERVED_IDS, RESERVED_SCHEDULE_IDS};

    #[test]
    fn it_is_known_of_every_call_which_role_it_needs_before_its_handler_asks() {
        let public = ["GET /livez", "GET /readyz", "GET /openapi.json"];
        let listed: Vec<String> = roles::calls().map(|(_, method, route)| format!("{method} {route}")).collect();
        let mut described: BTreeSet<String> = BTreeSet::new();
        for (path, item) in description().paths.paths {
            let item = serde_json::to_value(item).expect("JSON");
            let methods = item.as_object().expect("operations").keys();
            described.extend(methods.map(|method| format!("{} {path}", method.to_uppercase())));
        }
        assert_eq!(listed.iter().cloned().chain(public.map(str::to_owned)).collect::<BTreeSet<_>>(), described);
        assert_eq!(listed.len() + public.len(), described.len(), "each once");
    }

    #[test]
    fn every_call_in_the_place_of_an_id_is_reserved() {
        let openapi = description();
        let beside_ids = |starts: &[&str]| -> BTreeSet<String> {
            let rest = |path: &String| {
                let rest = starts.iter().find_map(|start| path.strip_prefix(start))?;
                (!rest.contains(['/', '{'])).then(|| rest.to_owned())
            };
            openapi.paths.paths.keys().filter_map(rest).collect()
        };
        assert_eq!(beside_ids(&["/v1/jobs/", "/v1/admin/jobs/"]), RESERVED_IDS.map(str::to_owned).into());
        assert_eq!(beside_ids(&["/v1/schedules/"]), RESERVED_SCHEDULE_IDS.map(str::to_owned).into());
    }
}
