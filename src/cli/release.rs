//! `leasehold release`: takes jobs from their workers.

use clap::{Args, ValueEnum};

use super::failure::Failure;
use super::output::{print, print_json};
use super::server::ServerArgs;
use super::settings::Settings;
use crate::api::wire::{AdminRelease, Then};

/// Take running jobs from their workers, by an administrator's word
///
/// The worker's lease ends at once, and whatever it still says about the job is refused. The work itself goes on until
/// the worker hears of it with its next heartbeat.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leasehold release my-job --reason 'host7 burnt down'")]
pub(super) struct ReleaseArgs {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Why, for the history
    #[arg(long, env = "LEASEHOLD_REASON")]
    reason: String,
    /// What becomes of them
    #[arg(long, env = "LEASEHOLD_THEN", value_enum, default_value_t = Fate::Requeue)]
    then: Fate,
    /// Only while the job has this fence: a newer claim is left alone
    #[arg(long, value_name = "FENCE", env = "LEASEHOLD_EXPECTED_FENCE")]
    expected_fence: Option<u64>,
    /// Print each as one line of JSON, as the server gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
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

/// Releases them, one after the other.
pub(super) async fn run(args: ReleaseArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    let then = match args.then {
        Fate::Requeue => Then::Requeue,
        Fate::Fail => Then::Fail,
        Fate::Cancel => Then::Cancel,
    };
    let order = AdminRelease { reason: args.reason, then, expected_fence: args.expected_fence };
    for id in &args.ids {
        let job = client.admin_release(id, &order).await?;
        if args.json {
            print_json(&job)?;
        } else {
            print(&format!("{id}: {}", job.state.as_str()))?;
        }
    }
    Ok(())
}
