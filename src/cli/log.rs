//! The log, on standard error: standard output is the command's own.

use std::io::IsTerminal as _;

use serde::Deserialize;
use tracing_subscriber::filter::{ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Layer as _, fmt};

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

/// Selects what is logged.
const VARIABLE: &str = "LEASEHOLD_LOG";

/// Starts the log. The variable `LEASEHOLD_LOG` selects what is logged (`debug`, `leasehold::manager=trace`, …), over
/// `default`; where it cannot be read, the log says so.
pub(super) fn start(format: LogFormat, default: &str) {
    let (targets, wrong) = selected(std::env::var(VARIABLE).ok().as_deref(), default);
    let lines = fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    tracing_subscriber::registry().with(targets).with(lines).init();
    if let Some(error) = wrong {
        tracing::warn!("{VARIABLE} cannot be read, and is passed over: {error}");
    }
}

/// Returns what is logged: what is `wanted`, or else `default`, and what is wrong with the former.
fn selected(wanted: Option<&str>, default: &str) -> (Targets, Option<ParseError>) {
    let usual = || format!("{default},{QUIET}").parse().expect("levels of targets");
    match wanted.filter(|text| !text.is_empty()).map(str::parse) {
        Some(Ok(targets)) => (targets, None),
        Some(Err(error)) => (usual(), Some(error)),
        None => (usual(), None),
    }
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn what_is_wanted_is_logged_and_what_cannot_be_read_is_passed_over() {
        let (targets, wrong) = selected(Some("warn,leasehold::manager=trace"), "info");
        assert!(targets.would_enable("leasehold::manager::claims", &Level::TRACE) && wrong.is_none());
        assert!(!targets.would_enable("leasehold::api", &Level::INFO));
        for (wanted, is_wrong) in [(None, false), (Some(""), false), (Some("leasehold=loud"), true)] {
            let (targets, wrong) = selected(wanted, "info");
            assert!(targets.would_enable("leasehold::api", &Level::INFO), "{wanted:?}");
            assert!(!targets.would_enable("fjall::journal", &Level::INFO), "{wanted:?}");
            assert_eq!(wrong.is_some(), is_wrong, "{wanted:?}");
        }
    }
}
