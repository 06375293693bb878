//! The ceiling: what Elasticsearch does with the documents of Leasehold's jobs when it is asked for nothing else, by
//! the search that finds available jobs, and a `_bulk` for their claims and one for their completions. For whole lives
//! a `_bulk` that creates them comes in place of the search.
//!
//! The index and the jobs are those of a manager that has ended. Each write has the whole document of a job that the
//! manager submitted, claimed and completed, under the condition on the version; nothing is decided, read or checked
//! but that Elasticsearch took it.

use std::cell::Cell;

use futures::future::try_join_all;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tokio::time::Instant;
use uuid::Uuid;

use super::cluster::Cluster;
use super::naive::expect;
use super::row::{Protocol, Row, own_processor_seconds};
use crate::cli::bench::args::BenchArgs;
use crate::cli::bench::calls::{Claimed, claim_body, read};
use crate::cli::bench::lives;
use crate::cli::bench::target::Target;
use crate::cli::failure::Failure;
use crate::outgoing;

/// How many jobs one search finds, as those of a manager do.
const PAGE: usize = 1_000;
/// How many batches are found ahead of those that are claimed.
const AHEAD: usize = 32;

/// A document at a version; without one, it is to be created.
struct Found {
    id: String,
    version: Option<Version>,
}

struct Version {
    seq_no: u64,
    primary_term: u64,
}

/// The document of a job.
struct Template {
    id: String,
    document: String,
}

/// The documents of a job that the manager was given, and of one that it claimed and completed, as it was after each.
struct Templates {
    available: Template,
    claimed: Template,
    completed: Template,
}

struct Ceiling<'a> {
    http: reqwest::Client,
    urls: &'a [String],
    index: String,
    templates: Templates,
    completed: Cell<u64>,
}

/// Measures a cluster alone.
pub(super) async fn measure(args: &BenchArgs, cluster: &Cluster, jobs: u32, workers: u16) -> Result<Row, Failure> {
    let managers = Target::managers(args, &cluster.urls, 1).await?;
    // One more, which the templates are made of.
    let filled = if args.whole_lives { 1 } else { jobs + 1 };
    lives::fill(args, &managers, filled).await?;
    managers[0].until_visible(filled).await?;
    let http = outgoing::direct().build().map_err(Failure::failed)?;
    let index = managers[0].live_index();
    let templates = Templates::of_a_life(&http, &cluster.urls[0], &index, &managers[0]).await?;
    for manager in managers {
        manager.stop().await;
    }
    let ceiling = Ceiling { http, urls: &cluster.urls, index, templates, completed: Cell::new(0) };
    ceiling.post(0, "_refresh", String::new()).await?;

    let (begun, processor) = (Instant::now(), own_processor_seconds());
    let (batches, claims) = mpsc::channel(AHEAD);
    let claims = Mutex::new(claims);
    let work = try_join_all((0..workers.into()).map(|client| ceiling.work(client, &claims)));
    match args.whole_lives {
        true => tokio::try_join!(ceiling.create(args, jobs, batches), work).map(drop)?,
        false => tokio::try_join!(ceiling.find(args.batch.into(), batches), work).map(drop)?,
    }
    let seconds = begun.elapsed().as_secs_f64();
    let processor = own_processor_seconds().zip(processor).map(|(now, before)| now - before);
    let completed = ceiling.completed.get();
    Ok(Row {
        protocol: Protocol::Ceiling,
        elasticsearch_nodes: cluster.nodes,
        managers: None,
        workers,
        jobs: jobs.into(),
        completed,
        seconds,
        jobs_per_second: completed as f64 / seconds.max(0.001),
        conflicts_per_claim: 0.0,
        processor_us_per_job: processor.map(|seconds| seconds * 1e6 / completed.max(1) as f64),
        wait_p50_ms: 0.0,
        wait_p99_ms: 0.0,
        lost: u64::from(jobs).saturating_sub(completed),
        handed_out_twice: 0,
    })
}

impl Templates {
    async fn of_a_life(http: &reqwest::Client, url: &str, index: &str, manager: &Target) -> Result<Self, Failure> {
        let any = format!("{}/{index}/_search?size=1", url.trim_end_matches('/'));
        let hit = expect(http.get(&any).send().await).await?["hits"]["hits"][0].take();
        let id = hit["_id"].as_str().ok_or_else(|| Failure::Failed("no job was found".to_owned()))?.to_owned();
        let available = Template { id, document: hit["_source"].to_string() };
        let worker = "template";
        let answer = manager.claim(&claim_body(worker, &manager.queue, 1, 5_000)).await?;
        let claimed = read::<Claimed<'_>>(&answer)?.jobs;
        let job = claimed.first().ok_or_else(|| Failure::Failed("no job was handed out".to_owned()))?;
        let url = format!("{}/{index}/_source/{}", url.trim_end_matches('/'), job.id);
        let template = async || {
            let document = expect(http.get(&url).send().await).await?.to_string();
            Ok::<_, Failure>(Template { id: job.id.to_owned(), document })
        };
        let claimed = template().await?;
        manager.complete(worker, job).await?;
        Ok(Self { available, claimed, completed: template().await? })
    }
}

impl Ceiling<'_> {
    async fn send(&self, client: usize, path: &str, body: String) -> Result<String, Failure> {
        let url = self.urls[client % self.urls.len()].trim_end_matches('/');
        let call = self.http.post(format!("{url}/{}/{path}", self.index)).header("content-type", "application/json");
        let failed = |error: reqwest::Error| Failure::Failed(error.without_url().to_string());
        let answer = call.body(body).send().await.and_then(reqwest::Response::error_for_status).map_err(failed)?;
        answer.text().await.map_err(failed)
    }

    async fn post(&self, client: usize, path: &str, body: String) -> Result<Value, Failure> {
        serde_json::from_str(&self.send(client, path, body).await?).map_err(Failure::failed)
    }

    /// Finds all available jobs in the order in which they are handed out, page by page.
    async fn find(&self, batch: usize, batches: mpsc::Sender<Vec<Found>>) -> Result<(), Failure> {
        #[derive(serde::Deserialize)]
        struct Hit<'a> {
            #[serde(rename = "_id")]
            id: String,
            #[serde(rename = "_seq_no")]
            seq_no: u64,
            #[serde(rename = "_primary_term")]
            primary_term: u64,
            /// Not looked at: what a manager does with it is its own.
            #[serde(rename = "_source", borrow)]
            _source: &'a RawValue,
            sort: Value,
        }
        #[derive(serde::Deserialize)]
        struct Hits<'a> {
            #[serde(borrow)]
            hits: Vec<Hit<'a>>,
        }
        #[derive(serde::Deserialize)]
        struct Page<'a> {
            #[serde(borrow)]
            hits: Hits<'a>,
        }
        let mut search = json!({
            "size": PAGE, "seq_no_primary_term": true, "track_total_hits": false,
            "query": {"bool": {"filter": [{"term": {"state": "available"}}]}},
            "sort": [{"priority": "desc"}, {"run_at": "asc"}, {"id": "asc"}],
        });
        loop {
            let text = self.send(0, "_search", search.to_string()).await?;
            let page: Page<'_> = serde_json::from_str(&text).map_err(Failure::failed)?;
            let mut hits = page.hits.hits;
            let Some(last) = hits.last() else { return Ok(()) };
            search["search_after"] = last.sort.clone();
            while !hits.is_empty() {
                let some = hits.drain(..batch.min(hits.len()));
                let version = |hit: &Hit<'_>| Version { seq_no: hit.seq_no, primary_term: hit.primary_term };
                let some = some.map(|hit| Found { version: Some(version(&hit)), id: hit.id });
                if batches.send(some.collect()).await.is_err() {
                    return Ok(());
                }
            }
        }
    }

    /// Creates jobs, as many clients at a time as submit to a manager.
    async fn create(&self, args: &BenchArgs, jobs: u32, batches: mpsc::Sender<Vec<Found>>) -> Result<(), Failure> {
        let left = Cell::new(jobs);
        let submit = async |client: usize| {
            while left.get() > 0 {
                let count = left.get().min(args.submit_batch.into());
                left.set(left.get() - count);
                let new = (0..count).map(|_| Found { id: Uuid::now_v7().to_string(), version: None }).collect();
                let mut created = self.write(client, new, &self.templates.available).await?;
                while !created.is_empty() {
                    let some = created.drain(..created.len().min(args.batch.into())).collect();
                    if batches.send(some).await.is_err() {
                        return Ok(());
                    }
                }
            }
            Ok::<(), Failure>(())
        };
        try_join_all((0..args.submitters.into()).map(submit)).await.map(drop)
    }

    /// Claims and completes the batches that are found until there are no more.
    async fn work(&self, client: usize, batches: &Mutex<mpsc::Receiver<Vec<Found>>>) -> Result<(), Failure> {
        loop {
            let next = batches.lock().await.recv().await;
            let Some(batch) = next else { return Ok(()) };
            let claimed = self.write(client, batch, &self.templates.claimed).await?;
            let completed = self.write(client, claimed, &self.templates.completed).await?;
            self.completed.update(|sum| sum + completed.len() as u64);
        }
    }

    /// Writes this document over each, and returns the new versions.
    async fn write(&self, client: usize, over: Vec<Found>, template: &Template) -> Result<Vec<Found>, Failure> {
        let mut lines = String::with_capacity(over.len() * (template.document.len() + 150));
        for Found { id, version } in &over {
            let document = template.document.replace(&template.id, id);
            let action = match version {
                None => format!("{{\"create\":{{\"_id\":\"{id}\"}}}}"),
                Some(Version { seq_no, primary_term }) => {
                    let condition = format!("\"if_seq_no\":{seq_no},\"if_primary_term\":{primary_term}");
                    format!("{{\"index\":{{\"_id\":\"{id}\",{condition}}}}}")
                }
            };
            lines.push_str(&format!("{action}\n{document}\n"));
        }
        let wanted = "items.*.status,items.*._seq_no,items.*._primary_term";
        let answer = self.post(client, &format!("_bulk?filter_path={wanted}"), lines).await?;
        let items = answer["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let written = |(found, item): (Found, &Value)| {
            let item = item.as_object()?.values().next()?;
            let (seq_no, primary_term) = (item["_seq_no"].as_u64()?, item["_primary_term"].as_u64()?);
            let done = item["status"] == if found.version.is_none() { 201 } else { 200 };
            done.then_some(Found { version: Some(Version { seq_no, primary_term }), ..found })
        };
        let refused = || Failure::Failed("Elasticsearch refused a write of the ceiling".to_owned());
        over.into_iter().zip(items).map(written).collect::<Option<_>>().ok_or_else(refused)
    }
}
