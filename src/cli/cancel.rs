//! `leasehold cancel`: calls jobs off.

use clap::Args;

use super::failure::Failure;
use super::output::{print, print_json};
use super::server::ServerArgs;
use super::settings::Settings;
use crate::api::wire::JobState;

/// Call jobs off; a running one is asked to stop, and its worker hears of it with its next heartbeat
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leasehold cancel my-job --reason 'wrong month'")]
pub(super) struct CancelArgs {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Why, for the history
    #[arg(long, env = "LEASEHOLD_REASON")]
    reason: Option<String>,
    /// Print each as one line of JSON, as the server gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Cancels them, one after the other.
pub(super) async fn run(args: CancelArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    for id in &args.ids {
        let job = client.cancel(id, args.reason.as_deref()).await?;
        match job.state {
            _ if args.json => print_json(&job)?,
            JobState::Running => print(&format!("{id}: asked to stop"))?,
            state => print(&format!("{id}: {}", state.as_str()))?,
        }
    }
    Ok(())
}
