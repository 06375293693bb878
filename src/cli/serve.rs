//! `leasehold serve`: the server.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::engine::{self, EngineSettings};
use super::failure::{ExitStatus, Failure};
use super::limits;
use super::log::{self, LogFormat};
use super::output::print;
use super::settings::Settings;
use super::signals::Signals;
use crate::api::access::{Access, check_exposure};
use crate::api::{self, AppState, Limits};
use crate::clock::SystemClock;
use crate::manager::{Manager, ManagerConfig};
use crate::worker::Stop;

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 7400);
const DEFAULT_DATA_DIR: &str = "leasehold-data";

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
    /// Where the jobs are kept [default: embedded]
    #[arg(long, value_enum, env = "LEASEHOLD_STORE")]
    store: Option<StoreKind>,
    /// The embedded store's directory [default: ./leasehold-data]
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// An Elasticsearch node (repeatable), with user and password in it where they are needed
    /// [default: http://localhost:9200]
    #[arg(
        long,
        value_name = "URL",
        env = "LEASEHOLD_ELASTICSEARCH_URL",
        hide_env_values = true,
        value_delimiter = ','
    )]
    elasticsearch_url: Vec<String>,
    /// The API key for Elasticsearch, encoded as the server gave it
    #[arg(long, value_name = "KEY", env = "LEASEHOLD_ELASTICSEARCH_API_KEY", hide_env_values = true)]
    elasticsearch_api_key: Option<String>,
    /// The certificate, in PEM, of the private authority behind Elasticsearch's
    #[arg(long, value_name = "FILE", env = "LEASEHOLD_ELASTICSEARCH_CA")]
    elasticsearch_ca: Option<PathBuf>,
    /// What the names of the indices start with [default: leasehold-]
    #[arg(long, value_name = "PREFIX", env = "LEASEHOLD_INDEX_PREFIX")]
    index_prefix: Option<String>,
    /// Listen beyond this machine though no tokens are configured: anyone can submit and take jobs then
    #[arg(long, env = "LEASEHOLD_INSECURE", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    insecure: Option<bool>,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Where jobs are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoreKind {
    /// In a directory of this machine
    Embedded,
    /// In Elasticsearch or OpenSearch
    Elasticsearch,
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
    let engine = engine_settings(args, settings);
    let configuration = configuration(&engine, &access);
    let store = tokio::select! {
        store = engine::open(engine) => store?,
        () = gently.reached(Stop::Drain) => return Ok(()),
    };
    let manager = Manager::start(store, std::sync::Arc::new(SystemClock::default()), ManagerConfig::default());
    let cannot = |error: std::io::Error| Failure::Failed(format!("cannot listen on {listen}: {error}"));
    let listener = TcpListener::bind(listen).await.map_err(cannot)?;
    let address = listener.local_addr().map_err(cannot)?;
    print(&format!("listening on http://{address}"))?;

    let shutdown = CancellationToken::new();
    let limits = Limits::default();
    let state = AppState { manager: manager.clone(), access, metrics, limits, configuration };
    let serve = async {
        api::serve(listener, state, shutdown.clone()).await.map_err(cannot)?;
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
fn configuration(engine: &EngineSettings, access: &Access) -> serde_json::Value {
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
        "tokens_needed": !access.is_open(),
        "candidates_per_queue": manager.candidates_per_queue,
        "poll_interval_ms": millis(manager.poll_interval),
        "survey_interval_ms": millis(manager.survey_interval),
        "connections": limits.connections,
        "body_bytes": limits.body_bytes,
    })
}

fn engine_settings(args: ServeArgs, settings: Settings) -> EngineSettings {
    let urls = Some(args.elasticsearch_url).filter(|urls| !urls.is_empty()).or(settings.elasticsearch_url);
    EngineSettings {
        kind: args.store.or(settings.store).unwrap_or(StoreKind::Embedded),
        data_dir: args.data_dir.or(settings.data_dir).unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
        elasticsearch_urls: urls,
        elasticsearch_api_key: args.elasticsearch_api_key.or(settings.elasticsearch_api_key),
        elasticsearch_ca: args.elasticsearch_ca.or(settings.elasticsearch_ca),
        index_prefix: args.index_prefix.or(settings.index_prefix),
    }
}
