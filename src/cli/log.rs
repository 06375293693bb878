//! The log, on standard error: standard output is the command's own.

use std::io::IsTerminal as _;

use serde::Deserialize;
use tracing_subscriber::EnvFilter;

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

/// The storage engine logs every file that it opens, and the scheduler every step of its start; only their warnings are
/// useful to operators.
const QUIET: &str = "fjall=warn,lsm_tree=warn,tokio_cron_scheduler=warn";

/// Starts the log. The variable `LEASEHOLD_LOG` selects what is logged (`debug`, `leasehold::manager=trace`, …), over
/// `default`.
pub(super) fn start(format: LogFormat, default: &str) {
    let filter =
        EnvFilter::try_from_env("LEASEHOLD_LOG").unwrap_or_else(|_| EnvFilter::new(format!("{default},{QUIET}")));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => log.with_ansi(std::io::stderr().is_terminal()).init(),
        LogFormat::Json => log.json().init(),
    }
}
