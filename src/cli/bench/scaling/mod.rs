//! How several managers share the jobs of one Elasticsearch.
//!
//! In reading order: this file, `cluster` (the Elasticsearch), `row` (what is measured), `naive` (the textbook protocol
//! beside it), `ceiling` (Elasticsearch alone), `record` and `plot` (what is written down).
//!
//! For each number of managers a queue in new indices is filled, then emptied by workers that are spread evenly over
//! the managers, or both at the same time; after that jobs come at a steady rate, which tells how long one waits. The
//! workers and what they do are the same for each number.

mod ceiling;
mod cluster;
mod naive;
mod plot;
mod record;
mod row;

use std::time::Duration;

use futures::future::join_all;

use super::args::BenchArgs;
use super::latency::Steady;
use super::target::Target;
use super::{latency, lives};
use crate::cli::failure::Failure;
use crate::cli::output::{complain, print, print_json, table};
use cluster::Cluster;
use row::{Counters, Protocol, Row};

const DEFAULT_JOBS: u32 = 40_000;
/// How many jobs a second are submitted to measure their waits, and for how long.
const RATE: u32 = 50;
const STEADY_FOR: Duration = Duration::from_secs(5);
/// Where Elasticsearch is if nothing else is said.
const DEFAULT_URL: &str = "http://localhost:9200";

/// Runs the scenario and prints its result, up to where it failed if it did.
pub(super) async fn run(args: &BenchArgs) -> Result<(), Failure> {
    let (mut rows, mut version) = (Vec::new(), String::new());
    let measured = measure_all(args, &mut rows, &mut version).await;
    if !rows.is_empty() {
        if let Some(directory) = &args.output {
            record::write(directory, &rows, &table_of(&rows), &version)?;
        }
        match args.json {
            true => rows.iter().try_for_each(print_json)?,
            false => print(&table_of(&rows))?,
        }
    }
    measured?;
    match rows.iter().all(|row| row.lost == 0 && row.handed_out_twice == 0) {
        true => Ok(()),
        false => Err(Failure::Failed("jobs were lost or handed out twice".to_owned())),
    }
}

/// Measures over each cluster that is asked for, and notes the version of Elasticsearch.
async fn measure_all(args: &BenchArgs, rows: &mut Vec<Row>, version: &mut String) -> Result<(), Failure> {
    let jobs = args.jobs.unwrap_or(DEFAULT_JOBS);
    let steady = Steady { rate: RATE, duration: STEADY_FOR, workers: args.scaling_workers() }.or(args);
    let Some(home) = &args.elasticsearch_home else {
        let given = Some(args.elasticsearch_url.clone()).filter(|urls| !urls.is_empty());
        let cluster = Cluster::running(given.unwrap_or_else(|| vec![DEFAULT_URL.to_owned()])).await?;
        version.clone_from(&cluster.version);
        return measure(args, &cluster, jobs, &steady, rows).await;
    };
    for nodes in if args.nodes.is_empty() { &[1][..] } else { &args.nodes } {
        tell(args, &format!("starting {nodes} of Elasticsearch's nodes"));
        let cluster = Cluster::start(home, *nodes).await?;
        version.clone_from(&cluster.version);
        measure(args, &cluster, jobs, &steady, rows).await?;
    }
    Ok(())
}

/// Measures everything that is asked for over one cluster.
async fn measure(
    args: &BenchArgs,
    cluster: &Cluster,
    jobs: u32,
    steady: &Steady,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    // The first ones would pay for what a server's virtual machine has yet to compile.
    tell(args, "warming up");
    with_managers(args, cluster, 1, async |managers| drained(args, managers, jobs, steady).await).await?;
    measure_ceiling(args, cluster, jobs, steady, rows).await?;
    for count in args.scaling_managers() {
        tell(args, &format!("measuring {count} managers"));
        let row = with_managers(args, cluster, *count, async |managers| {
            // A server that is new pays for the memory that it will keep, and each of several has less to do meanwhile.
            drained(args, managers, jobs, steady).await?;
            name_queue(managers, "measured");
            let mut row = drained(args, managers, jobs, steady).await?;
            name_queue(managers, "steady");
            let places = latency::Places { submit: managers, work: managers };
            let report = latency::spread(args, &places, steady).await?;
            row.add_steady(&report, managers[0].completed(report.jobs).await?);
            Ok(row)
        });
        rows.push(row.await?);
    }
    if args.naive {
        tell(args, "measuring the textbook protocol");
        rows.push(naive::measure(args, cluster, jobs, steady).await?);
    }
    // Once more: a machine is not as fast all the time, and a virtual machine becomes faster.
    measure_ceiling(args, cluster, jobs, steady, rows).await
}

async fn measure_ceiling(
    args: &BenchArgs,
    cluster: &Cluster,
    jobs: u32,
    steady: &Steady,
    rows: &mut Vec<Row>,
) -> Result<(), Failure> {
    if args.ceiling {
        tell(args, "measuring the ceiling");
        rows.push(ceiling::measure(args, cluster, jobs, steady.workers).await?);
    }
    Ok(())
}

/// Starts managers in new indices, measures them and stops them.
async fn with_managers(
    args: &BenchArgs,
    cluster: &Cluster,
    count: u16,
    measured: impl AsyncFnOnce(&mut Vec<Target>) -> Result<Row, Failure>,
) -> Result<Row, Failure> {
    let mut managers = Target::managers(args, &cluster.urls, count).await?;
    let mut row = measured(&mut managers).await?;
    join_all(managers.into_iter().map(Target::stop)).await;
    (row.elasticsearch_nodes, row.managers, row.workers) = (cluster.nodes, Some(count), args.scaling_workers());
    Ok(row)
}

/// Goes on with a queue of this name.
fn name_queue(managers: &mut [Target], name: &str) {
    managers.iter_mut().for_each(|manager| name.clone_into(&mut manager.queue));
}

/// Has the queue filled and emptied, one after the other or at the same time.
async fn drained(args: &BenchArgs, managers: &[Target], jobs: u32, steady: &Steady) -> Result<Row, Failure> {
    let (before, report);
    if args.whole_lives {
        before = Counters::read(managers).await?;
        report = lives::spread(args, managers, jobs, steady.workers).await?;
    } else {
        let flow = lives::fill(args, managers, jobs).await?;
        managers[0].until_visible(jobs).await?;
        before = Counters::read(managers).await?;
        report = lives::drain(args, managers, steady.workers, flow).await?;
    }
    let after = Counters::read(managers).await?;
    let mut row = Row::of(Protocol::Leasehold, &report, managers[0].completed(report.jobs).await?);
    after.note(before, &mut row);
    Ok(row)
}

fn tell(args: &BenchArgs, what: &str) {
    if !args.json {
        complain(&format!("{what} …"));
    }
}

fn table_of(rows: &[Row]) -> String {
    let heads = [
        "nodes",
        "managers",
        "jobs/s",
        "conflicts/claim",
        "wait p50 (ms)",
        "p99",
        "processor/job (µs)",
        "lost",
        "twice",
        "× textbook",
        "% of ceiling",
    ];
    let cells = |row: &Row| {
        vec![
            row.elasticsearch_nodes.to_string(),
            match (row.managers, row.protocol) {
                (Some(managers), _) => managers.to_string(),
                (None, Protocol::Ceiling) => "ceiling".to_owned(),
                (None, _) => "textbook".to_owned(),
            },
            format!("{:.0}", row.jobs_per_second),
            format!("{:.3}", row.conflicts_per_claim),
            format!("{:.1}", row.wait_p50_ms),
            format!("{:.1}", row.wait_p99_ms),
            row.processor_us_per_job.map_or_else(String::new, |micros| format!("{micros:.0}")),
            row.lost.to_string(),
            row.handed_out_twice.to_string(),
            ratio(row, rows, Protocol::Textbook).map_or_else(String::new, |ratio| format!("{ratio:.1}")),
            ratio(row, rows, Protocol::Ceiling).map_or_else(String::new, |ratio| format!("{:.0}", 100.0 * ratio)),
        ]
    };
    table(&heads, rows.iter().map(cells))
}

/// Returns how many times the mean of a protocol's throughput over the same cluster a row's is.
fn ratio(row: &Row, rows: &[Row], protocol: Protocol) -> Option<f64> {
    let is_beside = |other: &&Row| (other.protocol, other.elasticsearch_nodes) == (protocol, row.elasticsearch_nodes);
    let others: Vec<f64> = rows.iter().filter(is_beside).map(|other| other.jobs_per_second).collect();
    let mean = others.iter().sum::<f64>() / others.len() as f64;
    (!others.is_empty()).then(|| row.jobs_per_second / mean.max(0.001))
}
