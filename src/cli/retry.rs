//! `leasehold retry`: starts ended jobs again.

use clap::Args;

use super::chosen::Chosen;
use super::failure::Failure;
use super::many::{self, Action};
use super::output::{print, print_json};
use super::settings::Settings;

/// Start failed, cancelled or expired jobs again, with a fresh budget of attempts
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold retry my-job\n  leasehold retry --state failed --queue reports --reason 'the disk is mended' --dry-run"
)]
pub(super) struct RetryArgs {
    /// Why, for the history; needed for many jobs at once
    #[arg(long, env = "LEASEHOLD_REASON")]
    reason: Option<String>,
    #[command(flatten)]
    jobs: Chosen,
}

/// Retries them: those of ids one after the other.
pub(super) async fn run(args: RetryArgs, settings: Settings) -> Result<(), Failure> {
    let RetryArgs { reason, jobs } = args;
    let client = jobs.answer.server.clone().connect(&settings.client)?;
    if let Some(filter) = jobs.filter.filter() {
        return many::run(&client, Action::Retry, filter, reason, &jobs).await;
    }
    for id in &jobs.ids {
        let job = client.retry(id, reason.as_deref()).await?;
        if jobs.answer.json {
            print_json(&job)?;
        } else {
            print(&format!("{id}: {}", job.state.as_str()))?;
        }
    }
    Ok(())
}
