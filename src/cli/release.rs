//! `leasehold release`: takes jobs from their workers.

use clap::{Args, ValueEnum};

use super::chosen::Chosen;
use super::failure::Failure;
use super::many::{self, Action};
use super::output::{print, print_json};
use super::settings::Settings;
use crate::wire::{AdminRelease, Then};

/// Take running jobs from their workers, by an administrator's word
///
/// The worker's lease ends at once, and whatever it still says about the job is refused. The work itself goes on until
/// the worker hears of it with its next heartbeat.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  leasehold release my-job --reason 'host7 burnt down' --expected-fence 3\n  \
                        leasehold release --worker host7:4711 --reason 'host7 burnt down' --dry-run")]
pub(super) struct ReleaseArgs {
    /// Why, for the history; not needed for a dry run
    #[arg(long, env = "LEASEHOLD_REASON", required_unless_present = "dry_run")]
    reason: Option<String>,
    /// What becomes of them
    #[arg(long, env = "LEASEHOLD_THEN", value_enum, default_value_t = Fate::Requeue)]
    then: Fate,
    /// Only while the job has this fence, as `leasehold orphans` shows it: a newer claim is left alone
    #[arg(long, value_name = "FENCE", env = "LEASEHOLD_EXPECTED_FENCE", conflicts_with = "filter")]
    expected_fence: Option<u64>,
    #[command(flatten)]
    jobs: Chosen,
}

/// What becomes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fate {
    /// It waits to be claimed again
    Requeue,
    /// It has failed
    Fail,
    /// It is cancelled
    Cancel,
}

/// Releases them: those of ids one after the other.
pub(super) async fn run(args: ReleaseArgs, settings: Settings) -> Result<(), Failure> {
    let ReleaseArgs { reason, then, expected_fence, jobs } = args;
    let client = jobs.answer.server.clone().connect(&settings.client)?;
    let then = match then {
        Fate::Requeue => Then::Requeue,
        Fate::Fail => Then::Fail,
        Fate::Cancel => Then::Cancel,
    };
    if let Some(filter) = jobs.filter.filter() {
        return many::run(&client, Action::Release(then), filter, reason, &jobs).await;
    }
    let order = AdminRelease { reason: reason.unwrap_or_default(), then, expected_fence };
    for id in &jobs.ids {
        let job = client.admin_release(id, &order).await?;
        if jobs.answer.json {
            print_json(&job)?;
        } else {
            print(&format!("{id}: {}", job.state.as_str()))?;
        }
    }
    Ok(())
}
