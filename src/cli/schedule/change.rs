//! `leasehold schedule pause`, `resume` and `remove`: schedules by id, or all schedules of a filter.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::manage::{COLUMNS, row, stands_line};
use crate::cli::complete;
use crate::cli::failure::Failure;
use crate::cli::layout::Column;
use crate::cli::many::{self, Confirmation, HEADING, ManyChange};
use crate::cli::output::{clean, print};
use crate::cli::server::ClientArgs;
use crate::cli::settings::Settings;
use crate::client::{Client, ClientError};
use crate::wire::{BulkReport, BulkScheduleChange, BulkScheduleFilter, Schedule};

/// Schedules by their ids, or all schedules of a filter.
#[derive(Debug, Args)]
pub(super) struct ChosenArgs {
    /// The ids of the schedules; or select them with the options below
    #[arg(value_name = "ID", required_unless_present = "filter", conflicts_with = "filter")]
    ids: Vec<String>,
    #[command(flatten)]
    filter: FilterArgs,
    #[command(flatten)]
    confirmation: Confirmation,
    #[command(flatten, next_help_heading = None::<&str>)]
    answer: ClientArgs,
}

/// A filter of a bulk change. It is given on the command line only, as that of jobs is.
#[derive(Debug, Args)]
#[command(next_help_heading = HEADING)]
#[group(id = "filter", multiple = true)]
struct FilterArgs {
    /// Select only schedules that this KQL query matches
    #[arg(long, value_name = "KQL", add = ArgValueCompleter::new(complete::schedule_kql))]
    kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone, such as Europe/Berlin or +02:00 [default:
    /// UTC]
    #[arg(long, value_name = "ZONE", env = "LEASEHOLD_TIME_ZONE")]
    time_zone: Option<String>,
    /// Select only schedules of this owner
    #[arg(long, value_name = "OWNER")]
    owner: Option<String>,
    /// Select all schedules that the command can change
    #[arg(long, conflicts_with_all = ["kql", "owner"])]
    all: bool,
}

impl FilterArgs {
    /// Returns the filter; `None` when no option of it was given.
    fn filter(&self) -> Option<BulkScheduleFilter> {
        let filter = BulkScheduleFilter {
            kql: self.kql.clone(),
            time_zone: self.time_zone.clone().filter(|_| self.kql.is_some()),
            owner: self.owner.clone(),
            ids: Vec::new(),
            all: self.all,
        };
        (filter != BulkScheduleFilter::default()).then_some(filter)
    }
}

/// Pause schedules: they do not run until they are resumed
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule pause nightly --reason 'a move'
  leasehold schedule pause --kql 'labels.team: blue' --reason 'a move' --dry-run")]
pub(super) struct PauseArgs {
    /// Record this reason, which is shown to other people; required for many schedules at once
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    schedules: ChosenArgs,
}

/// Pauses schedules.
pub(super) async fn pause(args: PauseArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Pause, args.reason, args.schedules, settings).await
}

/// Ends the pauses of schedules.
pub(super) async fn resume(args: ChosenArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Resume, None, args, settings).await
}

/// Removes schedules.
pub(super) async fn remove(args: ChosenArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Remove, None, args, settings).await
}

/// A change to a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Pause,
    Resume,
    Remove,
}

/// Changes the schedules of a filter together, or those of ids one after the other.
async fn run(action: Action, reason: Option<String>, chosen: ChosenArgs, settings: Settings) -> Result<(), Failure> {
    let ChosenArgs { ids, filter, confirmation, answer } = chosen;
    let client = answer.connect(&settings.client)?;
    if let Some(filter) = filter.filter() {
        return many::run(&client, &ManySchedules { action, filter, reason }, &confirmation, &answer).await;
    }
    for id in &ids {
        match action {
            Action::Pause => {
                let reason = reason.as_deref().unwrap_or_default();
                answer.print(&client.pause_schedule(id, reason).await?, stands_line)?;
            }
            Action::Resume => answer.print(&client.resume_schedule(id).await?, stands_line)?,
            Action::Remove => {
                client.remove_schedule(id).await?;
                print(&format!("{}: removed", clean(id)))?;
            }
        }
    }
    Ok(())
}

/// A change of the schedules of a filter.
struct ManySchedules {
    action: Action,
    filter: BulkScheduleFilter,
    reason: Option<String>,
}

impl ManyChange for ManySchedules {
    type Item = Schedule;

    const NOUNS: [&'static str; 2] = ["schedule", "schedules"];
    const SAMPLE: &'static str = "first";
    const COLUMNS: &'static [Column] = COLUMNS;

    fn verb(&self) -> &'static str {
        match self.action {
            Action::Pause => "pause",
            Action::Resume => "resume",
            Action::Remove => "remove",
        }
    }

    fn lacks_reason(&self) -> bool {
        self.action == Action::Pause && self.reason.is_none()
    }

    async fn call(
        &self,
        client: &Client,
        dry_run: bool,
        cursor: Option<String>,
    ) -> Result<BulkReport<Schedule>, ClientError> {
        let (filter, reason) = (self.filter.clone(), self.reason.clone().filter(|_| !dry_run));
        let order = BulkScheduleChange { filter, reason, dry_run, cursor, max_schedules: None };
        match self.action {
            Action::Pause => client.pause_schedules(&order).await,
            Action::Resume => client.resume_schedules(&order).await,
            Action::Remove => client.remove_schedules(&order).await,
        }
    }

    fn row(schedule: &Schedule) -> Vec<String> {
        row(schedule)
    }
}
