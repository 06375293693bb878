//! Connections: accepted up to a limit, served over HTTP/1.1 or HTTP/2 without TLS, and ended in good order.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;
use tracing::{debug, info, warn};

use super::app::BodyBudget;
use super::routes::{monitor_router, openapi_json, router};
use super::{App, AppState, metrics};

/// The longest head of a request, in bytes. A longer one is answered with 431, and the connection is closed.
const MAX_HEAD_BYTES: usize = 128 * 1024;
/// The most open calls of one HTTP/2 connection.
const MAX_STREAMS: u32 = 1024;
/// How many bytes a client may send on one HTTP/2 call before they are read.
const STREAM_WINDOW: u32 = 1024 * 1024;
/// How often an HTTP/2 connection is pinged, and how long the answer may take.
const KEEP_ALIVE: Duration = Duration::from_secs(20);
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
    let server = Server {
        router: router(app.clone()),
        protocols: protocols(app.limits.head_within),
        head_within: app.limits.head_within,
        connections: Arc::new(Semaphore::new(app.limits.connections.min(Semaphore::MAX_PERMITS))),
        graceful: GracefulShutdown::new(),
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
    let AppState { manager, subscriptions, access, metrics, limits, configuration } = state;
    Ok(App {
        manager,
        subscriptions,
        trusts_its_machine: access.is_open() && address.ip().is_loopback(),
        access: Arc::new(access),
        metrics,
        budget: BodyBudget::new(limits.body_bytes),
        streams: Arc::new(Semaphore::new(limits.event_streams.min(Semaphore::MAX_PERMITS))),
        exports: Arc::new(Semaphore::new(limits.exports.min(Semaphore::MAX_PERMITS))),
        limits: Arc::new(limits),
        configuration: Arc::new(configuration),
        shutdown,
        openapi: openapi_json().map_err(io::Error::other)?,
    })
}

fn protocols(head_within: Duration) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(head_within).max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(4 * STREAM_WINDOW)
        .keep_alive_interval(KEEP_ALIVE)
        .keep_alive_timeout(KEEP_ALIVE)
        .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX));
    builder
}

struct Server {
    router: Router,
    protocols: Builder<TokioExecutor>,
    head_within: Duration,
    connections: Arc<Semaphore>,
    graceful: GracefulShutdown,
    tasks: TaskTracker,
    /// Cancelled to end every connection at once.
    abort: CancellationToken,
}

impl Server {
    /// Accepts connections until the returned future is dropped.
    async fn accept(&self, listener: &TcpListener) {
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&self.connections).acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => self.spawn(stream, place),
                Err(error) => {
                    warn!(%error, "cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn spawn(&self, stream: TcpStream, place: OwnedSemaphorePermit) {
        let connection = Connection {
            router: self.router.clone(),
            protocols: self.protocols.clone(),
            head_within: self.head_within,
            watcher: self.graceful.watcher(),
        };
        let abort = self.abort.clone();
        self.tasks.spawn(async move {
            let open = ::metrics::gauge!("leasehold_http_connections");
            open.increment(1);
            tokio::select! {
                () = connection.serve(stream) => {}
                () = abort.cancelled() => {}
            }
            open.decrement(1);
            drop(place);
        });
    }

    /// Lets every connection finish its open calls within this time, and cuts off the rest.
    async fn drain(self, within: Duration) {
        let Self { graceful, tasks, abort, .. } = self;
        tasks.close();
        if timeout(within, graceful.shutdown()).await.is_err() {
            warn!(open = tasks.len(), "calls did not end in time and are cut off");
        }
        abort.cancel();
        tasks.wait().await;
    }
}

struct Connection {
    router: Router,
    protocols: Builder<TokioExecutor>,
    head_within: Duration,
    watcher: Watcher,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        // Answers are small and awaited: holding them back to fill a packet only delays them.
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "cannot set TCP_NODELAY");
        }
        let heard = Arc::new(AtomicBool::new(false));
        let hearing = Arc::clone(&heard);
        let service = self.router.map_request(move |request: http::Request<_>| {
            hearing.store(true, Ordering::Relaxed);
            request
        });
        let connection =
            self.protocols.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).into_owned();
        tokio::select! {
            ended = self.watcher.watch(connection) => {
                if let Err(error) = ended {
                    debug!(%error, "a connection broke");
                }
            }
            () = silence(&heard, self.head_within) => debug!("a connection brought no request in time"),
        }
    }
}

/// Ends when the connection brought no request within this time from its start. The time limit on a request's head is
/// not enough: it begins once the connection is known to be HTTP/1.1, which a client can put off for ever by sending
/// nothing, or only the first byte of HTTP/2's preface.
async fn silence(heard: &AtomicBool, within: Duration) {
    sleep(within).await;
    if heard.load(Ordering::Relaxed) {
        std::future::pending::<Infallible>().await;
    }
}

/// Sorts the recorded values into their buckets from time to time.
async fn keep_up(metrics: metrics_exporter_prometheus::PrometheusHandle, shutdown: CancellationToken) {
    let mut ticks = interval(metrics::UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        metrics.run_upkeep();
    }
}
