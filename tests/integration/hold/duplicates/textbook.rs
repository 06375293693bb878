//! The textbook protocol on an index, without managers: a worker searches for available jobs and takes them by writing
//! *running* over the version found, is heard of by plain updates, and writes *completed*; a monitor writes *available*
//! over the version of running jobs that were not heard of for a lease.
//!
//! It is given what makes it better without changing it: writes travel in bulks, workers find jobs in random order and so
//! seldom meet, and the monitor's writes are conditional too. A claim whose answer is lost is left to the monitor.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};

use super::journal::{micros, now};
use super::worker::{Caller, End, Heard, Held, LEASE, Protocol, is_ending};

const AVAILABLE: &str = "AVAILABLE";
const RUNNING: &str = "RUNNING";
pub(super) const COMPLETED: &str = "COMPLETED";
/// The states of jobs that have not ended.
pub(super) const OPEN: [&str; 2] = [AVAILABLE, RUNNING];

/// How often the monitor looks, and the most jobs that it gives back each time.
const WATCH_EVERY: Duration = Duration::from_millis(500);
const WATCHED: usize = 1_000;
/// How often Elasticsearch repeats a plain update that met another one.
const RETRIES: u32 = 3;

pub(super) struct Textbook {
    caller: Caller,
    name: String,
    index: String,
    /// Whether a worker looks whether the job is still its own before it writes the end.
    checks_owner: bool,
}

/// The index of the jobs, as it is created.
pub(super) fn index() -> Value {
    json!({
        "settings": {"number_of_shards": 1, "number_of_replicas": 0, "refresh_interval": "1s"},
        "mappings": {"dynamic": "strict", "properties": {
            "state": {"type": "keyword"}, "owner": {"type": "keyword"}, "heartbeat_at": {"type": "long"},
        }},
    })
}

/// The two lines of a bulk that submit a job.
pub(super) fn submission(id: &str) -> String {
    format!("{}\n{}\n", json!({"create": {"_id": id}}), json!({"state": AVAILABLE}))
}

impl Textbook {
    pub(super) fn new(caller: Caller, name: &str, index: &str, checks_owner: bool) -> Self {
        Self { caller, name: name.to_owned(), index: index.to_owned(), checks_owner }
    }

    /// Writes the same to many jobs, whatever they are by now; returns the status of each.
    async fn update(&mut self, held: &[Held], fields: &Value) -> Option<Vec<u64>> {
        let line = |lease: &Held| {
            let target = json!({"update": {"_id": lease.id, "retry_on_conflict": RETRIES}});
            format!("{target}\n{}\n", json!({"doc": fields}))
        };
        let answer = bulk(&mut self.caller, &self.index, held.iter().map(line).collect()).await?;
        Some(answer.iter().map(|item| item["status"].as_u64().expect("a status")).collect())
    }

    /// For each job, whether it is still this worker's, or how it ended.
    async fn looked_at(&mut self, held: &[Held]) -> Option<Vec<Option<End>>> {
        let ids: Vec<&str> = held.iter().map(|lease| lease.id.as_str()).collect();
        let answer = self.caller.post(&format!("/{}/_mget", self.index), json!({"ids": ids}).to_string()).await?;
        let own = |document: &Value| {
            let fields = &document["_source"];
            match fields["state"].as_str() {
                _ if fields["owner"] != self.name.as_str() => Some(End::Refused),
                Some(RUNNING) => None,
                // An end that was written before, without an answer.
                Some(COMPLETED) => Some(End::Acknowledged),
                _ => Some(End::Refused),
            }
        };
        Some(answer["docs"].as_array().expect("documents").iter().map(own).collect())
    }
}

#[async_trait]
impl Protocol for Textbook {
    async fn claim(&mut self, most: usize) -> Vec<Held> {
        let at_random = json!({"function_score": {
            "query": {"bool": {"filter": {"term": {"state": AVAILABLE}}}}, "random_score": {}, "boost_mode": "replace",
        }});
        let Some(found) = search(&mut self.caller, &self.index, &at_random, most).await else { return Vec::new() };
        let sent = now();
        let fields = json!({"state": RUNNING, "owner": self.name, "heartbeat_at": sent});
        let Some(items) = replace(&mut self.caller, &self.index, &found, &fields).await else { return Vec::new() };
        let held = |item: &Value| {
            let is_ours = item["status"] == 200;
            is_ours.then(|| Held {
                id: item["_id"].as_str().expect("an id").to_owned(),
                token: item["_seq_no"].as_u64().expect("a number"),
                until: sent + micros(LEASE),
            })
        };
        items.iter().filter_map(held).collect()
    }

    async fn beat(&mut self, held: &[Held]) -> Vec<Heard> {
        let sent = now();
        let Some(statuses) = self.update(held, &json!({"heartbeat_at": sent})).await else {
            return held.iter().map(|_| Heard::Nothing).collect();
        };
        let until = sent + micros(LEASE);
        let heard = |status| if status == 200 { Heard::Renewed { until } } else { Heard::Nothing };
        statuses.into_iter().map(heard).collect()
    }

    async fn complete(&mut self, held: &[Held]) -> Vec<End> {
        let unanswered = || held.iter().map(|_| End::Unanswered).collect();
        let mut ends: Vec<Option<End>> = held.iter().map(|_| None).collect();
        if self.checks_owner {
            let Some(looked_at) = self.looked_at(held).await else { return unanswered() };
            ends = looked_at;
        }
        let open = held.iter().zip(&ends).filter(|(_, end)| end.is_none()).map(|(lease, _)| lease.clone());
        let open: Vec<Held> = open.collect();
        let mut statuses = Vec::new().into_iter();
        if !open.is_empty() {
            let fields = json!({"state": COMPLETED, "owner": self.name});
            let Some(written) = self.update(&open, &fields).await else { return unanswered() };
            statuses = written.into_iter();
        }
        let written = |status| if status == 200 { End::Acknowledged } else { End::Unanswered };
        let end = |end: Option<End>| end.unwrap_or_else(|| written(statuses.next().expect("a status for each")));
        ends.into_iter().map(end).collect()
    }
}

/// The monitor: makes jobs available again that were not heard of for a lease.
pub(super) async fn watch_over(mut caller: Caller, index: &str) {
    while !is_ending() {
        tokio::time::sleep(WATCH_EVERY).await;
        let stale = json!({"bool": {"filter": [
            {"term": {"state": RUNNING}}, {"range": {"heartbeat_at": {"lt": now() - micros(LEASE)}}},
        ]}});
        if let Some(found) = search(&mut caller, index, &stale, WATCHED).await {
            let fields = json!({"state": AVAILABLE, "owner": null});
            // What this did not reach is found again.
            let _written = replace(&mut caller, index, &found, &fields).await;
        }
    }
}

/// Finds jobs and their versions.
async fn search(caller: &mut Caller, index: &str, query: &Value, most: usize) -> Option<Vec<Value>> {
    let body = json!({"query": query, "size": most, "_source": false, "seq_no_primary_term": true});
    let answer = caller.post(&format!("/{index}/_search"), body.to_string()).await?;
    Some(answer["hits"]["hits"].as_array().expect("hits").clone())
}

/// Writes the same to all jobs that are still as they were found; returns what became of each.
async fn replace(caller: &mut Caller, index: &str, found: &[Value], fields: &Value) -> Option<Vec<Value>> {
    let line = |hit: &Value| {
        let (id, seq_no, term) = (&hit["_id"], &hit["_seq_no"], &hit["_primary_term"]);
        let target = json!({"update": {"_id": id, "if_seq_no": seq_no, "if_primary_term": term}});
        format!("{target}\n{}\n", json!({"doc": fields}))
    };
    bulk(caller, index, found.iter().map(line).collect()).await
}

async fn bulk(caller: &mut Caller, index: &str, lines: String) -> Option<Vec<Value>> {
    if lines.is_empty() {
        return Some(Vec::new());
    }
    let answer = caller.post(&format!("/{index}/_bulk"), lines).await?;
    Some(answer["items"].as_array().expect("items").iter().map(|item| item["update"].clone()).collect())
}
