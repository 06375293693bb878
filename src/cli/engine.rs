//! Opening a store: the only place that names one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::serve::StoreKind;
use crate::store::Store;
use crate::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};
use crate::store::measured::Measured;
use crate::worker::backoff::Backoff;

/// Which store, and where.
pub(super) struct EngineSettings {
    pub(super) kind: StoreKind,
    pub(super) data_dir: PathBuf,
    pub(super) elasticsearch_urls: Option<Vec<String>>,
    pub(super) elasticsearch_api_key: Option<String>,
    pub(super) elasticsearch_ca: Option<PathBuf>,
    pub(super) index_prefix: Option<String>,
}

/// Opens the store that the settings name.
pub(super) async fn open(settings: EngineSettings) -> Result<Arc<dyn Store>, Failure> {
    match settings.kind {
        StoreKind::Embedded => embedded(&settings.data_dir).await,
        StoreKind::Elasticsearch => elasticsearch(settings).await,
    }
}

/// Opens the embedded store in a directory.
pub(super) async fn embedded(directory: &Path) -> Result<Arc<dyn Store>, Failure> {
    let directory = directory.to_owned();
    let opened = tokio::task::spawn_blocking(move || EmbeddedStore::open(directory, &EmbeddedOptions::default())).await;
    match opened {
        Ok(Ok(store)) => Ok(Measured::around(Arc::new(store))),
        Ok(Err(error)) => Err(Failure::Failed(error.to_string())),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

/// Connects to Elasticsearch, however long it takes to be there; what only a person can mend is said at once.
async fn elasticsearch(settings: EngineSettings) -> Result<Arc<dyn Store>, Failure> {
    let options = elasticsearch_options(settings)?;
    let mut backoff = Backoff::default();
    loop {
        match ElasticsearchStore::connect(options.clone()).await {
            Ok(store) => return Ok(Measured::around(Arc::new(store))),
            Err(error) if error.is_transient() => {
                tracing::warn!(%error, "the store is not there yet; trying again");
                backoff.wait().await;
            }
            Err(error) => return Err(Failure::Failed(error.to_string())),
        }
    }
}

fn elasticsearch_options(settings: EngineSettings) -> Result<ElasticsearchOptions, Failure> {
    let defaults = ElasticsearchOptions::default();
    let read = |file: PathBuf| {
        std::fs::read(&file).map_err(|error| Failure::Usage(format!("cannot read {}: {error}", file.display())))
    };
    Ok(ElasticsearchOptions {
        urls: settings.elasticsearch_urls.unwrap_or(defaults.urls),
        api_key: settings.elasticsearch_api_key,
        certificate_authority: settings.elasticsearch_ca.map(read).transpose()?,
        index_prefix: settings.index_prefix.unwrap_or(defaults.index_prefix),
        ..ElasticsearchOptions::default()
    })
}
