//! What tells an open page to look again, and shows it that the server is there.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures::stream;
use http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Interval, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::ask::Asker;

/// How often an open page looks again.
const EVERY: Duration = Duration::from_secs(2);
/// The most pages that are open at once; others are shown, and do not follow.
const MOST: usize = 1_000;

/// The pages that are open.
#[derive(Clone)]
pub(super) struct Lookers {
    places: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl Lookers {
    pub(super) fn new(shutdown: CancellationToken) -> Self {
        Self { places: Arc::new(Semaphore::new(MOST)), shutdown }
    }
}

/// What an open page is told by.
struct Ticking {
    interval: Interval,
    shutdown: CancellationToken,
    _place: OwnedSemaphorePermit,
}

/// Tells a page to look again, for as long as it is open.
pub(super) async fn stream(asker: Asker, State(lookers): State<Lookers>) -> Response {
    if let Err(refused) = asker.me().await {
        return refused.status.into_response();
    }
    let Ok(place) = lookers.places.try_acquire_owned() else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    let mut interval = interval(EVERY);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ticking = Ticking { interval, shutdown: lookers.shutdown, _place: place };
    let ticks = stream::unfold(ticking, |mut ticking| async move {
        tokio::select! {
            _ = ticking.interval.tick() => {
                let tick = Event::default().event("tick").data("look again");
                Some((Ok::<_, Infallible>(tick), ticking))
            }
            () = ticking.shutdown.cancelled() => None,
        }
    });
    Sse::new(ticks).keep_alive(KeepAlive::default()).into_response()
}
