//! `leasehold schedule`: when schedules fire ([`next`]), and what a crontab says ([`import`]). Neither needs a server.

mod import;
mod local;
mod next;

use clap::{Args, Subcommand};

use super::failure::Failure;

/// Show when schedules fire
#[derive(Debug, Args)]
pub(super) struct ScheduleArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Next(next::NextArgs),
    Import(import::ImportArgs),
}

/// Runs the subcommand.
pub(super) fn run(args: ScheduleArgs) -> Result<(), Failure> {
    match args.action {
        Action::Next(args) => next::run(args),
        Action::Import(args) => import::run(&args),
    }
}
