//! `leasehold bench`: drives a server over HTTP as many clients and workers do at once, and measures it.
//!
//! In reading order: this file (flags and scenarios), `target` (the server), `connection` (how it is called),
//! `scoreboard` and `report` (what is noted and printed), and the scenarios `lives`, `latency`, `recovery`, `query` and
//! `claims`.
//!
//! The server is a process of its own, so that what is measured is what a user gets: this program on a free port with
//! a fresh data directory, or any server that is named. The driver shares the machine with it and so is kept lean:
//! bodies are built once, connections stay open, and of the answers only what is needed is read.

mod claims;
mod connection;
mod latency;
mod lives;
mod query;
mod recovery;
mod report;
mod scoreboard;
mod target;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::engine::StoreKind;
use super::failure::Failure;
use super::{duration, limits};
use report::Report;
use target::Target;

const EXAMPLES: &str = "\
Ends with 1 when a job was lost, or was done twice.

Examples:
  leasehold bench
  leasehold bench --jobs 1000000 --json
  leasehold bench --scenario latency --rate 500 --workers 2000
  leasehold bench --scenario recovery
  leasehold bench --scenario query --jobs 1000000 --live 100000
  leasehold bench --scenario claims --store elasticsearch --elasticsearch-url http://localhost:9200
  leasehold bench --store elasticsearch --elasticsearch-url http://localhost:9200
  leasehold bench --server http://10.0.0.5:7400 --token lh_…";

/// Measure a server: its throughput, its latencies, its recovery after a worker's death, or its queries
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BenchArgs {
    /// Which scenario to measure
    #[arg(long, value_enum, env = "LEASEHOLD_SCENARIO", default_value_t = Scenario::Lives)]
    scenario: Scenario,
    /// How many jobs there are: submitted (lives, recovery), stored (query) or archived (claims) [default: 200000 for
    /// lives, 50 for recovery, 1000000 for query and claims]
    #[arg(long, env = "LEASEHOLD_JOBS", value_parser = clap::value_parser!(u32).range(1..))]
    jobs: Option<u32>,
    /// How many of the jobs have not ended (query), or how many more have not (claims) [default: 10000]
    #[arg(long, env = "LEASEHOLD_LIVE")]
    live: Option<u32>,
    /// Use this data directory, filled first when it is empty, instead of a temporary one (query)
    #[arg(long, value_name = "DIR", env = "LEASEHOLD_DATA_DIR", conflicts_with = "server")]
    data_dir: Option<PathBuf>,
    /// How many workers run [default: 32 for lives, 2000 for latency]
    #[arg(long, env = "LEASEHOLD_WORKERS", value_parser = clap::value_parser!(u16).range(1..))]
    workers: Option<u16>,
    /// How many jobs a worker claims with one call (lives)
    #[arg(long, env = "LEASEHOLD_BATCH", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    batch: u16,
    /// How many clients submit at the same time (lives)
    #[arg(long, env = "LEASEHOLD_SUBMITTERS", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    submitters: u16,
    /// How many jobs a client submits with one call (lives)
    #[arg(long, env = "LEASEHOLD_SUBMIT_BATCH", default_value_t = 1000,
          value_parser = clap::value_parser!(u16).range(1..=10_000))]
    submit_batch: u16,
    /// How many jobs may be submitted and not completed before the clients wait (lives)
    #[arg(long, env = "LEASEHOLD_BACKLOG", default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(1..))]
    backlog: u32,
    /// How many jobs are submitted per second, whether or not the server keeps up (latency)
    #[arg(long, env = "LEASEHOLD_RATE", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    rate: u32,
    /// For how long jobs are submitted (latency)
    #[arg(long, env = "LEASEHOLD_DURATION", value_parser = duration::parse, default_value = "10s")]
    duration: Duration,
    /// How many bytes of payload each job has
    #[arg(long, env = "LEASEHOLD_PAYLOAD_BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=65_536))]
    payload_bytes: u32,
    /// Measure this server instead of starting one; queues named `bench-…` are used
    #[arg(long, value_name = "URL", env = "LEASEHOLD_SERVER", conflicts_with_all = ["store", "elasticsearch_url"])]
    server: Option<String>,
    /// The access token, where the server requires one
    #[arg(long, env = "LEASEHOLD_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// The store of the server that is started
    #[arg(long, value_enum, env = "LEASEHOLD_STORE", default_value_t = StoreKind::Embedded)]
    store: StoreKind,
    /// A node of Elasticsearch for the server that is started (repeatable); indices named `leasehold-bench-…` stay
    /// there
    #[arg(long, value_name = "URL", env = "LEASEHOLD_ELASTICSEARCH_URL", value_delimiter = ',')]
    elasticsearch_url: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How many jobs the scenario `lives` submits.
const DEFAULT_LIVES: u32 = 200_000;

impl BenchArgs {
    /// Returns how many jobs the scenario `lives` submits.
    fn lives(&self) -> u32 {
        self.jobs.unwrap_or(DEFAULT_LIVES)
    }
}

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Scenario {
    /// Throughput of whole lives: jobs are submitted in bulk, claimed in batches and completed, all at the same time
    Lives,
    /// Latency at a fixed rate, until a job reaches one of many waiting workers
    Latency,
    /// Time until the jobs of a killed worker run elsewhere, under leases of 5 s
    Recovery,
    /// Time of lists, counts and full scans over many generated jobs
    Query,
    /// How much a large archive of generated jobs slows down claims, and lists of live jobs
    Claims,
}

/// Runs the scenario, on one thread: the server needs the other cores.
pub(super) fn run(args: BenchArgs) -> Result<(), Failure> {
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        match args.scenario {
            Scenario::Lives => drive(&args, lives::measure).await,
            Scenario::Latency => drive(&args, latency::measure).await,
            Scenario::Recovery => drive(&args, recovery::measure).await,
            Scenario::Query => query::run(&args).await,
            Scenario::Claims => claims::run(&args).await,
        }
    })
}

/// Measures a server over HTTP and prints the report.
async fn drive(
    args: &BenchArgs,
    measure: impl AsyncFnOnce(&BenchArgs, &Target) -> Result<Report, String>,
) -> Result<(), Failure> {
    let target = Target::prepare(args).await?;
    let report = measure(args, &target).await.map_err(Failure::Failed)?;
    let counted = target.completed().await.map_err(Failure::Failed)?;
    target.stop().await;
    report.print(counted, args.json)?;
    let faults = report.faults(counted);
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("the server lost count: {}", faults.join("; ")))),
    }
}

/// Returns a job as one line of JSON. Its payload holds its number and is of about the size asked for.
fn job_line(queue: &str, number: u32, payload_bytes: u32) -> String {
    let padding = "x".repeat(usize::try_from(payload_bytes.saturating_sub(16)).unwrap_or_default());
    format!("{{\"queue\":\"{queue}\",\"kind\":\"bench\",\"payload\":{{\"n\":{number},\"p\":\"{padding}\"}}}}\n")
}
