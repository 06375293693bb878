//! The textbook protocol of a queue on an index, for comparison: a worker searches for one available job, writes
//! *running* over the version found, does the work, and writes *completed* over its own version.
//!
//! It is made as one would who knows Elasticsearch: the search filters, answers with one hit and its version, and takes
//! it at random, so that workers seldom meet at the same job; connections stay open; of the answers only what is needed
//! is sent. It has no leases, no history and no order.

use std::cell::{Cell, RefCell};
use std::time::Duration;

use futures::future::try_join_all;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::Cluster;
use super::row::{Protocol, Row, own_processor_seconds};
use crate::cli::bench::args::BenchArgs;
use crate::cli::bench::calls::{ClaimedJob, Payload};
use crate::cli::bench::latency::Steady;
use crate::cli::bench::report::Report;
use crate::cli::bench::scoreboard::Scoreboard;
use crate::cli::failure::Failure;
use crate::outgoing;

/// How many documents go in one bulk when the index is filled.
const FILL: u32 = 1_000;
/// For how long jobs are taken at most. The rest stays: it is slow.
const AT_MOST: Duration = Duration::from_secs(30);
/// How long a worker waits after a search that found nothing.
const PAUSE: Duration = Duration::from_millis(50);
/// How long the last jobs of the steady load may take.
const LAST_WITHIN: Duration = Duration::from_secs(60);

/// The index, and the state that the workers, all on one thread, share.
struct Textbook<'a> {
    http: &'a reqwest::Client,
    urls: &'a [String],
    index: String,
    board: RefCell<Scoreboard>,
    jobs: u32,
    claims: Cell<u64>,
    conflicts: Cell<u64>,
    give_up_at: Cell<Option<Instant>>,
}

/// Measures the protocol over a cluster.
pub(super) async fn measure(args: &BenchArgs, cluster: &Cluster, jobs: u32, steady: &Steady) -> Result<Row, Failure> {
    let http = outgoing::direct().timeout(Duration::from_secs(30)).build().map_err(Failure::failed)?;
    let padding = "x".repeat(args.payload_bytes.saturating_sub(16) as usize);
    let full = Textbook::create(&http, &cluster.urls, vec![Some(Instant::now()); jobs as usize]).await?;
    for first in (0..jobs).step_by(FILL as usize) {
        full.fill(first..jobs.min(first + FILL), &padding).await?;
    }
    full.post(0, "_refresh", String::new()).await?;

    let (begun, processor) = (Instant::now(), own_processor_seconds());
    full.give_up_at.set(Some(begun + AT_MOST));
    try_join_all((0..steady.workers).map(|number| full.work(number))).await?;
    let processor = own_processor_seconds().zip(processor).map(|(now, before)| now - before);
    let (claims, conflicts) = (full.claims.get(), full.conflicts.get());
    let (mut report, counted) = full.end(begun).await?;
    // What nobody had time to take is not lost.
    report.jobs = claims;
    let mut row = Row { workers: steady.workers, ..Row::of(Protocol::Textbook, &report, counted) };
    row.jobs = jobs.into();
    row.conflicts_per_claim = conflicts as f64 / claims.max(1) as f64;
    row.processor_us_per_job = processor.map(|seconds| seconds * 1e6 / row.completed.max(1) as f64);

    let begun = Instant::now() + Duration::from_secs(1);
    let due_at = (0..steady.jobs()).map(|number| Some(begun + steady.due_after(number))).collect();
    let flow = Textbook::create(&http, &cluster.urls, due_at).await?;
    flow.give_up_at.set(Some(begun + steady.duration + LAST_WITHIN));
    let submit = async |number| {
        tokio::time::sleep_until(begun + steady.due_after(number)).await;
        flow.fill(number..number + 1, &padding).await
    };
    let workers = try_join_all((0..steady.workers).map(|number| flow.work(number)));
    tokio::try_join!(try_join_all((0..steady.jobs()).map(submit)), workers)?;
    let (report, counted) = flow.end(begun).await?;
    row.add_steady(&report, counted);
    row.elasticsearch_nodes = cluster.nodes;
    Ok(row)
}

impl<'a> Textbook<'a> {
    /// Creates an index for jobs that are sent at these times.
    async fn create(
        http: &'a reqwest::Client,
        urls: &'a [String],
        sent_at: Vec<Option<Instant>>,
    ) -> Result<Self, Failure> {
        let textbook = Self {
            http,
            urls,
            index: format!("leasehold-bench-{:08x}-textbook", rand::random::<u32>()),
            jobs: u32::try_from(sent_at.len()).unwrap_or(u32::MAX),
            board: RefCell::new(Scoreboard::new(sent_at, "submit", "complete")?),
            claims: Cell::new(0),
            conflicts: Cell::new(0),
            give_up_at: Cell::new(None),
        };
        // As the indices of Leasehold are: one shard, and a copy as soon as there is a second node.
        let definition = json!({
            "settings": {"number_of_shards": 1, "auto_expand_replicas": "0-1", "refresh_interval": "1s"},
            "mappings": {"dynamic": "strict", "properties": {
                "state": {"type": "keyword"}, "worker": {"type": "keyword"}, "n": {"type": "long"},
                "payload": {"type": "keyword", "index": false, "doc_values": false},
            }},
        });
        let url = format!("{}/{}", urls[0].trim_end_matches('/'), textbook.index);
        expect(http.put(url).json(&definition).send().await).await?;
        Ok(textbook)
    }

    async fn send(&self, client: u32, path: &str, body: String) -> Result<reqwest::Response, Failure> {
        let url = self.urls[client as usize % self.urls.len()].trim_end_matches('/');
        let call = self.http.post(format!("{url}/{}/{path}", self.index)).header("content-type", "application/json");
        call.body(body).send().await.map_err(|error| Failure::Failed(error.without_url().to_string()))
    }

    async fn post(&self, client: u32, path: &str, body: String) -> Result<Value, Failure> {
        expect(Ok(self.send(client, path, body).await?)).await
    }

    async fn fill(&self, numbers: std::ops::Range<u32>, padding: &str) -> Result<(), Failure> {
        let client = numbers.start;
        let line = |n| {
            let document = json!({"state": "available", "n": n, "payload": padding});
            format!("{{\"create\":{{\"_id\":\"{n}\"}}}}\n{document}\n")
        };
        let answer = self.post(client, "_bulk?filter_path=errors", numbers.map(line).collect()).await?;
        match answer["errors"] == false {
            true => Ok(()),
            false => Err(Failure::Failed("Elasticsearch refused a job of the textbook protocol".to_owned())),
        }
    }

    /// Takes jobs, one after the other, until all are done or the time is up.
    async fn work(&self, number: u16) -> Result<(), Failure> {
        let client = u32::from(number);
        let search = json!({
            "size": 1, "seq_no_primary_term": true,
            "query": {"function_score": {
                "query": {"bool": {"filter": {"term": {"state": "available"}}}},
                "random_score": {}, "boost_mode": "replace",
            }},
        })
        .to_string();
        let found = "_search?filter_path=hits.hits._id,hits.hits._seq_no,hits.hits._primary_term,hits.hits._source.n";
        let running = json!({"doc": {"state": "running", "worker": format!("worker-{number}")}}).to_string();
        let completed = json!({"doc": {"state": "completed"}}).to_string();
        while self.board.borrow().completions < u64::from(self.jobs) {
            if self.give_up_at.get().is_some_and(|until| until < Instant::now()) {
                return Ok(());
            }
            let answer = self.post(client, found, search.clone()).await?;
            let Some(hit) = answer["hits"]["hits"].get(0) else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let Some(claim) = self.replace(client, hit, &running).await? else {
                self.conflicts.update(|conflicts| conflicts + 1);
                continue;
            };
            self.claims.update(|claims| claims + 1);
            let payload =
                Payload { n: hit["_source"]["n"].as_u64().and_then(|n| n.try_into().ok()).unwrap_or(u32::MAX) };
            let id = hit["_id"].as_str().unwrap_or_default();
            self.board.borrow_mut().note_claim(&ClaimedJob { id, fence: 0, payload }, Instant::now())?;
            let begun = Instant::now();
            if self.replace(client, &claim, &completed).await?.is_some() {
                self.board.borrow_mut().note_completions(1, begun.elapsed());
            }
        }
        Ok(())
    }

    /// Writes over the version of a job that was found or written. Returns the new version, and nothing when another
    /// write came first.
    async fn replace(&self, client: u32, over: &Value, body: &str) -> Result<Option<Value>, Failure> {
        let (id, seq_no, term) = (over["_id"].as_str().unwrap_or_default(), &over["_seq_no"], &over["_primary_term"]);
        let path =
            format!("_update/{id}?if_seq_no={seq_no}&if_primary_term={term}&filter_path=_id,_seq_no,_primary_term");
        let answer = self.send(client, &path, body.to_owned()).await?;
        if answer.status() == reqwest::StatusCode::CONFLICT {
            // Read to its end, so that the connection is used again.
            answer.bytes().await.map_err(Failure::failed)?;
            return Ok(None);
        }
        expect(Ok(answer)).await.map(Some)
    }

    /// Returns the report, and how many jobs the index shows as completed.
    async fn end(self, begun: Instant) -> Result<(Report, u64), Failure> {
        self.post(0, "_refresh", String::new()).await?;
        let completed = json!({"query": {"term": {"state": "completed"}}}).to_string();
        let counted = self.post(0, "_count?filter_path=count", completed).await?["count"].as_u64().unwrap_or_default();
        Ok((self.board.into_inner().report("textbook", "the textbook protocol".to_owned(), begun), counted))
    }
}

/// Reads an answer that must not be an error.
pub(super) async fn expect(answer: Result<reqwest::Response, reqwest::Error>) -> Result<Value, Failure> {
    let failed = |error: reqwest::Error| Failure::Failed(format!("Elasticsearch: {}", error.without_url()));
    let answer = answer.map_err(failed)?;
    let status = answer.status();
    let text = answer.text().await.map_err(failed)?;
    match status.is_success() {
        true => serde_json::from_str(&text).map_err(Failure::failed),
        false => Err(Failure::Failed(format!("Elasticsearch answers {status}: {text}"))),
    }
}
