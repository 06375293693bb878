//! `leasehold schedule`: when schedules fire.

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
}

/// Runs the subcommand.
pub(super) fn run(args: ScheduleArgs) -> Result<(), Failure> {
    match args.action {
        Action::Next(args) => next::run(args),
    }
}
