//! `leasehold schedule`: schedules of a server ([`add`] and [`upload`], [`manage`], [`change`], [`backfill`]), when
//! schedules fire ([`next`]), and what a crontab says ([`import`]).

mod add;
mod backfill;
mod change;
mod import;
mod local;
mod manage;
mod next;
mod plan;
mod upload;

use clap::{Args, Subcommand};

use super::failure::Failure;
use super::settings::Settings;

/// Store, show and pause schedules, and show when they fire
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule add nightly '0 2 * * *' --time-zone Europe/Berlin -- ./backup.sh
  leasehold schedule list
  leasehold schedule triggers nightly
  leasehold schedule next '*/5 8-18 * * MON-FRI'")]
pub(super) struct ScheduleArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Add(Box<add::AddArgs>),
    /// List schedules
    #[command(after_help = "\
Examples:
  leasehold schedule list 'paused: true and not labels.team: blue'
  leasehold schedule list --owner billing 'errors > 0 or not_run_at > now-1d'")]
    List(manage::ListArgs),
    /// Show everything about a schedule
    Show(manage::ShowArgs),
    /// List when a schedule was due, and what has become of it
    Triggers(manage::TriggersArgs),
    Pause(change::PauseArgs),
    /// Resume paused schedules; what would have been due meanwhile is not made up for
    #[command(after_help = "\
Examples:
  leasehold schedule resume nightly
  leasehold schedule resume --owner billing --dry-run")]
    Resume(change::ChosenArgs),
    /// Run a schedule now, whatever its times are; prints the id of its trigger
    Run(manage::OneArgs),
    Backfill(backfill::BackfillArgs),
    /// Remove schedules
    #[command(after_help = "\
Examples:
  leasehold schedule remove nightly
  leasehold schedule remove --kql 'not next_due_at: *' --dry-run")]
    Remove(change::ChosenArgs),
    Next(next::NextArgs),
    Import(import::ImportArgs),
}

/// Runs the subcommand.
pub(super) async fn run(args: ScheduleArgs, settings: Settings) -> Result<(), Failure> {
    match args.action {
        Action::Add(args) => add::run(*args, settings).await,
        Action::List(args) => manage::list(args, settings).await,
        Action::Show(args) => manage::show(args, settings).await,
        Action::Triggers(args) => manage::triggers(args, settings).await,
        Action::Pause(args) => change::pause(args, settings).await,
        Action::Resume(args) => change::resume(args, settings).await,
        Action::Run(args) => manage::run_now(args, settings).await,
        Action::Backfill(args) => backfill::run(args, settings).await,
        Action::Remove(args) => change::remove(args, settings).await,
        Action::Next(args) => next::run(args),
        Action::Import(args) => import::run(args, settings).await,
    }
}
