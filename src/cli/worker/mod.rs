//! `leasehold worker`: runs shell jobs of a server.
//!
//! Beside the worker itself: `post` (what former workers left, and the scope of this one's commands), `warden` (the
//! process that ends the commands when the worker is killed), `telling` (the log of jobs), `readiness` (what a
//! supervisor is told), `restart` (on SIGHUP, or for the memory's sake).

mod post;
mod readiness;
mod restart;
mod telling;
pub(super) mod warden;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::cli::failure::Failure;
use crate::cli::log::{self, LogFormat};
use crate::cli::permissions::hide_settings;
use crate::cli::server::ServerArgs;
use crate::cli::settings::{Settings, WorkerSettings};
use crate::cli::signals::Signals;
use crate::cli::size::SizeSetting;
use crate::cli::{duration::DurationSetting, jobs};
use post::Post;
use readiness::Readiness;
use restart::Restart;
use telling::Telling;
use warden::Warden;

use crate::job::{Kind, Offers, QueueName, WorkerId};
use crate::manager::{ClaimOrder, MAX_CLAIMED_KINDS, QueueOrder};
use crate::wire::ClaimJobs;
use crate::worker::shell::{self, ShellHandler};
use crate::worker::{Stop, Worker, WorkerConfig};

/// How long one claim waits for a job.
const WAIT: Duration = Duration::from_secs(30);
const DEFAULT_SLOTS: usize = 4;
const DEFAULT_LEASE: Duration = Duration::from_secs(60);
const DEFAULT_DRAIN: Duration = Duration::from_secs(60);
const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// The time that a handler may take beyond that between SIGTERM and SIGKILL.
pub(super) const REAP: Duration = Duration::from_secs(5);

const ABOUT_KILL: &str = "\
After the first SIGTERM or Ctrl-C the worker claims no new job and lets the running ones go on for --drain-timeout; \
then it ends them and releases them, which uses up no attempt. After the second it does so at once.

On SIGHUP it does the same and then starts itself again with the same arguments, as after an upgrade of the program.

When the worker is killed with SIGKILL, a small process beside it (`leasehold warden`) ends its commands. What is left \
all the same is ended by the next worker of this user on this machine, before it claims a job (Linux).

Whoever may submit to its queues runs commands here with the rights of the worker's user. A command does not get the \
worker's settings (LEASEHOLD_…) and cannot read them in /proc unless it runs as root, but it can read every file that \
this user can. Give the token in LEASEHOLD_TOKEN: all users of a machine can read command lines.

Examples:
  leasehold worker --queue reports --slots 8
  leasehold worker --queue urgent,reports --queue-order strict
  leasehold worker --queue reports,mail --queue-order weighted --queue-weight reports=3
  leasehold worker --resource memory_mib=4096 --resource gpus=1
  leasehold worker --exit-when-empty --max-jobs 100
  leasehold worker --label hw=fpga --label build=43
  leasehold worker --queue reports --kinds report,mail
  leasehold worker --server https://jobs.example --token lh_… --queue a
  leasehold worker --server http://jobs-1.example:7400,http://jobs-2.example:7400";

/// Run shell jobs of a server
#[derive(Debug, Args)]
#[command(after_help = ABOUT_KILL)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    worker: WorkerSettings,
    /// Take only jobs of these kinds, at most 64, and run them as shell jobs (repeatable); those of other kinds in the
    /// same queues are left to other workers [default: shell]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kinds: Vec<Kind>,
    /// End once this many jobs were run
    #[arg(long, value_name = "N")]
    max_jobs: Option<NonZeroUsize>,
    /// End when no job is running and none was to be had for two seconds
    #[arg(long)]
    exit_when_empty: bool,
    /// Start again, as on SIGHUP, when the worker itself takes more memory than this after a job, such as 512MiB
    /// (Linux); the memory of its commands does not count
    #[arg(long, value_name = "SIZE")]
    max_memory: Option<SizeSetting>,
    /// Write this file once the server is ready for the worker; it is removed at the end
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
    /// The format of the log [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

/// Works until it is stopped.
pub(super) async fn run(args: WorkerArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    hide_settings();
    warn_of_rights();
    let client = args.server.connect(&settings.client)?;
    let config = config(args.worker, settings.worker)?;
    if args.kinds.len() > MAX_CLAIMED_KINDS {
        return Err(Failure::Usage(format!("a worker takes jobs of at most {MAX_CLAIMED_KINDS} kinds")));
    }
    let signals = Signals::listen(|stop| {
        readiness::stopping();
        match stop {
            Stop::Now => tracing::warn!("ending the running jobs and giving them back"),
            Stop::Drain | Stop::No => tracing::info!("stopping once the running jobs have ended; again to end them"),
        }
    })?;
    let restart = Restart::prepare(signals.stop())?;
    restart.on_hangup()?;
    let post = Post::take(&config.worker_id).await?;
    let warden = Warden::start(restart.program(), post.scope());
    tracing::info!(worker_id = %config.worker_id, queues = ?config.queues, slots = config.slots, "working");
    let telling = Telling::start();
    if let Some(SizeSetting(bytes)) = args.max_memory {
        restart.above(bytes, telling.clone());
    }
    let handler = ShellHandler::new(post.scope().clone(), config.grace - REAP).shared();
    let mut worker = Worker::new(Arc::new(client.clone()), config).observe(telling.clone());
    let kinds = if args.kinds.is_empty() { vec![shell::kind()] } else { args.kinds };
    for kind in kinds {
        worker = worker.handle(kind, handler.clone());
    }
    if let Some(jobs) = args.max_jobs {
        worker = worker.at_most(jobs.get());
    }
    if args.exit_when_empty {
        worker = worker.until_empty();
    }
    let readiness = Readiness::tell(client, args.ready_file);
    let worked = worker.run(signals.stop()).await;
    telling.sum_up();
    // The next worker is to find nothing of this one, also in the same process.
    drop((readiness, warden, post));
    match worked {
        Err(error) => Err(Failure::Failed(format!("the server refuses: {error}"))),
        Ok(()) if restart.is_wanted() && signals.status().is_none() => Err(restart.exec()),
        Ok(()) => Ok(()),
    }
}

/// Says what gives others more rights than they need, and warns of what is a mistake in any case.
fn warn_of_rights() {
    if nix::unistd::geteuid().is_root() {
        tracing::info!(
            "the worker runs as root, and so do the commands of its jobs: whoever may submit jobs may do everything on \
             this machine"
        );
    }
    let names_a_token = |argument: std::ffi::OsString| {
        argument.to_str().is_some_and(|argument| argument == "--token" || argument.starts_with("--token="))
    };
    if std::env::args_os().any(names_a_token) {
        tracing::warn!(
            "the token is among the arguments, which the jobs and every user of this machine can read: give it in \
             LEASEHOLD_TOKEN, or in a settings file"
        );
    }
}

fn config(args: WorkerSettings, file: WorkerSettings) -> Result<WorkerConfig, Failure> {
    let wrong = |what: &str, error: crate::job::InvalidName| Failure::Usage(format!("the {what} {error}"));
    let worker_id = args.worker_id.or(file.worker_id).unwrap_or_else(random_name);
    let queues = args.queues.or(file.queues).unwrap_or_else(|| vec![jobs::DEFAULT_QUEUE.to_owned()]);
    let weights = match args.weights.is_empty() {
        true => file.queue_weights.unwrap_or_default(),
        false => args.weights.into_iter().collect(),
    };
    let order = order(&queues, args.queue_order.or(file.queue_order), weights)?;
    let queues: Result<Vec<QueueName>, _> = queues.iter().map(QueueName::new).collect();
    let resources: BTreeMap<String, u64> = match args.offers.is_empty() {
        true => file.resources.unwrap_or_default(),
        false => args.offers.into_iter().collect(),
    };
    let labels: Offers = match args.labels.is_empty() {
        true => file.offered_labels.unwrap_or_default(),
        false => args.labels.into_iter().collect(),
    };
    let setting = |flag: Option<DurationSetting>, file, default| flag.or(file).map_or(default, |setting| setting.0);
    Ok(WorkerConfig {
        worker_id: WorkerId::new(worker_id).map_err(|error| wrong("worker's name", error))?,
        queues: queues.map_err(|error| wrong("queue's name", error))?,
        order,
        slots: args.slots.or(file.slots).map_or(DEFAULT_SLOTS, usize::from).max(1),
        resources,
        labels,
        lease: setting(args.lease, file.lease, DEFAULT_LEASE),
        wait: WAIT,
        drain_timeout: setting(args.drain_timeout, file.drain_timeout, DEFAULT_DRAIN),
        grace: setting(args.grace, file.grace, DEFAULT_GRACE) + REAP,
    })
}

/// Returns the order in which the worker takes from these queues, which the server would refuse if it were wrong.
fn order(
    queues: &[String],
    queue_order: Option<QueueOrder>,
    queue_weights: BTreeMap<String, u64>,
) -> Result<ClaimOrder, Failure> {
    if queue_order.is_none() && queue_weights.is_empty() {
        return Ok(ClaimOrder::default());
    }
    let (worker_id, queues) = ("worker".to_owned(), queues.to_vec());
    let claim = ClaimJobs { worker_id, queues, queue_order, queue_weights, ..ClaimJobs::default() };
    Ok(claim.into_claim().map_err(|invalid| Failure::Usage(invalid.to_string()))?.order)
}

fn random_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let number: u32 = rand::random();
    format!("{}:{}:{number:08x}", host.as_deref().unwrap_or("worker"), std::process::id())
}
