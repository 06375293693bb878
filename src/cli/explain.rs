//! `leasehold explain`: why jobs do not run, in words.

use clap::Args;

use super::failure::Failure;
use super::output::{clean, print, print_json, wrap};
use super::server::ServerArgs;
use super::settings::Settings;
use crate::wire::Explanation;

/// What stands before each sentence.
const INDENT: usize = 2;

/// Say why jobs do not run, or how they are doing
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  leasehold explain 0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
pub(super) struct ExplainArgs {
    /// The jobs
    #[arg(required = true, value_name = "ID")]
    ids: Vec<String>,
    /// Print each as one line of JSON, as the server gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Asks and prints.
pub(super) async fn run(args: ExplainArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    for id in &args.ids {
        let explanation = client.explain(id).await?;
        if args.json {
            print_json(&explanation)?;
        } else {
            print(&in_words(&explanation))?;
        }
    }
    Ok(())
}

fn in_words(explanation: &Explanation) -> String {
    let runnable = if explanation.runnable { ", can be claimed" } else { "" };
    let mut lines = vec![format!("{}: {}{runnable}", clean(&explanation.id), explanation.state.as_str())];
    for reason in &explanation.reasons {
        lines.push(wrap(&clean(&reason.message), INDENT));
    }
    lines.join("\n")
}
