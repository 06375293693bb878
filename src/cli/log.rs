//! The log: to standard error, so that standard output stays the command's own.

use std::io::IsTerminal as _;

use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For programs: a JSON object a line.
    Json,
}

/// The storage engine tells of every file it opens, the scheduler of every step of its start; only their trouble is of
/// use to whoever runs a server.
const QUIET: &str = "fjall=warn,lsm_tree=warn,tokio_cron_scheduler=warn";

/// Starts the log. `LEASEHOLD_LOG` chooses what is logged (`debug`, `leasehold::manager=trace`, …), else `default` does.
pub(super) fn start(format: LogFormat, default: &str) {
    let filter =
        EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(format!("{default},{QUIET}")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
