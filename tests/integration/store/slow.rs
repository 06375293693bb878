//! Queries of the embedded engine that take long: they are bounded, and hold up no others.

use std::sync::Arc;
use std::time::Duration;

use leasehold::job::{Job, State};
use leasehold::query::kql::Expression;
use leasehold::query::{Filter, GroupField, Query, Search, Sort};
use leasehold::store::embedded::{EmbeddedOptions, EmbeddedStore};
use leasehold::store::{Store, StoreError, Write};
use tempfile::TempDir;

use super::sample::{at, in_state, queue, submitted};

const JOBS: usize = 8_000;

/// Opens a store with many finished jobs.
async fn full_store(query_time: Duration) -> (Arc<EmbeddedStore>, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { block_jobs: 500, query_time, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    let expired = |number| in_state(&submitted(&format!("job-{number}")), State::Expired { finished_at: at(1) });
    let jobs: Vec<Arc<Job>> = (0..JOBS).map(expired).collect();
    let writes = jobs.into_iter().map(|job| Write::Create { job, bodies: vec![] }).collect();
    assert!(store.write(writes).await.iter().all(Result::is_ok));
    (Arc::new(store), directory)
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

#[tokio::test(flavor = "multi_thread")]
async fn queries_that_read_every_job_hold_up_none_that_the_index_answers() {
    let (store, _directory) = full_store(Duration::from_secs(300)).await;
    let slow: Vec<_> = (0..4)
        .map(|_| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.search(&hostile()).await })
        })
        .collect();
    while store.finished_jobs_read() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let filter = Filter { queues: vec![queue("default")], ..Filter::default() };
    let found = store.search(&Search { filter: filter.clone(), sort: Sort::default(), after: None, limit: 10 }).await;
    let counted = store.count(&filter, &[GroupField::Kind]).await;
    assert!(slow.iter().all(|slow| !slow.is_finished()), "the queries under test were not held up by any other");
    assert!(found.is_ok() && counted.is_ok(), "{found:?} {counted:?}");
    slow.iter().for_each(tokio::task::JoinHandle::abort);
}
