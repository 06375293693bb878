//! Opens the store: the only place that names the store implementations.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backon::Retryable as _;
use clap::{Args, ValueEnum};
use serde::Deserialize;

use super::duration;
use super::failure::Failure;
use super::permissions::hidden_from_others;
use super::size::SizeSetting;
use crate::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore, EncryptionKeys};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore, GroupOptions};
use crate::store::measured::Measured;
use crate::store::{Member, Store};
use crate::worker::backoff;

/// The stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum StoreKind {
    /// In a directory of this machine
    Embedded,
    /// In Elasticsearch or OpenSearch
    Elasticsearch,
}

impl StoreKind {
    /// Returns the store's name in flags and settings.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Elasticsearch => "elasticsearch",
        }
    }
}

/// The fewest changes that a flush may wait for: each costs two syncs.
pub(super) const LEAST_FLUSH_CHANGES: u64 = 1_000;

/// The store's settings on the command line.
#[derive(Debug, Default, Args)]
pub(super) struct StoreArgs {
    /// Where jobs are stored [default: embedded]
    #[arg(long, value_enum)]
    pub(super) store: Option<StoreKind>,
    /// The data directory of the embedded store [default: ./leasehold-data]
    #[arg(long, value_name = "DIR")]
    pub(super) data_dir: Option<PathBuf>,
    /// How much memory the server may have, such as 8GiB, before new jobs are refused on the embedded store; claims and
    /// completions go on [default: 70 % of what the machine has, or the server may have]
    #[arg(long, value_name = "SIZE")]
    pub(super) memory_limit: Option<SizeSetting>,
    /// After how many changes of documents the embedded store writes them from its log to its database; more are a
    /// longer start and a longer log, and less to write [default: 250000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(LEAST_FLUSH_CHANGES..))]
    pub(super) flush_changes: Option<u64>,
    /// After how many bytes of its log, at least 1MiB, it does so [default: 64MiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) flush_bytes: Option<SizeSetting>,
    /// How long after a change, at least 1s, it does so at the latest [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) flush_after: Option<Duration>,
    /// How much of the documents at rest, from 64KiB to 1GiB, the embedded store reads in a second, once a day, to see
    /// that they can be read [default: 4MiB]
    #[arg(long, value_name = "SIZE")]
    pub(super) scrub_rate: Option<SizeSetting>,
    /// The URL of a node of Elasticsearch, with user and password where needed (repeatable)
    /// [default: http://localhost:9200]
    #[arg(long, value_name = "URL", hide_env_values = true, value_delimiter = ',')]
    pub(super) elasticsearch_url: Vec<String>,
    /// The API key for Elasticsearch, in its encoded form
    #[arg(long, value_name = "KEY", hide_env_values = true)]
    pub(super) elasticsearch_api_key: Option<String>,
    /// The PEM file with the certificate of the private authority behind Elasticsearch's certificate
    #[arg(long, value_name = "FILE")]
    pub(super) elasticsearch_ca: Option<PathBuf>,
    /// The file with the keys with which secrets, environments and addresses are encrypted in Elasticsearch: each on a
    /// line, as `openssl rand -base64 32` prints it; the first one encrypts, and all decrypt [default: they lie there
    /// as they are]
    #[arg(long, value_name = "FILE")]
    pub(super) secrets_key_file: Option<PathBuf>,
    /// The prefix of the names of indices [default: leasehold-]
    #[arg(long, value_name = "PREFIX")]
    pub(super) index_prefix: Option<String>,
    /// The number of primary shards of the indices of live jobs and of bodies. It counts when these are made, and for
    /// `leasehold migrate`, which changes those that are there. Each shard is written by one node and asked by every
    /// search: more than one pays with as many data nodes [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) elasticsearch_shards: Option<u32>,
    /// The number of further copies of each shard, of which every write waits for all [default: 1 as soon as there is
    /// a second node, so that the loss of one loses nothing, and 0 before that]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100))]
    pub(super) elasticsearch_replicas: Option<u32>,
    /// How long after its end a job is moved from Elasticsearch's live index to the archive [default: 10m]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) archive_after: Option<Duration>,
    /// The longest time that the store may work on a list, a count or statistics, at least 100ms [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(super) query_time: Option<Duration>,
}

/// The settings of the chosen store.
pub(super) enum EngineSettings {
    /// Those of the embedded store.
    Embedded {
        /// The path of the data directory.
        data_dir: PathBuf,
        options: EmbeddedOptions,
    },
    /// Those of Elasticsearch.
    Elasticsearch(ElasticsearchSettings),
}

/// The settings for Elasticsearch; what is `None` has its default.
pub(super) struct ElasticsearchSettings {
    pub(super) urls: Option<Vec<String>>,
    pub(super) api_key: Option<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) secrets_key_file: Option<PathBuf>,
    pub(super) index_prefix: Option<String>,
    pub(super) shards: Option<u32>,
    pub(super) replicas: Option<u32>,
    pub(super) archive_after: Option<Duration>,
    pub(super) query_time: Option<Duration>,
}

impl EngineSettings {
    /// Returns the same settings for a store that is a member of this group, if there is one.
    pub(super) fn in_group(self, of: Option<GroupOptions>) -> Self {
        match self {
            Self::Embedded { data_dir, options } => {
                Self::Embedded { data_dir, options: EmbeddedOptions { group: of, ..options } }
            }
            Self::Elasticsearch(_) => self,
        }
    }

    /// Returns whether what is secret lies in the store as it is, for all to read who may read the indices.
    pub(super) const fn shows_secrets(&self) -> bool {
        matches!(self, Self::Elasticsearch(ElasticsearchSettings { secrets_key_file: None, .. }))
    }

    /// Returns the chosen store.
    pub(super) const fn kind(&self) -> StoreKind {
        match self {
            Self::Embedded { .. } => StoreKind::Embedded,
            Self::Elasticsearch(_) => StoreKind::Elasticsearch,
        }
    }
}

/// An open store.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    /// Its part in a group; `None` for a store of its own.
    pub(super) member: Option<Arc<dyn Member>>,
}

/// Opens the store that the settings name. Where `panics_end_process`, a panic of a thread of the embedded store ends
/// the process, of which nothing may be left to clean up then.
pub(super) async fn open(settings: EngineSettings, panics_end_process: bool) -> Result<Opened, Failure> {
    match settings {
        EngineSettings::Embedded { data_dir, options } => {
            open_embedded(&data_dir, EmbeddedOptions { panics_end_process, ..options }).await
        }
        EngineSettings::Elasticsearch(settings) => {
            elasticsearch(settings).await.map(|store| Opened { store, member: None })
        }
    }
}

/// Opens the embedded store in a directory.
pub(super) async fn embedded(directory: &Path, options: EmbeddedOptions) -> Result<Arc<dyn Store>, Failure> {
    open_embedded(directory, options).await.map(|opened| opened.store)
}

async fn open_embedded(directory: &Path, options: EmbeddedOptions) -> Result<Opened, Failure> {
    let directory = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(directory, &options)).await;
    let store = opened.map_err(Failure::failed)?.map_err(Failure::failed)?;
    let member = store.member();
    Ok(Opened { store: Measured::around(Arc::new(store)), member })
}

/// Connects to Elasticsearch and waits until it is reachable; fails at once for errors that only a person can fix.
async fn elasticsearch(settings: ElasticsearchSettings) -> Result<Arc<dyn Store>, Failure> {
    let options = elasticsearch_options(settings)?;
    let connected = (|| ElasticsearchStore::connect(options.clone()))
        .retry(backoff::waits())
        .when(|error| error.is_transient())
        .notify(|error, _| tracing::warn!(%error, "the store is not there yet; trying again"))
        .await;
    let store = connected.map_err(Failure::failed)?;
    Ok(Measured::around(Arc::new(store)))
}

/// Reads the keys with which secrets are encrypted.
fn encryption_keys(file: &Path) -> Result<EncryptionKeys, Failure> {
    let wrong = |what: &dyn std::fmt::Display| {
        let file = file.display();
        Failure::Usage(format!("`secrets_key_file` (--secrets-key-file, LEASEHOLD_SECRETS_KEY_FILE): {file}: {what}"))
    };
    hidden_from_others(file).map_err(|why| wrong(&why))?;
    let text = std::fs::read_to_string(file).map_err(|error| wrong(&format_args!("cannot be read: {error}")))?;
    EncryptionKeys::parse(&text).map_err(|error| wrong(&error))
}

/// Returns the options for Elasticsearch.
pub(super) fn elasticsearch_options(settings: ElasticsearchSettings) -> Result<ElasticsearchOptions, Failure> {
    let defaults = ElasticsearchOptions::default();
    let read = |file: PathBuf| {
        std::fs::read(&file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
    };
    Ok(ElasticsearchOptions {
        urls: settings.urls.unwrap_or(defaults.urls),
        api_key: settings.api_key,
        certificate_authority: settings.ca.map(read).transpose()?,
        encryption_keys: settings
            .secrets_key_file
            .as_deref()
            .map_or_else(|| Ok(EncryptionKeys::default()), encryption_keys)?,
        index_prefix: settings.index_prefix.unwrap_or(defaults.index_prefix),
        shards: settings.shards,
        replicas: settings.replicas,
        move_after: settings.archive_after.unwrap_or(defaults.move_after),
        query_time: settings.query_time.unwrap_or(defaults.query_time),
        ..ElasticsearchOptions::default()
    })
}
