//! `leasehold run`: a list of commands, run here to its end, with any number of restarts.
//!
//! In reading order: `options` (the command line), `source` (the jobs and their ids: lines, or a `template` with
//! `replacement` strings for `arguments`, which `find` looks for among files), `place` (the data directory and the runs
//! in it), `chosen_run` (which of them goes on), `start` (what is left to do), this file, `handler` and `capture` (how
//! commands run, and what they write), `watch` (what has ended, and when to `halt`), `event`, `teller`, `untold`,
//! `printer`, `pass_on`, `screen` and `bar` (what is shown meanwhile), `summary`.
//!
//! Before the first job of a start runs: the data directory is this process's alone (its lock); no process of
//! a former start is alive ([`Scope::end_leftovers`]); and what ran then waits again. So a job never runs twice at the
//! same time, and one that was completed never runs again in the same run. A job that was interrupted runs again from
//! its beginning. Whether a run has ended is noted when its store is closed; where a start was killed before that, its
//! jobs say so.

mod arguments;
mod bar;
mod capture;
mod chosen_run;
mod event;
mod find;
mod halt;
mod handler;
mod options;
mod pass_on;
mod place;
mod printer;
mod replacement;
mod screen;
mod source;
mod start;
mod summary;
mod teller;
mod template;
mod untold;
mod watch;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::IsTerminal as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio_util::task::AbortOnDropHandle;

use super::failure::{ExitStatus, Failure};
use super::log::{self, LogFormat};
use super::output::{clean, complain, print};
use super::signals::Signals;
use super::worker::REAP;
use crate::clock::{Timestamp, millis};
use crate::job::shell::quote;
use crate::job::{Change, Job, JobError, JobId, JobState, Offers, QueueName, WorkerId};
use crate::manager::{ClaimOrder, Manager};
use crate::worker::shell::{self, Scope, ShellHandler};
use crate::worker::{Stop, Worker, WorkerConfig};
use arguments::{Input, List};
use capture::{Outputs, Ran};
use chosen_run::own_job;
use handler::RunHandler;
pub(super) use options::RunArgs;
use options::{Jobs, Shown};
use place::Place;
use printer::Printer;
use screen::Screen;
use source::{Defaults, Planned, Source};
use start::{StartOrder, Started};
use summary::Summary;
use teller::Telling;
use watch::Watch;

/// How long a lease lasts. No other process claims from this store, so nothing depends on its being short.
const LEASE: Duration = Duration::from_secs(600);
/// How long one claim waits for a job.
const WAIT: Duration = Duration::from_secs(60);
/// How long a reader that stands still is given for the summary.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// How often jobs whose start deadline has passed are looked for.
const DEADLINES_EVERY: Duration = Duration::from_secs(1);

/// Runs the list.
pub(super) async fn run(args: RunArgs) -> Result<(), Failure> {
    log::start(LogFormat::Text, "warn");
    let source = source(&args)?;
    let timeout_ms = args.timeout.map(millis);
    let planned = source.plan(Defaults { attempts: args.attempts, timeout_ms })?;
    if args.dry_run {
        return print_commands(&planned);
    }
    let directory = args.data_dir.clone().map_or_else(|| source.data_dir(), Ok)?;
    if let Some(results) = &args.results {
        place::check_results(results, &directory)?;
    }
    let mut place = Place::occupy(&directory, &source.identity()?, own_job().as_ref())?;
    let directory = place.directory().to_owned();

    let screen = Arc::new(Screen::new());
    let signals = listen(&screen)?;
    let begun = Instant::now();
    let scope = Scope::new(&directory.to_string_lossy());
    let ended = start::end_former_processes(&scope).await?;
    let chosen = chosen_run::choose(&args, &mut place, &planned).await?;
    let run = place.last().number;
    let planned: Arc<[Planned]> = chosen_run::in_run(&planned, run)?.into();
    if let Err(failure) = chosen.say(&place, &planned, args.json) {
        chosen.opened.manager.shutdown().await;
        return Err(failure);
    }
    complain(&clean(&format!("{} jobs; state in {}", planned.len(), directory.display())));
    if ended > 0 {
        complain(&format!("ended {ended} processes that a former start had left behind"));
    }
    let order = StartOrder { shuffled: args.shuf, retry_failed: chosen.retry_failed };
    let (manager, started) = start::start(chosen.opened, &source.name(), &planned, order).await?;
    let Started { waiting, before, removed, tally } = started;
    for former in place.former_folders() {
        let folder = former.join("output");
        let untold = capture::settle(&folder, args.output_limit.0, &HashSet::new());
        if untold > 0 {
            let folder = folder.display();
            complain(&clean(&format!(
                "{untold} outputs of a former run were not passed on; what is kept is in {folder}"
            )));
        }
    }
    let is_passed_on = shown(&args) != Shown::None || args.results.is_some();
    let folder = place.folder().join("output");
    let over = planned.iter().enumerate().map(|(index, job)| (index, &job.id)).filter(|(_, id)| !waiting.contains(*id));
    let left = if is_passed_on { capture::left(&folder, over) } else { Vec::new() };
    let outputs = Outputs::create(folder, args.output_limit.0, is_passed_on, &left);
    let outputs = Arc::new(outputs.map_err(|error| Failure::Failed(format!("cannot keep output: {error}")))?);
    let telling = telling(&args, &planned, &waiting, left, screen.clone(), outputs.clone());
    let watch = Watch::start(planned.clone(), &waiting, tally, telling, signals.stop());
    let slots = slots(&args, waiting.len());
    screen.begin(waiting.len(), slots);
    let handler = ShellHandler::new(scope, args.grace);
    let handler = Arc::new(RunHandler::new(handler, args.nice, watch.clone()));
    let worked = work(&args, &manager, (handler, outputs), slots, &planned, &watch, &signals).await;
    manager.shutdown().await;
    let ((tally, lost), left) = (watch.end(signals.at_once()).await, watch.left().len());
    worked?;
    if left == 0 {
        place.note_end()?;
    }

    let failed = tally.failed > 0;
    let (is_lost, is_cut_short) = (lost.is_any(), lost.is_cut_short);
    let (jobs, halted) = (planned.len(), watch.is_halted());
    let wall = begun.elapsed();
    let (as_json, is_fresh) = (args.json, args.fresh);
    let last_words = move || {
        let summary = Summary { data_dir: &directory, run, jobs, before, left, removed, halted, tally, lost, wall };
        summary.print(as_json)?;
        if left > 0 {
            let why = if halted { "ended early" } else { "interrupted" };
            let but = if is_fresh { " without --fresh" } else { "" };
            complain(&format!("leasehold: {why}; the same command{but} goes on where this one was"));
        }
        Ok(())
    };
    if is_cut_short {
        within(LAST_WORDS, last_words).await;
    } else {
        last_words()?;
    }
    match signals.status().filter(|_| left > 0) {
        Some(status) => Err(Failure::Reported(status)),
        None if screen.is_closed() => Err(Failure::OutputClosed),
        None if halted && args.halt.is_success() && !is_lost => Ok(()),
        None if failed || is_lost || (left > 0 && !halted) => Err(Failure::Reported(ExitStatus::Failed)),
        None => Ok(()),
    }
}

/// Says this in a thread that is left alone after a while: its reader may be the one that stands still.
async fn within(limit: Duration, say: impl FnOnce() -> Result<(), Failure> + Send + 'static) {
    let (sender, is_said) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        // What could not be said is a part of what is missing.
        let _ = sender.send(say());
    });
    let _ = tokio::time::timeout(limit, is_said).await;
}

fn source(args: &RunArgs) -> Result<Source, Failure> {
    let (words, more) = arguments::separate(&args.command)?;
    let first = match &args.source {
        Some(file) => Some(List::open(file)?),
        None if args.each.is_empty() => None,
        None => Some(List::Each(args.each.clone())),
    };
    let first = match first {
        Some(list) if words.is_empty() && more.is_empty() => return Ok(Source::Lines(list)),
        Some(list) => Some(Input { list, linked: false }),
        None => None,
    };
    let inputs: Vec<Input> = first.into_iter().chain(more).collect();
    if inputs.is_empty() {
        let what = "name a file of commands, or `-` for standard input, or a command and its arguments: \
                    `leasehold run -- COMMAND ::: VALUE...`, `leasehold run FILE -- COMMAND`";
        return Err(Failure::Usage(format!("nothing says which jobs to run: {what}")));
    }
    Ok(Source::Command { words, shell: args.shell, inputs, end: if args.null { '\0' } else { '\n' } })
}

/// Prints what would run.
fn print_commands(planned: &[Planned]) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    for planned in planned {
        let command = planned.command();
        print(&if is_terminal { clean(&command) } else { command })?;
    }
    Ok(())
}

/// Listens for signals, and says what each does.
fn listen(screen: &Arc<Screen>) -> Result<Signals, Failure> {
    let screen = screen.clone();
    Signals::listen_also_to_hangup(move |stop| {
        screen.update(|progress| progress.stopping = true);
        match stop {
            Stop::Now => screen.say("leasehold: ending the running jobs"),
            Stop::Drain | Stop::No => screen.say(&format!(
                "leasehold: waiting for the running jobs ({}) and starting no other; again to end them",
                screen.running()
            )),
        }
    })
}

fn shown(args: &RunArgs) -> Shown {
    args.output.unwrap_or(if args.json { Shown::None } else { Shown::All })
}

fn telling(
    args: &RunArgs,
    planned: &[Planned],
    waiting: &HashSet<JobId>,
    left: Vec<(usize, Ran)>,
    screen: Arc<Screen>,
    outputs: Arc<Outputs>,
) -> Telling {
    let places = || {
        let waiting = (0..planned.len()).filter(|index| waiting.contains(&planned[*index].id));
        waiting.chain(left.iter().map(|(index, _)| *index)).collect()
    };
    let order = args.keep_order.then(places);
    let printer = Printer::new(outputs, shown(args), args.tag, args.results.clone(), order);
    Telling { screen, printer, halt: args.halt, json: args.json, again: again(), left }
}

/// Returns this command as it runs failed jobs again.
fn again() -> String {
    let mut words: Vec<String> = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let ours = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let mut index = 0;
    words.retain(|word| {
        index += 1;
        index > ours || word != "--fresh"
    });
    let is_there = words.iter().any(|word| ["--retry-failed", "--resume-failed"].contains(&word.as_str()));
    if let Some(run) = words.iter().position(|word| word == "run").filter(|_| !is_there) {
        words.insert(run + 1, "--retry-failed".to_owned());
    }
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

fn slots(args: &RunArgs, waiting: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    args.jobs.unwrap_or(Jobs::Number(cores as u64)).count(cores, waiting)
}

/// Runs what is left to do.
async fn work(
    args: &RunArgs,
    manager: &Manager,
    (handler, outputs): (Arc<RunHandler>, Arc<Outputs>),
    slots: usize,
    planned: &[Planned],
    watch: &Arc<Watch>,
    signals: &Signals,
) -> Result<(), Failure> {
    let left: HashSet<JobId> = watch.left().into_iter().collect();
    let queues = planned.iter().filter(|planned| left.contains(&planned.id)).map(|planned| &planned.job.spec.queue);
    let queues: BTreeSet<&QueueName> = queues.collect();
    if !queues.is_empty() {
        let config = WorkerConfig {
            worker_id: WorkerId::new(format!("run:{}", std::process::id())).map_err(Failure::failed)?,
            queues: queues.into_iter().cloned().collect(),
            order: ClaimOrder::default(),
            slots,
            resources: std::collections::BTreeMap::new(),
            labels: Offers::new(),
            lease: LEASE,
            wait: WAIT,
            // Who stopped it says how long: a signal for the time that is set, `--halt` without an end.
            drain_timeout: Duration::MAX,
            grace: args.grace + REAP,
        };
        let worker = Worker::new(Arc::new(manager.clone()), config)
            .handle(shell::kind(), handler)
            .observe(watch.clone())
            .send_output_to(outputs);
        let _impatience = AbortOnDropHandle::new(tokio::spawn(end_after(args.drain_timeout, signals.clone())));
        tokio::select! {
            ended = worker.run(signals.stop()) => ended.map_err(Failure::failed)?,
            () = expire_jobs(manager, watch, planned) => {}
        }
    }
    Ok(())
}

/// Ends the running jobs when this time has passed since the first signal.
async fn end_after(limit: Option<Duration>, signals: Signals) {
    let Some(limit) = limit else { return };
    signals.stop().listen().reached(Stop::Drain).await;
    if signals.status().is_some() {
        tokio::time::sleep(limit).await;
        signals.stop().request(Stop::Now);
    }
}

/// Lets jobs expire that could not be started in time, and reports them, until it is dropped.
async fn expire_jobs(manager: &Manager, watch: &Watch, planned: &[Planned]) {
    let deadlines: HashMap<&JobId, Timestamp> =
        planned.iter().filter_map(|planned| Some((&planned.id, planned.job.expires_at?))).collect();
    let expire = |job: &Job, now: Timestamp| match job.state.name() {
        // The answer to the write was lost.
        JobState::Expired => Ok(Change::Already),
        _ => Ok(Change::To(Box::new(job.expire(&start::caller().name, now)?))),
    };
    loop {
        tokio::time::sleep(DEADLINES_EVERY).await;
        let now = manager.now();
        let mut due = watch.left();
        due.retain(|id| deadlines.get(id).is_some_and(|deadline| *deadline <= now));
        // A job that was started meanwhile is refused.
        for job in manager.change_each(&due, expire).await.into_iter().flatten().map(|expired| expired.job) {
            let message = "not started before its start deadline".to_owned();
            watch.not_run(&job.id, JobState::Expired, JobError { code: "expired".to_owned(), message });
        }
    }
}

/// Looks for files as [`find::find`] does, for the test of all recursions.
#[cfg(test)]
pub(super) fn find_none(pattern: &str) -> Result<(), String> {
    find::find(pattern, &mut |_| Ok(())).map_err(|failure| format!("{failure:?}"))
}

#[cfg(test)]
pub(super) const MAX_FOLDERS: usize = find::MAX_FOLDERS;
