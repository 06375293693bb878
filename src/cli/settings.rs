//! The settings file. A flag or an environment variable overrides it.
//!
//! ```toml
//! listen = "0.0.0.0:7400"
//! data_dir = "/var/lib/leasehold"
//!
//! [[tokens]]
//! name = "render-farm"
//! roles = ["submit", "work"]
//! sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//!
//! [client]
//! server = "http://jobs.example:7400"
//! token = "lh_…"
//!
//! [monitor]
//! orphan_grace_ms = 2000
//! retention = "completed=7d,failed=90d"
//!
//! [worker]
//! queues = ["reports"]
//! slots = 8
//! ```

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::duration::DurationSetting;
use super::engine::{EngineSettings, StoreArgs, StoreKind};
use super::failure::Failure;
use super::log::LogFormat;
use super::monitor::OversightArgs;
use super::notify::NotifyArgs;
use super::server::ServerArgs;
use crate::api::access::Token;

const DEFAULT_DATA_DIR: &str = "leasehold-data";

/// The settings of the file. An unknown key is refused: most likely it is misspelt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    pub(super) listen: Option<SocketAddr>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) store: Option<StoreKind>,
    pub(super) elasticsearch_url: Option<Vec<String>>,
    pub(super) elasticsearch_api_key: Option<String>,
    pub(super) elasticsearch_ca: Option<PathBuf>,
    pub(super) index_prefix: Option<String>,
    pub(super) archive_after: Option<DurationSetting>,
    pub(super) insecure: Option<bool>,
    pub(super) no_monitor: Option<bool>,
    pub(super) log_format: Option<LogFormat>,
    #[serde(default)]
    pub(super) tokens: Vec<Token>,
    #[serde(default)]
    pub(super) notify: NotifyArgs,
    #[serde(default)]
    pub(super) monitor: OversightArgs,
    #[serde(default)]
    pub(super) client: ServerArgs,
    #[serde(default)]
    pub(super) worker: WorkerSettings,
}

/// The settings of a worker.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct WorkerSettings {
    pub(super) queues: Option<Vec<String>>,
    pub(super) slots: Option<usize>,
    pub(super) resources: Option<BTreeMap<String, u64>>,
    pub(super) worker_id: Option<String>,
    pub(super) lease: Option<DurationSetting>,
    pub(super) drain_timeout: Option<DurationSetting>,
    pub(super) grace: Option<DurationSetting>,
}

impl Settings {
    /// Reads the file, if one is given.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else { return Ok(Self::default()) };
        let wrong = |what: String| Failure::Usage(format!("the settings file {}: {what}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        toml::from_str(&text).map_err(|error| wrong(error.to_string()))
    }

    /// Returns the store's settings: flags over these.
    pub(super) fn engine(self, flags: StoreArgs) -> EngineSettings {
        let urls = Some(flags.elasticsearch_url).filter(|urls| !urls.is_empty()).or(self.elasticsearch_url);
        EngineSettings {
            kind: flags.store.or(self.store).unwrap_or(StoreKind::Embedded),
            data_dir: flags.data_dir.or(self.data_dir).unwrap_or_else(|| PathBuf::from(DEFAULT_DATA_DIR)),
            elasticsearch_urls: urls,
            elasticsearch_api_key: flags.elasticsearch_api_key.or(self.elasticsearch_api_key),
            elasticsearch_ca: flags.elasticsearch_ca.or(self.elasticsearch_ca),
            index_prefix: flags.index_prefix.or(self.index_prefix),
            archive_after: flags.archive_after.or(self.archive_after.map(|setting| setting.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_key_is_refused_and_named() {
        for text in ["lisetn = \"127.0.0.1:1\"", "[worker]\nslot = 3", "[[tokens]]\nname = \"a\"\nrole = []"] {
            let error = toml::from_str::<Settings>(text).expect_err("a key nobody knows").to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn every_setting_is_read() {
        let text = "listen = \"127.0.0.1:7400\"\nstore = \"elasticsearch\"\nelasticsearch_url = [\"http://a:9200\"]\n\
                    [worker]\nqueues = [\"a\"]\nlease = \"5m\"\n[client]\nserver = \"http://b\"";
        let settings: Settings = toml::from_str(text).expect("good settings");
        assert_eq!(settings.worker.lease.map(|lease| lease.0.as_secs()), Some(300));
        assert_eq!(settings.client.server.as_deref(), Some("http://b"));
    }
}
