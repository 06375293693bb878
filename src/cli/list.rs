//! `leasehold list`: the jobs that are looked for.

use clap::Args;

use super::failure::Failure;
use super::output::{print, print_json, shorten, table};
use super::server::ServerArgs;
use super::settings::Settings;
use crate::api::wire::{Job, JobState};
use crate::client::{CountQuery, JobQuery};
use crate::job::StateName;

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
    /// As this query in Kibana's language says, such as `state: running and expected_runtime_ms < 60000`
    #[arg(value_name = "KQL")]
    kql: Option<String>,
    /// In this state: available, running, completed, failed, cancelled or expired (repeatable)
    #[arg(long = "state", value_name = "STATE", env = "LEASEHOLD_STATE", value_delimiter = ',')]
    states: Vec<StateName>,
    /// In this queue (repeatable)
    #[arg(long = "queue", value_name = "QUEUE", env = "LEASEHOLD_QUEUE")]
    queues: Vec<String>,
    /// Of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND", env = "LEASEHOLD_KIND")]
    kinds: Vec<String>,
    /// Belonging to this owner (repeatable)
    #[arg(long = "owner", value_name = "OWNER", env = "LEASEHOLD_OWNER")]
    owners: Vec<String>,
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
    let mut query = JobQuery {
        states: args.states.iter().map(|state| JobState::from(*state)).collect(),
        queues: args.queues,
        kinds: args.kinds,
        owners: args.owners,
        kql: args.kql,
        ..JobQuery::default()
    };
    if args.count {
        return count(&client, query, args.json).await;
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

async fn count(client: &crate::client::Client, jobs: JobQuery, json: bool) -> Result<(), Failure> {
    use crate::api::wire::CountBy::{Queue, State};
    let counts = client.count(&CountQuery { jobs, by: vec![Queue, State] }).await?;
    if json {
        return print_json(&counts);
    }
    let value =
        |group: &crate::api::wire::CountGroup, field: &str| group.by.get(field).cloned().flatten().unwrap_or_default();
    let mut rows: Vec<Vec<String>> = counts
        .groups
        .iter()
        .map(|group| vec![value(group, Queue.as_str()), value(group, State.as_str()), group.count.to_string()])
        .collect();
    rows.push(vec!["in all".to_owned(), String::new(), counts.total.to_string()]);
    print(&table(&["queue", "state", "jobs"], rows))
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
