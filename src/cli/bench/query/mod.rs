//! How long queries take over many ended jobs: filters on indexed fields, counts, full scans, other orders.
//!
//! A store is filled through its own write path and queried in this process, so that what is measured is the store and
//! not the way to it; a server that is named is queried for what it has.

pub(super) mod jobs;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::time::Instant;

use super::args::BenchArgs;
use super::connection::{Connection, read};
use super::target::{self, Target};
use crate::cli::engine::{self, EngineSettings};
use crate::cli::failure::Failure;
use crate::cli::output::{print, print_json, table};
use crate::clock::{Clock, SystemClock, Timestamp};
use crate::job::Job;
use crate::query::kql::Expression;
use crate::query::{Filter, Query, Search, Sort};
use crate::store::{Store, Write};

const DEFAULT_JOBS: u32 = 1_000_000;
const DEFAULT_LIVE: u32 = 10_000;
/// How many jobs go in one write, and how many such writes wait at once.
const FILL_BATCH: usize = 2_000;
const FILLS_AT_ONCE: usize = 4;
/// How many jobs a list shows.
const LIMIT: usize = 100;
/// How often each query runs, once more before to warm up, and for how long altogether.
const RUNS: usize = 25;
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
    /// The durations of the runs, in rising order.
    took: Vec<Duration>,
}

/// Runs the scenario and prints its result.
pub(super) async fn run(args: &BenchArgs) -> Result<(), Failure> {
    let jobs = args.jobs.unwrap_or(DEFAULT_JOBS);
    let (mut source, what, filled) = if args.server.is_some() {
        let target = Target::prepare(args).await?;
        let connection = Connection::open(&target.address).await.map_err(Failure::Failed)?;
        (Source::Server(Box::new(connection)), target.what, None)
    } else {
        let directory = target::scratch_directory().map_err(Failure::Failed)?;
        let store = open(args, directory.path().to_owned()).await?;
        let took = fill(&*store, jobs, args.live.unwrap_or(DEFAULT_LIVE).min(jobs)).await.map_err(Failure::Failed)?;
        (Source::Store { store, _directory: directory }, format!("{} store", args.store.as_str()), took)
    };
    let mut answered = Vec::new();
    for question in questions(SystemClock::default().now()) {
        answered.push(source.measure(question).await.map_err(Failure::Failed)?);
    }
    source.close().await;
    tell(args, &what, jobs, filled, &answered)
}

/// Opens the store that the arguments name; an embedded one in `fresh` if no directory is named.
pub(super) async fn open(args: &BenchArgs, fresh: PathBuf) -> Result<Arc<dyn Store>, Failure> {
    let run: u32 = rand::random();
    let settings = EngineSettings {
        kind: args.store,
        data_dir: args.data_dir.clone().unwrap_or(fresh),
        elasticsearch_urls: Some(args.elasticsearch_url.clone()).filter(|urls| !urls.is_empty()),
        elasticsearch_api_key: None,
        elasticsearch_ca: None,
        index_prefix: Some(format!("leasehold-bench-{run:08x}-")),
        archive_after: None,
    };
    engine::open(settings).await
}

/// Fills a store that is empty, and returns how long that took.
async fn fill(store: &dyn Store, jobs: u32, live: u32) -> Result<Option<Duration>, String> {
    let there = store.count(&Filter::default(), &[]).await.map_err(|error| error.to_string())?;
    if there.iter().any(|group| group.count > 0) {
        return Ok(None);
    }
    let begun = Instant::now();
    fill_with(store, jobs::made_up(jobs, live, SystemClock::default().now())).await?;
    Ok(Some(begun.elapsed()))
}

/// Writes jobs, and makes them visible to searches.
pub(super) async fn fill_with(store: &dyn Store, mut jobs: impl Iterator<Item = Job>) -> Result<(), String> {
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
            answers.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| format!("a job is refused: {error}"))?;
        }
    }
    store.refresh().await.map_err(|error| error.to_string())
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
    Server(Box<Connection>),
}

/// The part of a count's answer that is read.
#[derive(Deserialize)]
struct Total {
    total: u64,
}

/// The part of a list's answer that is read.
#[derive(Deserialize)]
struct Items {
    items: Vec<IgnoredAny>,
}

impl Source {
    async fn measure(&mut self, question: Question) -> Result<Answered, String> {
        let found = self.run(&question).await?;
        let mut took = Vec::new();
        let begun = Instant::now();
        while took.len() < RUNS && (took.len() < 3 || begun.elapsed() < LONG_ENOUGH) {
            let begun_at = Instant::now();
            self.run(&question).await?;
            took.push(begun_at.elapsed());
        }
        took.sort();
        Ok(Answered { question, found, took })
    }

    /// Returns how many jobs are found.
    async fn run(&mut self, question: &Question) -> Result<u64, String> {
        match self {
            Self::Store { store, .. } => {
                let expression = Arc::new(Expression::parse(&question.kql).map_err(|error| error.render())?);
                let query = Some(Query { expression, now: SystemClock::default().now() });
                let filter = Filter { query, ..Filter::default() };
                let failed = |error: crate::store::StoreError| error.to_string();
                match question.wanted {
                    Wanted::Count => {
                        Ok(store.count(&filter, &[]).await.map_err(failed)?.iter().map(|group| group.count).sum())
                    }
                    Wanted::List(order) => {
                        let sort: Sort = order.parse()?;
                        let search = Search { filter, sort, after: None, limit: LIMIT };
                        Ok(store.search(&search).await.map_err(failed)?.len() as u64)
                    }
                }
            }
            Self::Server(connection) => {
                let mut query = url::form_urlencoded::Serializer::new(String::new());
                query.append_pair("kql", &question.kql);
                match question.wanted {
                    Wanted::Count => {
                        let answer = connection.get(&format!("/v1/jobs/count?{}", query.finish())).await?;
                        Ok(read::<Total>(&answer)?.total)
                    }
                    Wanted::List(order) => {
                        query.append_pair("sort", order).append_pair("limit", &LIMIT.to_string());
                        let answer = connection.get(&format!("/v1/jobs?{}", query.finish())).await?;
                        Ok(read::<Items>(&answer)?.items.len() as u64)
                    }
                }
            }
        }
    }

    async fn close(self) {
        if let Self::Store { store, .. } = self {
            store.close().await;
        }
    }
}

impl Answered {
    fn median(&self) -> Duration {
        self.took[self.took.len() / 2]
    }

    fn longest(&self) -> Duration {
        self.took.last().copied().unwrap_or_default()
    }

    fn order(&self) -> &'static str {
        match self.question.wanted {
            Wanted::List(order) => order,
            Wanted::Count => "count",
        }
    }
}

fn tell(
    args: &BenchArgs,
    what: &str,
    jobs: u32,
    filled: Option<Duration>,
    answered: &[Answered],
) -> Result<(), Failure> {
    if args.json {
        let question = |answer: &Answered| {
            json!({
                "name": answer.question.name, "kql": answer.question.kql, "wanted": answer.order(),
                "found": answer.found, "runs": answer.took.len(), "p50_us": answer.median().as_micros() as u64,
                "max_us": answer.longest().as_micros() as u64,
            })
        };
        return print_json(&json!({
            "scenario": "query", "server": what, "jobs": jobs, "filled_s": filled.map(|took| took.as_secs_f64()),
            "questions": answered.iter().map(question).collect::<Vec<_>>(),
        }));
    }
    let mut rows = vec![vec!["scenario".to_owned(), "query".to_owned()], vec!["queried".to_owned(), what.to_owned()]];
    if let Some(took) = filled {
        let mut text = String::new();
        let rate = f64::from(jobs) / took.as_secs_f64().max(0.001);
        write!(text, "{jobs} jobs in {:.1} s, {rate:.0} a second", took.as_secs_f64())
            .map_err(|error| Failure::Failed(error.to_string()))?;
        rows.push(vec!["filled".to_owned(), text]);
    }
    print(&table(&["bench", ""], rows))?;
    let millis = |took: Duration| format!("{:.2}", took.as_secs_f64() * 1000.0);
    let row = |answer: &Answered| {
        let (name, kql) = (answer.question.name.to_owned(), answer.question.kql.clone());
        let (found, runs) = (answer.found.to_string(), answer.took.len().to_string());
        vec![name, kql, answer.order().to_owned(), found, runs, millis(answer.median()), millis(answer.longest())]
    };
    let heads = ["question", "query", "order", "found", "runs", "p50 (ms)", "max (ms)"];
    print(&table(&heads, answered.iter().map(row)))
}
