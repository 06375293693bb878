//! `leasehold executor`: performs schedules as a process of its own, beside servers over the same store.

use clap::Args;

use super::engine::StoreKind;
use super::failure::Failure;
use super::host::{Host, HostArgs};
use super::managing::Duties;
use super::performing::PerformingArgs;
use super::settings::Settings;
use crate::api;

const DEFAULT_PORT: u16 = 7402;

const HOW_IT_WORKS: &str = "\
Every server performs schedules by itself, unless it is told not to (`--no-executor`). Executors of their own share \
the schedules with the servers, as many as there are, and take over from one that is gone within seconds.

It serves /livez, /readyz and /metrics.

Examples:
  leasehold executor --store elasticsearch --elasticsearch-url http://es-1:9200
  leasehold executor --config /etc/leasehold.toml --listen 127.0.0.1:7403";

/// Perform schedules: make their triggers, submit their jobs and make their calls
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct ExecutorArgs {
    #[command(flatten)]
    performing: PerformingArgs,
    #[command(flatten)]
    host: HostArgs,
}

/// Performs schedules until it is stopped.
pub(super) async fn run(args: ExecutorArgs, settings: Settings) -> Result<(), Failure> {
    let performs = Some(args.performing.over(&settings.executor));
    let host = Host::prepare(args.host, settings, DEFAULT_PORT, "stopping once the calls have ended")?;
    if host.engine.kind() == StoreKind::Embedded {
        let message = "the embedded store belongs to one process, the server, which performs schedules itself; an \
                       executor of its own is for `--store elasticsearch`";
        return Err(Failure::Usage(message.to_owned()));
    }
    let duties = Duties { oversees: false, performs };
    host.run(duties, serde_json::Value::Null, api::serve_monitor).await
}
