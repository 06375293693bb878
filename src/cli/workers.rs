//! `leasehold workers`: the workers, and what they run.

use clap::Args;

use super::failure::Failure;
use super::output::{Fit, print, table_to};
use super::server::ClientArgs;
use super::settings::Settings;
use super::statistics::age;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::{Kind, QueueName};
use crate::wire::Worker;

/// List the workers that the server has heard of lately, and those that run jobs
#[derive(Debug, Args)]
pub(super) struct WorkersArgs {
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints the workers.
pub(super) async fn run(args: WorkersArgs, settings: Settings) -> Result<(), Failure> {
    let workers = args.answer.connect(&settings.client)?.workers().await?;
    args.answer.print_all(&workers.items, |workers| overview(workers, SystemClock::default().now(), Fit::Terminal))?;
    if workers.truncated && !args.answer.is_for_programs() {
        print("There are more running jobs than the server looks at for this: some workers may be missing.")?;
    }
    if workers.servers_unasked > 0 && !args.answer.is_for_programs() {
        let servers = workers.servers_unasked;
        print(&format!(
            "{servers} other servers of the store do not say which workers call them (`--advertise`, \
             `--cluster-secret`): of those workers only what they run is known."
        ))?;
    }
    Ok(())
}

/// Formats the workers as a table.
pub(super) fn overview(workers: &[Worker], now: Timestamp, fit: Fit) -> String {
    if workers.is_empty() && fit == Fit::Terminal {
        return "no worker is known".to_owned();
    }
    let rows = workers.iter().map(|worker| {
        let resources = worker.resources.iter().map(|(name, amount)| format!("{name}={amount}"));
        let labels = worker.labels.iter().map(|(name, value)| format!("{name}={value}"));
        let offers: Vec<String> = resources.chain(labels).collect();
        let kinds: Vec<&str> = worker.kinds.iter().map(Kind::as_str).collect();
        let until = worker.lease_expires_at.map(|at| match at > now {
            true => super::duration::show(at.since(now)),
            false => format!("over since {}", super::duration::show(now.since(at))),
        });
        vec![
            worker.id.to_string(),
            if worker.waiting { "waits" } else { "" }.to_owned(),
            worker.running.to_string(),
            age(worker.oldest_heartbeat_at, now),
            until.unwrap_or_default(),
            age(worker.last_seen_at, now),
            worker.queues.iter().map(QueueName::as_str).collect::<Vec<_>>().join(" "),
            kinds.join(" "),
            offers.join(" "),
            worker.user_agent.clone().unwrap_or_default(),
        ]
    });
    table_to(fit, &["worker", "", "runs", "beat", "lease", "seen", "queues", "kinds", "offers", "program"], rows)
}
