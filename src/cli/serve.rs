//! `leasehold serve`: the server.

use std::net::SocketAddr;

use clap::Args;

use super::engine::{EngineSettings, StoreArgs, StoreKind};
use super::failure::Failure;
use super::host::{Duties, Host};
use super::log::{self, LogFormat};
use super::monitor::OversightArgs;
use super::notify::{Notifications, NotifyArgs};
use super::settings::Settings;
use crate::api::access::Access;
use crate::api::{self, Limits};
use crate::manager::ManagerConfig;

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
    notify: NotifyArgs,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Serves until it is stopped.
pub(super) async fn run(args: ServeArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    let listen = args.listen.or(settings.listen).unwrap_or(DEFAULT_LISTEN);
    let insecure = args.insecure.or(settings.insecure).unwrap_or(false);
    let host = Host::prepare(listen, settings.tokens.clone(), insecure, "stopping once the calls have ended")?;
    let notifications = Notifications::of(&args.notify, &settings.notify)?;
    let oversight = args.oversight.over(&settings.monitor).map_err(Failure::Usage)?;
    let no_monitor = args.no_monitor.or(settings.no_monitor).unwrap_or(false);
    let engine = args.store.over(settings);
    let configuration = configuration(&engine, host.access(), !no_monitor);
    let oversight = (!no_monitor).then_some(oversight);
    host.run(engine, Duties { notifications, oversight, configuration }, api::serve).await
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
