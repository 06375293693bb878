//! `leasehold serve`: the server.

use clap::Args;

use super::engine::EngineSettings;
use super::failure::Failure;
use super::host::{Host, HostArgs};
use super::managing::Duties;
use super::performing::PerformingArgs;
use super::settings::Settings;
use crate::api::access::Access;
use crate::api::{self, Limits};
use crate::clock::millis;
use crate::manager::ManagerConfig;

const DEFAULT_PORT: u16 = 7400;

const HOW_IT_ENDS: &str = "\
After the first SIGTERM or Ctrl-C the server accepts no new call, answers waiting workers and lets the other calls \
end; after the second it ends at once. Neither loses anything that was acknowledged.

Exit status: 0 after a graceful stop, 1 when it cannot serve (the message says what to do), 2 for wrong settings. A \
store that is not there yet is waited for.

Examples:
  leasehold serve
  leasehold serve --store elasticsearch --elasticsearch-url http://es-1:9200
  leasehold serve --config /etc/leasehold.toml --listen 0.0.0.0:7400";

/// Serve the HTTP API
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_ENDS)]
pub(super) struct ServeArgs {
    /// Leave the monitoring of running jobs to `leasehold monitor`
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_monitor: Option<bool>,
    /// Leave the schedules to other servers and to `leasehold executor`
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    no_executor: Option<bool>,
    #[command(flatten)]
    performing: PerformingArgs,
    #[command(flatten)]
    host: HostArgs,
}

/// Serves until it is stopped.
pub(super) async fn run(mut args: ServeArgs, settings: Settings) -> Result<(), Failure> {
    args.host.listen = args.host.listen.or(settings.listen);
    let duties = Duties {
        oversees: !args.no_monitor.or(settings.no_monitor).unwrap_or(false),
        performs: (!args.no_executor.or(settings.no_executor).unwrap_or(false))
            .then(|| args.performing.over(&settings.executor)),
    };
    let host = Host::prepare(args.host, settings, DEFAULT_PORT, "stopping once the calls have ended")?;
    if host.access.is_open() {
        tracing::info!(
            "there are no tokens: everybody who reaches this server, at least every user of this machine, may submit \
             jobs, and the workers run their commands as their own user (`leasehold token` makes tokens)"
        );
    }
    if host.engine.shows_secrets() {
        tracing::info!(
            "there is no `--secrets-key-file`: secrets of subscriptions, environments of commands and addresses of \
             receivers can be read in the indices, in Kibana too"
        );
    }
    let configuration = configuration(&host.engine, &host.access, &host.limits, &duties);
    host.run(duties, configuration, api::serve).await
}

/// Returns the server's configuration for its health page: nothing secret, and so no URL, which may hold a password.
fn configuration(engine: &EngineSettings, access: &Access, limits: &Limits, duties: &Duties) -> serde_json::Value {
    let manager = ManagerConfig::default();
    let index_prefix = match engine {
        EngineSettings::Embedded { .. } => None,
        EngineSettings::Elasticsearch(settings) => settings.index_prefix.as_deref(),
    };
    serde_json::json!({
        "version": env!("CARGO_PKG_VERSION"),
        "store": engine.kind().as_str(),
        "index_prefix": index_prefix,
        "monitor": duties.oversees,
        "executor": duties.performs.is_some(),
        "tokens_needed": !access.is_open(),
        "secrets_shown_in_indices": engine.shows_secrets(),
        "candidates_per_queue": manager.candidates_per_queue,
        "poll_interval_ms": millis(manager.poll_interval),
        "survey_interval_ms": millis(manager.survey_interval),
        "connections": limits.connections,
        "connections_per_address": limits.connections_per_address,
        "body_bytes": limits.body_bytes,
    })
}
