//! Searches: the query language's part for [`Filter`] and [`Sort`].

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::documents::{Present, RawDocument, remember};
use super::indices::Indices;
use super::kql;
use super::nodes::{Nodes, Request};
use super::tombstone;
use super::write_id::RecentWrites;
use crate::clock::Timestamp;
use crate::job::JobId;
use crate::query::fields::{Field, FieldType};
use crate::query::{Direction, Filter, Search, Sort, SortKey, SortValue};
use crate::store::{Place, StoreError, Versioned};

/// The most hits that one request may ask for (the server's `index.max_result_window`).
pub(super) const MAX_PAGE: usize = 10_000;

/// Returns the indices to search for a filter: jobs that have not ended are all in the live index.
pub(super) fn index_for(filter: &Filter, indices: &Indices) -> String {
    let in_query = || filter.query.as_ref().is_some_and(|query| query.expression.bounds(query.now).only_live());
    if filter.only_live() || in_query() { indices.jobs.clone() } else { indices.whole() }
}

/// Returns the query for `filter`, which consists of filters only, so nothing is scored.
pub(super) fn query(filter: &Filter) -> Value {
    fn terms<'a, T: 'a>(field: &str, values: &'a [T], text: impl Fn(&'a T) -> &'a str) -> Option<Value> {
        let values: Vec<&str> = values.iter().map(text).collect();
        (!values.is_empty()).then(|| json!({ "terms": { field: values } }))
    }
    fn range(field: &str, comparison: &str, time: Option<Timestamp>) -> Option<Value> {
        let bound = json!({ comparison: time?.as_millis(), "format": "epoch_millis" });
        Some(json!({ "range": { field: bound } }))
    }
    fn exists(field: &str, wanted: Option<bool>) -> Option<Value> {
        let there = json!({ "exists": { "field": field } });
        Some(if wanted? { there } else { json!({ "bool": { "must_not": there } }) })
    }
    let parts = [
        terms("state", &filter.states, |state| state.as_str()),
        terms("queue", &filter.queues, |queue| queue.as_str()),
        terms("kind", &filter.kinds, |kind| kind.as_str()),
        terms("owner", &filter.owners, |owner| owner.as_str()),
        range("run_at", "lte", filter.run_at_most),
        range("run_at", "gt", filter.run_after),
        range("watch_at", "lte", filter.watch_at_most),
        range("finished_at", "lte", filter.finished_at_most),
        range("finished_at", "gt", filter.finished_after),
        range("updated_at", "gt", filter.updated_after),
        exists("orphan.flagged_at", filter.orphaned),
        exists("pending_notices", filter.pending_notices),
        filter.query.as_ref().map(|query| kql::compile_at(&query.expression, query.now)),
        filter.worker_id.as_ref().map(|worker| json!({ "term": { "lease.worker_id": worker.as_str() } })),
        filter.request_id.as_ref().map(|request| json!({ "term": { "lease.request_id": request.as_str() } })),
        // A condition that only live jobs satisfy requires a field that tombstones lack.
        (!filter.only_live()).then(|| json!({ "bool": { "must_not": { "exists": { "field": tombstone::FIELD } } } })),
    ];
    let parts: Vec<Value> = parts.into_iter().flatten().collect();
    json!({ "bool": { "filter": parts } })
}

/// Returns the sort order, with the id last, which makes it total.
fn order(sort: Sort) -> Value {
    let by = |field: &str, direction: &str| {
        // An index of an older version may lack the field.
        let unmapped = Field::named(field).map_or("long", |field| unmapped_type(field.kind));
        json!({ field: { "order": direction, "missing": "_last", "unmapped_type": unmapped } })
    };
    match sort {
        Sort::Dispatch => json!([by("priority", "desc"), by("run_at", "asc"), by("id", "asc")]),
        Sort::By(field, Direction::Ascending) => json!([by(field.as_str(), "asc"), by("id", "asc")]),
        Sort::By(field, Direction::Descending) => json!([by(field.as_str(), "desc"), by("id", "asc")]),
    }
}

/// Returns the type in the index of a sort field.
fn unmapped_type(kind: FieldType) -> &'static str {
    match kind {
        FieldType::Date => "date",
        FieldType::Integer { most, .. } if most == i64::from(i16::MAX) => "short",
        FieldType::Integer { .. } => "long",
        FieldType::Number => "double",
        _ => "keyword",
    }
}

/// Returns the `search_after` value for the job with `key`. A job without the field has the value that the server
/// itself gives to jobs that it sorts last.
fn search_after(sort: Sort, key: &SortKey) -> Value {
    let is_descending = matches!(sort, Sort::By(_, Direction::Descending));
    let (last, last_number) = if is_descending { (i64::MIN, "-Infinity") } else { (i64::MAX, "Infinity") };
    let value = |value: SortValue<'_>| match value {
        SortValue::Integer(number) => json!(number.unwrap_or(last)),
        SortValue::Number(number) => number.map_or_else(|| json!(last_number), |number| json!(number)),
        SortValue::Text(text) => json!(text),
    };
    let values = sort.values(key).into_iter().map(value);
    values.chain([json!(key.id().as_str())]).collect()
}

/// Returns the request body for one page of hits, with their versions and without a total count.
pub(super) fn page(query: &Value, size: usize) -> Value {
    json!({ "query": query, "size": size, "seq_no_primary_term": true, "track_total_hits": false })
}

fn search_body(search: &Search, after: Option<&SortKey>, size: usize) -> Value {
    let mut body = page(&query(&search.filter), size);
    body["sort"] = order(search.sort);
    if let Some(after) = after {
        body["search_after"] = search_after(search.sort, after);
    }
    body
}

#[derive(Deserialize)]
struct SearchReply<'a> {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    #[serde(borrow)]
    hits: Hits<'a>,
}

#[derive(Default, Deserialize)]
pub(super) struct Shards {
    #[serde(default)]
    failed: u32,
}

#[derive(Deserialize)]
struct Hits<'a> {
    #[serde(borrow)]
    hits: Vec<RawDocument<'a>>,
}

/// The nodes, index and deadline of a search.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub(super) nodes: &'a Nodes,
    pub(super) index: &'a str,
    pub(super) deadline: Instant,
}

impl Scope<'_> {
    pub(super) async fn post(&self, api: &str, body: &Value) -> Result<bytes::Bytes, StoreError> {
        // Half an answer is an error: a list with jobs missing looks like one without.
        let path = match api {
            "_search" => format!("{}/_search?allow_partial_search_results=false", self.index),
            _ => format!("{}/{api}", self.index),
        };
        let body = serde_json::to_vec(body).map_err(|error| StoreError::Corrupt(error.to_string()))?;
        self.nodes.body(&Request::post(path, body), self.deadline).await
    }
}

pub(super) fn complete(shards: &Shards, timed_out: bool) -> Result<(), StoreError> {
    if shards.failed > 0 || timed_out {
        let what = format!("a search is incomplete ({} shards failed, timed out: {timed_out})", shards.failed);
        return Err(StoreError::Unavailable(what));
    }
    Ok(())
}

pub(super) fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::Unavailable(format!("not a search's answer: {error}"))
}

impl Scope<'_> {
    /// Runs one search and returns what `read` parses from its hits.
    pub(super) async fn hits<T>(
        &self,
        body: &Value,
        read: impl FnOnce(&[RawDocument<'_>]) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let reply = self.post("_search", body).await?;
        let reply: SearchReply = serde_json::from_slice(&reply).map_err(|error| unreadable(&error))?;
        complete(&reply.shards, reply.timed_out)?;
        read(&reply.hits.hits)
    }
}

/// Finds jobs. One that is found twice, while it moves, is found once: a copy has the place in the order that its job
/// has, and so comes next to it.
pub(super) async fn search(
    scope: Scope<'_>,
    indices: &Indices,
    search: &Search,
    recent: &RecentWrites,
) -> Result<Vec<Versioned>, StoreError> {
    let index = index_for(&search.filter, indices);
    let scope = Scope { index: &index, ..scope };
    let mut jobs: Vec<Versioned> = Vec::with_capacity(search.limit.min(MAX_PAGE));
    let mut after = search.after.clone();
    // Ends: every round goes a page further, or is the last.
    while jobs.len() < search.limit {
        let size = (search.limit - jobs.len()).min(MAX_PAGE);
        let read_page = |hits: &[RawDocument<'_>]| {
            let found = hits.iter().map(|hit| hit.job(indices)).collect::<Result<Vec<_>, StoreError>>()?;
            remember(recent, found.iter().flatten());
            Ok(found.into_iter().flatten().map(Present::into_versioned).collect::<Vec<_>>())
        };
        let page = scope.hits(&search_body(search, after.as_ref(), size), read_page).await?;
        // The page's end is decided on what came, before what came twice is taken out.
        let found = page.len();
        after = page.last().map(|last| search.sort.key(&last.job));
        jobs.extend(once_each(page));
        if found < size {
            break;
        }
    }
    Ok(jobs)
}

/// Leaves out the copies of jobs that are on the page as live ones too.
fn once_each(page: Vec<Versioned>) -> impl Iterator<Item = Versioned> {
    let is_live = |found: &Versioned| found.version.place == Place::Main;
    let copied = page.iter().any(|found| !is_live(found));
    let live: HashSet<JobId> = if copied {
        page.iter().filter(|found| is_live(found)).map(|found| found.job.id.clone()).collect()
    } else {
        HashSet::new()
    };
    page.into_iter().filter(move |found| is_live(found) || !live.contains(&found.job.id))
}

/// Checks that a refresh's answer reports every shard as refreshed.
pub(super) fn refreshed(body: &[u8]) -> Result<(), StoreError> {
    #[derive(Deserialize)]
    struct RefreshReply {
        #[serde(rename = "_shards")]
        shards: Shards,
    }
    let reply: RefreshReply = serde_json::from_slice(body).map_err(|error| unreadable(&error))?;
    complete(&reply.shards, false)
}

#[cfg(test)]
mod tests;
