//! The flags that select jobs by their ids or with a filter.

use clap::Args;
use clap_complete::ArgValueCompleter;

use super::complete;
use super::many::{Confirmation, HEADING};
use super::server::ClientArgs;
use crate::job::JobState;
use crate::wire::BulkFilter;

/// Jobs by their ids.
#[derive(Debug, Args)]
pub(super) struct Ids {
    /// The ids of the jobs
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    pub(super) ids: Vec<String>,
    #[command(flatten)]
    pub(super) answer: ClientArgs,
}

/// Jobs by their ids, or all jobs of a filter.
#[derive(Debug, Args)]
pub(super) struct Chosen {
    /// The ids of the jobs; or select them with the options below
    #[arg(value_name = "ID", required_unless_present = "filter", conflicts_with = "filter",
          add = ArgValueCompleter::new(complete::job_ids))]
    pub(super) ids: Vec<String>,
    #[command(flatten)]
    pub(super) filter: BulkFilterArgs,
    #[command(flatten)]
    pub(super) confirmation: Confirmation,
    #[command(flatten, next_help_heading = None::<&str>)]
    pub(super) answer: ClientArgs,
}

/// A filter of a bulk change. It is given on the command line only: an environment variable that was set for a worker
/// must not widen or narrow it.
#[derive(Debug, Args)]
#[command(next_help_heading = HEADING)]
#[group(id = "filter", multiple = true)]
pub(super) struct BulkFilterArgs {
    /// Select only jobs in this state (repeatable)
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', add = ArgValueCompleter::new(complete::states))]
    states: Vec<JobState>,
    /// Select only jobs in this queue (repeatable)
    #[arg(long = "queue", value_name = "QUEUE", add = ArgValueCompleter::new(complete::queues))]
    queues: Vec<String>,
    /// Select only jobs of this kind (repeatable)
    #[arg(long = "kind", value_name = "KIND", add = ArgValueCompleter::new(complete::kinds))]
    kinds: Vec<String>,
    /// Select only jobs that belong to this owner (repeatable)
    #[arg(long = "owner", value_name = "OWNER")]
    owners: Vec<String>,
    /// Select only jobs that this KQL query matches
    #[arg(long = "query", visible_alias = "kql", value_name = "KQL", add = ArgValueCompleter::new(complete::kql))]
    kql: Option<String>,
    /// The time zone of the query's days and of its times without a zone, such as Europe/Berlin or +02:00 [default:
    /// UTC]
    #[arg(long, value_name = "ZONE", env = "LEASEHOLD_TIME_ZONE")]
    time_zone: Option<String>,
    /// Select only jobs that this worker holds
    #[arg(long, value_name = "WORKER")]
    worker: Option<String>,
    /// Select only jobs that are flagged as orphans
    #[arg(long)]
    orphaned: bool,
    /// Select all jobs that the command can change
    #[arg(long, conflicts_with_all = ["states", "queues", "kinds", "owners", "kql", "worker", "orphaned"])]
    all: bool,
}

impl BulkFilterArgs {
    /// Returns the filter; `None` when no option of it was given.
    pub(super) fn filter(&self) -> Option<BulkFilter> {
        let filter = BulkFilter {
            states: self.states.clone(),
            queues: self.queues.clone(),
            kinds: self.kinds.clone(),
            owners: self.owners.clone(),
            kql: self.kql.clone(),
            time_zone: self.time_zone.clone().filter(|_| self.kql.is_some()),
            worker_id: self.worker.clone(),
            orphaned: self.orphaned.then_some(true),
            ids: Vec::new(),
            all: self.all,
        };
        (filter != BulkFilter::default()).then_some(filter)
    }
}
