//! Workers: what they told this server last, and what they run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::{Job, JobAnswer};
use crate::clock::{Timestamp, rfc3339};
use crate::manager::{Leases, Sighting, WorkerStatus};

/// The workers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkerList {
    /// Those that this server has heard of lately and those that run jobs, in the order of their names.
    pub items: Vec<Worker>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
    /// Whether there are more running jobs than were looked at, so that some workers may be missing.
    pub truncated: bool,
}

/// A worker, as far as it is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Worker {
    /// Its name.
    #[schema(example = "host7:4711")]
    pub id: String,
    /// When this server last heard of it; null when it asks another server, or was last heard of long ago.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_seen_at: Option<Timestamp>,
    /// When it last asked this server for jobs.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub asked_at: Option<Timestamp>,
    /// Whether it waits for a job now.
    pub waiting: bool,
    /// Which lines it asked for last.
    pub queues: Vec<String>,
    /// What it offered then; empty where it takes any job.
    pub resources: BTreeMap<String, u64>,
    /// How many jobs it runs.
    pub running: u64,
    /// The oldest of its jobs' latest signs of life; null when it runs none.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest_heartbeat_at: Option<Timestamp>,
    /// When the first of its leases is over.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub lease_expires_at: Option<Timestamp>,
}

/// A worker with the jobs that it runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = WorkerJobs)]
pub struct WorkerJobs<'a> {
    /// The worker.
    pub worker: Worker,
    /// The jobs that it runs, the oldest first.
    #[schema(value_type = Vec<Job>)]
    pub items: Vec<JobAnswer<'a>>,
    /// Where the next page begins; null when this is the last one.
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
