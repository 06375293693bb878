//! `leasehold monitor`: the monitor as a process of its own, beside servers over the same store.

mod settings;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use clap::Args;

pub(super) use settings::{OversightArgs, OversightSettings};

use super::engine::{StoreArgs, StoreKind};
use super::failure::Failure;
use super::host::{Duties, Host};
use super::log::{self, LogFormat};
use super::notify::{Notifications, NotifyArgs};
use super::settings::Settings;
use crate::api;

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
    notify: NotifyArgs,
    /// How log lines look [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Watches until it is stopped.
pub(super) async fn run(args: MonitorArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    let listen = args.listen.or(settings.monitor.listen).unwrap_or(DEFAULT_LISTEN);
    let insecure = args.insecure.or(settings.insecure).unwrap_or(false);
    let oversight = Some(args.oversight.over(&settings.monitor).map_err(Failure::Usage)?);
    // What the monitor does is told of as well, and nobody else may be there to do it.
    let notifications = Notifications::of(&args.notify, &settings.notify)?;
    let tokens = settings.tokens.clone();
    let engine = args.store.over(settings);
    if engine.kind == StoreKind::Embedded {
        let message = "the embedded store belongs to one process, the server, which has its monitor in it; a monitor of \
                       its own is for `--store elasticsearch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let host = Host::prepare(listen, tokens, insecure, "giving the lease back and stopping")?;
    let configuration = serde_json::Value::Null;
    host.run(engine, Duties { notifications, oversight, configuration }, api::serve_monitor).await
}
