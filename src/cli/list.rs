//! `leasehold list`: the jobs that are looked for.

use clap::Args;

use super::count;
use super::failure::Failure;
use super::filter::FilterArgs;
use super::output::{print, print_json, shorten, table};
use super::server::ServerArgs;
use super::settings::Settings;
use crate::api::wire::Job;
use crate::client::CountQuery;

/// How many jobs one page of the server's has at most.
const PAGE: u64 = 1000;
/// How much of an error is shown.
const ERROR_CHARACTERS: usize = 60;

/// List jobs, newest first
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  leasehold list --state failed\n  leasehold list 'state: running and not owner: team-a'\n  leasehold list --queue reports --sort -priority -n 20\n  \
                        leasehold list --state completed --json -n 0 | jq -r .id\n  leasehold list --count"
)]
pub(super) struct ListArgs {
    #[command(flatten)]
    filter: FilterArgs,
    /// Order by created_at, updated_at, run_at, finished_at or priority; `-` in front turns it round
    #[arg(
        long,
        value_name = "FIELD",
        env = "LEASEHOLD_SORT",
        default_value = "-created_at",
        allow_hyphen_values = true
    )]
    sort: String,
    /// How many at most; 0 for all
    #[arg(long, short = 'n', value_name = "N", env = "LEASEHOLD_LIMIT", default_value_t = 50)]
    limit: u64,
    /// Only count them, by queue and state
    #[arg(long)]
    count: bool,
    /// Print each as one line of JSON, as the server gives it
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Reads and prints them.
pub(super) async fn run(args: ListArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    let mut query = args.filter.into_query();
    if args.count {
        let by = ["queue", "state"].map(str::to_owned).to_vec();
        let answer = client.count(&CountQuery { jobs: query, by: by.clone() }).await?;
        return count::show(&answer, &by, args.json);
    }
    query.sort = Some(args.sort);
    let mut left = if args.limit == 0 { u64::MAX } else { args.limit };
    let mut shown = Vec::new();
    while left > 0 {
        query.limit = Some(left.min(PAGE));
        let page = client.jobs(&query).await?;
        left -= left.min(page.items.len() as u64);
        if args.json {
            page.items.iter().try_for_each(print_json)?;
        } else {
            shown.extend(page.items.iter().map(row));
        }
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    if args.json {
        return Ok(());
    }
    print(&table(&["id", "queue", "kind", "state", "attempt", "created", "error"], shown))
}

fn row(job: &Job) -> Vec<String> {
    let error = job.error.as_ref().map(|error| format!("{}: {}", error.code, error.message)).unwrap_or_default();
    vec![
        job.id.clone(),
        job.queue.clone(),
        job.kind.clone(),
        job.state.as_str().to_owned(),
        format!("{}/{}", job.attempt, job.max_attempts),
        job.created_at.to_rfc3339(),
        shorten(&error, ERROR_CHARACTERS),
    ]
}
