//! `leasehold bench`: drives a server over HTTP as many clients and workers do at once, and measures it.
//!
//! In reading order: `args`, this file, `target` (the server), `calls` (how it is called),
//! `scoreboard` and `report` (what is noted and printed), and the scenarios `lives`, `latency`, `recovery`, `query` and
//! `claims`.
//!
//! The server is a process of its own, so that what is measured is what a user gets: this program on a free port with
//! a fresh data directory, or any server that is named. The driver shares the machine with it and so is kept lean:
//! bodies are built once, connections stay open, and of the answers only what is needed is read.

mod args;
mod calls;
mod claims;
mod latency;
mod lives;
mod query;
mod recovery;
mod report;
mod scoreboard;
mod target;

pub(super) use args::BenchArgs;

use super::failure::Failure;
use super::limits;
use args::Scenario;
use report::Report;
use target::Target;

/// Runs the scenario, on one thread: the server needs the other cores.
pub(super) fn run(args: BenchArgs) -> Result<(), Failure> {
    args.check()?;
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
    measure: impl AsyncFnOnce(&BenchArgs, &Target) -> Result<Report, Failure>,
) -> Result<(), Failure> {
    let target = Target::prepare(args).await?;
    let report = measure(args, &target).await?;
    let counted = target.completed().await?;
    target.stop().await;
    report.print(counted, args.json)?;
    let faults = report.faults(counted);
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("the server lost count: {}", faults.join("; ")))),
    }
}
