//! `leasehold monitor`: the monitor as a process of its own, beside servers over the same store.

mod settings;

use clap::Args;

pub(super) use settings::OversightArgs;

use super::engine::StoreKind;
use super::failure::Failure;
use super::host::{Host, HostArgs};
use super::managing::Duties;
use super::settings::Settings;
use crate::api;

const DEFAULT_PORT: u16 = 7401;

const HOW_IT_WORKS: &str = "\
Every server runs a monitor by itself. A monitor of its own goes on when servers are restarted, and can run on another \
machine. Of all monitors over one store one acts; another takes over within seconds when it dies, and at once when \
it is stopped with SIGTERM.

It serves /livez, /readyz, /metrics, /v1/admin/… and the web page.

Examples:
  leasehold monitor --store elasticsearch --elasticsearch-url http://es-1:9200
  leasehold monitor --config /etc/leasehold.toml --listen 127.0.0.1:7402";

/// Monitor running jobs: flag, recover and expire them, and remove old ones
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct MonitorArgs {
    #[command(flatten)]
    host: HostArgs,
}

/// Monitors jobs until it is stopped.
pub(super) async fn run(mut args: MonitorArgs, settings: Settings) -> Result<(), Failure> {
    args.host.listen = args.host.listen.or(settings.monitor.listen);
    let host = Host::prepare(args.host, settings, DEFAULT_PORT, "giving the lease back and stopping")?;
    if host.engine.kind() == StoreKind::Embedded {
        let message = "the embedded store belongs to one process, the server, which has its monitor in it; a \
                       monitor of its own is for `--store elasticsearch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let duties = Duties { oversees: true, performs: None };
    host.run(duties, serde_json::Value::Null, api::serve_monitor).await
}
