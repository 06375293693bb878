//! Workers: their latest calls to this server, and the jobs that they run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::{Job, JobAnswer};
use crate::clock::Timestamp;
use crate::manager::{Leases, Sighting, WorkerStatus};

/// The list of workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    /// The workers that called this server recently and those that run jobs, by name.
    pub items: Vec<Worker>,
    /// Always null: the list has one page.
    pub next_cursor: Option<String>,
    /// Whether there are more running jobs than were read, so that workers may be missing.
    pub truncated: bool,
}

/// A worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// The worker's name.
    #[schema(example = "host7:4711")]
    pub id: String,
    /// When the worker last called this server; null when it has not called this server recently.
    pub last_seen_at: Option<Timestamp>,
    /// When the worker last tried to claim jobs from this server.
    pub asked_at: Option<Timestamp>,
    /// Whether a claim of the worker waits for a job now.
    pub waiting: bool,
    /// The queues of the worker's latest claim.
    pub queues: Vec<String>,
    /// The resources that the worker's latest claim offered; empty when the worker takes any job.
    pub resources: BTreeMap<String, u64>,
    /// The number of jobs that the worker runs.
    pub running: u64,
    /// The time of the oldest among the latest heartbeats of the worker's jobs; null when it runs none.
    pub oldest_heartbeat_at: Option<Timestamp>,
    /// When the first of the worker's leases expires; null when it runs no job.
    pub lease_expires_at: Option<Timestamp>,
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

impl From<WorkerStatus> for Worker {
    fn from(status: WorkerStatus) -> Self {
        let WorkerStatus { id, seen, leases } = status;
        let (last_seen_at, asked_at, queues, resources, waiting) = match seen {
            Some(Sighting { last_seen_at, asked_at, queues, resources, waiting }) => {
                (Some(last_seen_at), asked_at, queues, resources, waiting > 0)
            }
            None => (None, None, Vec::new(), BTreeMap::new(), false),
        };
        Self {
            id: id.into(),
            last_seen_at,
            asked_at,
            waiting,
            queues: queues.into_iter().map(String::from).collect(),
            resources,
            running: leases.map_or(0, |leases: Leases| leases.jobs),
            oldest_heartbeat_at: leases.map(|leases| leases.oldest_heartbeat_at),
            lease_expires_at: leases.map(|leases| leases.earliest_expiry_at),
        }
    }
}
