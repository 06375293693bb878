//! How long queries take over many ended jobs: filters on indexed fields, counts, full scans, other orders.
//!
//! A store is filled through its own write path and queried in this process, so that what is measured is the store and
//! not the way to it; a server that is named is queried for what it has.

pub(super) mod jobs;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::args::BenchArgs;
use super::report::Latencies;
use super::target::{self, Target};
use crate::cli::engine::{self, ElasticsearchSettings, EngineSettings, StoreKind};
use crate::cli::failure::Failure;
use crate::cli::output::{facts_table, print, print_json, table};
use crate::client::{Client, CountQuery, JobQuery};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::job::Job;
use crate::query::kql::Expression;
use crate::query::{Filter, Query, Search, Sort};
use crate::store::embedded::EmbeddedOptions;
use crate::store::{Refresh, Store, Write};

const DEFAULT_JOBS: u32 = 1_000_000;
const DEFAULT_LIVE: u32 = 10_000;
/// How many jobs go in one write, and how many such writes wait at once.
const FILL_BATCH: usize = 2_000;
const FILLS_AT_ONCE: usize = 4;
/// How many jobs a list shows.
const LIMIT: usize = 100;
/// How often each query runs, once more before to warm up, and for how long altogether.
const RUNS: u64 = 25;
const FEWEST_RUNS: u64 = 3;
const LONG_ENOUGH: Duration = Duration::from_secs(10);

/// A query and the kind of answer.
struct Question {
    name: &'static str,
    kql: String,
    wanted: Wanted,
}

/// A list's first page in an order, or a count.
#[derive(Clone, Copy)]
enum Wanted {
    List(&'static str),
    Count,
}

const NEWEST: Wanted = Wanted::List("-created_at");

/// The measurements of a question.
struct Answered {
    question: Question,
    found: u64,
    runs: Latencies,
}

/// Runs the scenario and prints its result.
pub(super) async fn run(args: &BenchArgs) -> Result<(), Failure> {
    let jobs = args.jobs.unwrap_or(DEFAULT_JOBS);
    let (source, what, filled) = if args.server.is_some() {
        let target = Target::prepare(args).await?;
        (Source::Server(target.client), target.what, None)
    } else {
        let directory = target::scratch_directory()?;
        let store = open(args, directory.path().to_owned()).await?;
        let took = fill(&*store, jobs, args.live.unwrap_or(DEFAULT_LIVE).min(jobs)).await?;
        (Source::Store { store, _directory: directory }, format!("{} store", args.store().as_str()), took)
    };
    let mut answered = Vec::new();
    for question in questions(SystemClock::default().now()) {
        answered.push(source.measure(question).await?);
    }
    source.close().await;
    print_result(args, &what, jobs, filled, &answered)
}

/// Opens the store that the arguments name; an embedded one in `fresh` if no directory is named.
pub(super) async fn open(args: &BenchArgs, fresh: PathBuf) -> Result<Arc<dyn Store>, Failure> {
    let run: u32 = rand::random();
    let settings = match args.store() {
        StoreKind::Embedded => {
            let data_dir = args.data_dir.clone().unwrap_or(fresh);
            EngineSettings::Embedded { data_dir, options: EmbeddedOptions::default() }
        }
        StoreKind::Elasticsearch => EngineSettings::Elasticsearch(ElasticsearchSettings {
            secrets_key_file: None,
            urls: Some(args.elasticsearch_url.clone()).filter(|urls| !urls.is_empty()),
            api_key: None,
            ca: None,
            index_prefix: Some(format!("leasehold-bench-{run:08x}-")),
            shards: args.elasticsearch_shards,
            replicas: args.elasticsearch_replicas,
            archive_after: None,
            query_time: None,
        }),
    };
    engine::open(settings, false).await.map(|opened| opened.store)
}

/// Fills a store that is empty, and returns how long that took.
async fn fill(store: &dyn Store, jobs: u32, live: u32) -> Result<Option<Duration>, Failure> {
    let there = store.count(&Filter::default(), &[]).await.map_err(Failure::failed)?;
    if there.iter().any(|group| group.count > 0) {
        return Ok(None);
    }
    let begun = Instant::now();
    fill_with(store, jobs::made_up(jobs, live, SystemClock::default().now())).await?;
    Ok(Some(begun.elapsed()))
}

/// Writes jobs, and makes them visible to searches.
pub(super) async fn fill_with(store: &dyn Store, mut jobs: impl Iterator<Item = Job>) -> Result<(), Failure> {
    loop {
        let mut batches = Vec::with_capacity(FILLS_AT_ONCE);
        for _ in 0..FILLS_AT_ONCE {
            let batch = jobs.by_ref().take(FILL_BATCH);
            batches.push(batch.map(|job| Write::Create { job: Arc::new(job), bodies: vec![] }).collect::<Vec<_>>());
        }
        batches.retain(|batch| !batch.is_empty());
        if batches.is_empty() {
            break;
        }
        for answers in futures::future::join_all(batches.into_iter().map(|batch| store.write(batch))).await {
            let refused = |error| Failure::Failed(format!("a job is refused: {error}"));
            answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(refused)?;
        }
    }
    store.refresh(Refresh::Jobs(&Filter::default())).await.map_err(Failure::failed)
}

/// Makes the filter of a KQL query, as of now.
pub(super) fn filter(kql: &str) -> Result<Filter, Failure> {
    let expression = Expression::parse(kql).map_err(|error| Failure::Failed(error.render()))?;
    let query = Query { expression: Arc::new(expression), now: SystemClock::default().now() };
    Ok(Filter { query: Some(query), ..Filter::default() })
}

/// Returns the questions about the jobs of [`jobs::made_up`].
fn questions(now: Timestamp) -> Vec<Question> {
    let indexed = [
        ("queue", "queue: queue-07".to_owned()),
        ("kind", "kind: kind-03".to_owned()),
        ("owner", "owner: owner-042".to_owned()),
        ("rare state", "state: expired".to_owned()),
        ("run_at", jobs::window("run_at", now)),
        ("created_at", jobs::window("created_at", now)),
        ("lease", "lease.worker_id: worker-7".to_owned()),
        ("queue and kind", "queue: queue-07 and kind: kind-03".to_owned()),
        ("queue, not label", "queue: queue-07 and not labels.team: red".to_owned()),
    ];
    let scans = [
        ("error.message", "error.message: nothing".to_owned()),
        ("label", "labels.team: nothing".to_owned()),
        ("history", "history: { reason: nothing }".to_owned()),
    ];
    let question = |name, kql: &String, wanted| Question { name, kql: kql.clone(), wanted };
    let mut questions = Vec::new();
    for (name, kql) in &indexed {
        questions.push(question(name, kql, NEWEST));
        questions.push(question(name, kql, Wanted::Count));
    }
    questions.extend(scans.iter().map(|(name, kql)| question(name, kql, NEWEST)));
    for (name, order) in [("all", "-created_at"), ("all", "finished_at"), ("all", "-run_at"), ("all", "-priority")] {
        questions.push(Question { name, kql: "*".to_owned(), wanted: Wanted::List(order) });
    }
    questions.push(Question { name: "completed", kql: "state: completed".to_owned(), wanted: Wanted::Count });
    questions
}

/// The store or the server that answers.
enum Source {
    Store { store: Arc<dyn Store>, _directory: tempfile::TempDir },
    Server(Client),
}

impl Source {
    async fn measure(&self, question: Question) -> Result<Answered, Failure> {
        let found = self.run(&question).await?;
        let mut runs = Latencies::new(question.name)?;
        let begun = Instant::now();
        while runs.count() < RUNS && (runs.count() < FEWEST_RUNS || begun.elapsed() < LONG_ENOUGH) {
            let started_at = Instant::now();
            self.run(&question).await?;
            runs.record(started_at.elapsed());
        }
        Ok(Answered { question, found, runs })
    }

    /// Returns how many jobs are found.
    async fn run(&self, question: &Question) -> Result<u64, Failure> {
        let kql = &question.kql;
        match (self, question.wanted) {
            (Self::Store { store, .. }, Wanted::Count) => {
                let groups = store.count(&filter(kql)?, &[]).await.map_err(Failure::failed)?;
                Ok(groups.iter().map(|group| group.count).sum())
            }
            (Self::Store { store, .. }, Wanted::List(order)) => {
                let sort: Sort = order.parse().map_err(Failure::Failed)?;
                let search = Search { filter: filter(kql)?, sort, after: None, limit: LIMIT };
                Ok(store.search(&search).await.map_err(Failure::failed)?.len() as u64)
            }
            (Self::Server(client), Wanted::Count) => {
                let jobs = JobQuery { kql: Some(kql.clone()), ..JobQuery::default() };
                Ok(client.count(&CountQuery { jobs, by: Vec::new() }).await?.total)
            }
            (Self::Server(client), Wanted::List(order)) => {
                let (kql, sort, limit) = (Some(kql.clone()), Some(order.to_owned()), Some(LIMIT as u64));
                let page = client.job_parts(&JobQuery { kql, sort, limit, ..JobQuery::default() }, &[]).await?;
                Ok(page.items.len() as u64)
            }
        }
    }

    async fn close(self) {
        if let Self::Store { store, .. } = self {
            store.close().await;
        }
    }
}

impl Wanted {
    const fn as_str(self) -> &'static str {
        match self {
            Self::List(order) => order,
            Self::Count => "count",
        }
    }
}

fn print_result(
    args: &BenchArgs,
    what: &str,
    jobs: u32,
    filled: Option<Duration>,
    answered: &[Answered],
) -> Result<(), Failure> {
    if args.json {
        let question = |Answered { question, found, runs }: &Answered| {
            json!({
                "name": question.name, "kql": question.kql, "wanted": question.wanted.as_str(), "found": found,
                "runs": runs.count(), "p50_us": runs.micros(0.5), "max_us": runs.micros(1.0),
            })
        };
        return print_json(&json!({
            "scenario": "query", "server": what, "jobs": jobs, "filled_s": filled.map(|took| took.as_secs_f64()),
            "questions": answered.iter().map(question).collect::<Vec<_>>(),
        }));
    }
    let mut facts = vec![("scenario", "query".to_owned()), ("queried", what.to_owned())];
    if let Some(took) = filled.map(|took| took.as_secs_f64()) {
        let rate = f64::from(jobs) / took.max(0.001);
        facts.push(("filled", format!("{jobs} jobs in {took:.1} s, {rate:.0} a second")));
    }
    print(&facts_table("bench", facts))?;
    let row = |Answered { question, found, runs }: &Answered| {
        let wanted = question.wanted.as_str().to_owned();
        let (found, count) = (found.to_string(), runs.count().to_string());
        vec![question.name.to_owned(), question.kql.clone(), wanted, found, count, runs.millis(0.5), runs.millis(1.0)]
    };
    let heads = ["question", "query", "order", "found", "runs", "p50 (ms)", "max (ms)"];
    print(&table(&heads, answered.iter().map(row)))
}
