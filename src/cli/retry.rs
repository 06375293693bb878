//! `leasehold retry`: starts ended jobs again.

use clap::Args;

use super::failure::Failure;
use super::output::{print, print_json};
use super::server::ServerArgs;
use super::settings::Settings;

/// Start failed, cancelled or expired jobs again, with a fresh budget of attempts
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold retry my-job\n  leasehold list --state failed --json -n 0 | jq -r .id | xargs leasehold retry"
)]
pub(super) struct RetryArgs {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print each as one line of JSON, as the server gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Retries them, one after the other.
pub(super) async fn run(args: RetryArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    for id in &args.ids {
        let job = client.retry(id).await?;
        if args.json {
            print_json(&job)?;
        } else {
            print(&format!("{id}: {}", job.state.as_str()))?;
        }
    }
    Ok(())
}
