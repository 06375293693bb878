//! The flags of `leasehold bench`, and the jobs that they describe.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::cli::duration;
use crate::cli::engine::StoreKind;
use crate::cli::failure::Failure;
use crate::job::MAX_CONCURRENT;

const EXAMPLES: &str = "\
Exits with 1 when a job was lost or handed out twice.

Examples:
  leasehold bench
  leasehold bench --jobs 1000000 --json
  leasehold bench --scenario latency --rate 500 --workers 2000
  leasehold bench --scenario recovery
  leasehold bench --scenario query --jobs 1000000 --live 100000
  leasehold bench --scenario claims --store elasticsearch
  leasehold bench --scenario schedules --jobs 10000 --rate 2500
  leasehold bench --scenario schedules --jobs 2500 --rate 2500 --trigger-retention 20s --duration 2m
  leasehold bench --store elasticsearch
  leasehold bench --scenario scaling --elasticsearch-url http://10.0.0.7:9200 --naive
  leasehold bench --scenario scaling --elasticsearch-home elasticsearch-9.2.4 --nodes 1,3 --output results
  leasehold bench --scenario model --managers 16,64
  leasehold bench --scenario replay --order dispatch --order owner --order shortest
  leasehold bench --scenario replay --file night.jsonl --workers 32 --order owner --weight team-a=3
  leasehold bench --server http://10.0.0.5:7400 --token lh_…
  leasehold bench --scenario latency --server http://10.0.0.5:7400 --submit-to http://10.0.0.6:7400 --rate 50";

/// Measure a server: its throughput, its latencies, its recovery after a worker's death, its queries, or how several
/// servers share one index; or replay a load under other orders
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchArgs {
    /// Which scenario to measure
    #[arg(long, value_enum, default_value_t = Scenario::Lives)]
    pub(super) scenario: Scenario,
    /// How many jobs there are: submitted (lives, recovery, scaling, model), stored (query) or archived (claims), or
    /// how many schedules [default: 200000 for lives, 50 for recovery, 1000000 for query and claims, 10000 for
    /// schedules, 40000 for scaling, 400000 for model]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) jobs: Option<u32>,
    /// How many of the jobs have not ended (query), or how many more have not (claims) [default: 10000]
    #[arg(long)]
    pub(super) live: Option<u32>,
    /// Use this data directory, filled first when it is empty, instead of a temporary one (query)
    #[arg(long, value_name = "DIR", conflicts_with = "server")]
    pub(super) data_dir: Option<PathBuf>,
    /// How many workers run, of all managers together [default: 32 for lives, 2000 for latency, 16 for scaling, 8 for
    /// replay; model: 8 for each manager]
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) workers: Option<u16>,
    /// How many jobs a worker claims with one call (lives, scaling, model)
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(super) batch: u16,
    /// How many clients submit at the same time (lives, scaling)
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) submitters: u16,
    /// How many jobs a client submits with one call (lives, scaling)
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(super) submit_batch: u16,
    /// How many jobs may be submitted and not completed before the clients wait (lives)
    #[arg(long, default_value_t = 8_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) backlog: u32,
    /// How many jobs are submitted, or schedules due, per second, whether or not the server keeps up [default: 500 for
    /// latency, 1000 for schedules, 50 for scaling]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) rate: Option<u32>,
    /// For how long at that rate [default: 10s for latency, 20s for schedules, 5s for scaling]
    #[arg(long, value_parser = duration::parse)]
    pub(super) duration: Option<Duration>,
    /// How many managers there are, one measurement for each number [default: 1,2,4,8 for scaling, 1,2,4,8,16,64 for
    /// model]
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', value_parser = clap::value_parser!(u16).range(1..=64))]
    pub(super) managers: Vec<u16>,
    /// Measure the textbook protocol beside them: search for one job, take it with a conditional write (scaling)
    #[arg(long)]
    pub(super) naive: bool,
    /// Measure beside them, before and after, what Elasticsearch does alone: the search, or with --whole-lives the
    /// creation, and the writes of claims and completions (scaling)
    #[arg(long)]
    pub(super) ceiling: bool,
    /// Submit the jobs while they are claimed and completed, not before (scaling)
    #[arg(long, conflicts_with = "naive")]
    pub(super) whole_lives: bool,
    /// Let all schedules be due at once, without a spread (schedules)
    #[arg(long)]
    pub(super) spike: bool,
    /// Let the server load one schedule at a time, with a write for each trigger (schedules)
    #[arg(long, conflicts_with = "server")]
    pub(super) without_batches: bool,
    /// Let the server perform one trigger at a time (schedules)
    #[arg(long, conflicts_with = "server")]
    pub(super) without_concurrency: bool,
    /// Keep ended triggers for this long only, so that they are removed during the measurement (schedules)
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "server")]
    pub(super) trigger_retention: Option<Duration>,
    /// Let the jobs name so many keys in turn, of each of which only so many run at once (lives)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) keys: Option<u32>,
    /// How many jobs of a key run at once (lives)
    #[arg(long, value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_CONCURRENT)))]
    pub(super) max_concurrent: u32,
    /// Let the workers claim their next jobs in the call that completes the last ones (lives)
    #[arg(long)]
    pub(super) next: bool,
    /// Start Elasticsearch from this unpacked distribution, with data that are removed in the end (scaling)
    #[arg(long, value_name = "DIR", conflicts_with = "elasticsearch_url")]
    pub(super) elasticsearch_home: Option<PathBuf>,
    /// How many nodes of it there are, one measurement for each number [default: 1] (scaling)
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', requires = "elasticsearch_home",
        value_parser = clap::value_parser!(u16).range(1..=9))]
    pub(super) nodes: Vec<u16>,
    /// Write the results, a plot and how they were obtained to this directory (scaling)
    #[arg(long, value_name = "DIR")]
    pub(super) output: Option<PathBuf>,
    /// Replay this load, a job on each line, instead of an invented one (replay)
    #[arg(long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,
    /// Let the jobs go in this order; may be given several times [default: dispatch and owner] (replay)
    #[arg(long = "order", value_name = "ORDER", value_enum, value_delimiter = ',')]
    pub(super) orders: Vec<ReplayOrder>,
    /// Give an owner so many jobs for each of an owner without a weight, where owners take turns (replay)
    #[arg(long = "weight", value_name = "OWNER=NUMBER", value_parser = crate::cli::queue::weight)]
    pub(super) weights: Vec<(String, u64)>,
    /// What chance decides follows from this number (model)
    #[arg(long, default_value_t = 1)]
    pub(super) seed: u64,
    /// How many bytes of payload each job has
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(..=65_536))]
    pub(super) payload_bytes: u32,
    /// Measure this server instead of starting one; queues named `bench-…` are used
    #[arg(long, value_name = "URL", conflicts_with_all = ["store", "elasticsearch_url"])]
    pub(super) server: Option<String>,
    /// Submit the jobs to this server of the same index, while the workers wait at the one that --server names: how
    /// fast a job reaches a worker of another server (latency)
    #[arg(long, value_name = "URL", requires = "server")]
    pub(super) submit_to: Option<String>,
    /// The access token, where the server requires one
    #[arg(long, hide_env_values = true)]
    pub(super) token: Option<String>,
    /// The store of the server that is started [default: embedded; elasticsearch for scaling]
    #[arg(long, value_enum)]
    store: Option<StoreKind>,
    /// A node of Elasticsearch for the server that is started (repeatable); indices named `leasehold-bench-…` stay
    /// there
    #[arg(long, value_name = "URL", value_delimiter = ',')]
    pub(super) elasticsearch_url: Vec<String>,
    /// The number of primary shards of its index of live jobs [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(super) elasticsearch_shards: Option<u32>,
    /// The number of further copies of each shard [default: 1 as soon as there is a second node]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=100))]
    pub(super) elasticsearch_replicas: Option<u32>,
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

    /// Returns the store of the server that is started.
    pub(super) fn store(&self) -> StoreKind {
        let default = match self.scenario {
            Scenario::Scaling => StoreKind::Elasticsearch,
            _ => StoreKind::Embedded,
        };
        self.store.unwrap_or(default)
    }

    /// Refuses settings that the scenario or the store does not have: something else than expected would be measured.
    pub(super) fn check(&self) -> Result<(), Failure> {
        use Scenario::{Latency, Lives, Model, Replay, Scaling, Schedules};
        let given = [
            ("--managers", !self.managers.is_empty(), &[Scaling, Model][..]),
            ("--naive", self.naive, &[Scaling]),
            ("--ceiling", self.ceiling, &[Scaling]),
            ("--whole-lives", self.whole_lives, &[Scaling]),
            ("--next", self.next, &[Lives]),
            ("--keys", self.keys.is_some(), &[Lives]),
            ("--spike", self.spike, &[Schedules]),
            ("--without-batches", self.without_batches, &[Schedules]),
            ("--without-concurrency", self.without_concurrency, &[Schedules]),
            ("--trigger-retention", self.trigger_retention.is_some(), &[Schedules]),
            ("--elasticsearch-home", self.elasticsearch_home.is_some(), &[Scaling]),
            ("--output", self.output.is_some(), &[Scaling]),
            ("--submit-to", self.submit_to.is_some(), &[Latency]),
            ("--file", self.file.is_some(), &[Replay]),
            ("--order", !self.orders.is_empty(), &[Replay]),
            ("--weight", !self.weights.is_empty(), &[Replay]),
        ];
        let misplaced = given.iter().find(|(_, given, scenarios)| *given && !scenarios.contains(&self.scenario));
        if let Some((flag, ..)) = misplaced {
            return Err(Failure::Usage(format!("{flag} has no meaning with {}", self.scenario.flag())));
        }
        if self.scenario == Scaling {
            self.check_scaling()?;
        }
        let wrong = match self.store() {
            StoreKind::Embedded => [
                ("--elasticsearch-url", !self.elasticsearch_url.is_empty()),
                ("--elasticsearch-shards", self.elasticsearch_shards.is_some()),
                ("--elasticsearch-replicas", self.elasticsearch_replicas.is_some()),
            ]
            .into_iter()
            .find_map(|(flag, is_given)| is_given.then_some((flag, "embedded"))),
            StoreKind::Elasticsearch => self.data_dir.is_some().then_some(("--data-dir", "elasticsearch")),
        };
        match wrong {
            None => Ok(()),
            Some((flag, store)) => Err(Failure::Usage(format!("{flag} has no meaning with `--store {store}`"))),
        }
    }

    fn check_scaling(&self) -> Result<(), Failure> {
        if self.server.is_some() {
            return Err(Failure::Usage(
                "--server has no meaning with `--scenario scaling`, which starts its own".into(),
            ));
        }
        if self.store() == StoreKind::Embedded {
            return Err(Failure::Usage(
                "`--scenario scaling` needs `--store elasticsearch`: an embedded store has one manager".into(),
            ));
        }
        let workers = self.scaling_workers();
        match self.scaling_managers().iter().find(|managers| **managers > workers) {
            None => Ok(()),
            Some(managers) => {
                Err(Failure::Usage(format!("--workers {workers} are too few: some of {managers} managers have none")))
            }
        }
    }

    /// Returns how many workers the scenario `scaling` has.
    pub(super) fn scaling_workers(&self) -> u16 {
        self.workers.unwrap_or(16)
    }

    /// Returns the numbers of managers that the scenario `scaling` measures.
    pub(super) fn scaling_managers(&self) -> &[u16] {
        if self.managers.is_empty() { &[1, 2, 4, 8] } else { &self.managers }
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
    /// Calls of schedules at a fixed rate: how late they are, and how many come in each second
    Schedules,
    /// How several servers share one Elasticsearch: throughput, conflicts, waits and processor time by their number
    Scaling,
    /// A simulation of the same, for more servers and nodes than this machine has room for
    Model,
    /// A recorded load in the order that a queue's settings say, in a time of its own: how long jobs wait, by owner
    Replay,
}

/// An order that a load can be replayed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ReplayOrder {
    /// The job that has been due longest is next
    Dispatch,
    /// The owners take turns
    Owner,
    /// The owners take turns by their jobs' expected runtimes
    OwnerRuntime,
    /// Shorter jobs go first, unless others have waited long
    Shortest,
}

impl Scenario {
    /// Returns the scenario as it is chosen.
    fn flag(self) -> String {
        let name = self.to_possible_value().map(|value| value.get_name().to_owned());
        format!("`--scenario {}`", name.unwrap_or_default())
    }
}

/// Returns a job as one line of JSON. Its payload holds its number and is of about the size asked for; `more` are
/// further fields.
pub(super) fn job_line(queue: &str, number: u32, payload_bytes: u32, more: &str) -> String {
    let padding = "x".repeat(usize::try_from(payload_bytes.saturating_sub(16)).unwrap_or_default());
    format!("{{\"queue\":\"{queue}\",\"kind\":\"bench\",{more}\"payload\":{{\"n\":{number},\"p\":\"{padding}\"}}}}\n")
}
