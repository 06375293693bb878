//! `leasehold schedule backfill`.

use clap::Args;

use super::manage::OneArgs;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::output::Page;
use crate::cli::settings::Settings;
use crate::cli::wait;
use crate::job::JobState;
use crate::scheduler::BackfillReport;
use crate::wire::{BackfillSchedule, Job};

/// Run the due times of a schedule that were not performed; prints the id of the backfill
///
/// These are those that were missed or skipped, that failed, from before the schedule existed, and of which nothing is
/// known any more. The backfill is a job: `leasehold get`, `wait` and `cancel` take its id.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule backfill nightly --from 2030-01-01T00:00:00Z --to 2030-01-31T00:00:00Z
  leasehold schedule backfill nightly --from 2030-01-01T00:00:00Z --to 2030-01-31T00:00:00Z --max-concurrent 4 --wait")]
pub(super) struct BackfillArgs {
    #[command(flatten)]
    one: OneArgs,
    /// The first due time to run is at this time or after it (RFC 3339)
    #[arg(long, value_name = "TIME")]
    from: String,
    /// The last due time to run is at this time or before it (RFC 3339), which has passed
    #[arg(long, value_name = "TIME")]
    to: String,
    /// Have at most this many due times under way at once, each until its job has ended
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_concurrent: u64,
    /// Wait until the backfill has ended, and print what it has done; exits with 1 when something failed
    #[arg(long)]
    wait: bool,
}

/// Starts a backfill, and waits for it if that is wanted.
pub(super) async fn run(args: BackfillArgs, settings: Settings) -> Result<(), Failure> {
    let BackfillArgs { one: OneArgs { id, answer }, from, to, max_concurrent, wait } = args;
    let client = answer.connect(&settings.client)?;
    let backfill = BackfillSchedule { from, to, max_concurrent: Some(max_concurrent) };
    let started = client.backfill_schedule(&id, &backfill).await?;
    if !wait {
        return answer.print(&started, |started| started.backfill_id.to_string());
    }
    let job = wait::until_ended(&client, started.backfill_id.as_str(), None).await?;
    answer.print(&job, describe)?;
    let is_whole = report(&job).is_some_and(|report| report.failed + report.consumed == 0);
    if is_whole { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
}

fn report(job: &Job) -> Option<BackfillReport> {
    serde_json::from_str(job.result.as_json()?.as_str()).ok()
}

/// Formats what a backfill has done.
fn describe(job: &Job) -> String {
    let mut page = Page::new(18);
    page.line("backfill", &job.id);
    if job.state != JobState::Completed {
        page.line("state", job.state.as_str());
    }
    page.option("error", job.error.as_ref().map(|error| format!("{}: {}", error.code, error.message)).as_deref());
    if let Some(report) = report(job) {
        page.line("due times", &report.due.to_string());
        page.line("performed before", &report.already.to_string());
        page.line("performed", &report.performed.to_string());
        page.line("refused", &report.consumed.to_string());
        page.line("failed", &report.failed.to_string());
        for (index, id) in report.failed_ids.iter().enumerate() {
            page.line(if index == 0 { "failed jobs" } else { "" }, id.as_str());
        }
    }
    page.text()
}
