//! `leasehold explain`: why jobs do not run, in sentences.

use clap::Args;

use super::chosen::Ids;
use super::failure::Failure;
use super::job_id;
use super::output::{clean, wrap};
use super::settings::Settings;
use crate::wire::Explanation;

/// The indent of each sentence.
const INDENT: usize = 2;

/// Explain why jobs do not run, or how they are doing
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  leasehold explain 0197b2f0-6c1e-7c57-a6ac-bbdcbdad0cd5")]
pub(super) struct ExplainArgs {
    #[command(flatten)]
    jobs: Ids,
}

/// Prints the explanations.
pub(super) async fn run(args: ExplainArgs, settings: Settings) -> Result<(), Failure> {
    let Ids { ids, answer } = args.jobs;
    let client = answer.connect(&settings.client)?;
    for id in &job_id::resolve_all(&client, &ids).await? {
        answer.print(&client.explain(id).await?, in_words)?;
    }
    Ok(())
}

fn in_words(explanation: &Explanation) -> String {
    let runnable = if explanation.runnable { ", can be claimed" } else { "" };
    let mut lines = vec![format!("{}: {}{runnable}", clean(explanation.id.as_str()), explanation.state.as_str())];
    for reason in &explanation.reasons {
        lines.push(wrap(&clean(&reason.message), INDENT));
    }
    lines.join("\n")
}
