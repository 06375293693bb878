//! The calls about the server itself.

use axum::body::Body;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, StatusCode};

use super::App;
use super::call::{Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::Query;
use super::json::{ok, with_body};
use super::metrics::record_manager;
use super::queue_metrics::of_queues;
use super::schedule_metrics::of_schedules;
use crate::store::{Hang, StoreError};
use crate::wire::{Health, Me, ServerHealth, StoreHealth};

fn healthy() -> Answer {
    ok(&Health { status: "ok".to_owned() })
}

/// Answers as long as the process need not be started again, without using the store.
#[utoipa::path(get, path = "/livez", tag = "server",
    responses(
        (status = 200, description = "The process lives", body = Health),
        (status = 503, description = "`store_unavailable`: the store takes no more writes until the process is started \
            again, or has hung for more than a minute; `detail` says why and what to do"),
    ))]
pub(crate) async fn livez(State(app): State<App>) -> Answer {
    if let Some(why) = app.manager.stopped() {
        return Err(StoreError::Stopped(why).into());
    }
    lives(app.manager.hang())
}

/// Answers whether the process lives whose store hangs, if it does: not once that lasts.
pub(super) fn lives(hang: Option<Hang>) -> Answer {
    match hang {
        Some(hang) if hang.is_lasting => Err(unready(hang.into())),
        _ => healthy(),
    }
}

/// Answers whether the server and its store can serve requests now.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses(
        (status = 200, description = "The server can serve requests", body = Health),
        (status = 503, description = "`store_unavailable`, `store_out_of_order` or `shutting_down`; see its `detail`"),
    ))]
pub(crate) async fn readyz(State(app): State<App>) -> Answer {
    if app.shutdown.is_cancelled() {
        return Err(ApiError::new(Code::ShuttingDown, "the server is shutting down"));
    }
    app.manager.ready().await.map_err(unready)?;
    healthy()
}

/// Returns the refusal of a store that is not ready.
pub(super) fn unready(error: StoreError) -> ApiError {
    match error {
        // This check says what is wrong in words for everybody.
        StoreError::Unavailable(ref why) | StoreError::NotLeading(ref why) => {
            ApiError::new(Code::StoreUnavailable, error.to_string()).caused_by(why.as_str())
        }
        error => error.into(),
    }
}

/// Returns the health of the server: its problems, how fast jobs reach workers, how much work of which kind there is,
/// and how many workers it needs.
///
/// The call does not use the store and answers 200 in any case: probes should use `/livez` and `/readyz`.
#[utoipa::path(get, path = "/v1/health", tag = "server",
    responses((status = 200, description = "The health of the server", body = ServerHealth)))]
pub(crate) async fn health(call: Call<Read>, query: Query) -> Answer {
    query.only(&[])?;
    let manager = &call.app.manager;
    let (insights, survey) = (manager.insights(), manager.survey());
    let configuration = call.app.configuration.clone();
    let store = StoreHealth {
        stopped: manager.stopped(),
        hangs: manager.hang().map(|hang| hang.why),
        out_of_order: manager.out_of_order(),
        unreadable: manager.unreadable(),
        unequal: manager.unequal(),
        dropped: manager.dropped(),
        clock_is_off: manager.clock_is_off(),
        doubtful_times: manager.has_doubtful_times(),
        peer_troubles: manager.peer_troubles(),
        scan_troubles: manager.scan_troubles(),
        unread_months: manager.unread_months(),
        monitor_is_gone: manager.monitor_is_gone(),
    };
    ok(&ServerHealth::new(configuration, &insights, &survey, manager.waiting_claims(), store, manager.now()))
}

/// Returns who the caller is, and what it may do.
#[utoipa::path(get, path = "/v1/me", tag = "server",
    responses((status = 200, description = "The caller", body = Me)))]
pub(crate) async fn me(call: Call<Read>, headers: HeaderMap, query: Query) -> Answer {
    query.only(&[])?;
    ok(&call.app.guard.access.me(&headers)?)
}

/// Returns the server's metrics in Prometheus' text format.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, description = "The metrics", body = String, content_type = "text/plain")))]
pub(crate) async fn metrics(call: Call<Read>) -> Response {
    let manager = &call.app.manager;
    let store = (manager.out_of_order().is_some(), manager.stopped().is_some());
    record_manager(manager.waiting_claims(), manager.clock_is_off().is_some(), store);
    let mut text = call.app.metrics.render();
    if let Some(survey) = manager.survey().latest {
        text += &of_queues(&manager.surveyed_queues(), survey.at, &manager.workers_by_queue());
    }
    if let Some(schedules) = &call.app.schedules {
        text += &of_schedules(&schedules.in_trouble());
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

/// Returns this description.
#[utoipa::path(get, path = "/openapi.json", tag = "server",
    responses((status = 200, description = "The OpenAPI 3.1 description of the API", body = Value)))]
pub(crate) async fn openapi(State(app): State<App>) -> Response {
    with_body(StatusCode::OK, Body::from(app.openapi.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_lives_on_whose_store_hangs_unless_that_lasts() {
        let hang = |is_lasting| Some(Hang { why: "no write for 12 s".to_owned(), is_lasting });
        assert!(lives(None).is_ok() && lives(hang(false)).is_ok());
        let refused = lives(hang(true)).expect_err("it is to be started again");
        assert!(format!("{refused:?}").contains("it hangs: no write for 12 s"), "{refused:?}");
    }
}
