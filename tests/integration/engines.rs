//! A fresh, empty store of each engine for a test of what stands on stores.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::query::Filter;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{Refresh, Store};
use tempfile::TempDir;

use crate::servers;
use crate::store::elasticsearch::{connect, patient};

/// A store and what it stands on, which ends when this is dropped.
#[async_trait]
pub(crate) trait Engine: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Makes everything acknowledged visible to searches.
    async fn settle(&self) {
        refresh(&*self.store()).await;
    }
}

/// Makes everything acknowledged visible to searches of this store.
pub(crate) async fn refresh(store: &dyn Store) {
    for what in [Refresh::Jobs(&Filter::default()), Refresh::Records, Refresh::Schedules] {
        store.refresh(what).await.expect("the store is refreshed");
    }
}

struct Kept<K> {
    store: Arc<dyn Store>,
    _keeps: K,
}

#[async_trait]
impl<K: Send + Sync> Engine for Kept<K> {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}

/// An embedded store in a directory of its own.
pub(crate) async fn embedded() -> Box<dyn Engine> {
    let directory = TempDir::new().expect("a directory");
    let store = EmbeddedStore::open(directory.path(), &EmbeddedOptions::default()).expect("the store opens");
    Box::new(Kept { store: Arc::new(store), _keeps: directory })
}

/// A store on the tests' Elasticsearch, on a set of indices for itself.
pub(crate) async fn elasticsearch() -> Box<dyn Engine> {
    let set = servers::elasticsearch().await.index_set().await;
    let store = connect(patient(set.url(), set.prefix())).await;
    Box::new(Kept { store: Arc::new(store), _keeps: set })
}
