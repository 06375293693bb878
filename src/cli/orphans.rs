//! `leasehold orphans`: running jobs that look orphaned.

use std::time::Duration;

use clap::Args;

use super::duration;
use super::failure::Failure;
use super::filter::NameFilterArgs;
use super::layout::Column;
use super::output::table_or;
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::OrphanQuery;
use crate::wire::OrphanedJob;

/// List the running jobs that look orphaned: why, for how long, and what happens to them next
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold orphans
  leasehold orphans --worker host7:4711 --json | jq .evidence

Take one from its worker with `leasehold release ID --expected-fence FENCE --reason …`.")]
pub(super) struct OrphansArgs {
    #[command(flatten)]
    names: NameFilterArgs,
    /// Select only jobs that this worker holds
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,
    /// Show at most this many jobs; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u64,
    #[command(flatten)]
    answer: ClientArgs,
}

/// The columns of the list.
const COLUMNS: &[Column] = &[
    Column::id("id"),
    Column::text("queue").weight(50),
    Column::text("kind").weight(45),
    Column::text("worker").weight(70),
    Column::word("fence").weight(80),
    Column::word("attempt").weight(30),
    Column::word("flagged for").weight(40),
    Column::text("why").weight(75),
    Column::text("evidence").weight(35),
    Column::text("next").weight(60),
];

/// Prints the jobs.
pub(super) async fn run(args: OrphansArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let NameFilterArgs { queues, kinds, owners } = args.names;
    let mut query = OrphanQuery { queues, kinds, owners, worker: args.worker, ..OrphanQuery::default() };
    let page = async |limit, cursor| {
        (query.limit, query.cursor) = (Some(limit), cursor);
        client.orphans(&query).await.map(|page| (page.items, page.next_cursor))
    };
    args.answer.print_pages(args.limit, page, row, show).await
}

fn show(rows: Vec<Vec<String>>) -> String {
    table_or("no job looks abandoned", COLUMNS, rows)
}

fn row(job: &OrphanedJob) -> Vec<String> {
    vec![
        job.id.to_string(),
        job.queue.to_string(),
        job.kind.to_string(),
        job.worker_id.to_string(),
        job.fence.to_string(),
        format!("{}/{}", job.attempt, job.max_attempts),
        millis(job.flagged_for_ms),
        job.reason.clone(),
        evidence(job),
        job.next.text.clone(),
    ]
}

fn evidence(job: &OrphanedJob) -> String {
    let evidence = &job.evidence;
    let lease = match evidence.lease_expired_for_ms {
        Some(over) => format!("lease over for {}", millis(over)),
        None => "lease still runs".to_owned(),
    };
    let expected = evidence.expected_runtime_ms.map(|expected| format!(" of {} expected", millis(expected)));
    let running = format!("running for {}{}", millis(evidence.running_for_ms), expected.unwrap_or_default());
    format!("silent for {}, {lease}, {running}", millis(evidence.silent_for_ms))
}

fn millis(millis: u64) -> String {
    duration::show(Duration::from_millis(millis))
}
