//! `leasehold bench`: drives a server over HTTP as many clients and workers do at once, and measures it.
//!
//! In reading order: `args`, this file, `target` (the server), `calls` (how it is called),
//! `scoreboard` and `report` (what is noted and printed), and the scenarios `lives`, `latency`, `recovery`, `query`,
//! `claims`, `schedules`, `scaling`, `model` and `replay`.
//!
//! The server is a process of its own, so that what is measured is what a user gets: this program on a free port with
//! a fresh data directory, or any server that is named. The driver shares the machine with it and so is kept lean:
//! bodies are built once, connections stay open, and of the answers only what is needed is read.

mod args;
mod calls;
mod claims;
mod latency;
mod lives;
mod model;
mod query;
mod recovery;
mod replay;
mod report;
mod scaling;
mod schedules;
mod scoreboard;
mod target;

pub(super) use args::BenchArgs;

use super::failure::{ExitStatus, Failure};
use super::limits;
use super::signals::Signals;
use crate::worker::Stop;
use args::Scenario;
use report::Report;
use target::Target;

/// Runs the scenario, on one thread: the server needs the other cores.
pub(super) fn run(args: BenchArgs) -> Result<(), Failure> {
    args.check()?;
    match args.scenario {
        Scenario::Model => return model::run(&args),
        Scenario::Replay => return replay::run(&args),
        _ => {}
    }
    limits::raise_open_files();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Failed(format!("cannot start: {error}")))?;
    runtime.block_on(async {
        let signals = Signals::listen(|_| ())?;
        let mut stop = signals.stop().listen();
        // What was started does not hear a Ctrl-C, and is killed when it is dropped, which a signal would not do.
        tokio::select! {
            result = measure(&args) => result,
            () = stop.reached(Stop::Drain) => {
                Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)))
            }
        }
    })
}

async fn measure(args: &BenchArgs) -> Result<(), Failure> {
    match args.scenario {
        Scenario::Lives => drive(args, lives::measure).await,
        Scenario::Latency => drive(args, latency::measure).await,
        Scenario::Recovery => drive(args, recovery::measure).await,
        Scenario::Query => query::run(args).await,
        Scenario::Claims => claims::run(args).await,
        Scenario::Scaling => scaling::run(args).await,
        Scenario::Schedules => schedules::run(args).await,
        Scenario::Model | Scenario::Replay => Ok(()),
    }
}

/// Measures a server over HTTP and prints the report.
async fn drive(
    args: &BenchArgs,
    measure: impl AsyncFnOnce(&BenchArgs, &Target) -> Result<Report, Failure>,
) -> Result<(), Failure> {
    let target = Target::prepare(args).await?;
    let report = measure(args, &target).await?;
    let counted = target.completed(report.jobs).await?;
    target.stop().await;
    report.print(counted, args.json)?;
    let faults = report.faults(counted);
    match faults.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(format!("the server lost count: {}", faults.join("; ")))),
    }
}
