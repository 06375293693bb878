//! `leasehold audit`: what happened to jobs, also to those that are removed.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use super::failure::Failure;
use super::filter::NameFilterArgs;
use super::job_id;
use super::layout::Column;
use super::look::time;
use super::output::{complain, table_or};
use super::server::ClientArgs;
use super::settings::Settings;
use super::when;
use crate::client::AuditQuery;
use crate::clock::Timestamp;
use crate::manager::AuditEventName;
use crate::wire::{AuditChange, AuditEvent, EventJob};

/// The columns of the list.
const COLUMNS: &[Column] = &[
    Column::word("when").weight(80),
    Column::word("event").weight(95),
    Column::id("job"),
    Column::text("queue").weight(50),
    Column::text("kind").weight(45),
    Column::text("who").weight(85),
    Column::state("state").weight(40),
    Column::word("attempt").only_wide(),
    Column::word("fence").only_wide(),
    Column::text("owner").only_wide(),
    Column::text("labels").only_wide(),
    Column::text("why").weight(60),
];

/// What is said where no audit is kept.
const NOT_KEPT: &str = "no audit is kept: start the server or the monitor with --audit";

/// Read the audit: what happened to jobs, newest first, also to jobs that are removed
///
/// The audit is kept where the server or the monitor runs with --audit. Who changed limits, queues, subscriptions,
/// schedules or members stands there too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold audit --job nightly-report
  leasehold audit --event deleted,cancelled --from yesterday
  leasehold audit --event limit_set,queue_paused,schedule_removed
  leasehold audit --by ann --from '2030-01-31 08:00' --to '2030-01-31 18:00'
  leasehold audit --queue reports --json -n 0 | jq -r .job.id

A time is one such as `2h ago`, `08:00`, `yesterday 18:00`, `2030-01-31`, `2030-01-31 08:00` or
`2030-01-31T08:00:00Z`.")]
pub(super) struct AuditArgs {
    /// Show only events of this job (repeatable)
    #[arg(long = "job", value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    jobs: Vec<String>,
    #[command(flatten)]
    names: NameFilterArgs,
    /// Show only events with this name (repeatable)
    #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<AuditEventName>,
    /// Show only what this worker, person or part of the system did (repeatable)
    #[arg(long = "by", value_name = "WHO")]
    actors: Vec<String>,
    /// Show only what this worker did with a token, whatever that is called; without tokens it is `--by` (repeatable)
    #[arg(long = "worker", value_name = "WORKER")]
    workers: Vec<String>,
    /// Show only what happened at this time or later
    #[arg(long, value_name = "TIME", value_parser = when::parse_past)]
    from: Option<Timestamp>,
    /// Show only what happened at this time or earlier
    #[arg(long, value_name = "TIME", value_parser = when::parse_past)]
    to: Option<Timestamp>,
    /// Show at most this many events; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50)]
    limit: u64,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints the events that are asked for.
pub(super) async fn run(args: AuditArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let NameFilterArgs { queues, kinds, owners } = args.names;
    let mut query = AuditQuery {
        jobs: job_id::resolve_all(&client, &args.jobs).await?,
        queues,
        kinds,
        owners,
        events: args.events,
        actors: args.actors,
        workers: args.workers,
        from: args.from,
        to: args.to,
        ..AuditQuery::default()
    };
    let mut kept = true;
    let page = async |limit, cursor| {
        (query.limit, query.cursor) = (Some(limit), cursor);
        client.audit(&query).await.map(|answer| {
            kept = answer.kept;
            (answer.items, answer.next_cursor)
        })
    };
    args.answer.print_pages(args.limit, page, row, |rows| table_or("no events match", COLUMNS, rows)).await?;
    if !kept {
        complain(&format!("leasehold: {NOT_KEPT}"));
    }
    Ok(())
}

/// Returns what a change that is no transition of a job is about.
fn what_changed(change: &AuditChange) -> String {
    let AuditChange { of, to, refused } = change;
    let said = of.iter().chain(to).map(String::as_str).chain(refused.then_some("refused"));
    said.collect::<Vec<_>>().join(" ")
}

fn row(event: &AuditEvent) -> Vec<String> {
    let AuditEvent { at, event, job, change, fence, attempt, actor, reason, labels, .. } = event;
    let number = |number: Option<u64>| number.map(|number| number.to_string()).unwrap_or_default();
    let of_job = |text: fn(&EventJob) -> String| job.as_ref().map(text).unwrap_or_default();
    let changed = change.as_ref().map(what_changed);
    let labels: Vec<String> = labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    vec![
        time(*at),
        event.clone(),
        of_job(|job| job.id.clone()),
        of_job(|job| job.queue.clone()),
        of_job(|job| job.kind.clone()),
        actor.clone(),
        of_job(|job| job.state.to_string()),
        number(attempt.map(u64::from)),
        number(*fence),
        of_job(|job| job.owner.clone().unwrap_or_default()),
        labels.join(" "),
        changed.into_iter().chain(reason.clone()).collect::<Vec<_>>().join(": "),
    ]
}
