//! `leasehold events`: past and live events.

use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use futures::StreamExt as _;

use super::complete;
use super::duration;
use super::failure::{ExitStatus, Failure};
use super::filter::NameFilterArgs;
use super::job_id;
use super::look::date;
use super::output::{complain, one_line};
use super::server::ClientArgs;
use super::settings::Settings;
use super::signals::Signals;
use crate::client::{EventMessage, EventQuery};
use crate::clock::{Clock as _, SystemClock};
use crate::job::EventName;
use crate::wire::JobEvent;
use crate::worker::Stop;

/// How far back the events begin by default.
const DEFAULT_SINCE: Duration = Duration::from_secs(600);

/// Show the events of jobs, and with --follow those to come
///
/// Every transition of every job is an event: submitted, claimed, completed, failed, retried, cancelled,
/// cancel_requested, expired, released, returned, orphaned, overdue.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold events --since 1h --event failed,expired
  leasehold events --follow --queue reports
  leasehold events --follow --json | jq -r 'select(.event == \"failed\").job.id'")]
pub(super) struct EventsArgs {
    /// Follow live events until interrupted
    #[arg(long, short)]
    follow: bool,
    /// How far to look back [default: 10m; not at all with --follow]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    since: Option<Duration>,
    /// Show only events with this name (repeatable)
    #[arg(long = "event", value_name = "EVENT", value_delimiter = ',')]
    events: Vec<EventName>,
    #[command(flatten)]
    names: NameFilterArgs,
    /// Show only events of this job (repeatable)
    #[arg(long = "job", value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    jobs: Vec<String>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints events as they come.
pub(super) async fn run(args: EventsArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let since = args.since.or((!args.follow).then_some(DEFAULT_SINCE));
    let NameFilterArgs { queues, kinds, owners } = args.names;
    let query = EventQuery {
        events: args.events,
        queues,
        kinds,
        owners,
        jobs: job_id::resolve_all(&client, &args.jobs).await?,
        since: since.map(|since| SystemClock::default().now().minus(since)),
        last_event_id: None,
    };
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    let mut messages = client.events(query);
    loop {
        let message = tokio::select! {
            message = messages.next() => message,
            () = stopped.reached(Stop::Drain) => {
                return Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)));
            }
        };
        match message.transpose()? {
            Some(EventMessage::Event { event, .. }) => args.answer.print(&*event, line)?,
            Some(EventMessage::Gap) => complain("leasehold: events are missing here: more happened than is kept"),
            Some(EventMessage::Interrupted { why }) if args.follow => {
                complain(&format!("leasehold: {why}; connecting again"));
            }
            Some(EventMessage::Interrupted { why }) => return Err(Failure::Unreachable(why)),
            Some(EventMessage::Live) if args.follow => {}
            Some(EventMessage::Live) | None => return Ok(()),
        }
    }
}

/// Formats an event on one line.
pub(super) fn line(event: &JobEvent) -> String {
    let JobEvent { at, event: name, job, attempt, actor, reason, .. } = event;
    let reason = reason.as_ref().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let attempt = if *attempt > 1 { format!(", attempt {attempt}") } else { String::new() };
    let name = name.as_str();
    let line =
        format!("{} {name:<16} {} in {} ({}) by {actor}{attempt}{reason}", date(*at), job.id, job.queue, job.kind);
    one_line(&line)
}
