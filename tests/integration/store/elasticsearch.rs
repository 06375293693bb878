//! The engine on a search server: the same suite on Elasticsearch and on OpenSearch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use leasehold::store::Store;
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};

use crate::servers::{self, IndexSet, Refreshed, SearchServer};

/// A store on Elasticsearch, on a set of indices for itself.
pub(crate) struct Elasticsearch(Arc<dyn Store>, #[expect(dead_code, reason = "given back when dropped")] IndexSet);

/// A store on OpenSearch, on a set of indices for itself.
pub(crate) struct OpenSearch(Arc<dyn Store>, #[expect(dead_code, reason = "given back when dropped")] IndexSet);

async fn fresh(server: &SearchServer) -> (Arc<dyn Store>, IndexSet) {
    let set = server.unrefreshed_index_set().await;
    (Arc::new(connect(Refreshed::OnRequest.options(set.url(), set.prefix())).await), set)
}

/// Options with which nothing fails because a busy machine, or its disk, stands still for some seconds. For tests of
/// what is slow or away the usual ones do.
pub(crate) fn patient(url: &str, prefix: &str) -> ElasticsearchOptions {
    ElasticsearchOptions {
        urls: vec![url.to_owned()],
        index_prefix: prefix.to_owned(),
        request_timeout: Duration::from_secs(30),
        read_timeout: Duration::from_secs(120),
        write_timeout: Duration::from_secs(180),
        ..ElasticsearchOptions::default()
    }
}

/// How long it is tried to open a store, and the pause between two tries.
const OPENED_WITHIN: Duration = Duration::from_secs(120);
const PAUSE: Duration = Duration::from_millis(100);

/// Opens a store as a server does: one whose nodes are slow to answer, or to make its indices, is asked again.
pub(crate) async fn connect(options: ElasticsearchOptions) -> ElasticsearchStore {
    let deadline = Instant::now() + OPENED_WITHIN;
    loop {
        match ElasticsearchStore::connect(options.clone()).await {
            Ok(store) => return store,
            Err(error) => assert!(error.is_transient() && Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[async_trait]
impl super::Engine for Elasticsearch {
    async fn fresh() -> Self {
        let (store, set) = fresh(servers::elasticsearch().await).await;
        Self(store, set)
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.0
    }

    async fn settle(&self) {
        crate::engines::refresh(&*self.0).await;
    }
}

#[async_trait]
impl super::Engine for OpenSearch {
    const GROUPS_BY_LABELS: bool = false;

    async fn fresh() -> Self {
        let (store, set) = fresh(servers::opensearch().await).await;
        Self(store, set)
    }

    fn store(&self) -> &Arc<dyn Store> {
        &self.0
    }

    async fn settle(&self) {
        crate::engines::refresh(&*self.0).await;
    }
}
