//! `leasehold describe`: everything about a job on one page.

use clap::Args;

use super::chosen::Ids;
use super::clean::clean;
use super::failure::Failure;
use super::output::{print, wrap};
use super::settings::Settings;
use super::{get, job_id};
use crate::client::OutputQuery;
use crate::job::shell::leasehold;
use crate::wire::{AttemptOutput, OutputPart};

/// How many of the last lines of each stream are shown.
const LINES: usize = 10;
/// The indent of what is below a heading.
const INDENT: usize = 2;

/// Show everything about jobs on one page: fields, history, why they do not run, and the end of their output
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  leasehold describe my-job")]
pub(super) struct DescribeArgs {
    #[command(flatten)]
    jobs: Ids,
}

/// Prints a page for each job.
pub(super) async fn run(args: DescribeArgs, settings: Settings) -> Result<(), Failure> {
    let Ids { ids, answer } = args.jobs;
    let client = answer.connect(&settings.client)?;
    let mut gap = "";
    for id in &job_id::resolve_all(&client, &ids).await? {
        let job = client.job(id).await?;
        if answer.is_for_programs() {
            answer.print_item(&job)?;
            continue;
        }
        let mut page = format!("{gap}{}", get::describe(&job));
        if !job.state.is_final() {
            page.push_str("\n\nwhy it stands where it does");
            for reason in &client.explain(id).await?.reasons {
                page.push('\n');
                page.push_str(&wrap(&clean(&reason.message), INDENT));
            }
        }
        let output = client.output(id, &OutputQuery::default()).await?;
        page.push_str(&last_lines(&output));
        let logs = leasehold("logs").operand(id);
        let events = leasehold("events --since 1d").option("--job", id);
        page.push_str(&format!("\n\nmore: {logs}; {events}"));
        print(&page)?;
        gap = "\n";
    }
    Ok(())
}

/// Formats the last lines of each stream that has any.
fn last_lines(output: &AttemptOutput) -> String {
    let mut text = String::new();
    for stream in output.streams.iter().filter(|stream| stream.bytes > 0) {
        let bytes: Vec<u8> = stream.parts.last().map(OutputPart::bytes).unwrap_or_default();
        let said = clean(&String::from_utf8_lossy(&bytes));
        let lines: Vec<&str> = said.lines().collect();
        text.push_str(&format!("\n\nthe end of {} of attempt {}", stream.stream.as_str(), output.attempt));
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            text.push_str(&format!("\n{:INDENT$}{line}", ""));
        }
    }
    text
}
