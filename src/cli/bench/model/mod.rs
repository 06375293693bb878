//! What to expect of more managers and more machines than there are here, from a simulation.

mod simulation;

use serde::Serialize;

use super::args::BenchArgs;
use crate::cli::failure::Failure;
use crate::cli::output::{print, print_json, table};
use simulation::{Outcome, Rule, Site};

const DEFAULT_JOBS: u32 = 400_000;
const DEFAULT_MANAGERS: [u16; 6] = [1, 2, 4, 8, 16, 64];
const DEFAULT_WORKERS: u16 = 8;
/// The sizes of the index: as it is measured on one machine, and on a cluster where each shard has a machine.
const SHARDS: [u16; 2] = [1, 16];

/// A simulated drain, as it is printed.
#[derive(Serialize)]
struct Row {
    rule: &'static str,
    shards: u16,
    managers: u16,
    jobs: u32,
    /// While the first half of the jobs is done, of which there are enough for all managers.
    jobs_per_second: f64,
    conflicts_per_claim: f64,
    /// To the last job, for which all managers reach.
    jobs_per_second_to_the_last: f64,
    conflicts_per_claim_to_the_last: f64,
}

/// Runs the simulations and prints their results.
pub(super) fn run(args: &BenchArgs) -> Result<(), Failure> {
    let managers = if args.managers.is_empty() { &DEFAULT_MANAGERS[..] } else { &args.managers };
    let mut rows = Vec::new();
    for shards in SHARDS {
        for rule in [Rule::MostUrgent, Rule::OwnPartitions] {
            rows.extend(managers.iter().map(|managers| row(args, shards, rule, *managers)));
        }
    }
    if args.json {
        return rows.iter().try_for_each(print_json);
    }
    let heads = ["rule", "shards", "managers", "jobs/s", "conflicts/claim", "to the last: jobs/s", "conflicts/claim"];
    let cells = |row: &Row| {
        vec![
            row.rule.to_owned(),
            row.shards.to_string(),
            row.managers.to_string(),
            format!("{:.0}", row.jobs_per_second),
            format!("{:.3}", row.conflicts_per_claim),
            format!("{:.0}", row.jobs_per_second_to_the_last),
            format!("{:.3}", row.conflicts_per_claim_to_the_last),
        ]
    };
    print(&table(&heads, rows.iter().map(cells)))
}

fn row(args: &BenchArgs, shards: u16, rule: Rule, managers: u16) -> Row {
    let site = Site {
        rule,
        shards,
        managers,
        workers: args.workers.unwrap_or(DEFAULT_WORKERS),
        batch: args.batch,
        jobs: args.jobs.unwrap_or(DEFAULT_JOBS),
        seed: args.seed,
    };
    let Outcome { first_half, whole } = simulation::run(&site);
    Row {
        rule: rule.as_str(),
        shards,
        managers,
        jobs: site.jobs,
        jobs_per_second: first_half.jobs_per_second(),
        conflicts_per_claim: first_half.conflicts_per_claim(),
        jobs_per_second_to_the_last: whole.jobs_per_second(),
        conflicts_per_claim_to_the_last: whole.conflicts_per_claim(),
    }
}
