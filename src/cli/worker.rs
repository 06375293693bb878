//! `leasehold worker`: runs shell jobs of a server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use super::failure::Failure;
use super::log::{self, LogFormat};
use super::server::ServerArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{duration, jobs};
use crate::job::{QueueName, WorkerId};
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

Examples:
  leasehold worker --queue reports --slots 8
  leasehold worker --resource memory_mib=4096 --resource gpus=1
  leasehold worker --server https://jobs.example --token lh_… --queue a";

/// Run shell jobs of a server
#[derive(Debug, Args)]
#[command(after_help = ABOUT_KILL)]
pub(super) struct WorkerArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// Claim jobs from this queue (repeatable) [default: default]
    #[arg(long = "queue", value_name = "QUEUE", env = "LEASEHOLD_QUEUE", value_delimiter = ',')]
    queues: Vec<String>,
    /// How many jobs run at the same time [default: 4]
    #[arg(long, value_name = "N", env = "LEASEHOLD_SLOTS", value_parser = clap::value_parser!(u16).range(1..))]
    slots: Option<u16>,
    /// Offer this much of a resource to all jobs that run at the same time; jobs that need more than is free are not
    /// claimed (repeatable) [default: any job is claimed]
    #[arg(long = "resource", value_name = "NAME=AMOUNT", env = "LEASEHOLD_RESOURCE", value_delimiter = ',',
          value_parser = resource)]
    resources: Vec<(String, u64)>,
    /// The worker's name, which no other worker may have [default: made from the host's name and a random number]
    #[arg(long, value_name = "NAME", env = "LEASEHOLD_WORKER_ID")]
    worker_id: Option<String>,
    /// How long a lease lasts without a heartbeat; heartbeats are sent at a third of it [default: 60s]
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_LEASE", value_parser = duration::parse)]
    lease: Option<Duration>,
    /// How long running jobs may go on after the first SIGTERM or Ctrl-C [default: 60s]
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_DRAIN_TIMEOUT", value_parser = duration::parse)]
    drain_timeout: Option<Duration>,
    /// How long a command has between SIGTERM and SIGKILL [default: 10s]
    #[arg(long, value_name = "DURATION", env = "LEASEHOLD_GRACE", value_parser = duration::parse)]
    grace: Option<Duration>,
    /// The format of the log [default: text]
    #[arg(long, value_enum, env = "LEASEHOLD_LOG_FORMAT")]
    log_format: Option<LogFormat>,
}

/// Works until it is stopped.
pub(super) async fn run(args: WorkerArgs, settings: Settings) -> Result<(), Failure> {
    log::start(args.log_format.or(settings.log_format).unwrap_or_default(), "info");
    let client = args.server.connect(&settings.client)?;
    let config = config(args, &settings)?;
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

fn config(args: WorkerArgs, settings: &Settings) -> Result<WorkerConfig, Failure> {
    let file = &settings.worker;
    let wrong = |what: &str, error: crate::job::InvalidName| Failure::Usage(format!("the {what} {error}"));
    let worker_id = args.worker_id.or_else(|| file.worker_id.clone()).unwrap_or_else(random_name);
    let queues = Some(args.queues).filter(|queues| !queues.is_empty()).or_else(|| file.queues.clone());
    let queues = queues.unwrap_or_else(|| vec![jobs::DEFAULT_QUEUE.to_owned()]);
    let queues: Result<Vec<QueueName>, _> = queues.iter().map(QueueName::new).collect();
    let resources: BTreeMap<String, u64> = match args.resources.is_empty() {
        true => file.resources.clone().unwrap_or_default(),
        false => args.resources.into_iter().collect(),
    };
    let setting = |flag: Option<Duration>, file: Option<super::duration::DurationSetting>, default| {
        flag.or(file.map(|setting| setting.0)).unwrap_or(default)
    };
    Ok(WorkerConfig {
        worker_id: WorkerId::new(worker_id).map_err(|error| wrong("worker's name", error))?,
        queues: queues.map_err(|error| wrong("queue's name", error))?,
        slots: args.slots.map(usize::from).or(file.slots).unwrap_or(DEFAULT_SLOTS).max(1),
        resources,
        lease: setting(args.lease, file.lease, DEFAULT_LEASE),
        wait: WAIT,
        drain_timeout: setting(args.drain_timeout, file.drain_timeout, DEFAULT_DRAIN),
        grace: setting(args.grace, file.grace, DEFAULT_GRACE) + REAP,
    })
}

/// Parses an amount of a resource, such as `memory_mib=4096`.
fn resource(text: &str) -> Result<(String, u64), String> {
    let wrong = || format!("`{text}` is not a name and a whole number, such as memory_mib=4096");
    let (name, amount) = text.split_once('=').ok_or_else(wrong)?;
    let amount = amount.trim().parse().map_err(|_| wrong())?;
    if name.trim().is_empty() { Err(wrong()) } else { Ok((name.trim().to_owned(), amount)) }
}

fn random_name() -> String {
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let number: u32 = rand::random();
    format!("{}:{}:{number:08x}", host.as_deref().unwrap_or("worker"), std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resource_is_a_name_and_a_whole_number() {
        assert_eq!(resource("memory_mib=4096"), Ok(("memory_mib".to_owned(), 4096)));
        for wrong in ["", "memory_mib", "=1", "memory_mib=", "memory_mib=-1", "memory_mib=4g"] {
            assert!(resource(wrong).is_err_and(|said| said.contains("memory_mib=4096")), "{wrong}");
        }
    }
}
