//! `leasehold list`: the jobs that match.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::value::RawValue;

use super::count;
use super::failure::Failure;
use super::filter::ListingArgs;
use super::job_row::{error_of, phase_of};
use super::layout::Column;
use super::look::time;
use super::output::{shorten, table, table_or};
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::CountQuery;
use crate::job::Json;
use crate::wire::Job;

/// The columns of a list of jobs.
const COLUMNS: &[Column] = &[
    Column::id("id"),
    Column::text("queue").weight(70),
    Column::text("kind").weight(60),
    Column::state("phase"),
    Column::word("attempt").weight(30),
    Column::word("created").weight(55),
    Column::word("priority").only_wide(),
    Column::text("owner").only_wide(),
    Column::text("worker").only_wide(),
    Column::text("labels").only_wide(),
    Column::text("error").weight(40),
];
/// What is said when there are none.
pub(super) const NONE: &str = "no jobs match";
/// How many characters of a field are shown.
const FIELD_CHARACTERS: usize = 200;

/// List jobs, newest first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold list --state failed
  leasehold list 'state: running and not owner: team-a'
  leasehold list --queue reports --sort -priority -n 20
  leasehold list 'state: running' --fields id,lease.worker_id,labels.team
  leasehold list --state completed --json -n 0 | jq -r .id
  leasehold list --count")]
pub(super) struct ListArgs {
    #[command(flatten)]
    jobs: ListingArgs,
    /// Show at most this many jobs; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u64,
    /// Only count the jobs, by queue and state
    #[arg(long)]
    count: bool,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints the jobs.
pub(super) async fn run(args: ListArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let mut query = args.jobs.query();
    if args.count {
        let by = ["queue", "state"].map(str::to_owned).to_vec();
        let answer = client.count(&CountQuery { jobs: query, by: by.clone() }).await?;
        return args.answer.print(&answer, |answer| count::show(answer, &by));
    }
    let fields: Vec<&str> = args.jobs.fields.iter().map(String::as_str).collect();
    if fields.is_empty() {
        let page = async |limit, cursor| {
            (query.limit, query.cursor) = (Some(limit), cursor);
            client.jobs(&query).await.map(|page| (page.items, page.next_cursor))
        };
        args.answer.print_pages(args.limit, page, row, |rows| table_or(NONE, COLUMNS, rows)).await
    } else {
        let page = async |limit, cursor| {
            (query.limit, query.cursor) = (Some(limit), cursor);
            client.job_parts(&query, &args.jobs.fields).await.map(|page| (page.items, page.next_cursor))
        };
        let row = |job: &Json| fields.iter().map(|field| cell(job.as_str(), field)).collect();
        let text = |rows: Vec<_>| if rows.is_empty() { NONE.to_owned() } else { table(&fields, rows) };
        args.answer.print_pages(args.limit, page, row, text).await
    }
}

/// How deep a field is looked for in an answer: as deep as the server has any.
pub(super) const MAX_CELL_DEPTH: usize = 128;

/// Formats a field's value for people: a string without quotes, anything else as JSON, and nothing for a missing one.
pub(super) fn cell(json: &str, field: &str) -> String {
    cell_within(json, field, MAX_CELL_DEPTH)
}

fn cell_within(json: &str, field: &str, depth: usize) -> String {
    let Some(depth) = depth.checked_sub(1) else { return String::new() };
    let Ok(members) = serde_json::from_str::<BTreeMap<String, &RawValue>>(json) else {
        // For a list, the fields of each entry are shown.
        return match (field, serde_json::from_str::<Vec<&RawValue>>(json)) {
            ("", _) => text(json),
            (_, Ok(entries)) => {
                entries.iter().map(|entry| cell_within(entry.get(), field, depth)).collect::<Vec<_>>().join(", ")
            }
            (_, Err(_)) => String::new(),
        };
    };
    if field.is_empty() {
        return text(json);
    }
    if let Some(member) = members.get(field) {
        return text(member.get());
    }
    let inside = field.split_once('.').and_then(|(outer, rest)| Some((members.get(outer)?, rest)));
    inside.map_or_else(String::new, |(outer, rest)| cell_within(outer.get(), rest, depth))
}

fn text(json: &str) -> String {
    match serde_json::from_str::<Option<String>>(json) {
        Ok(text) => shorten(&text.unwrap_or_default(), FIELD_CHARACTERS),
        Err(_) => shorten(json, FIELD_CHARACTERS),
    }
}

fn row(job: &Job) -> Vec<String> {
    let labels: Vec<String> = job.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        job.id.to_string(),
        job.queue.to_string(),
        job.kind.to_string(),
        phase_of(job),
        format!("{}/{}", job.attempt, job.max_attempts),
        time(job.created_at),
        job.priority.to_string(),
        job.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        job.lease.as_ref().map(|lease| lease.worker_id.to_string()).unwrap_or_default(),
        labels.join(" "),
        error_of(job),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_dots_whatever_they_stand_for() {
        let job =
            r#"{"id":"a","labels":{"a.b":"x"},"lease":null,"payload":{"n":1e999},"history":[{"to":"y"},{"to":"z"}]}"#;
        for (field, shown) in [
            ("id", "a"),
            ("labels.a.b", "x"),
            ("labels", r#"{"a.b":"x"}"#),
            ("lease.worker_id", ""),
            ("payload.n", "1e999"),
            ("history.to", "y, z"),
            ("owner", ""),
        ] {
            assert_eq!(cell(job, field), shown, "{field}");
        }
    }
}
