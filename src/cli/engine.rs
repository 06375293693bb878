//! Opening a store: the only place that names one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::failure::Failure;
use super::serve::StoreKind;
use crate::store::Store;
use crate::store::embedded::{EmbeddedOptions, EmbeddedStore};

/// Which store, and where.
#[derive(Debug)]
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
        Ok(Ok(store)) => Ok(Arc::new(store)),
        Ok(Err(error)) => Err(Failure::Failed(error.to_string())),
        Err(error) => Err(Failure::Failed(error.to_string())),
    }
}

async fn elasticsearch(settings: EngineSettings) -> Result<Arc<dyn Store>, Failure> {
    Err(Failure::Failed(format!("not in this build: {settings:?}")))
}
