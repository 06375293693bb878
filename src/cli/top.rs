//! `leasehold top`: a live view of jobs, queues and workers, and a place to act on them.
//!
//! [`view`] is the server's last answer, [`app`] what is shown of it and what keys make of that, [`draw`] how it is
//! drawn, [`screen`] the terminal. Where the output is not a terminal, one view is printed as text.

mod app;
mod draw;
mod screen;
mod view;

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use tokio::time::MissedTickBehavior;

use super::failure::{ExitStatus, Failure};
use super::get::describe;
use super::output::{Fit, print, shorten, table_to};
use super::server::ServerArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{duration, queue, statistics, workers};
use crate::client::{Client, ClientError, JobQuery, OutputQuery};
use crate::clock::{Clock as _, SystemClock};
use crate::store::Stream;
use crate::wire::AdminRelease;
use crate::worker::Stop;
use app::{App, Change, Mode, OpenJob, SORTS, Todo};
use screen::Screen;
use view::{View, lease_left, progress};

/// How many jobs are read.
const JOBS: u64 = 200;
/// The reason that is recorded with what is done here.
const REASON: &str = "from leasehold top";
/// How many characters of a name or message are shown.
const NAME_CHARACTERS: usize = 40;
/// The shortest interval between calls to the server.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

/// Watch jobs, queues and workers, and act on them
///
/// `/` filters the jobs by a KQL query, Enter opens one and follows its output, `c` cancels, `t` retries and `r`
/// releases it, `p` pauses a queue; `?` shows all keys. Ends with `q` or Ctrl-C. When the server goes away, the last
/// view stays with a message until the server is back. Where the output is not a terminal, one view is printed.
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

/// Shows the view until it is ended.
pub(super) async fn run(args: TopArgs, settings: Settings) -> Result<(), Failure> {
    // Failures are shown at once, and the next update calls again anyway.
    let client = args.server.connect(&settings.client)?.with_max_retries(0);
    let terminal = std::io::stdout().is_terminal() && std::io::stdin().is_terminal();
    if args.once || !terminal {
        return print(&text(&read_view(&client, &App::new()).await?));
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
    let mut app = App::new();
    let mut ticks = tokio::time::interval(interval.max(SHORTEST_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The loop ends with a key.
    loop {
        screen.show(&app)?;
        let todo = tokio::select! {
            _ = ticks.tick() => Todo::Read,
            key = screen.key() => match key {
                Some(key) => app.key(key),
                None => Todo::Draw,
            }
        };
        match todo {
            Todo::Draw => {}
            Todo::Quit => return Ok(()),
            Todo::Interrupt => return Err(Failure::Reported(ExitStatus::Interrupted)),
            Todo::Read => update(client, &mut app).await?,
            Todo::Change(change) => {
                app.message = Some(match make(client, &change).await {
                    Ok(done) => done,
                    Err(error) => error.to_string(),
                });
                update(client, &mut app).await?;
            }
        }
    }
}

/// Asks the server anew for what is shown.
async fn update(client: &Client, app: &mut App) -> Result<(), Failure> {
    let read = match &app.mode {
        Mode::Opened(job) => {
            let job = read_job(client, (**job).clone()).await;
            job.map(|job| app.mode = Mode::Opened(Box::new(job)))
        }
        _ => read_view(client, app).await.map(|view| app.take(view)),
    };
    match read {
        Ok(()) => app.trouble = None,
        Err(error @ ClientError::Decode { .. }) => return Err(error.into()),
        // A wrong query is the person's, and what was shown stays.
        Err(error @ ClientError::Problem { .. }) => app.message = Some(error.to_string()),
        Err(error) => app.trouble = Some(error.to_string()),
    }
    Ok(())
}

async fn read_view(client: &Client, app: &App) -> Result<View, ClientError> {
    let wanted = JobQuery {
        kql: Some(app.query.clone()).filter(|query| !query.trim().is_empty()),
        sort: Some(SORTS[app.sort].to_owned()),
        limit: Some(JOBS),
        ..JobQuery::default()
    };
    let (queues, jobs, workers) = tokio::try_join!(client.queues(), client.jobs(&wanted), client.workers())?;
    let queues = queues.items.into_iter().filter(|queue| !queue.name.is_internal()).collect();
    Ok(View { at: SystemClock::default().now(), queues, jobs: jobs.items, workers })
}

/// Reads an open job, and what it has written since the last time.
async fn read_job(client: &Client, mut open: OpenJob) -> Result<OpenJob, ClientError> {
    let job = client.job(&open.id).await?;
    open.page = describe(&job);
    let (stdout_from, stderr_from) = open.read;
    let query = OutputQuery { stdout_from, stderr_from, ..OutputQuery::default() };
    let mut output = client.output(&open.id, &query).await?;
    if output.fence != open.fence {
        open = OpenJob { fence: output.fence, output: String::new(), read: (0, 0), ..open };
        output = client.output(&open.id, &OutputQuery::default()).await?;
    }
    for stream in &output.streams {
        let read = match stream.stream {
            Stream::Stdout => &mut open.read.0,
            Stream::Stderr => &mut open.read.1,
        };
        *read = stream.bytes.max(*read);
        for part in &stream.parts {
            open.add_output(&String::from_utf8_lossy(&part.bytes()));
        }
    }
    Ok(open)
}

/// Makes a change, and says what came of it.
async fn make(client: &Client, change: &Change) -> Result<String, ClientError> {
    let job = match change {
        Change::Cancel(id) => client.cancel(id, Some(REASON)).await?,
        Change::Retry(id) => client.retry(id, Some(REASON)).await?,
        Change::Release { id, fence, then } => {
            let expected_fence = Some(*fence).filter(|fence| *fence > 0);
            let order = AdminRelease { reason: REASON.to_owned(), then: *then, expected_fence };
            client.admin_release(id, &order).await?
        }
        Change::Pause(queue) => {
            client.pause_queue(queue, Some(REASON)).await?;
            return Ok(format!("{queue}: paused"));
        }
        Change::Resume(queue) => {
            client.resume_queue(queue).await?;
            return Ok(format!("{queue}: goes on"));
        }
    };
    Ok(format!("{}: {}", job.id, job.state.as_str()))
}

/// Formats the view as text.
fn text(view: &View) -> String {
    let mut text = String::new();
    let now = view.at;
    let queues = queue::overview(&view.queues, now, Fit::Content);
    let running = table_to(Fit::Content, &["job", "queue", "kind", "worker", "for", "lease", "progress"], jobs(view));
    let workers = workers::overview(&view.workers.items, now, Fit::Content);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "leasehold top  {}", now.to_rfc3339());
    for (title, table, count) in [
        ("queues", queues, view.queues.len()),
        ("running", running, view.jobs.len()),
        ("workers", workers, view.workers.items.len()),
    ] {
        let _ = writeln!(text, "\n{title}: {count}");
        if count > 0 {
            let _ = writeln!(text, "{table}");
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn jobs(view: &View) -> impl Iterator<Item = Vec<String>> {
    view.jobs.iter().map(move |job| {
        vec![
            shorten(&job.id, NAME_CHARACTERS),
            shorten(&job.queue, NAME_CHARACTERS),
            shorten(&job.kind, NAME_CHARACTERS),
            job.lease.as_ref().map(|lease| shorten(&lease.worker_id, NAME_CHARACTERS)).unwrap_or_default(),
            statistics::age(job.started_at, view.at),
            lease_left(job, view.at),
            shorten(&progress(job), NAME_CHARACTERS),
        ]
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use crate::clock::Timestamp;
    use crate::job::QueueName;
    use crate::wire::{Fairness, JobOrder, JobState, Queue, WorkerList};

    fn queue(number: usize) -> Queue {
        Queue {
            name: QueueName::new(format!("q{number}")).expect("a name"),
            paused: number == 1,
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
            jobs: Vec::new(),
            workers: WorkerList { items: Vec::new(), next_cursor: None, truncated: false, servers_unasked: 0 },
        }
    }

    fn drawn(app: &App, columns: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(columns, 12)).expect("a terminal");
        terminal.draw(|frame| draw::draw(frame, app, false)).expect("drawn");
        terminal.backend().to_string()
    }

    #[test]
    fn one_view_is_printed_as_text() {
        let whole = text(&view(40));
        assert!(whole.contains("q39") && whole.contains("1m 30s") && whole.ends_with("workers: 0"), "{whole}");
    }

    #[test]
    fn a_narrow_terminal_shows_what_matters_most() {
        let mut app = App { tab: app::Tab::Queues, ..App::new() };
        app.take(view(3));
        for (columns, shows, leaves_out) in
            [(40, "paused", "per minute"), (80, "per minute", "xyz"), (200, "failing", "xyz")]
        {
            let drawn = drawn(&app, columns);
            assert!(drawn.contains(shows) && !drawn.contains(leaves_out) && drawn.contains("q2"), "{drawn}");
        }
    }

    #[test]
    fn a_server_that_is_away_is_told_of_above_the_last_view() {
        let mut app = App { tab: app::Tab::Queues, ..App::new() };
        app.take(view(1));
        app.trouble = Some("cannot reach the server".to_owned());
        let drawn = drawn(&app, 80);
        assert!(drawn.contains("no answer; asking until there is one: cannot reach the server"), "{drawn}");
        assert!(drawn.contains("q0"), "{drawn}");
    }

    #[test]
    fn no_jobs_are_said_to_be_none() {
        let mut app = App::new();
        app.take(view(1));
        assert!(drawn(&app, 80).contains("no jobs match"));
    }
}
