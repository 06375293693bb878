//! `leasehold monitor`: the monitor as a process of its own, beside servers over the same store.

mod settings;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(super) use settings::{OversightArgs, OversightSettings};

use super::engine::{self, StoreArgs, StoreKind};
use super::failure::{ExitStatus, Failure};
use super::log::{self, LogFormat};
use super::notify;
use super::output::print;
use super::settings::Settings;
use super::signals::Signals;
use crate::api::access::{Access, check_exposure};
use crate::api::{self, AppState, Limits};
use crate::clock::{Clock, SystemClock};
use crate::manager::{Manager, ManagerConfig};
use crate::monitor::{Monitor, MonitorConfig};
use crate::store::Store;
use crate::worker::Stop;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7401);

const HOW_IT_WORKS: &str = "\
Every server runs a monitor by itself. One that runs alone goes on when servers are restarted, and can stand on another \
machine. Of all monitors over one store one acts; another takes over within seconds when it dies, at once when it is \
stopped with SIGTERM.

It serves /livez, /readyz, /metrics and /v1/admin/….

Examples:
  leasehold monitor --store elasticsearch --elasticsearch-url http://localhost:9200
  leasehold monitor --config /etc/leasehold.toml --listen 127.0.0.1:7402";

/// Watch over running jobs: flag, recover and expire them, and remove old ones
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct MonitorArgs {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:7401]
    #[arg(long, value_name = "ADDR:PORT", env = "LEASEHOLD_LISTEN")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    oversight: OversightArgs,
    /// Listen beyond this machine though no tokens are configured: anyone can release and cancel jobs then
    #[arg(long, env = "LEASEHOLD_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,
    #[command(flatten)]
    notify: notify::NotifyArgs,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Starts a monitor in this process.
pub(super) async fn start(
    manager: &Manager,
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    config: MonitorConfig,
) -> Result<Monitor, Failure> {
    let started = Monitor::start(manager.clone(), store, clock, config).await;
    started.map_err(|error| Failure::Usage(error.to_string()))
}

/// Watches until it is stopped.
pub(super) async fn run(args: MonitorArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    let listen = args.listen.or(settings.monitor.listen).unwrap_or(DEFAULT_LISTEN);
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let access = Access::new(settings.tokens.clone()).map_err(|error| wrong(&error))?;
    let insecure = args.insecure.or(settings.insecure).unwrap_or(false);
    check_exposure(listen, &access, insecure).map_err(|error| wrong(&error))?;
    let config = args.oversight.over(&settings.monitor).map_err(|error| wrong(&error))?;
    let notifications = notify::Notifications::of(&args.notify, &settings.notify)?;
    let engine = args.store.over(settings);
    if engine.kind == StoreKind::Embedded {
        let message = "the embedded store belongs to one process, the server, which has its monitor in it; a monitor of \
                       its own is for `--store elasticsearch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let metrics = api::metrics::install().map_err(Failure::Failed)?;
    let signals = Signals::listen(|stop| match stop {
        Stop::Now => tracing::warn!("stopping at once"),
        Stop::Drain | Stop::No => tracing::info!("giving the lease back and stopping; again to stop at once"),
    })?;
    let (mut gently, mut at_once) = (signals.stop().listen(), signals.stop().listen());
    let store = tokio::select! {
        store = engine::open(engine) => store?,
        () = gently.reached(Stop::Drain) => return Ok(()),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock), ManagerConfig::default());
    let cannot = |error: std::io::Error| Failure::Failed(format!("cannot listen on {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    // What the monitor does is told of as well, and nobody else may be there to do it.
    let notifier = notify::start(notifications, &manager, Arc::clone(&store), Arc::clone(&clock)).await?;
    let monitor = start(&manager, store, clock, config).await?;
    print(&format!("listening on http://{address}"))?;

    let shutdown = CancellationToken::new();
    let subscriptions = Some(notifier.subscriptions().clone());
    let configuration = serde_json::Value::Null;
    let limits = Limits::default();
    let state = AppState { manager: manager.clone(), subscriptions, access, metrics, limits, configuration };
    let serve = async {
        api::serve_monitor(listener, state, shutdown.clone()).await.map_err(cannot)?;
        monitor.shutdown().await;
        notifier.shutdown().await;
        manager.shutdown().await;
        Ok(())
    };
    let stop = async {
        gently.reached(Stop::Drain).await;
        shutdown.cancel();
        at_once.reached(Stop::Now).await;
    };
    tokio::select! {
        served = serve => served,
        () = stop => Err(Failure::Told(signals.status().unwrap_or(ExitStatus::Terminated))),
    }
}
