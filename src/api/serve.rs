//! The server: it accepts connections as long as there are places, refuses the others, and ends in good order.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};
use tracing::{info, warn};

use super::access::{Guard, SessionReader};
use super::app::AppParts;
use super::browsers;
use super::connection::{Connections, Protocols};
use super::error::{ApiError, Code};
use super::front::{self, Front, MemberState};
use super::places::{Capacity, NO_PLACE, Place, Places};
use super::routes::{monitor_router, openapi_json, router};
use super::{App, AppState, Limits, metrics};
use crate::manager::Sessions;

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

/// How long a member that takes no more calls lets those end that it has, before another may lead: till then the
/// cluster answers nobody. Calls that take longer end while another leads.
const BEFORE_HAND_OVER: Duration = Duration::from_secs(1);

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

/// Serves as a member of a group, until `shutdown` is cancelled. Then it takes no more calls, answers waiting claims,
/// ends streams of events, and lets calls end for a second; it listens to the other members until `retired` returns,
/// since the last writes of a leader need them and so does its successor. What is left of the calls ends within
/// [`super::Limits::drain_within`] then.
///
/// # Errors
/// The errors of [`serve`], or no calls to the other members can be made.
pub async fn serve_member(
    listener: TcpListener,
    state: MemberState,
    shutdown: CancellationToken,
    retired: impl Future<Output = ()>,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let openapi = openapi_json().map_err(io::Error::other)?;
    let (limits, metrics) = (state.limits.clone(), state.metrics.clone());
    let sessions = Sessions::new(Arc::clone(&state.store), Arc::clone(&state.clock));
    let sessions = SessionReader::of_member(sessions, state.member.standing());
    let guard = limits.guard(state.access.clone(), address, Some(sessions));
    let _counting = AbortOnDropHandle::new(tokio::spawn(front::count_leaders(state.member.standing())));
    let front = Front::new(state, Arc::clone(&guard), shutdown.clone(), openapi).map_err(io::Error::other)?;
    let front = Arc::new(front);
    let _comparing = AbortOnDropHandle::new(tokio::spawn(front::compare_clocks(Arc::clone(&front))));
    let router = front::router(Arc::clone(&front));
    let ending = async {
        shutdown.cancelled().await;
        front.drain(limits.drain_within.min(BEFORE_HAND_OVER)).await;
        retired.await;
    };
    accept_until(listener, Served { router, guard, limits: limits.clone(), metrics }, ending).await
}

async fn serve_routes(
    listener: TcpListener,
    state: AppState,
    shutdown: CancellationToken,
    router: fn(App) -> Router,
) -> io::Result<()> {
    let address = listener.local_addr()?;
    let openapi = openapi_json().map_err(io::Error::other)?;
    let sessions = SessionReader::new(state.manager.sessions());
    let guard = state.limits.guard(state.access.clone(), address, Some(sessions));
    let app = Arc::new(AppParts::new(state, Arc::clone(&guard), shutdown.clone(), openapi));
    let (limits, metrics) = (app.limits.clone(), app.metrics.clone());
    let manager = app.manager.clone();
    let ending = async {
        shutdown.cancelled().await;
        manager.stop_claims();
    };
    accept_until(listener, Served { router: router(app), guard, limits, metrics }, ending).await
}

/// What is served, and how much of it.
struct Served {
    router: Router,
    guard: Arc<Guard>,
    limits: Limits,
    metrics: PrometheusHandle,
}

/// Serves until `ending` returns: then it accepts nothing more, and lets calls end.
async fn accept_until(listener: TcpListener, served: Served, ending: impl Future<Output = ()>) -> io::Result<()> {
    let address = listener.local_addr()?;
    let Served { router, guard, limits, metrics } = served;
    let Limits { connections, connections_per_address, head_within, read_within, .. } = limits;
    let capacity = Capacity { regular: connections, per_address: connections_per_address, reserve: RESERVE };
    let server = Server {
        connections: Arc::new(Connections {
            router,
            guard: Arc::clone(&guard),
            protocols: Protocols::new(&limits),
            silent_within: head_within,
            read_within,
            closing: CancellationToken::new(),
        }),
        places: Places::new(capacity, guard),
        refusals: Arc::new(Semaphore::new(REFUSALS)),
        tasks: TaskTracker::new(),
        abort: CancellationToken::new(),
    };
    let _upkeep = AbortOnDropHandle::new(tokio::spawn(keep_up(metrics)));
    info!(%address, "serving");
    tokio::select! {
        () = server.accept(&listener) => {}
        () = ending => {}
    }
    drop(listener);
    server.drain(limits.drain_within).await;
    Ok(())
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
    let said =
        browsers::SAID.into_iter().map(|(name, value)| format!("{name}: {}\r\n", value.to_str().unwrap_or_default()));
    let said: String = said.collect();
    format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/problem+json\r\nretry-after: 1\r\nconnection: close\r\n\
         {said}content-length: {length}\r\n\r\n{body}"
    )
}

/// Sorts the recorded values into their buckets from time to time.
async fn keep_up(metrics: PrometheusHandle) {
    let mut ticks = interval(metrics::UPKEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        metrics.run_upkeep();
    }
}
