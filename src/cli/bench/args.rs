//! The flags of `leasehold bench`, and the jobs that they describe.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::duration;
use crate::cli::engine::StoreKind;
use crate::cli::failure::Failure;

const EXAMPLES: &str = "\
Exits with 1 when a job was lost or handed out twice.

Examples:
  leasehold bench
  leasehold bench --jobs 1000000 --json
  leasehold bench --scenario latency --rate 500 --workers 2000
  leasehold bench --scenario recovery
  leasehold bench --scenario query --jobs 1000000 --live 100000
  leasehold bench --scenario claims --store elasticsearch
  leasehold bench --store elasticsearch
  leasehold bench --server http://10.0.0.5:7400 --token lh_…";

/// Measure a server: its throughput, its latencies, its recovery after a worker's death, or its queries
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Which scenario to measure
    #[arg(long, value_enum, default_value_t = Scenario::Lives)]
    pub(super) scenario: Scenario,
    /// How many jobs there are: submitted (lives, recovery), stored (query) or archived (claims) [default: 200000 for
    /// lives, 50 for recovery, 1000000 for query and claims]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) jobs: Option<u32>,
    /// How many of the jobs have not ended (query), or how many more have not (claims) [default: 10000]
    #[arg(long)]
    pub(super) live: Option<u32>,
    /// Use this data directory, filled first when it is empty, instead of a temporary one (query)
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub(super) data_dir: Option<PathBuf>,
    /// How many workers run [default: 32 for lives, 2000 for latency]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) workers: Option<u16>,
    /// How many jobs a worker claims with one call (lives)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) batch: u16,
    /// How many clients submit at the same time (lives)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) submitters: u16,
    /// How many jobs a client submits with one call (lives)
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(super) submit_batch: u16,
    /// How many jobs may be submitted and not completed before the clients wait (lives)
    #[arg(long, default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) backlog: u32,
    /// How many jobs are submitted per second, whether or not the server keeps up (latency)
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: u32,
    /// For how long jobs are submitted (latency)
    #[arg(long, value_parser = duration::parse, default_value = "10s")]
    pub(super) duration: Duration,
    /// How many bytes of payload each job has
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub(super) payload_bytes: u32,
    /// Measure this server instead of starting one; queues named `bench-…` are used
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "elasticsearch_url"])]
    pub(super) server: Option<String>,
    /// The access token, where the server requires one
    #[arg(long, hide_env_values = true)]
    pub(super) token: Option<String>,
    /// The store of the server that is started
    #[arg(long, value_enum, default_value_t = StoreKind::Embedded)]
    pub(super) store: StoreKind,
    /// A node of Elasticsearch for the server that is started (repeatable); indices named `leasehold-bench-…` stay
    /// there
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(super) elasticsearch_url: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// How many jobs the scenario `lives` submits.
const DEFAULT_LIVES: u32 = 200_000;

impl BenchArgs {
    /// Returns how many jobs the scenario `lives` submits.
    pub(super) fn lives(&self) -> u32 {
        self.jobs.unwrap_or(DEFAULT_LIVES)
    }

    /// Refuses settings of the store that is not chosen: another store than expected would be measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        let wrong = match self.store {
            StoreKind::Embedded => (!self.elasticsearch_url.is_empty()).then_some(("--elasticsearch-url", "embedded")),
            StoreKind::Elasticsearch => self.data_dir.is_some().then_some(("--data-dir", "elasticsearch")),
        };
        match wrong {
            None => Ok(()),
            Some((flag, store)) => Err(Failure::Usage(format!("{flag} has no meaning with `--store {store}`"))),
        }
    }
}

/// The scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scenario {
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

/// Returns a job as one line of JSON. Its payload holds its number and is of about the size asked for.
pub(super) fn job_line(queue: &str, number: u32, payload_bytes: u32) -> String {
    let padding = "x".repeat(usize::try_from(payload_bytes.saturating_sub(16)).unwrap_or_default());
    format!("{{\"queue\":\"{queue}\",\"kind\":\"bench\",\"payload\":{{\"n\":{number},\"p\":\"{padding}\"}}}}\n")
}
