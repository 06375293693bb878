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
//! server = ["http://jobs-1.example:7400", "http://jobs-2.example:7400"]
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
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use super::duration::DurationSetting;
use super::engine::{ElasticsearchSettings, EngineSettings, LEAST_FLUSH_CHANGES, StoreArgs, StoreKind};
use super::failure::Failure;
use super::log::LogFormat;
use super::member_name::MemberName;
use super::monitor::OversightArgs;
use super::notify::NotifyArgs;
use super::performing::PerformingArgs;
use super::permissions::closed_to_others;
use super::server::ServerArgs;
use super::size::SizeSetting;
use crate::api::TrustedProxy;
use crate::api::access::Token;
use crate::job::strict::Strict;
use crate::manager::QueueOrder;
use crate::outgoing;
use crate::store::embedded::{EmbeddedOptions, LEAST_SCRUB_BYTES, MOST_SCRUB_BYTES};

const DEFAULT_DATA_DIR: &str = "leasehold-data";
/// The least that a query may be given: in less, none could be answered.
const LEAST_QUERY_TIME: Duration = Duration::from_millis(100);
/// The least that flushes of the embedded store may wait for.
const LEAST_FLUSH_BYTES: u64 = 1 << 20;
const LEAST_FLUSH_AFTER: Duration = Duration::from_secs(1);

/// The settings of the file. An unknown key is refused: most likely it is misspelt.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// The file that these were read from.
    #[serde(skip)]
    pub(super) file: Option<PathBuf>,
    pub(super) listen: Option<SocketAddr>,
    pub(super) ca: Option<PathBuf>,
    pub(super) proxy: Option<String>,
    pub(super) data_dir: Option<PathBuf>,
    pub(super) store: Option<StoreKind>,
    pub(super) memory_limit: Option<SizeSetting>,
    pub(super) flush_changes: Option<u64>,
    pub(super) flush_bytes: Option<SizeSetting>,
    pub(super) flush_after: Option<DurationSetting>,
    pub(super) scrub_rate: Option<SizeSetting>,
    pub(super) elasticsearch_url: Option<Vec<String>>,
    pub(super) elasticsearch_api_key: Option<String>,
    pub(super) elasticsearch_ca: Option<PathBuf>,
    pub(super) secrets_key_file: Option<PathBuf>,
    pub(super) index_prefix: Option<String>,
    pub(super) elasticsearch_shards: Option<u32>,
    pub(super) elasticsearch_replicas: Option<u32>,
    pub(super) archive_after: Option<DurationSetting>,
    pub(super) query_time: Option<DurationSetting>,
    pub(super) advertise: Option<String>,
    pub(super) cluster_secret: Option<String>,
    pub(super) cluster_secret_file: Option<PathBuf>,
    pub(super) cluster_name: Option<String>,
    pub(super) member: Option<MemberName>,
    #[serde(default)]
    pub(super) peers: Vec<String>,
    pub(super) join: Option<bool>,
    pub(super) snapshot_rate: Option<u32>,
    pub(super) insecure: Option<bool>,
    #[serde(default)]
    pub(super) allow_host: Vec<String>,
    pub(super) no_monitor: Option<bool>,
    pub(super) no_executor: Option<bool>,
    pub(super) max_connections: Option<u32>,
    pub(super) max_connections_per_address: Option<u32>,
    pub(super) trusted_proxy: Option<Vec<TrustedProxy>>,
    pub(super) session_idle: Option<DurationSetting>,
    pub(super) held_bound: Option<DurationSetting>,
    pub(super) log_format: Option<LogFormat>,
    #[serde(default)]
    pub(super) tokens: Vec<Token>,
    #[serde(default)]
    pub(super) notify: NotifyArgs,
    #[serde(default)]
    pub(super) monitor: OversightArgs,
    #[serde(default)]
    pub(super) executor: PerformingArgs,
    #[serde(default)]
    pub(super) client: ServerArgs,
    #[serde(default)]
    pub(super) worker: WorkerSettings,
}

/// The settings of a worker, on the command line and in the settings file.
#[derive(Clone, Debug, Default, Args, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct WorkerSettings {
    /// Claim jobs from this queue (repeatable) [default: default]
    #[arg(long = "queue", value_name = "QUEUE", value_delimiter = ',')]
    pub(super) queues: Option<Vec<String>>,
    /// From which queue to claim next: `dispatch` for the most urgent job of all, `strict` for the queues as they are
    /// named, each before the next, or `weighted` to let them take turns [default: dispatch]
    #[arg(long, value_name = "ORDER")]
    pub(super) queue_order: Option<QueueOrder>,
    /// How many jobs a queue that takes turns gives for each of a queue without a weight (repeatable)
    #[arg(long = "queue-weight", value_name = "QUEUE=N", value_delimiter = ',', value_parser = super::queue::weight)]
    #[serde(skip)]
    pub(super) weights: Vec<(String, u64)>,
    /// How many jobs run at the same time [default: 4]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) slots: Option<u16>,
    /// Offer this much of a resource to all jobs that run at the same time; jobs that need more than is free are not
    /// claimed (repeatable) [default: any job is claimed]
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_delimiter = ',', value_parser = resource)]
    #[serde(skip)]
    pub(super) offers: Vec<(String, u64)>,
    /// Offer this label; jobs whose requirements the labels do not meet are not claimed (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_delimiter = ',', value_parser = super::submit::label)]
    #[serde(skip)]
    pub(super) labels: Vec<(String, String)>,
    /// The worker's name, which no other worker may have [default: made from the host's name and a random number]
    #[arg(long, value_name = "NAME")]
    pub(super) worker_id: Option<String>,
    /// How long a lease lasts without a heartbeat; heartbeats are sent at a third of it [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub(super) lease: Option<DurationSetting>,
    /// How long running jobs may go on after the first SIGTERM or Ctrl-C [default: 60s]
    #[arg(long, value_name = "DURATION")]
    pub(super) drain_timeout: Option<DurationSetting>,
    /// How long a command has between SIGTERM and SIGKILL [default: 10s]
    #[arg(long, value_name = "DURATION")]
    pub(super) grace: Option<DurationSetting>,
    #[arg(skip)]
    pub(super) queue_weights: Option<BTreeMap<String, u64>>,
    #[arg(skip)]
    pub(super) resources: Option<BTreeMap<String, u64>>,
    #[arg(skip)]
    #[serde(rename = "labels")]
    pub(super) offered_labels: Option<BTreeMap<String, String>>,
}

impl Settings {
    /// Returns the secret that processes share as a text and as the path of a file.
    pub(super) fn cluster_secret(&self) -> (Option<&str>, Option<&Path>) {
        (self.cluster_secret.as_deref(), self.cluster_secret_file.as_deref())
    }

    /// Reads the file, if one is given.
    pub(super) fn read(file: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = file else { return Ok(Self::default()) };
        let wrong = |what: String| Failure::Usage(format!("the settings file {}: {what}", file.display()));
        closed_to_others(file).map_err(wrong)?;
        let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
        let settings = Self::parse(&text).map_err(|error| wrong(error.to_string()))?;
        Ok(Self { file: Some(file.to_owned()), ..settings })
    }

    pub(super) fn parse(text: &str) -> Result<Self, toml::de::Error> {
        Self::deserialize(Strict(toml::Deserializer::parse(text)?))
    }

    /// Returns the data directory of the embedded store: a flag over these.
    pub(super) fn data_dir(self, flag: Option<PathBuf>) -> PathBuf {
        flag.or(self.data_dir).unwrap_or_else(default_data_dir)
    }

    /// Returns the settings of the chosen store: flags over these. A setting of another store is refused, since whoever
    /// gives one expects that store.
    pub(super) fn engine(self, flags: StoreArgs) -> Result<EngineSettings, Failure> {
        let store = flags.store.or(self.store);
        let data_dir = flags.data_dir.or(self.data_dir);
        let memory_limit = flags.memory_limit.or(self.memory_limit).map(|limit| limit.0);
        let scrub_rate = flags.scrub_rate.or(self.scrub_rate).map(|rate| rate.0);
        let query_time = flags.query_time.or(self.query_time.map(|setting| setting.0));
        let flush_changes = flags.flush_changes.or(self.flush_changes);
        let flush_bytes = flags.flush_bytes.or(self.flush_bytes).map(|size| size.0);
        let flush_after = flags.flush_after.or(self.flush_after.map(|setting| setting.0));
        let is_scrub_rate = |rate| (LEAST_SCRUB_BYTES..=MOST_SCRUB_BYTES).contains(&rate);
        for (name, bounds, is_outside) in [
            ("query_time", "at least 100ms", query_time.is_some_and(|time| time < LEAST_QUERY_TIME)),
            ("flush_changes", "at least 1000", flush_changes.is_some_and(|changes| changes < LEAST_FLUSH_CHANGES)),
            ("flush_bytes", "at least 1MiB", flush_bytes.is_some_and(|bytes| bytes < LEAST_FLUSH_BYTES)),
            ("flush_after", "at least 1s", flush_after.is_some_and(|time| time < LEAST_FLUSH_AFTER)),
            ("scrub_rate", "from 64KiB to 1GiB", scrub_rate.is_some_and(|rate| !is_scrub_rate(rate))),
        ] {
            if is_outside {
                let (flag, variable) = (name.replace('_', "-"), name.to_uppercase());
                return Err(Failure::Usage(format!("`{name}` (--{flag}, LEASEHOLD_{variable}) is {bounds}")));
            }
        }
        let elasticsearch = ElasticsearchSettings {
            urls: Some(flags.elasticsearch_url).filter(|urls| !urls.is_empty()).or(self.elasticsearch_url),
            api_key: flags.elasticsearch_api_key.or(self.elasticsearch_api_key),
            ca: flags.elasticsearch_ca.or(self.elasticsearch_ca),
            secrets_key_file: flags.secrets_key_file.or(self.secrets_key_file),
            index_prefix: flags.index_prefix.or(self.index_prefix),
            shards: flags.elasticsearch_shards.or(self.elasticsearch_shards),
            replicas: flags.elasticsearch_replicas.or(self.elasticsearch_replicas),
            archive_after: flags.archive_after.or(self.archive_after.map(|setting| setting.0)),
            query_time,
        };
        let given = [
            ("data_dir", StoreKind::Embedded, data_dir.is_some()),
            ("memory_limit", StoreKind::Embedded, memory_limit.is_some()),
            ("flush_changes", StoreKind::Embedded, flush_changes.is_some()),
            ("flush_bytes", StoreKind::Embedded, flush_bytes.is_some()),
            ("flush_after", StoreKind::Embedded, flush_after.is_some()),
            ("scrub_rate", StoreKind::Embedded, scrub_rate.is_some()),
            ("elasticsearch_url", StoreKind::Elasticsearch, elasticsearch.urls.is_some()),
            ("elasticsearch_api_key", StoreKind::Elasticsearch, elasticsearch.api_key.is_some()),
            ("elasticsearch_ca", StoreKind::Elasticsearch, elasticsearch.ca.is_some()),
            ("secrets_key_file", StoreKind::Elasticsearch, elasticsearch.secrets_key_file.is_some()),
            ("index_prefix", StoreKind::Elasticsearch, elasticsearch.index_prefix.is_some()),
            ("elasticsearch_shards", StoreKind::Elasticsearch, elasticsearch.shards.is_some()),
            ("elasticsearch_replicas", StoreKind::Elasticsearch, elasticsearch.replicas.is_some()),
            ("archive_after", StoreKind::Elasticsearch, elasticsearch.archive_after.is_some()),
        ];
        let chosen = store.unwrap_or(StoreKind::Embedded);
        if let Some((name, of, _)) = given.into_iter().find(|(_, of, given)| *given && *of != chosen) {
            return Err(Failure::Usage(not_chosen(name, of, store)));
        }
        Ok(match chosen {
            StoreKind::Embedded => {
                let data_dir = data_dir.unwrap_or_else(default_data_dir);
                let defaults = EmbeddedOptions::default();
                let options = EmbeddedOptions {
                    query_time: query_time.unwrap_or(defaults.query_time),
                    memory_limit,
                    flush_changes: flush_changes.unwrap_or(defaults.flush_changes),
                    flush_bytes: flush_bytes.unwrap_or(defaults.flush_bytes),
                    flush_after: flush_after.unwrap_or(defaults.flush_after),
                    scrub_bytes_per_second: scrub_rate.unwrap_or(defaults.scrub_bytes_per_second),
                    ..defaults
                };
                EngineSettings::Embedded { data_dir, options }
            }
            StoreKind::Elasticsearch => EngineSettings::Elasticsearch(elasticsearch),
        })
    }
}

/// Has certificates of the authorities in this file count wherever the program makes calls.
pub(super) fn trust_also(file: &Path) -> Result<(), Failure> {
    let wrong =
        |what: &dyn std::fmt::Display| Failure::Usage(format!("`ca` (--ca, LEASEHOLD_CA): {} {what}", file.display()));
    let pem = std::fs::read(file).map_err(|error| wrong(&format_args!("cannot be read: {error}")))?;
    outgoing::trust_also(&pem).map_err(|error| wrong(&error))
}

/// Has commands call servers by this proxy.
pub(super) fn call_by(proxy: &str) -> Result<(), Failure> {
    // The address may have a password.
    outgoing::call_by(proxy).map_err(|why| Failure::Usage(format!("`proxy` (--proxy, LEASEHOLD_PROXY): it {why}")))
}

fn default_data_dir() -> PathBuf {
    PathBuf::from(DEFAULT_DATA_DIR)
}

/// Describes a setting that belongs to another store than the chosen one.
pub(super) fn not_chosen(name: &str, of: StoreKind, chosen: Option<StoreKind>) -> String {
    let (flag, variable, of) = (name.replace('_', "-"), name.to_uppercase(), of.as_str());
    let chosen = match chosen {
        Some(chosen) => format!("the chosen store is `{}`", chosen.as_str()),
        None => "no store is chosen, which means `embedded`".to_owned(),
    };
    format!(
        "`{name}` (--{flag}, LEASEHOLD_{variable}) is a setting of the store `{of}`, and {chosen}: add `--store {of}` \
         (`store` in the settings file), or take the setting away"
    )
}

/// Parses an amount of a resource, such as `memory_mib=4096`.
fn resource(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("`{text}` is not a name and a whole number, such as memory_mib=4096");
    let (name, amount) = text.split_once('=').ok_or_else(wrong)?;
    let amount = amount.trim().parse().map_err(|_| wrong())?;
    if name.trim().is_empty() { Err(wrong()) } else { Ok((name.trim().to_owned(), amount)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::engine::elasticsearch_options;

    #[test]
    fn a_misspelt_key_is_refused_and_named() {
        for text in ["lisetn = \"127.0.0.1:1\"", "[worker]\nslot = 3", "[[tokens]]\nname = \"a\"\nrole = []"] {
            let error = Settings::parse(text).expect_err("a key nobody knows").to_string();
            assert!(error.contains("unknown field"), "{error}");
        }
    }

    #[test]
    fn a_value_where_a_table_belongs_is_refused_without_the_names_of_types() {
        for text in ["worker = 3", "monitor = \"1m\"", "notify = []", "tokens = [\"a\"]", "client = [[]]"] {
            let error = Settings::parse(text).expect_err("no table").to_string();
            assert!(error.contains("expected an object") && !error.contains("struct"), "{text}: {error}");
        }
    }

    #[test]
    fn every_setting_is_read() {
        let text = "listen = \"127.0.0.1:7400\"\nstore = \"elasticsearch\"\nelasticsearch_url = [\"http://a:9200\"]\n\
                    [worker]\nqueues = [\"a\"]\nlease = \"5m\"\n[client]\nserver = \"http://b\"";
        let settings = Settings::parse(text).expect("good settings");
        assert_eq!(settings.worker.lease.map(|lease| lease.0.as_secs()), Some(300));
        assert_eq!(settings.client.server, Some(vec!["http://b".to_owned()]));
    }

    #[test]
    fn the_query_time_of_the_flags_is_that_of_either_store() {
        for store in [StoreKind::Embedded, StoreKind::Elasticsearch] {
            let query_time = Some(Duration::from_millis(300));
            let flags = StoreArgs { store: Some(store), query_time, ..StoreArgs::default() };
            let found = match Settings::default().engine(flags).expect("good settings") {
                EngineSettings::Embedded { options, .. } => Some(options.query_time),
                EngineSettings::Elasticsearch(settings) => {
                    Some(elasticsearch_options(settings).expect("good options").query_time)
                }
            };
            assert_eq!(found, query_time, "{store:?}");
        }
    }

    #[test]
    fn a_rate_at_which_no_scrub_ends_or_that_has_no_bound_is_refused() {
        let of = |rate: u64| {
            let flags = StoreArgs { scrub_rate: Some(SizeSetting(rate)), ..StoreArgs::default() };
            Settings::default().engine(flags).map(drop)
        };
        for rate in [LEAST_SCRUB_BYTES, MOST_SCRUB_BYTES] {
            assert!(of(rate).is_ok(), "{rate}");
        }
        for rate in [0, LEAST_SCRUB_BYTES - 1, MOST_SCRUB_BYTES + 1] {
            let Err(Failure::Usage(said)) = of(rate) else { panic!("{rate} is taken") };
            assert!(said.contains("--scrub-rate") && said.contains("from 64KiB to 1GiB"), "{said}");
        }
    }

    #[test]
    fn servers_are_a_text_or_a_list() {
        let read =
            |servers: &str| Settings::parse(&format!("[client]\nserver = {servers}")).map(|all| all.client.server);
        let two = Some(vec!["http://a".to_owned(), "http://b".to_owned()]);
        assert_eq!(read("[\"http://a\", \"http://b\"]").expect("a list"), two);
        assert_eq!(read("\"http://a, http://b\"").expect("a text"), two);
        for wrong in ["3", "[3]", "{ a = \"http://a\" }"] {
            let error = read(wrong).expect_err("no address").to_string();
            assert!(error.contains("expected") && !error.contains("struct"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_resource_is_a_name_and_a_whole_number() {
        assert_eq!(resource("memory_mib=4096"), Ok(("memory_mib".to_owned(), 4096)));
        for wrong in ["", "memory_mib", "=1", "memory_mib=", "memory_mib=-1", "memory_mib=4g"] {
            assert!(resource(wrong).is_err_and(|said| said.contains("memory_mib=4096")), "{wrong}");
        }
    }
}
