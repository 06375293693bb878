//! `leasehold serve`: the server.

use std::net::SocketAddr;
use std::sync::Arc;

use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::engine::{self, EngineSettings, StoreArgs, StoreKind};
use super::failure::{ExitStatus, Failure};
use super::limits;
use super::log::{self, LogFormat};
use super::monitor::{self, OversightArgs};
use super::notify;
use super::output::print;
use super::settings::Settings;
use super::signals::Signals;
use crate::api::access::{Access, check_exposure};
use crate::api::{self, AppState, Limits};
use crate::clock::{Clock, SystemClock};
use crate::manager::{Manager, ManagerConfig};
use crate::worker::Stop;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7400);

const HOW_IT_ENDS: &str = "\
The first SIGTERM or Ctrl-C accepts nothing more, answers waiting workers and lets calls end; the second ends at once. \
Neither loses anything that was acknowledged.

Exit status: 0 after a graceful stop, 1 when it cannot serve (the message says what to do), 2 for wrong settings. A store \
that is not there yet is waited for.

Examples:
  leasehold serve
  leasehold serve --store elasticsearch --elasticsearch-url http://localhost:9200
  leasehold serve --config /etc/leasehold.toml --listen 0.0.0.0:7400";

/// Serve the HTTP API
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_ENDS)]
pub(super) struct ServeArgs {
    /// Where to listen; port 0 takes a free one [default: 127.0.0.1:7400]
    #[arg(long, value_name = "ADDR:PORT", env = "LEASEHOLD_LISTEN")]
    listen: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    oversight: OversightArgs,
    /// Leave the watch over running jobs to `leasehold monitor`
    #[arg(long, env = "LEASEHOLD_NO_MONITOR", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_monitor: Option<bool>,
    /// Listen beyond this machine though no tokens are configured: anyone can submit and take jobs then
    #[arg(long, env = "LEASEHOLD_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,
    #[command(flatten)]
    notify: notify::NotifyArgs,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Serves until it is stopped.
pub(super) async fn run(args: ServeArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    limits::raise_open_files();
    let listen = args.listen.or(settings.listen).unwrap_or(DEFAULT_LISTEN);
    let wrong = |error: &dyn std::fmt::Display| Failure::Usage(error.to_string());
    let access = Access::new(settings.tokens.clone()).map_err(|error| wrong(&error))?;
    let insecure = args.insecure.or(settings.insecure).unwrap_or(false);
    check_exposure(listen, &access, insecure).map_err(|error| wrong(&error))?;
    let metrics = api::metrics::install().map_err(Failure::Failed)?;

    let signals = Signals::listen(|stop| match stop {
        Stop::Now => tracing::warn!("stopping at once"),
        Stop::Drain | Stop::No => tracing::info!("stopping once the calls have ended; again to stop at once"),
    })?;
    let (mut gently, mut at_once) = (signals.stop().listen(), signals.stop().listen());
    let notifications = notify::Notifications::of(&args.notify, &settings.notify)?;
    let no_monitor = args.no_monitor.or(settings.no_monitor).unwrap_or(false);
    let oversight = args.oversight.over(&settings.monitor).map_err(|error| wrong(&error))?;
    let engine = args.store.over(settings);
    let configuration = configuration(&engine, &access, !no_monitor);
    let store = tokio::select! {
        store = engine::open(engine) => store?,
        () = gently.reached(Stop::Drain) => return Ok(()),
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let manager = Manager::start(Arc::clone(&store), Arc::clone(&clock), ManagerConfig::default());
    let cannot = |error: std::io::Error| Failure::Failed(format!("cannot listen on {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    let notifier = notify::start(notifications, &manager, Arc::clone(&store), Arc::clone(&clock)).await?;
    let monitor = match no_monitor {
        true => None,
        false => Some(monitor::start(&manager, store, clock, oversight).await?),
    };
    print(&format!("listening on http://{address}"))?;

    let shutdown = CancellationToken::new();
    let subscriptions = Some(notifier.subscriptions().clone());
    let limits = Limits::default();
    let state = AppState { manager: manager.clone(), subscriptions, access, metrics, limits, configuration };
    let serve = async {
        api::serve(listener, state, shutdown.clone()).await.map_err(cannot)?;
        notifier.shutdown().await;
        if let Some(monitor) = monitor {
            monitor.shutdown().await;
        }
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

/// How the server is set up, for its health page: nothing secret, and so no address, which may hold a password.
fn configuration(engine: &EngineSettings, access: &Access, watches: bool) -> serde_json::Value {
    let (manager, limits) = (ManagerConfig::default(), Limits::default());
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let store = match engine.kind {
        StoreKind::Embedded => "embedded",
        StoreKind::Elasticsearch => "elasticsearch",
    };
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": store,
        "index_prefix": engine.index_prefix,
        "monitor": watches,
        "tokens_needed": !access.is_open(),
        "candidates_per_queue": manager.candidates_per_queue,
        "poll_interval_ms": millis(manager.poll_interval),
        "survey_interval_ms": millis(manager.survey_interval),
        "connections": limits.connections,
        "body_bytes": limits.body_bytes,
    })
}
