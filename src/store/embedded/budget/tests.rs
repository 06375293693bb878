use std::sync::{Arc, mpsc};
use std::thread;

use tempfile::TempDir;
use tokio::sync::oneshot;

use super::super::{EmbeddedOptions, EmbeddedStore, INDEXED_SCANS, SCANS};
use super::*;
use crate::query::{Filter, GroupField, Search, Sort};
use crate::store::Store;

/// How long a query waits for a place, which some here never get.
const QUERY_TIME: Duration = Duration::from_millis(50);

fn open() -> (Arc<EmbeddedStore>, TempDir) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let options = EmbeddedOptions { query_time: QUERY_TIME, ..EmbeddedOptions::default() };
    let store = EmbeddedStore::open(directory.path(), &options).expect("the store can be opened");
    (Arc::new(store), directory)
}

/// Fills so many places with queries, which end when what is returned is dropped.
async fn occupy(store: &Arc<EmbeddedStore>, is_indexed: bool, places: u32) -> Vec<mpsc::Sender<()>> {
    let mut occupied = Vec::new();
    for _ in 0..places {
        let (held, release) = mpsc::channel::<()>();
        let (begins, begun) = oneshot::channel();
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let reading = move |_: &_, _| {
                begins.send(()).expect("it is waited for");
                let _released = release.recv();
                Ok(())
            };
            store.query(is_indexed, reading).await
        });
        begun.await.expect("the query begins");
        occupied.push(held);
    }
    occupied
}

/// A search and a count that the index of finished jobs answers.
async fn ask_the_index(store: &EmbeddedStore) -> [Option<StoreError>; 2] {
    let filter = Filter { queues: vec!["default".parse().expect("a queue")], ..Filter::default() };
    let search = Search { filter: filter.clone(), sort: Sort::default(), after: None, limit: 10 };
    let searched = store.search(&search).await;
    let counted = store.count(&filter, &[GroupField::Kind]).await;
    [searched.err(), counted.err()]
}

fn is_overloaded(error: Option<&StoreError>) -> bool {
    matches!(error, Some(StoreError::Overloaded { .. }))
}

#[tokio::test]
async fn queries_that_read_every_job_hold_up_none_that_the_index_answers() {
    let (store, _directory) = open();
    let _scans = occupy(&store, false, SCANS).await;
    let refused = store.query(false, |_, _| Ok(())).await.err();
    assert!(is_overloaded(refused.as_ref()), "no place is left: {refused:?}");
    let answered = ask_the_index(&store).await;
    assert!(!answered.iter().any(|error| is_overloaded(error.as_ref())), "{answered:?}");

    let _indexed = occupy(&store, true, INDEXED_SCANS).await;
    let refused = ask_the_index(&store).await;
    assert!(refused.iter().all(|error| is_overloaded(error.as_ref())), "they have places of their own: {refused:?}");
}

#[tokio::test]
async fn a_query_whose_caller_has_gone_ends() {
    let (store, _directory) = open();
    let (begins, begun) = oneshot::channel();
    let (ends, ended) = oneshot::channel();
    let reading = move |_: &_, budget: Budget| {
        begins.send(()).expect("it is waited for");
        let budget = Budget { limit: budget.limit, until: Instant::now() + Duration::from_hours(1), ..budget };
        while budget.check().is_ok() {
            thread::yield_now();
        }
        ends.send(budget.check()).expect("it is waited for");
        Ok(())
    };
    tokio::select! {
        ended = store.query(false, reading) => panic!("it is waited for: {ended:?}"),
        begun = begun => begun.expect("the query begins"),
    }
    let ended = ended.await.expect("the query ends");
    assert!(matches!(ended, Err(StoreError::Unavailable(_))), "{ended:?}");
}
