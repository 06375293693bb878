//! `leasehold worker`: runs shell jobs of a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::log::{self, LogFormat};
use super::server::ServerArgs;
use super::settings::{Settings, WorkerSettings};
use super::signals::Signals;
use super::{duration::DurationSetting, jobs};
use crate::job::{Offers, QueueName, WorkerId};
use crate::manager::{ClaimOrder, QueueOrder};
use crate::wire::ClaimJobs;
use crate::worker::shell::{self, Scope, ShellHandler};
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

A worker that is killed with SIGKILL cannot end its commands: they run on while their leases expire. Run it where they \
are killed with it, in a container or as a systemd service.

Whoever may submit to its queues runs commands here with the rights of the worker's user. A command does not get the \
worker's settings (LEASEHOLD_…) and cannot read them in /proc unless it runs as root, but it can read every file that \
this user can. Give the token in LEASEHOLD_TOKEN: all users of a machine can read command lines.

Examples:
  leasehold worker --queue reports --slots 8
  leasehold worker --queue urgent,reports --queue-order strict
  leasehold worker --queue reports,mail --queue-order weighted --queue-weight reports=3
  leasehold worker --resource memory_mib=4096 --resource gpus=1
  leasehold worker --label hw=fpga --label build=43
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
    /// The format of the log [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormat>,
}

/// Works until it is stopped.
pub(super) async fn run(args: WorkerArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    if let Err(error) = shell::hide_settings() {
        tracing::warn!(%error, "jobs of this user can read the worker's settings in /proc");
    }
    let client = args.server.connect(&settings.client)?;
    let config = config(args.worker, settings.worker)?;
    let signals = Signals::listen(|stop| match stop {
        Stop::Now => tracing::warn!("ending the running jobs and giving them back"),
        Stop::Drain | Stop::No => tracing::info!("stopping once the running jobs have ended; again to end them"),
    })?;
    tracing::info!(worker_id = %config.worker_id, queues = ?config.queues, slots = config.slots, "working");
    let scope = Scope::new(&format!("worker {}", config.worker_id));
    let handler = ShellHandler::new(scope, config.grace - REAP);
    let worker = Worker::new(Arc::new(client), config).handle(shell::kind(), handler.shared());
    worker.run(signals.stop()).await.map_err(|error| Failure::Failed(format!("the server refuses: {error}")))
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
