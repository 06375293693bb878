//! `leasehold schedule list`, `show`, `triggers` and `run`.

use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;

use crate::cli::complete;
use crate::cli::duration;
use crate::cli::failure::Failure;
use crate::cli::filter::warn_of;
use crate::cli::layout::Column;
use crate::cli::look::{date, time};
use crate::cli::output::{Page, clean, shorten, table_or};
use crate::cli::server::ClientArgs;
use crate::cli::settings::Settings;
use crate::client::{DueTimeQuery, ScheduleQuery};
use crate::query::table::Table;
use crate::scheduler::DueTime;
use crate::wire::{Period, Schedule, SubmitJob};

/// How many characters of a message are shown in a table.
const MESSAGE_CHARACTERS: usize = 60;
/// The columns of a table of schedules.
pub(super) const COLUMNS: &[Column] = &[
    Column::text("schedule").weight(100),
    Column::text("period").weight(60),
    Column::text("action").weight(50),
    Column::text("owner").weight(30),
    Column::word("due next").weight(80),
    Column::text("stands").weight(70),
];
/// The columns of a table of due times.
const DUE_TIMES: &[Column] = &[
    Column::word("due at").weight(100),
    Column::state("outcome"),
    Column::word("late").weight(40),
    Column::id("job").weight(60),
    Column::text("message").weight(50),
];

#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// List the schedules that this KQL query matches, such as `paused: true and labels.team: blue`
    #[arg(value_name = "KQL", add = ArgValueCompleter::new(complete::schedule_kql))]
    kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone, such as Europe/Berlin or +02:00 [default:
    /// UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// List the schedules of this owner
    #[arg(long)]
    owner: Option<String>,
    /// List at most this many schedules; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: u64,
    #[command(flatten)]
    answer: ClientArgs,
}

#[derive(Debug, Args)]
pub(super) struct OneArgs {
    /// The id of the schedule
    pub(super) id: String,
    #[command(flatten)]
    pub(super) answer: ClientArgs,
}

#[derive(Debug, Args)]
pub(super) struct ShowArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Show the values of `env` and the addresses too, which needs the role `admin`; the audit keeps who asked
    #[arg(long)]
    reveal: bool,
}

#[derive(Debug, Args)]
pub(super) struct TriggersArgs {
    #[command(flatten)]
    one: OneArgs,
    /// The first due time (RFC 3339); without it, the latest ones are listed
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// The last due time (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// List at most this many due times; 0 for all
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    limit: u64,
}

/// Lists schedules.
pub(super) async fn list(args: ListArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    warn_of(Table::Schedules, args.kql.as_deref());
    let page = async |size, cursor| {
        let (kql, time_zone, owner) = (args.kql.clone(), args.time_zone.clone(), args.owner.clone());
        let query = ScheduleQuery { kql, time_zone, owner, limit: Some(size), cursor };
        client.schedules(&query).await.map(|page| (page.items, page.next_cursor))
    };
    let text = |rows| table_or("no schedules match", COLUMNS, rows);
    args.answer.print_pages(args.limit, page, row, text).await
}

/// Shows a schedule.
pub(super) async fn show(args: ShowArgs, settings: Settings) -> Result<(), Failure> {
    let ShowArgs { one: OneArgs { id, answer }, reveal } = args;
    let client = answer.connect(&settings.client)?;
    let found = if reveal { client.revealed_schedule(&id).await? } else { client.schedule(&id).await? };
    answer.print(&found, describe)
}

/// Lists the due times of a schedule.
pub(super) async fn triggers(args: TriggersArgs, settings: Settings) -> Result<(), Failure> {
    let TriggersArgs { one: OneArgs { id, answer }, from, to, limit } = args;
    let client = answer.connect(&settings.client)?;
    let page = async |size, cursor| {
        let query = DueTimeQuery { from: from.clone(), to: to.clone(), limit: Some(size), cursor };
        client.triggers_of_schedule(&id, &query).await.map(|page| (page.items, page.next_cursor))
    };
    let row = |due: &DueTime| {
        vec![
            date(due.due_at),
            if due.backfilled { format!("{} (backfill)", due.outcome) } else { due.outcome.to_string() },
            due.late_ms.map(|late| format!("{late} ms")).unwrap_or_default(),
            due.job_id.as_ref().map(ToString::to_string).unwrap_or_default(),
            shorten(due.message.as_deref().unwrap_or_default(), MESSAGE_CHARACTERS),
        ]
    };
    answer.print_pages(limit, page, row, |rows| table_or("no due times", DUE_TIMES, rows)).await
}

/// Runs a schedule now.
pub(super) async fn run_now(args: OneArgs, settings: Settings) -> Result<(), Failure> {
    let made = args.answer.connect(&settings.client)?.run_schedule(&args.id).await?;
    args.answer.print(&made, |made| made.trigger_id.to_string())
}

/// Returns the row of a schedule in a table with [`COLUMNS`].
pub(super) fn row(schedule: &Schedule) -> Vec<String> {
    vec![
        schedule.id.clone(),
        period(&schedule.period),
        action(schedule),
        schedule.owner.as_ref().map(ToString::to_string).unwrap_or_default(),
        schedule.next_due_at.map(time).unwrap_or_default(),
        stands(schedule),
    ]
}

/// Says on a line how a schedule stands.
pub(super) fn stands_line(schedule: &Schedule) -> String {
    format!("{}: {}", clean(&schedule.id), stands(schedule))
}

/// Says in a few words how a schedule stands.
fn stands(schedule: &Schedule) -> String {
    match (&schedule.paused, schedule.failures) {
        (Some(pause), _) if pause.reason.is_empty() => format!("paused by {}", pause.by),
        (Some(pause), _) => format!("paused by {}: {}", pause.by, shorten(&pause.reason, MESSAGE_CHARACTERS)),
        (None, 0) => "on".to_owned(),
        (None, failures) => format!("on, {failures} failures in a row"),
    }
}

fn millis(millis: u64) -> String {
    duration::show(Duration::from_millis(millis))
}

fn period(period: &Period) -> String {
    let Period { cron, time_zone, every_ms, at, .. } = period;
    let zone = time_zone.as_ref().map(|zone| format!(" ({zone})")).unwrap_or_default();
    match (cron, every_ms, at) {
        (Some(cron), _, _) => format!("{cron}{zone}"),
        (None, Some(every), _) => format!("every {}", millis(*every)),
        (None, None, at) => format!("at {}", at.as_deref().unwrap_or_default()),
    }
}

fn action(schedule: &Schedule) -> String {
    match &schedule.action.url {
        Some(url) => format!("{} {url}", schedule.action.method.unwrap_or_default()),
        None => {
            let job = schedule.action.job.as_ref().map(|job| serde_json::from_str::<SubmitJob>(job.as_str()));
            job.and_then(Result::ok).map(|job| format!("{} in {}", job.kind, job.queue)).unwrap_or_default()
        }
    }
}

/// Formats everything about a schedule.
fn describe(schedule: &Schedule) -> String {
    let mut page = Page::new(16);
    page.line("schedule", &schedule.id);
    page.line("stands", &stands(schedule));
    page.line("period", &period(&schedule.period));
    page.line("action", &action(schedule));
    page.option("job", schedule.action.job.as_ref().map(|job| job.as_str()));
    page.option("owner", schedule.owner.as_ref().map(|owner| owner.as_str()));
    for (name, value) in &schedule.labels {
        page.line("label", &format!("{name}={value}"));
    }
    page.line("margin of error", &millis(schedule.margin_of_error_ms));
    if schedule.spread_ms > 0 {
        page.line("spread", &millis(schedule.spread_ms));
    }
    page.line("overlap", schedule.overlap.as_str());
    page.time("starts at", schedule.start_at);
    page.time("ends at", schedule.end_at);
    page.time("due next", schedule.next_due_at);
    page.time("due last", schedule.last_due_at);
    page.time("failing since", schedule.failing_since);
    page.time("missed since", schedule.missed_since);
    for range in &schedule.not_run {
        let (first, last) = (date(range.first), date(range.last));
        page.line("did not run", &format!("{} from {first} to {last}: {}", range.count, range.reason));
    }
    for target in &schedule.notify {
        let events: Vec<&str> = target.events.iter().map(|event| event.as_str()).collect();
        let events = if events.is_empty() { "all events".to_owned() } else { events.join(", ") };
        page.line("notifies", &format!("{} of {events}", target.url));
    }
    page.time("created", Some(schedule.created_at));
    page.time("changed", Some(schedule.updated_at));
    page.text()
}
