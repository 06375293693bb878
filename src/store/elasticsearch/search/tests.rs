use std::sync::Arc;

use super::*;
use crate::clock::Timestamp;
use crate::query::SortField;

fn filter() -> Filter {
    Filter {
        states: vec![crate::job::JobState::Available, crate::job::JobState::Running],
        queues: vec!["q".parse().expect("a queue")],
        run_at_most: Some(Timestamp::from_millis(5)),
        run_after: Some(Timestamp::from_millis(3)),
        worker_id: Some("w".parse().expect("a worker")),
        ..Filter::default()
    }
}

#[test]
fn a_filter_becomes_parts_that_must_all_hold_and_an_open_part_is_left_out() {
    assert_eq!(
        query(&filter()),
        json!({ "bool": { "filter": [
            { "terms": { "state": ["available", "running"] } },
            { "terms": { "queue": ["q"] } },
            { "range": { "run_at": { "lte": 5, "format": "epoch_millis" } } },
            { "range": { "run_at": { "gt": 3, "format": "epoch_millis" } } },
            { "term": { "lease.worker_id": "w" } },
        ] } })
    );
}

#[test]
fn only_what_live_jobs_alone_can_satisfy_is_looked_for_in_the_live_index_alone() {
    let indices = crate::store::elasticsearch::ElasticsearchOptions::default().indices().expect("names");
    let no_tombstones = json!({ "bool": { "must_not": { "exists": { "field": "moved_to" } } } });
    assert_eq!(index_for(&filter(), &indices), "leasehold-jobs");
    assert_eq!(index_for(&Filter::default(), &indices), "leasehold-jobs,leasehold-archive-*");
    assert_eq!(query(&Filter::default()), json!({ "bool": { "filter": [no_tombstones] } }));

    let asked = |query: &str| {
        let expression = Arc::new(crate::query::kql::Expression::parse(query).expect("a query"));
        let query = Some(crate::query::Query { expression, now: Timestamp::from_millis(0) });
        Filter { query, ..Filter::default() }
    };
    let live = asked("state: running or state: available");
    assert_eq!(index_for(&live, &indices), "leasehold-jobs");
    // A tombstone has no state, and so none of those.
    let parts = query(&live)["bool"]["filter"].as_array().cloned().expect("parts");
    assert!(parts.contains(&no_tombstones));
    assert_eq!(index_for(&asked("state: completed"), &indices), "leasehold-jobs,leasehold-archive-*");
}

#[test]
fn every_order_ends_with_the_id_so_that_no_two_jobs_share_a_place() {
    for direction in [Direction::Ascending, Direction::Descending] {
        for field in SortField::all() {
            let order = order(Sort::By(field, direction));
            let parts = order.as_array().expect("a list");
            assert_eq!(parts[0][field.as_str()]["missing"], "_last");
            assert_eq!(parts.last().expect("a part")["id"]["order"], "asc");
        }
    }
    assert_eq!(order(Sort::Dispatch).as_array().map(Vec::len), Some(3));
}

#[test]
fn a_page_goes_on_after_a_job_that_lacks_the_field_with_the_value_of_the_last() {
    let key: SortKey = serde_json::from_value(json!({ "ranks": [i64::MAX, 0], "id": "a" })).expect("a key");
    let ascending = Sort::By(SortField::FinishedAt, Direction::Ascending);
    let descending = Sort::By(SortField::FinishedAt, Direction::Descending);
    assert_eq!(search_after(ascending, &key), json!([i64::MAX, "a"]));
    assert_eq!(search_after(descending, &key), json!([i64::MIN, "a"]));

    let key: SortKey = serde_json::from_value(json!({ "ranks": [-100, 7], "id": "a" })).expect("a key");
    assert_eq!(search_after(Sort::Dispatch, &key), json!([100, 7, "a"]));
    assert_eq!(search_after(descending, &key), json!([100, "a"]));

    let by = |text: &str| text.parse::<Sort>().expect("an order");
    let key: SortKey = serde_json::from_value(json!({ "ranks": [0, 0], "text": "missing", "id": "a" })).expect("a key");
    assert_eq!(search_after(by("owner"), &key), json!([null, "a"]));
    let key: SortKey = serde_json::from_value(json!({ "ranks": [i64::MAX, 0], "id": "a" })).expect("a key");
    assert_eq!(search_after(by("progress.percent"), &key), json!(["Infinity", "a"]));
    assert_eq!(search_after(by("-progress.percent"), &key), json!(["-Infinity", "a"]));
}

#[test]
fn a_search_that_lacks_a_shard_is_an_error() {
    let shards = |successful, failed| Shards { total: 2, successful, failed };
    assert!(complete(&shards(2, 0), false).is_ok());
    assert!(complete(&shards(1, 1), false).is_err());
    assert!(complete(&shards(1, 0), false).is_err(), "no copy of it was there to fail");
    assert!(complete(&shards(2, 0), true).is_err());
}
