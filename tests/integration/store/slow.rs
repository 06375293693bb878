//! Queries that take long: they are bounded on each engine.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Job, State};
use leasehold::query::kql::Expression;
use leasehold::query::{Filter, GroupField, Query, Search, Sort};
use leasehold::store::elasticsearch::{ElasticsearchOptions, ElasticsearchStore};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{ListSchedules, Store, StoreError, Write};
use tempfile::TempDir;

use super::elasticsearch::{connect, patient};
use super::sample::{at, in_state, submitted};
use super::schedule_queries::filter;
use super::schedules::{created, due};
use crate::servers::{self, IndexSet, SearchServer};

const JOBS: usize = 8_000;

/// Opens a store with many finished jobs.
async fn full_store(query_time: Duration) -> (EmbeddedStore, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { block_jobs: 500, query_time, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    fill(&store).await;
    (store, directory)
}

/// Options for a store on a set of indices of a search server's.
fn fresh(set: &IndexSet) -> ElasticsearchOptions {
    patient(set.url(), set.prefix())
}

/// Opens a store with as many finished jobs on a search server.
async fn full_server(options: ElasticsearchOptions) -> ElasticsearchStore {
    let store = connect(options).await;
    fill(&store).await;
    crate::engines::refresh(&store).await;
    store
}

async fn fill(store: &dyn Store) {
    // Long ids: a server's clock goes in steps of 200 ms, and one whose code is compiled by then has read short ids
    // within the first of them.
    let id = |number: usize| format!("{number:-<128}");
    let expired = |number| in_state(&submitted(&id(number)), State::Expired { finished_at: at(1) });
    let jobs: Vec<Arc<Job>> = (0..JOBS).map(expired).collect();
    let writes = jobs.into_iter().map(|job| Write::Create { job, bodies: vec![] }).collect();
    assert!(store.write(writes).await.iter().all(Result::is_ok));
}

/// A query that costs much for every job and matches none.
fn hostile() -> Search {
    let patterns: Vec<String> = (0..800).map(|number| format!("id: *{number}z*")).collect();
    let expression = Arc::new(Expression::parse(&patterns.join(" or ")).expect("a query"));
    let filter = Filter { query: Some(Query { expression, now: at(9) }), ..Filter::default() };
    Search { filter, sort: Sort::default(), after: None, limit: 10 }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_that_takes_too_long_is_ended() {
    let (store, _directory) = full_store(Duration::from_millis(50)).await;
    let search = hostile();
    let refused = store.search(&search).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");
    let refused = store.count(&search.filter, &[GroupField::Queue]).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");
}

/// A query that costs much for every schedule and matches none.
fn hostile_to_schedules() -> ListSchedules {
    let patterns: Vec<String> = (0..800).map(|number| format!("id: *{number}z*")).collect();
    ListSchedules { filter: filter(None, &patterns.join(" or ")), after: None, limit: 10 }
}

/// A query that the server is still at when its time is over is refused for good.
async fn a_server_ends_a_query_that_takes_too_long(server: &SearchServer) {
    let set = server.index_set().await;
    let options = ElasticsearchOptions { query_time: Duration::from_millis(100), ..fresh(&set) };
    let store = full_server(options).await;
    let search = hostile();
    let refused = store.search(&search).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");
    let refused = store.count(&search.filter, &[GroupField::Queue]).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");

    let schedules: Vec<_> = (0..JOBS).map(|number| due(&format!("{number:-<128}"), 1)).collect();
    created(&store, &schedules).await;
    crate::engines::refresh(&store).await;
    let list = hostile_to_schedules();
    let refused = store.list_schedules(&list).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");
    let refused = store.count_schedules(&list.filter).await;
    assert!(matches!(refused, Err(StoreError::QueryTooSlow { .. })), "{refused:?}");
}

/// The time of one request is no bound for a query.
async fn a_server_is_given_the_time_that_a_query_may_take(server: &SearchServer) {
    let set = server.index_set().await;
    let (request_timeout, query_time) = (Duration::from_secs(5), Duration::from_secs(300));
    let options = ElasticsearchOptions { request_timeout, query_time, ..fresh(&set) };
    let store = full_server(options).await;
    let found = store.search(&hostile()).await.expect("found in its time");
    assert!(found.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_ends_a_query_that_takes_too_long() {
    a_server_ends_a_query_that_takes_too_long(servers::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: queries of OpenSearch that take long"]
async fn opensearch_ends_a_query_that_takes_too_long() {
    a_server_ends_a_query_that_takes_too_long(servers::opensearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_is_given_the_time_that_a_query_may_take() {
    a_server_is_given_the_time_that_a_query_may_take(servers::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: queries of OpenSearch that take long"]
async fn opensearch_is_given_the_time_that_a_query_may_take() {
    a_server_is_given_the_time_that_a_query_may_take(servers::opensearch().await).await;
}
