//! The server: it accepts connections as long as there are places, refuses the others, and ends in good order.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use super::app::{AppParts, BodyBudget};
use super::connection::{Connections, Protocols};
use super::error::{ApiError, Code};
use super::places::{Capacity, NO_PLACE, Place, Places};
use super::routes::{monitor_router, openapi_json, router};
use super::{App, AppState, Limits, metrics};

/// The connections beyond [`Limits::connections`], each for one call of an operator or a probe.
const RESERVE: usize = 64;
/// How many connections are refused at once with an answer. Further ones are closed without one.
const REFUSALS: usize = 256;
/// How long the refusal of a connection may take.
const REFUSED_WITHIN: Duration = Duration::from_secs(1);
/// The most bytes that are read of a connection that is refused.
const MAX_UNREAD: u64 = 64 * 1024;
/// The pause after the system could not accept a connection, often because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves the API on `listener` until `shutdown` is cancelled: then it accepts nothing more, answers waiting claims,
/// ends streams of events, lets calls end for [`super::Limits::drain_within`], and returns. The manager is left to the
/// caller.
///
/// # Errors
/// The listener cannot be used, or the API's description cannot be written.
pub async fn serve(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> io::Result<()> {
    serve_routes(listener, state, shutdown, router).await
}

/// Serves the calls of a monitor that is a process of its own: health, metrics and the administrators' calls. Otherwise
/// it works like [`serve`].
///
/// # Errors
/// The errors of [`serve`].
pub async fn serve_monitor(listener: TcpListener, state: AppState, shutdown: CancellationToken) -> io::Result<()> {
    serve_routes(listener, state, shutdown, monitor_router).await
}

async fn serve_routes(
    listener: TcpListener,
    state: AppState,
    shutdown: CancellationToken,
    router: fn(App) -> Router,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let app = app(state, address, shutdown.clone())?;
    let Limits { connections, connections_per_address, head_within, read_within, .. } = app.limits;
    let capacity = Capacity { regular: connections, per_address: connections_per_address, reserve: RESERVE };
    let server = Server {
        connections: Arc::new(Connections {
            router: router(app.clone()),
            protocols: Protocols::new(&app.limits),
            silent_within: head_within,
            read_within,
            closing: CancellationToken::new(),
        }),
        places: Places::new(capacity),
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        tasks: TaskTracker::new(),
        abort: CancellationToken::new(),
    };
    let upkeep = tokio::spawn(keep_up(app.metrics.clone(), shutdown.clone()));
    info!(%address, "serving");
    tokio::select! {
        () = server.accept(&listener) => {}
        () = shutdown.cancelled() => {}
    }
    drop(listener);
    app.manager.stop_claims();
    server.drain(app.limits.drain_within).await;
    upkeep.abort();
    Ok(())
}

fn app(state: AppState, address: SocketAddr, shutdown: CancellationToken) -> io::Result<App> {
    let AppState { manager, subscriptions, schedules, access, peer_secret, metrics, limits, configuration } = state;
    Ok(Arc::new(AppParts {
        manager,
        subscriptions,
        schedules,
        trusts_its_machine: access.is_open() && address.ip().is_loopback(),
        access,
        peer_secret,
        metrics,
        budget: BodyBudget::new(limits.body_bytes),
        streams: Arc::new(Semaphore::new(limits.event_streams.min(Semaphore::MAX_PERMITS))),
        exports: Arc::new(Semaphore::new(limits.exports.min(Semaphore::MAX_PERMITS))),
        export_readers: Arc::new(Semaphore::new(limits.export_readers.min(Semaphore::MAX_PERMITS))),
        limits,
        configuration,
        shutdown,
        openapi: openapi_json().map_err(io::Error::other)?,
    }))
}

struct Server {
    connections: Arc<Connections>,
    places: Arc<Places>,
    /// The connections that are being refused.
    refusals: Arc<Semaphore>,
    tasks: TaskTracker,
    /// Cancelled to end every connection at once.
    abort: CancellationToken,
}

impl Server {
    /// Accepts connections until the returned future is dropped.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, from)) => match self.places.take(from.ip()) {
                    Some(place) => self.spawn(stream, place),
                    None => self.refuse(stream),
                },
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn spawn(&self, stream: TcpStream, place: Place) {
        let (connections, abort) = (Arc::clone(&self.connections), self.abort.child_token());
        self.tasks.spawn(async move {
            let open = ::metrics::gauge!("leasehold_http_connections");
            open.increment(1);
            tokio::select! {
                () = connections.serve(stream, &place) => {}
                () = abort.cancelled() => {}
            }
            open.decrement(1);
        });
    }

    /// Answers a connection without reading from it first, and closes it.
    fn refuse(&self, mut stream: TcpStream) {
        ::metrics::counter!("leasehold_http_connections_refused_total").increment(1);
        let Ok(turn) = Arc::clone(&self.refusals).try_acquire_owned() else { return };
        self.tasks.spawn(async move {
            let _turn = turn;
            let said = async {
                stream.write_all(refusal().as_bytes()).await?;
                stream.shutdown().await?;
                // A connection that is closed before its request was read loses the answer.
                copy(&mut stream.take(MAX_UNREAD), &mut sink()).await
            };
            let _in_time = timeout(REFUSED_WITHIN, said).await;
        });
    }

    /// Lets every connection finish its open calls within this time, and cuts off the rest.
    async fn drain(self, within: Duration) {
        let Self { connections, tasks, abort, .. } = self;
        tasks.close();
        connections.closing.cancel();
        if timeout(within, tasks.wait()).await.is_err() {
            warn!(open = tasks.len(), "calls did not end in time and are cut off");
        }
        abort.cancel();
        tasks.wait().await;
    }
}

/// Returns the answer to a connection for which there is no place.
fn refusal() -> String {
    let problem = ApiError::new(Code::Overloaded, NO_PLACE).to_problem("");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let (status, length) = (Code::Overloaded.status(), body.len());
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
}

/// Sorts the recorded values into their buckets from time to time.
async fn keep_up(metrics: metrics_exporter_prometheus::PrometheusHandle, shutdown: CancellationToken) {
    let mut ticks = interval(metrics::UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        metrics.run_upkeep();
    }
}
