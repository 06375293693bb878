//! `leasehold cancel`: calls jobs off.

use clap::Args;

use super::chosen::Chosen;
use super::failure::Failure;
use super::many::{self, Action};
use super::output::{print, print_json};
use super::settings::Settings;
use crate::wire::JobState;

/// Call jobs off; a running one is asked to stop, and its worker hears of it with its next heartbeat
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold cancel my-job --reason 'wrong month'\n  leasehold cancel --queue reports --reason 'wrong month' --dry-run"
)]
pub(super) struct CancelArgs {
    /// Why, for the history; needed for many jobs at once
    #[arg(long, env = "LEASEHOLD_REASON")]
    reason: Option<String>,
    #[command(flatten)]
    jobs: Chosen,
}

/// Cancels them: those of ids one after the other.
pub(super) async fn run(args: CancelArgs, settings: Settings) -> Result<(), Failure> {
    let CancelArgs { reason, jobs } = args;
    let client = jobs.answer.server.clone().connect(&settings.client)?;
    if let Some(filter) = jobs.filter.filter() {
        return many::run(&client, Action::Cancel, filter, reason, &jobs).await;
    }
    for id in &jobs.ids {
        let job = client.cancel(id, reason.as_deref()).await?;
        match job.state {
            _ if jobs.answer.json => print_json(&job)?,
            JobState::Running => print(&format!("{id}: asked to stop"))?,
            state => print(&format!("{id}: {}", state.as_str()))?,
        }
    }
    Ok(())
}
