//! `leasehold top`: a live view of queues, running jobs and workers.
//!
//! A frame is a text made from the server's last answer, which the terminal only shows. So a single frame (`--once`) is
//! the same as the live view, and needs no terminal.

mod screen;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use tokio::time::MissedTickBehavior;

use super::failure::{ExitStatus, Failure};
use super::output::{Fit, clean, print, shorten, table_to};
use super::server::ServerArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{duration, queue, workers};
use crate::client::{Client, ClientError, JobQuery};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::wire::{Job, JobState, Queue, WorkerList};
use crate::worker::Stop;
use screen::{Key, Screen};

/// How many running jobs are read.
const RUNNING: u64 = 50;
/// How many characters of a name or message are shown.
const NAME_CHARACTERS: usize = 40;
/// The number of lines of a frame when there is no terminal to fit it to.
const UNBOUNDED: usize = usize::MAX;
/// The lines of a section beside its rows: its title, the table's head and rule, what is left out, and an empty line.
const LINES_AROUND: usize = 5;
/// The shortest interval between calls to the server.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

const KEYS: &str = "q ends";

/// Watch queues, running jobs and workers
///
/// Ends with `q` or Ctrl-C. When the server goes away, the last view stays with a message until the server is back.
/// Where the output is not a terminal, one view is printed.
#[derive(Debug, Args)]
pub(super) struct TopArgs {
    /// How often the view is updated
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse)]
    interval: Duration,
    /// Print one view and end
    #[arg(long)]
    once: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// The server's last answer.
struct View {
    at: Timestamp,
    queues: Vec<Queue>,
    running: Vec<Job>,
    workers: WorkerList,
}

/// Shows the view until it is ended.
pub(super) async fn run(args: TopArgs, settings: Settings) -> Result<(), Failure> {
    // Failures are shown at once, and the next update calls again anyway.
    let client = args.server.connect(&settings.client)?.with_max_retries(0);
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.once || !terminal {
        return print(&frame(Some(&read_view(&client).await?), None, UNBOUNDED));
    }
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    let mut screen = Screen::open()?;
    let watched = tokio::select! {
        watched = watch(&client, args.interval, &mut screen) => watched,
        () = stopped.reached(Stop::Drain) => Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Terminated))),
    };
    drop(screen);
    watched
}

async fn watch(client: &Client, interval: Duration, screen: &mut Screen) -> Result<(), Failure> {
    let mut ticks = tokio::time::interval(interval.max(SHORTEST_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut view = None;
    // The loop ends with a key.
    loop {
        let answer = tokio::select! {
            answer = async { ticks.tick().await; read_view(client).await } => answer,
            key = screen.key() => match key {
                Key::Quit => return Ok(()),
                Key::Interrupt => return Err(Failure::Reported(ExitStatus::Interrupted)),
            }
        };
        let trouble = match answer {
            Ok(answer) => {
                view = Some(answer);
                None
            }
            Err(error @ (ClientError::Usage(_) | ClientError::Decode { .. })) => return Err(error.into()),
            Err(error) => Some(error.to_string()),
        };
        screen.show(|lines| frame(view.as_ref(), trouble.as_deref(), lines))?;
    }
}

async fn read_view(client: &Client) -> Result<View, ClientError> {
    let running = JobQuery {
        states: vec![JobState::Running],
        sort: Some("created_at".to_owned()),
        limit: Some(RUNNING),
        ..JobQuery::default()
    };
    let (queues, running, workers) = tokio::try_join!(client.queues(), client.jobs(&running), client.workers())?;
    let queues = queues.items.into_iter().filter(|queue| !queue.name.is_internal()).collect();
    Ok(View { at: SystemClock::default().now(), queues, running: running.items, workers })
}

/// Formats the view as a text with at most this many lines.
fn frame(view: Option<&View>, trouble: Option<&str>, lines: usize) -> String {
    let mut text = String::new();
    let at = view.map(|view| view.at.to_rfc3339()).unwrap_or_default();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "leasehold top  {at}  {KEYS}");
    if let Some(trouble) = trouble {
        let _ = writeln!(text, "no answer; asking until there is one: {}", clean(trouble));
    }
    let Some(view) = view else { return text };
    let rows = lines.saturating_sub(2) / 3;
    let rows = rows.saturating_sub(LINES_AROUND).max(1);
    let now = view.at;
    let queues = queue::overview(&view.queues, now, Fit::Content);
    let running = table_to(Fit::Content, &["job", "queue", "kind", "worker", "for", "lease", "progress"], jobs(view));
    let workers = workers::overview(&view.workers.items, now, Fit::Content);
    for (title, table, count) in [
        ("queues", queues, view.queues.len()),
        ("running", running, view.running.len()),
        ("workers", workers, view.workers.items.len()),
    ] {
        section(&mut text, title, &table, count, rows);
    }
    text.truncate(text.trim_end().len());
    text
}

/// Adds a title and the first rows of a table, with the number of rows left out.
fn section(text: &mut String, title: &str, table: &str, count: usize, rows: usize) {
    const HEAD: usize = 2;
    let _ = writeln!(text, "\n{title}: {count}");
    if count == 0 {
        return;
    }
    for line in table.lines().take(rows.saturating_add(HEAD)) {
        let _ = writeln!(text, "{line}");
    }
    if count > rows {
        let _ = writeln!(text, " \u{2026} and {} more", count - rows);
    }
}

fn jobs(view: &View) -> impl Iterator<Item = Vec<String>> {
    let now = view.at;
    view.running.iter().map(move |job| {
        let lease = job.lease.as_ref();
        let left = lease.map(|lease| match lease.expires_at > now {
            true => duration::show(lease.expires_at.since(now)),
            false => "over".to_owned(),
        });
        let progress = job.progress.as_ref().map(|progress| {
            let percent = progress.percent.map(|percent| format!("{percent:.0} %"));
            percent.into_iter().chain(progress.message.clone()).collect::<Vec<_>>().join(" ")
        });
        vec![
            shorten(&job.id, NAME_CHARACTERS),
            shorten(&job.queue, NAME_CHARACTERS),
            shorten(&job.kind, NAME_CHARACTERS),
            lease.map(|lease| shorten(&lease.worker_id, NAME_CHARACTERS)).unwrap_or_default(),
            super::statistics::age(job.started_at, now),
            left.unwrap_or_default(),
            shorten(&progress.unwrap_or_default(), NAME_CHARACTERS),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use crate::job::QueueName;
    use crate::wire::{Fairness, JobOrder};

    fn queue(number: usize) -> Queue {
        Queue {
            name: QueueName::new(format!("q{number}")).expect("a name"),
            paused: false,
            pause: None,
            orphan_policy: None,
            fairness: Fairness::None,
            weights: BTreeMap::new(),
            order: JobOrder::Dispatch,
            jobs: [(JobState::Available, 7)].into(),
            oldest_waiting_since: Some(Timestamp::from_millis(0)),
            throughput: Vec::new(),
        }
    }

    fn view(queues: usize) -> View {
        View {
            at: Timestamp::from_millis(90_000),
            queues: (0..queues).map(queue).collect(),
            running: Vec::new(),
            workers: WorkerList { items: Vec::new(), next_cursor: None, truncated: false },
        }
    }

    #[test]
    fn a_frame_fits_the_lines_there_are_and_says_what_is_left_out() {
        let whole = frame(Some(&view(40)), None, UNBOUNDED);
        assert!(whole.contains("q39") && whole.contains("1m 30s") && !whole.contains("more"), "{whole}");
        let cut = frame(Some(&view(40)), None, 30);
        assert!(cut.lines().count() <= 30 && cut.contains("and 36 more"), "{cut}");
    }

    #[test]
    fn a_server_that_is_away_is_told_of_above_the_last_view() {
        let away = frame(None, Some("cannot reach the server"), UNBOUNDED);
        assert!(away.contains("asking until there is one: cannot reach the server"), "{away}");
        let last = frame(Some(&view(1)), Some("no answer"), UNBOUNDED);
        assert!(last.contains("asking until there is one: no answer") && last.contains("q0"), "{last}");
    }
}
