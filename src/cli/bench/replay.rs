//! Replays a load under several orders and shows how long its jobs waited, by owner.
//!
//! No server is measured: the dispatch of this program decides which job is next, and the time is the replay's own
//! ([`crate::manager::replay`]).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::args::{BenchArgs, ReplayOrder};
use crate::cli::failure::Failure;
use crate::cli::output::{clean, facts_table, print, print_json, table};
use crate::clock::{Timestamp, millis};
use crate::job::{JobSpec, Kind, Owner, Priority, QueueName};
use crate::manager::{Fairness, JobOrder, QueueSettings, RecordedJob, replay};

const DEFAULT_WORKERS: u16 = 8;
const DEFAULT_QUEUE: &str = "default";

impl ReplayOrder {
    fn name(self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Returns the settings of the queues.
    fn settings(self, weights: &BTreeMap<Owner, u32>) -> QueueSettings {
        let (fairness, order) = match self {
            Self::Dispatch => (Fairness::None, JobOrder::Dispatch),
            Self::Owner => (Fairness::Owner, JobOrder::Dispatch),
            Self::OwnerRuntime => (Fairness::OwnerRuntime, JobOrder::Dispatch),
            Self::Shortest => (Fairness::None, JobOrder::Shortest),
        };
        QueueSettings { fairness, order, weights: weights.clone(), ..QueueSettings::default() }
    }
}

/// A load, and how many lines of its file are of jobs that did not run to an end.
struct Load {
    jobs: Vec<RecordedJob>,
    left_out: usize,
}

/// How long jobs waited, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Waits {
    jobs: usize,
    wait_p50_ms: u64,
    wait_p95_ms: u64,
    wait_max_ms: u64,
}

impl Waits {
    /// Counts waits, of which there is at least one.
    fn of(mut waits: Vec<u64>) -> Self {
        waits.sort_unstable();
        // The least wait that so many percent of the jobs do not exceed.
        let percentile = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100).max(1);
            waits.get(rank - 1).copied().unwrap_or(0)
        };
        let [wait_p50_ms, wait_p95_ms, wait_max_ms] = [50, 95, 100].map(percentile);
        Self { jobs: waits.len(), wait_p50_ms, wait_p95_ms, wait_max_ms }
    }

    fn cells(&self) -> [String; 4] {
        let seconds = |wait: u64| format!("{:.1}", Duration::from_millis(wait).as_secs_f64());
        let [p50, p95, max] = [self.wait_p50_ms, self.wait_p95_ms, self.wait_max_ms].map(seconds);
        [self.jobs.to_string(), p50, p95, max]
    }
}

/// What came of a load under one order.
struct Replayed {
    order: ReplayOrder,
    all: Waits,
    by_owner: BTreeMap<Option<Owner>, Waits>,
}

/// Replays the load under each order and prints the waits.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let load = match &args.file {
        None => Load { jobs: invented(), left_out: 0 },
        Some(file) => read(file)?,
    };
    if load.jobs.is_empty() {
        return Err(Failure::Failed("the load has no job that ran to an end".to_owned()));
    }
    let weights = weights(&args.weights)?;
    let workers = args.workers.unwrap_or(DEFAULT_WORKERS);
    let orders = if args.orders.is_empty() { &[ReplayOrder::Dispatch, ReplayOrder::Owner][..] } else { &args.orders };
    let replayed: Vec<Replayed> =
        orders.iter().map(|order| replay_under(*order, &load.jobs, &weights, workers)).collect();
    print_all(args, &load, workers, &replayed)
}

fn replay_under(order: ReplayOrder, load: &[RecordedJob], weights: &BTreeMap<Owner, u32>, workers: u16) -> Replayed {
    let waits = replay(load, &order.settings(weights), usize::from(workers));
    let mut by_owner: BTreeMap<Option<Owner>, Vec<u64>> = BTreeMap::new();
    for (job, wait) in load.iter().zip(&waits) {
        by_owner.entry(job.spec.owner.clone()).or_default().push(millis(*wait));
    }
    let all = Waits::of(waits.into_iter().map(millis).collect());
    Replayed { order, all, by_owner: by_owner.into_iter().map(|(owner, waits)| (owner, Waits::of(waits))).collect() }
}

fn print_all(args: &BenchArgs, load: &Load, workers: u16, replayed: &[Replayed]) -> Result<(), Failure> {
    if args.json {
        return replayed.iter().try_for_each(|Replayed { order, all, by_owner }| {
            let owners: Vec<_> =
                by_owner.iter().map(|(owner, waits)| json!({ "owner": owner, "waits": waits })).collect();
            print_json(&json!({
                "scenario": "replay", "order": order.name(), "workers": workers, "left_out": load.left_out,
                "all": all, "owners": owners,
            }))
        });
    }
    let last_due = load.jobs.iter().map(|job| job.due).max().unwrap_or_default();
    let facts = [
        ("scenario", "replay".to_owned()),
        ("load", args.file.as_ref().map_or_else(|| "invented".to_owned(), |file| file.display().to_string())),
        ("jobs", format!("{}, due within {:.0} s", load.jobs.len(), last_due.as_secs_f64())),
        ("left out", format!("{} that did not run to an end", load.left_out)),
        ("workers", workers.to_string()),
    ];
    print(&facts_table("bench", facts))?;
    let rows = replayed.iter().flat_map(|Replayed { order, all, by_owner }| {
        let row = |owner: String, waits: &Waits| [order.name(), owner].into_iter().chain(waits.cells()).collect();
        let of =
            |owner: &Option<Owner>| owner.as_ref().map_or_else(|| "(none)".to_owned(), |owner| clean(owner.as_str()));
        let owners: Vec<Vec<String>> = by_owner.iter().map(|(owner, waits)| row(of(owner), waits)).collect();
        owners.into_iter().chain([row("all".to_owned(), all)])
    });
    print(&table(&["order", "owner", "jobs", "wait p50 (s)", "p95", "max"], rows))
}

/// A line of a recorded load, or of an export of jobs.
#[derive(Debug, Deserialize)]
struct Line {
    queue: Option<String>,
    owner: Option<String>,
    priority: Option<i64>,
    expected_runtime_ms: Option<u64>,
    /// When the job is due, from the beginning of the load, and how long it runs.
    at_ms: Option<u64>,
    runtime_ms: Option<u64>,
    /// The same, as an export says it.
    run_at: Option<Timestamp>,
    started_at: Option<Timestamp>,
    finished_at: Option<Timestamp>,
}

/// When a job of a file is due: since the beginning of the load, or at a time. Both in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    After(u64),
    At(i64),
}

/// Reads a load from a file with a job on each line.
fn read(file: &Path) -> Result<Load, Failure> {
    let wrong = |what: String| Failure::Usage(format!("{}: {what}", file.display()));
    let text = std::fs::read_to_string(file).map_err(|error| wrong(error.to_string()))?;
    parse(&text).map_err(|(line, what)| wrong(format!("line {line}: {what}")))
}

/// Reads a load; returns the number of the line that is wrong, and how.
fn parse(text: &str) -> Result<Load, (usize, String)> {
    let mut read: Vec<(Due, RecordedJob)> = Vec::new();
    let mut left_out = 0;
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |what: String| (number + 1, what);
        let line: Line = serde_json::from_str(line).map_err(|error| wrong(error.to_string()))?;
        let Some((due, job)) = line.job().map_err(wrong)? else {
            left_out += 1;
            continue;
        };
        let is_other = |(first, _): &(Due, RecordedJob)| matches!(first, Due::At(_)) != matches!(due, Due::At(_));
        if read.first().is_some_and(is_other) {
            return Err(wrong("all lines have `at_ms`, or all have `run_at`".to_owned()));
        }
        read.push((due, job));
    }
    let first = read.iter().map(|(due, _)| since(*due, 0)).min().unwrap_or(0);
    let from_first = |(due, job): (Due, RecordedJob)| {
        let after = u64::try_from(since(due, first)).unwrap_or(0);
        RecordedJob { due: Duration::from_millis(after), ..job }
    };
    Ok(Load { jobs: read.into_iter().map(from_first).collect(), left_out })
}

fn since(due: Due, first: i128) -> i128 {
    let at = match due {
        Due::After(after) => i128::from(after),
        Due::At(at) => i128::from(at),
    };
    at - first
}

impl Line {
    /// Returns the job, or `None` if it did not run to an end.
    fn job(self) -> Result<Option<(Due, RecordedJob)>, String> {
        let (due, runtime) = match (self.at_ms, self.runtime_ms, self.run_at, self.started_at, self.finished_at) {
            (Some(at), Some(runtime), ..) => (Due::After(at), Duration::from_millis(runtime)),
            (None, None, Some(run_at), Some(started), Some(finished)) => {
                (Due::At(run_at.as_millis()), finished.since(started))
            }
            (None, None, Some(_), ..) => return Ok(None),
            _ => return Err("needs `at_ms` and `runtime_ms`, or the times of an exported job".to_owned()),
        };
        let named = |field: &str, error: String| format!("`{field}` {error}");
        let queue = QueueName::new(self.queue.as_deref().unwrap_or(DEFAULT_QUEUE));
        let owner = self.owner.as_deref().map(Owner::new).transpose();
        let priority = self.priority.unwrap_or_default();
        let spec = JobSpec {
            owner: owner.map_err(|error| named("owner", error.to_string()))?,
            priority: Priority::new(priority).ok_or_else(|| named("priority", format!("{priority} is none")))?,
            expected_runtime: self.expected_runtime_ms.map(Duration::from_millis),
            ..JobSpec::new(queue.map_err(|error| named("queue", error.to_string()))?, Kind::system("replay"))
        };
        Ok(Some((due, RecordedJob { due: Duration::ZERO, runtime, spec: Arc::new(spec) })))
    }
}

fn weights(given: &[(String, u64)]) -> Result<BTreeMap<Owner, u32>, Failure> {
    let weight = |(owner, weight): &(String, u64)| {
        let wrong = |what: String| Failure::Usage(format!("the weight of `{owner}`: {what}"));
        let name = Owner::new(owner).map_err(|error| wrong(error.to_string()))?;
        let weight = u32::try_from(*weight).ok().filter(|weight| (1..=crate::manager::MAX_WEIGHT).contains(weight));
        let bounds = || format!("must be from 1 to {}", crate::manager::MAX_WEIGHT);
        Ok((name, weight.ok_or_else(|| wrong(bounds()))?))
    };
    given.iter().map(weight).collect()
}

/// Returns a load that shows what the orders are for: for eight workers, a night of eight hours. One owner submits five
/// thousand jobs at the beginning, one ten jobs every ten minutes, and one two long jobs every hour.
fn invented() -> Vec<RecordedJob> {
    const HOUR: u64 = 3_600;
    let job = |owner: &'static str, due: u64, runtime: u64| {
        let spec = JobSpec {
            owner: Some(Owner::system(owner)),
            expected_runtime: Some(Duration::from_secs(runtime)),
            ..JobSpec::new(QueueName::system("night"), Kind::system("replay"))
        };
        RecordedJob { due: Duration::from_secs(due), runtime: Duration::from_secs(runtime), spec: Arc::new(spec) }
    };
    // Some run longer than others, always the same ones.
    let bulk = (0..5_000).map(|number| job("bulk", 0, 10 + number % 21));
    let reports = (0..48).flat_map(|round| (0..10).map(move |number| (round * 600, 30 + number * 6)));
    let models = (0..8).flat_map(|hour| (1..=2).map(move |number| (hour * HOUR, number * HOUR / 3)));
    let reports = reports.map(|(due, runtime)| job("reports", due, runtime));
    bulk.chain(reports).chain(models.map(|(due, runtime)| job("models", due, runtime))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_waits_that_occurred() {
        assert_eq!(Waits::of(vec![7]), Waits { jobs: 1, wait_p50_ms: 7, wait_p95_ms: 7, wait_max_ms: 7 });
        let waits = Waits::of((1..=100).rev().collect());
        assert_eq!((waits.wait_p50_ms, waits.wait_p95_ms, waits.wait_max_ms), (50, 95, 100));
    }

    #[test]
    fn an_export_of_jobs_is_a_load_and_what_did_not_run_is_left_out() {
        let job = |run_at: &str, more: &str| format!(r#"{{"id": "x", "queue": "q", "run_at": "{run_at}"{more}}}"#);
        let ran = r#", "started_at": "2030-01-01T00:01:00.000Z", "finished_at": "2030-01-01T00:01:30.000Z""#;
        let text = [
            job("2030-01-01T00:00:10.000Z", ran),
            job("2030-01-01T00:00:03.000Z", ran),
            String::new(),
            job("2030-01-01T00:00:00.000Z", ""),
        ]
        .join("\n");
        let load = parse(&text).map_err(|(line, what)| format!("{line}: {what}")).expect("a load");
        let times: Vec<[u64; 2]> =
            load.jobs.iter().map(|job| [job.due, job.runtime].map(|time| time.as_secs())).collect();
        assert_eq!((times, load.left_out), (vec![[7, 30], [0, 30]], 1));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let of = |lines: &[&str]| parse(&lines.join("\n")).map(|load| load.jobs.len()).map_err(|(line, _)| line);
        let good = r#"{"at_ms": 5, "runtime_ms": 7, "owner": "a", "priority": -3}"#;
        assert_eq!(of(&[good, good]), Ok(2));
        let mixed = r#"{"run_at": "2030-01-01T00:00:00Z", "started_at": "2030-01-01T00:00:00Z",
            "finished_at": "2030-01-01T00:00:01Z"}"#;
        let mixed = mixed.replace('\n', " ");
        let wrong = [
            "[]",
            "{}",
            r#"{"at_ms": 5}"#,
            r#"{"at_ms": 5, "runtime_ms": 1, "priority": 101}"#,
            r#"{"at_ms": 5, "runtime_ms": 1, "owner": ""}"#,
            r#"{"at_ms": -5, "runtime_ms": 1}"#,
            &mixed,
        ];
        for wrong in wrong {
            assert_eq!(of(&[good, wrong]), Err(2), "{wrong}");
        }
    }
}
