//! The web page: what a browser shows of the jobs, and lets people do with them.
//!
//! Each page is written on the server and can be read without a script; its address is its state. A page asks the API
//! of the same process for everything that it shows, with the token of whoever looks at it ([`ask`]), so that it shows
//! nothing that its reader may not see, and is right on every engine. Everything that changes something is a call of
//! the API that the script of the page makes.
//!
//! In reading order: [`ask`], `frame` (what surrounds every page, and the pages of refusals), `shown` (how times,
//! durations and numbers are written), the pages (`overview` with `charts`, `jobs`, `job` with `timeline`, `workers`,
//! `queues`, `schedules`, `events` with `audit`, `health`, `reference`) over `kept` and `written` (what is found and
//! written once for all), `sign_in`, `live` (what tells a page to look again) and `assets`.

mod ask;
mod assets;
mod audit;
mod charts;
mod events;
mod frame;
mod health;
mod job;
mod jobs;
mod kept;
mod live;
mod overview;
mod queues;
mod reference;
mod schedules;
mod shown;
mod sign_in;
mod timeline;
mod workers;
mod written;

use std::sync::Arc;

use axum::Router;
use axum::extract::FromRef;
use axum::routing::{get, post};
use tokio_util::sync::CancellationToken;
use tower_http::compression::CompressionLayer;

use ask::Api;
use charts::Charts;
pub(crate) use frame::SIGN_IN_PATH;
use jobs::SlowCounts;
use kept::Kept;
use live::Lookers;
use overview::Seen;
use written::Readers;

/// What the pages share; each takes the parts that it needs.
#[derive(Clone, FromRef)]
struct Site {
    api: Api,
    charts: Arc<Charts>,
    seen: Arc<Kept<Seen>>,
    readers: Arc<Readers>,
    slow: Arc<SlowCounts>,
    lookers: Lookers,
}

/// Returns the routes of the page. `api` answers the calls of the API; streams end once `shutdown` is cancelled.
pub(crate) fn routes(api: Router, shutdown: CancellationToken) -> Router {
    let site = Site {
        api: Api::new(api),
        charts: Arc::default(),
        seen: Arc::default(),
        readers: Arc::default(),
        slow: Arc::default(),
        lookers: Lookers::new(shutdown),
    };
    Router::new()
        .route("/", get(overview::page))
        .route("/jobs", get(jobs::page))
        .route("/jobs/{id}", get(job::page))
        .route("/workers", get(workers::page))
        .route("/queues", get(queues::page))
        .route("/schedules", get(schedules::page))
        .route("/schedules/{id}", get(schedules::one))
        .route("/events", get(events::page))
        .route("/audit", get(audit::page))
        .route("/health", get(health::page))
        .route("/reference", get(reference::page))
        .route(SIGN_IN_PATH, get(sign_in::page).post(sign_in::sign_in))
        .route("/sign-out", post(sign_in::sign_out))
        .route("/live", get(live::stream))
        .route("/assets/{*name}", get(assets::serve))
        .layer(CompressionLayer::new())
        .with_state(site)
}
