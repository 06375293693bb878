//! Queries of the embedded engine that take long: they are bounded.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Job, State};
use leasehold::query::kql::Expression;
use leasehold::query::{Filter, GroupField, Query, Search, Sort};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{Store, StoreError, Write};
use tempfile::TempDir;

use super::sample::{at, in_state, submitted};

const JOBS: usize = 8_000;

/// Opens a store with many finished jobs.
async fn full_store(query_time: Duration) -> (EmbeddedStore, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { block_jobs: 500, query_time, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    let expired = |number| in_state(&submitted(&format!("job-{number}")), State::Expired { finished_at: at(1) });
    let jobs: Vec<Arc<Job>> = (0..JOBS).map(expired).collect();
    let writes = jobs.into_iter().map(|job| Write::Create { job, bodies: vec![] }).collect();
    assert!(store.write(writes).await.iter().all(Result::is_ok));
    (store, directory)
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
