//! `leasehold run`: a list of commands, run here to its end, with any number of restarts.
//!
//! In reading order: `source` (the jobs and their ids, with `each` and `find` for files), `place` (the data directory),
//! `start` (what is left to do), this file, `watch` (what has ended), `summary`.
//!
//! Before the first job of a start runs: the data directory is this process's alone (the store's lock); no process of
//! a former start is alive ([`Scope::end_leftovers`]); and what ran then waits again. So a job never runs twice at the
//! same time, and one that was completed never runs again. A job that was interrupted runs again from its beginning.

mod each;
mod find;
mod place;
mod source;
mod start;
mod summary;
mod watch;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;

use super::failure::{ExitStatus, Failure};
use super::log::{self, LogFormat};
use super::output::complain;
use super::signals::Signals;
use super::worker::REAP;
use super::{duration, jobs};
use crate::clock::{Timestamp, millis};
use crate::job::{Change, Job, JobError, JobId, JobState, Offers, QueueName, WorkerId};
use crate::manager::{ClaimOrder, Manager};
use crate::worker::shell::{self, Scope, ShellHandler};
use crate::worker::{Stop, Worker, WorkerConfig};
use source::{Defaults, Planned, Source};
use start::Started;
use summary::Summary;
use watch::Watch;

/// How long a lease lasts. No other process claims from this store, so nothing depends on its being short.
const LEASE: Duration = Duration::from_secs(600);
/// How long one claim waits for a job.
const WAIT: Duration = Duration::from_secs(60);
/// How often jobs whose start deadline has passed are looked for.
const DEADLINES_EVERY: Duration = Duration::from_secs(1);

const HOW_IT_WORKS: &str = "\
A line is {\"command\": [\"program\", \"argument\"]}, or {\"command\": \"a line for sh -c\"}, with \"env\", \"cwd\", \
\"timeout_ms\", \"priority\" and the like beside it; or a whole job as the HTTP API takes it. Blank lines and lines \
that begin with # are skipped. With one bad line nothing is run.

State is kept in the data directory, so the same command started again goes on where it was, even after kill -9 or a \
loss of power: what was completed is not run again, what was running runs again from its beginning, and what failed \
stays failed unless --retry-failed is given. A job is known by its line: of a changed file only new and changed lines \
run, and jobs whose lines are gone are cancelled.

After the first Ctrl-C or SIGTERM running jobs go on for --drain-timeout; the second ends them at once.

In a command for --each, {} is the file, {.} the file without its extension, {/} its name, {//} its directory, {/.} \
its name without extension, {#} its number. No shell sees the command unless --shell is given. Then a name comes as a \
variable, so that nothing in it is ever run: {} stands for \"$EACH\", and $EACH_STEM, $EACH_NAME, $EACH_DIR and \
$EACH_NAME_STEM are the others. Places must not stand in quotes; the variables may, in double ones.

Examples:
  leasehold run jobs.jsonl
  generate-jobs | leasehold run - --slots 8
  leasehold run --each 'photos/*.png' -- convert {} {.}.webp
  leasehold run --each '*.log' --shell -- 'gzip -c {} > {}.gz'
  leasehold run --each '*.log' --shell -- 'gzip -c {} > \"/backup/$EACH_NAME.gz\"'";

/// Run a list of commands here, in parallel; the same command started again goes on where it was
#[derive(Debug, Args)]
#[command(after_help = HOW_IT_WORKS)]
pub(super) struct RunArgs {
    /// The file of jobs, one JSON object per line; `-` for standard input
    #[arg(value_name = "JOBS", required_unless_present = "each", conflicts_with = "each")]
    jobs: Option<PathBuf>,
    /// Make a job for each file that matches this pattern (repeatable)
    #[arg(long, value_name = "PATTERN", requires = "command")]
    each: Vec<String>,
    /// Run the command of --each with `sh -c`
    #[arg(long, requires = "each")]
    shell: bool,
    /// How many jobs run at the same time [default: the number of cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,
    /// The directory that keeps the state of the run [default: ./leasehold-data/run-<a hash of where the jobs come
    /// from>]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Run jobs again that failed before
    #[arg(long)]
    retry_failed: bool,
    /// How many attempts a job gets that does not say so itself
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    attempts: u64,
    /// The time limit of an attempt of a job that does not set one itself [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How long running jobs may go on after the first Ctrl-C or SIGTERM
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "10s")]
    drain_timeout: Duration,
    /// How long a command has between SIGTERM and SIGKILL
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, default_value = "5s")]
    grace: Duration,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// The command for each file of --each
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Runs the list.
pub(super) async fn run(args: RunArgs) -> Result<(), Failure> {
    log::start(LogFormat::Text, "warn");
    let source = source(&args)?;
    let timeout_ms = args.timeout.map(millis);
    let planned = source.plan(Defaults { attempts: args.attempts, timeout_ms })?;
    let directory = args.data_dir.clone().map_or_else(|| source.data_dir(), Ok)?;
    let directory = place::occupy(&directory, &source.identity()?)?;
    complain(&format!("{} jobs; state in {}", planned.len(), directory.display()));

    let signals = Signals::listen(|stop| match stop {
        Stop::Now => complain("leasehold: ending the running jobs"),
        Stop::Drain | Stop::No => complain("leasehold: waiting for the running jobs; again to end them"),
    })?;
    let begun = Instant::now();
    let scope = Scope::new(&directory.to_string_lossy());
    let (manager, started) = start::start(&directory, &scope, &source.name(), &planned, args.retry_failed).await?;
    let Started { waiting, before, removed, tally } = started;
    let watch = Watch::start(planned.iter().filter(|job| waiting.contains(&job.id)), tally, signals.stop());
    let worked = work(&args, &manager, &scope, &planned, &watch, &signals).await;
    manager.shutdown().await;
    worked?;
    let (tally, left) = (watch.end(), watch.left().len());

    let failed = tally.failed > 0;
    let jobs = planned.len();
    Summary { data_dir: &directory, jobs, before, left, removed, tally, wall: begun.elapsed() }.print(args.json)?;
    match signals.status().filter(|_| left > 0) {
        Some(status) => {
            complain("leasehold: interrupted; the same command goes on where this one was");
            Err(Failure::Reported(status))
        }
        None if failed || left > 0 => Err(Failure::Reported(ExitStatus::Failed)),
        None => Ok(()),
    }
}

fn source(args: &RunArgs) -> Result<Source, Failure> {
    match &args.jobs {
        None => Ok(Source::Each { patterns: args.each.clone(), command: args.command.clone(), shell: args.shell }),
        Some(_) if !args.command.is_empty() => Err(Failure::Usage("a command goes with --each".to_owned())),
        Some(file) if file == Path::new("-") => Ok(Source::Input(jobs::read_text(file)?)),
        Some(file) => Ok(Source::File(file.clone())),
    }
}

/// Runs what is left to do.
async fn work(
    args: &RunArgs,
    manager: &Manager,
    scope: &Scope,
    planned: &[Planned],
    watch: &Arc<Watch>,
    signals: &Signals,
) -> Result<(), Failure> {
    let left: HashSet<JobId> = watch.left().into_iter().collect();
    let queues = planned.iter().filter(|planned| left.contains(&planned.id)).map(|planned| &planned.job.spec.queue);
    let queues: BTreeSet<&QueueName> = queues.collect();
    if !queues.is_empty() {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let config = WorkerConfig {
            worker_id: WorkerId::new(format!("run:{}", std::process::id())).map_err(Failure::failed)?,
            queues: queues.into_iter().cloned().collect(),
            order: ClaimOrder::default(),
            slots: args.slots.map_or(cores, usize::from),
            resources: std::collections::BTreeMap::new(),
            labels: Offers::new(),
            lease: LEASE,
            wait: WAIT,
            drain_timeout: args.drain_timeout,
            grace: args.grace + REAP,
        };
        let handler = ShellHandler::new(scope.clone(), args.grace);
        let worker = Worker::new(Arc::new(manager.clone()), config)
            .handle(shell::kind(), handler.shared())
            .observe(watch.clone());
        tokio::select! {
            ended = worker.run(signals.stop()) => ended.map_err(Failure::failed)?,
            () = expire_jobs(manager, watch, planned) => {}
        }
    }
    Ok(())
}

/// Lets jobs expire that could not be started in time, and reports them, until it is dropped.
async fn expire_jobs(manager: &Manager, watch: &Watch, planned: &[Planned]) {
    let deadlines: HashMap<&JobId, Timestamp> =
        planned.iter().filter_map(|planned| Some((&planned.id, planned.job.expires_at?))).collect();
    let expire = |job: &Job, now: Timestamp| match job.state.name() {
        // The answer to the write was lost.
        JobState::Expired => Ok(Change::Already),
        _ => Ok(Change::To(Box::new(job.expire(&start::actor(), now)?))),
    };
    loop {
        tokio::time::sleep(DEADLINES_EVERY).await;
        let now = manager.now();
        let mut due = watch.left();
        due.retain(|id| deadlines.get(id).is_some_and(|deadline| *deadline <= now));
        // A job that was started meanwhile is refused.
        for job in manager.change_each(&due, expire).await.into_iter().flatten().map(|expired| expired.job) {
            let message = "not started before its start deadline".to_owned();
            watch.failed(&job.id, JobState::Expired, JobError { code: "expired".to_owned(), message });
        }
    }
}
