//! A fresh, empty store of each engine for a test of what stands on stores.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::query::Filter;
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{Refresh, Store};
use tempfile::TempDir;

use crate::model_engine::{Model, Odds};
use crate::servers::{self, IndexSet};
use crate::store::elasticsearch::{connect, patient};

/// How long searches of a model lag, as those of a server do that refreshes by itself.
const LAG: Duration = Duration::from_secs(1);

/// Makes tests of cases on the embedded store and on Elasticsearch. Each case gets what `$site` makes of the engine. One
/// that takes long on Elasticsearch is marked `[every_night_on_elasticsearch]`: the embedded store is enough for every
/// change.
macro_rules! on_both_engines {
    (|$engine:ident| $site:expr; $($([$when:ident])? $case:ident),* $(,)?) => {
        mod embedded {
            $($crate::engines::on_both_engines!(@embedded $case, $engine, $site);)*
        }
        mod elasticsearch {
            $($crate::engines::on_both_engines!(@elasticsearch $([$when])? $case, $engine, $site);)*
        }
    };
    (@elasticsearch [every_night_on_elasticsearch] $case:ident, $engine:ident, $site:expr) => {
        $crate::engines::on_both_engines!(
            @elasticsearch $case, $engine, $site, ignore = "every night: the embedded store runs"
        );
    };
    (@$name:ident $case:ident, $engine:ident, $site:expr $(, $ignored:meta)?) => {
        #[tokio::test(flavor = "multi_thread")]
        $(#[$ignored])?
        async fn $case() {
            let $engine = $crate::engines::$name().await;
            super::$case($site).await;
        }
    };
}
pub(crate) use on_both_engines;

/// A store and what it stands on, which ends when this is dropped.
#[async_trait]
pub(crate) trait Engine: Send + Sync {
    /// The store.
    fn store(&self) -> Arc<dyn Store>;

    /// Makes everything acknowledged visible to searches.
    async fn settle(&self) {
        refresh(&*self.store()).await;
    }

    /// Gives back what it stands on, before the runtime ends: nothing uses it any more.
    fn give_back(self: Box<Self>) {}
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

/// A model of a store that several share, whose searches lag.
pub(crate) async fn model() -> Box<dyn Engine> {
    let store = Model::new(LAG).handle(Odds::default(), 0);
    Box::new(Kept { store, _keeps: () })
}

/// A store on the tests' Elasticsearch, on a set of indices for itself.
pub(crate) async fn elasticsearch() -> Box<dyn Engine> {
    let set = servers::elasticsearch().await.index_set().await;
    let store = connect(patient(set.url(), set.prefix())).await;
    Box::new(OnIndices { store: Arc::new(store), set })
}

struct OnIndices {
    store: Arc<dyn Store>,
    set: IndexSet,
}

#[async_trait]
impl Engine for OnIndices {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }

    fn give_back(self: Box<Self>) {
        self.set.give_back();
    }
}
