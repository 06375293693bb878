//! Searches: the query language's part for [`Filter`] and [`Sort`].

use std::collections::HashSet;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::documents::{Present, RawDocument, remember};
use super::indices::Indices;
use super::kql;
use super::nodes::{Nodes, Request};
use super::query_time::QueryTime;
use super::tombstone;
use super::unreadable::Unreadable;
use super::write_id::RecentWrites;
use crate::clock::Timestamp;
use crate::job::{JobId, JobState, LimitName, LimitScope, Partition, QueueName};
use crate::query::fields::{Field, FieldType};
use crate::query::{Direction, Filter, Search, Sort, SortKey, SortValue};
use crate::store::{Place, StoreError, Versioned};

/// The most hits that one request may ask for (the server's `index.max_result_window`).
pub(super) const MAX_PAGE: usize = 10_000;

/// The parameter with which a pattern stands for closed indices too: a search over them fails, where without it they
/// would pass for ones without documents.
const WITH_CLOSED: &str = "expand_wildcards=open,closed";

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
    fn under(limits: &[LimitName]) -> Option<Value> {
        let of_scope = |scope: LimitScope| {
            let names: Vec<&str> =
                limits.iter().filter(|limit| limit.scope == scope).map(|limit| limit.of.as_str()).collect();
            let of_scope = json!({ "terms": { scope.field(): names } });
            (!names.is_empty()).then(|| match scope.has_system_jobs() {
                true => of_scope,
                false => json!({ "bool": { "filter": of_scope, "must_not": of_the_system() } }),
            })
        };
        let any: Vec<Value> = LimitScope::ALL.into_iter().filter_map(of_scope).collect();
        (!any.is_empty()).then(|| json!({ "bool": { "should": any, "minimum_should_match": 1 } }))
    }
    let parts = [
        terms("state", &filter.states, |state| state.as_str()),
        terms("queue", &filter.queues, |queue| queue.as_str()),
        filter.without_system.then(|| json!({ "bool": { "must_not": of_the_system() } })),
        terms("kind", &filter.kinds, |kind| kind.as_str()),
        terms("owner", &filter.owners, |owner| owner.as_str()),
        exists("owner", filter.without_owner.then_some(false)),
        range("run_at", "lte", filter.run_at_most),
        range("run_at", "gt", filter.run_after),
        range("watch_at", "lte", filter.watch_at_most),
        range("finished_at", "lte", filter.finished_at_most),
        range("finished_at", "gt", filter.finished_after),
        range("updated_at", "gt", filter.updated_after),
        exists("held", filter.held),
        exists("orphan.flagged_at", filter.orphaned),
        exists("pending_notices", filter.pending_notices),
        filter.query.as_ref().map(|query| kql::compile_at(&query.expression, query.now)),
        filter.available_in.map(|set| {
            let partitions: Vec<u8> = set.iter().map(Partition::get).collect();
            json!({ "bool": { "filter": [
                { "term": { "state": JobState::Available.as_str() } },
                { "terms": { "partition": partitions } },
            ] } })
        }),
        filter.worker_id.as_ref().map(|worker| json!({ "term": { "lease.worker_id": worker.as_str() } })),
        filter.request_id.as_ref().map(|request| json!({ "term": { "lease.request_id": request.as_str() } })),
        under(&filter.under),
        terms("ordering_key", &filter.in_line_of, |key| key.as_str()),
        terms("ordering_key", &filter.not_in_line_of, |key| key.as_str())
            .map(|left_out| json!({ "bool": { "must_not": left_out } })),
        (!filter.not_requiring.is_empty())
            .then(|| json!({ "bool": { "must_not": { "terms": { "requires": filter.not_requiring } } } })),
        filter.more_urgent_than.map(|than| json!({ "range": { "priority": { "gt": than.get() } } })),
        under(&filter.not_under).map(|left_out| json!({ "bool": { "must_not": left_out } })),
        // A condition that only live jobs satisfy requires a field that tombstones lack.
        (!filter.only_live()).then(|| json!({ "bool": { "must_not": { "exists": { "field": tombstone::FIELD } } } })),
    ];
    let parts: Vec<Value> = parts.into_iter().flatten().collect();
    json!({ "bool": { "filter": parts } })
}

/// Returns the query for the system's own jobs.
fn of_the_system() -> Value {
    json!({ "prefix": { "queue": QueueName::INTERNAL } })
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

#[derive(Deserialize)]
struct SearchReply<'a> {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    #[serde(borrow)]
    hits: Hits<'a>,
}

#[derive(Deserialize)]
struct CountReply {
    timed_out: bool,
    #[serde(rename = "_shards")]
    shards: Shards,
    hits: AllHits,
}

#[derive(Deserialize)]
struct AllHits {
    total: Total,
}

#[derive(Deserialize)]
struct Total {
    value: u64,
}

#[derive(Default, Deserialize)]
pub(super) struct Shards {
    #[serde(default)]
    total: u32,
    #[serde(default)]
    successful: u32,
    #[serde(default)]
    failed: u32,
}

impl Shards {
    pub(super) fn is_whole(&self) -> bool {
        self.failed == 0 && self.successful == self.total
    }

    /// Returns whether there was any index to search.
    pub(super) fn is_any(&self) -> bool {
        self.total > 0
    }
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
    /// Whether the index may be missing, or some of those behind its name closed; then they count as empty.
    pub(super) may_be_missing: bool,
    /// The time that a query may take, however long most requests may; `None` for a search that the indices answer by
    /// themselves, to which the deadline applies.
    pub(super) time: Option<QueryTime>,
}

impl<'a> Scope<'a> {
    /// Returns the scope of a search that the indices answer by themselves, all of which have to be there.
    pub(super) const fn new(nodes: &'a Nodes, index: &'a str, deadline: Instant) -> Self {
        Self { nodes, index, deadline, may_be_missing: false, time: None }
    }
}

/// One page of a search.
pub(super) struct Page<T> {
    /// The number of hits.
    pub(super) hits: usize,
    /// The place of the last hit in the order of the search, after which the next page begins.
    pub(super) last: Option<Value>,
    /// What was read of the hits.
    pub(super) found: Vec<T>,
}

impl<T> Page<T> {
    fn of<'a>(
        hits: &[RawDocument<'a>],
        read: impl Fn(&RawDocument<'a>) -> Result<Option<T>, StoreError>,
    ) -> Result<Self, StoreError> {
        let found = hits.iter().filter_map(|hit| read(hit).transpose()).collect::<Result<Vec<T>, StoreError>>()?;
        let place = |hit: &RawDocument<'_>| hit.sort.and_then(|sort| serde_json::from_str(sort.get()).ok());
        Ok(Self { hits: hits.len(), last: hits.last().and_then(place), found })
    }
}

impl Scope<'_> {
    fn request(&self, parameters: &str, body: &Bytes) -> Request {
        Request::search(format!("{}/_search?{parameters}", self.index), body.clone())
    }

    /// Runs one search and returns its answer. Half an answer is an error: a list with jobs missing looks like one
    /// without.
    pub(super) async fn search(&self, body: &Value) -> Result<Bytes, StoreError> {
        let body = bytes_of(body)?;
        let may_be_missing = if self.may_be_missing { "&ignore_unavailable=true" } else { "" };
        let whole = format!("allow_partial_search_results=false&{WITH_CLOSED}{may_be_missing}");
        let Some(time) = self.time else {
            return self.nodes.body(&self.request(&whole, &body), self.deadline).await;
        };
        let left = time.left()?;
        let patience = left + time.grace();
        let within = format!("{whole}&timeout={}ms", left.as_millis().max(1));
        let request = self.request(&within, &body).with_patience(patience);
        match self.nodes.call(&request, Instant::now() + patience).await {
            Ok(reply) if reply.is_out_of_time() => Err(time.too_slow()),
            Ok(reply) => reply.body(),
            // It may be at work on the query where it does not look at its clock.
            Err(error) if error.is_silence && time.left().is_err() && self.is_answered(time.grace()).await => {
                Err(time.too_slow())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Returns whether the server answers a request that takes no time.
    async fn is_answered(&self, within: Duration) -> bool {
        let request = Request::get("_cluster/health?filter_path=status".to_owned());
        self.nodes.try_call(&request, Instant::now() + within).await.is_ok()
    }
}

fn bytes_of(body: &Value) -> Result<Bytes, StoreError> {
    serde_json::to_vec(body).map(Bytes::from).map_err(|error| StoreError::Corrupt(error.to_string()))
}

/// Checks that a search's answer is about every shard. A shard of which no copy is there is not among the failed.
pub(super) fn complete(shards: &Shards, timed_out: bool) -> Result<(), StoreError> {
    if !shards.is_whole() || timed_out {
        let Shards { total, successful, .. } = shards;
        let what = format!("a search is incomplete ({successful} of {total} shards answered, timed out: {timed_out})");
        return Err(StoreError::Unavailable(what));
    }
    Ok(())
}

/// Returns the hits of an answer that is about every shard, and these shards.
pub(super) fn hits_of<H: DeserializeOwned>(answer: &Bytes) -> Result<(Vec<H>, Shards), StoreError> {
    #[derive(Deserialize)]
    struct Answer<H> {
        timed_out: bool,
        #[serde(rename = "_shards")]
        shards: Shards,
        hits: Hits<H>,
    }
    #[derive(Deserialize)]
    struct Hits<H> {
        hits: Vec<H>,
    }
    let answer: Answer<H> = serde_json::from_slice(answer).map_err(|error| unreadable(&error))?;
    complete(&answer.shards, answer.timed_out)?;
    Ok((answer.hits.hits, answer.shards))
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
        let reply = self.search(body).await?;
        let reply: SearchReply = serde_json::from_slice(&reply).map_err(|error| unreadable(&error))?;
        complete(&reply.shards, reply.timed_out)?;
        read(&reply.hits.hits)
    }

    /// Runs one search and returns what `read` parses from each hit, without those of which it returns `None`.
    pub(super) async fn page<T>(
        &self,
        body: &Value,
        read: impl Fn(&RawDocument<'_>) -> Result<Option<T>, StoreError>,
    ) -> Result<Page<T>, StoreError> {
        self.hits(body, |hits| Page::of(hits, read)).await
    }

    /// Counts the documents that match a query.
    pub(super) async fn count(&self, query: &Value) -> Result<u64, StoreError> {
        let reply = self.search(&json!({ "query": query, "size": 0, "track_total_hits": true })).await?;
        let reply: CountReply = serde_json::from_slice(&reply).map_err(|error| unreadable(&error))?;
        complete(&reply.shards, reply.timed_out)?;
        Ok(reply.hits.total.value)
    }

    /// Runs one search over the shards that are there, without waiting for the others. Returns what `read` parses from
    /// its hits; `None` when not every shard has answered.
    pub(super) async fn hits_at_once<T>(
        &self,
        body: &Value,
        read: impl FnOnce(&[RawDocument<'_>]) -> T,
    ) -> Result<Option<T>, StoreError> {
        let parameters = format!("allow_partial_search_results=true&{WITH_CLOSED}");
        let request = self.request(&parameters, &bytes_of(body)?);
        let answer = self.nodes.try_call(&request, self.deadline).await?.body()?;
        let reply: SearchReply = serde_json::from_slice(&answer).map_err(|error| unreadable(&error))?;
        Ok((reply.shards.is_whole() && !reply.timed_out).then(|| read(&reply.hits.hits)))
    }
}

/// Finds jobs. One that is found twice, while it moves, is found once: a copy has the place in the order that its job
/// has, and so comes next to it. What cannot be read is passed over.
pub(super) async fn search(
    scope: Scope<'_>,
    indices: &Indices,
    search: &Search,
    recent: &RecentWrites,
    unreadable: &Unreadable,
) -> Result<Vec<Versioned>, StoreError> {
    let index = index_for(&search.filter, indices);
    let scope = Scope { index: &index, ..scope };
    let mut jobs: Vec<Versioned> = Vec::with_capacity(search.limit.min(MAX_PAGE));
    let mut after = search.after.as_ref().map(|after| search_after(search.sort, after));
    let mut passed_over = 0;
    // Ends: every round goes a page further, or is the last.
    while jobs.len() < search.limit {
        // The more could not be read so far, the more are asked for.
        let size = (search.limit - jobs.len() + passed_over).min(MAX_PAGE);
        let body = page_of(search, size, after.as_ref());
        let read_page = |hits: &[RawDocument<'_>]| jobs_of(hits, indices, recent, unreadable);
        let Page { hits, last, found } = scope.hits(&body, read_page).await?;
        passed_over += hits - found.len();
        jobs.extend(once_each(found));
        // The page's end is decided on what came, before anything was taken out.
        if hits < size {
            break;
        }
        after = last;
    }
    jobs.truncate(search.limit);
    Ok(jobs)
}

/// Returns the request body for a page of this size.
fn page_of(search: &Search, size: usize, after: Option<&Value>) -> Value {
    let mut body = page(&query(&search.filter), size);
    body["sort"] = order(search.sort);
    if let Some(after) = after {
        body["search_after"] = after.clone();
    }
    body
}

/// Reads a page of jobs, and takes note of what shows that writes were made.
fn jobs_of(
    hits: &[RawDocument<'_>],
    indices: &Indices,
    recent: &RecentWrites,
    unreadable: &Unreadable,
) -> Result<Page<Versioned>, StoreError> {
    let Page { hits, last, found } = Page::of(hits, |hit| unreadable.job(hit, indices))?;
    remember(recent, found.iter());
    let found: Vec<Versioned> = found.into_iter().map(Present::into_versioned).collect();
    Ok(Page { hits, last, found })
}

/// Finds the first page of the jobs of each of these searches with one request.
pub(super) async fn search_each(
    scope: Scope<'_>,
    indices: &Indices,
    searches: &[Search],
    recent: &RecentWrites,
    unreadable: &Unreadable,
) -> Result<Vec<Vec<Versioned>>, StoreError> {
    #[derive(Deserialize)]
    struct Replies<'a> {
        #[serde(borrow)]
        responses: Vec<SearchReply<'a>>,
    }
    let line = |search: &Search| {
        let head = json!({
            "index": index_for(&search.filter, indices), "allow_partial_search_results": false,
            "expand_wildcards": "open,closed",
        });
        let after = search.after.as_ref().map(|after| search_after(search.sort, after));
        format!("{head}\n{}\n", page_of(search, search.limit.min(MAX_PAGE), after.as_ref()))
    };
    let lines: String = searches.iter().map(line).collect();
    let reply = scope.nodes.body(&Request::lines("_msearch".to_owned(), lines.into()), scope.deadline).await?;
    let replies: Replies<'_> = serde_json::from_slice(&reply).map_err(|error| self::unreadable(&error))?;
    if replies.responses.len() != searches.len() {
        return Err(StoreError::Unavailable("a search of several was not answered as a whole".to_owned()));
    }
    let mut found = Vec::with_capacity(searches.len());
    for reply in &replies.responses {
        complete(&reply.shards, reply.timed_out)?;
        found.push(once_each(jobs_of(&reply.hits.hits, indices, recent, unreadable)?.found).collect());
    }
    Ok(found)
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
    // Copies that are not assigned are part of the total, and have nothing to refresh.
    match reply.shards.failed {
        0 => Ok(()),
        failed => Err(StoreError::Unavailable(format!("{failed} shards could not be refreshed"))),
    }
}

#[cfg(test)]
mod tests;
