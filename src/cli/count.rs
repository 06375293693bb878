//! `leasehold count`: the number of jobs.

use clap::Args;

use super::failure::Failure;
use super::filter::GroupingArgs;
use super::output::table;
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::CountQuery;
use crate::wire::{CountAnswer, CountGroup};

/// Stands for a missing value.
const NONE: &str = "-";

/// Count jobs, in total or by group
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold count 'state: failed and finished_at > now-1d'
  leasehold count --by queue,state
  leasehold count 'state: failed' --by error.code,labels.team")]
pub(super) struct CountArgs {
    #[command(flatten)]
    jobs: GroupingArgs,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Counts and prints.
pub(super) async fn run(args: CountArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let answer = client.count(&CountQuery { jobs: args.jobs.query(), by: args.jobs.by.clone() }).await?;
    args.answer.print(&answer, |answer| show(answer, &args.jobs.by))
}

/// Formats an answer for people.
pub(super) fn show(answer: &CountAnswer, by: &[String]) -> String {
    if by.is_empty() {
        return answer.total.to_string();
    }
    let row = |group: &CountGroup| {
        let values = by.iter().map(|field| value(group.by.get(field)));
        values.chain([group.count.to_string()]).collect::<Vec<_>>()
    };
    let mut rows: Vec<Vec<String>> = answer.groups.iter().map(row).collect();
    let mut last = vec![String::new(); by.len() + 1];
    "in all".clone_into(&mut last[0]);
    last[by.len()] = answer.total.to_string();
    rows.push(last);
    let header: Vec<&str> = by.iter().map(String::as_str).chain(["jobs"]).collect();
    table(&header, rows)
}

/// Formats a group's value for people.
pub(super) fn value(value: Option<&Option<String>>) -> String {
    value.cloned().flatten().unwrap_or_else(|| NONE.to_owned())
}
