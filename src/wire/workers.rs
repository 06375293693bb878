//! Workers: their latest calls to this server, and the jobs that they run.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::{Job, JobAnswer};
use crate::manager::Worker;

/// The list of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    /// The workers that called a server of the store recently and those that run jobs, by name.
    pub items: Vec<Worker>,
    /// Always null: the list has one page.
    pub next_cursor: Option<String>,
    /// Whether there are more running jobs than were read, so that workers may be missing.
    pub truncated: bool,
    /// The number of other servers that did not say which workers call them, so that of those workers only what they
    /// run is known. They have no address (`--advertise`), or did not answer within two seconds.
    #[serde(default)]
    pub servers_unasked: u64,
}

/// A worker with the jobs that it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WorkerJobs)]
pub struct WorkerJobs<'a> {
    /// The worker.
    pub worker: Worker,
    /// The jobs that the worker runs, oldest first.
    #[schema(value_type = Vec<Job>)]
    pub items: Vec<JobAnswer<'a>>,
    /// The cursor of the next page; null on the last page.
    pub next_cursor: Option<String>,
}
