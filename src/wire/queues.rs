//! Queues: their jobs, throughput and settings.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::Timestamp;
use crate::job::OrphanPolicy;
use crate::manager::{Pause, QueueStatus, Throughput};

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// The queue's name.
    #[schema(example = "reports")]
    pub name: String,
    /// Whether the queue is paused: none of its jobs is claimed.
    pub paused: bool,
    /// When, by whom and why the queue was paused; null when it is not paused.
    pub pause: Option<QueuePause>,
    /// What happens to jobs of the queue whose lease expires, unless they have a policy themselves: `requeue`, `fail`
    /// or `flag`. The installation's policy applies when null.
    #[schema(value_type = Option<String>)]
    pub orphan_policy: Option<OrphanPolicy>,
    /// The number of jobs of the queue in each state.
    #[schema(example = json!({
        "available": 12, "running": 3, "completed": 840, "failed": 1, "cancelled": 0, "expired": 0,
    }))]
    pub jobs: BTreeMap<JobState, u64>,
    /// The time from which the longest-waiting due job could have been claimed if the queue was not paused; null when
    /// no due job waits.
    pub oldest_waiting_since: Option<Timestamp>,
    /// How many jobs of the queue ended in the last one, five and fifteen minutes. The embedded store counts them from
    /// the server's start, to within ten seconds; a shared store counts the jobs of all servers.
    pub throughput: Vec<QueueThroughput>,
}

/// How many jobs of a queue ended within a recent window of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueThroughput {
    /// The length of the window, in milliseconds.
    #[schema(example = 60_000)]
    pub window_ms: u64,
    /// The number of jobs that completed in the window.
    pub completed: u64,
    /// The number of jobs that failed in the window.
    pub failed: u64,
    /// The number of completed and failed jobs per minute.
    pub per_minute: f64,
    /// The share of these jobs that failed, from 0 to 1; null when none ended.
    pub failure_rate: Option<f64>,
}

/// The pause of a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePause {
    /// When the queue was paused.
    pub since: Timestamp,
    /// The caller who paused the queue.
    pub by: String,
    /// Why the queue was paused.
    pub reason: Option<String>,
}

/// A change of a queue's settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeQueue {
    /// What happens to jobs of the queue whose lease expires, unless they have a policy themselves: `requeue`, `fail`
    /// or `flag`; null for the installation's policy.
    // `Option::deserialize` makes the field required, so that a forgotten field does not remove the policy.
    #[serde(deserialize_with = "Option::deserialize")]
    #[schema(value_type = Option<String>, required = true)]
    pub orphan_policy: Option<OrphanPolicy>,
}

impl From<Pause> for QueuePause {
    fn from(pause: Pause) -> Self {
        Self { since: pause.at, by: pause.by.into(), reason: pause.reason }
    }
}

impl From<&Throughput> for QueueThroughput {
    fn from(throughput: &Throughput) -> Self {
        let Throughput { window, completed, failed } = *throughput;
        let ended = completed + failed;
        Self {
            window_ms: u64::try_from(window.as_millis()).unwrap_or(u64::MAX),
            completed,
            failed,
            per_minute: ended as f64 * 60.0 / window.as_secs_f64(),
            failure_rate: (ended > 0).then(|| failed as f64 / ended as f64),
        }
    }
}

impl From<QueueStatus> for Queue {
    fn from(status: QueueStatus) -> Self {
        let pause = status.settings.paused.map(QueuePause::from);
        Self {
            name: status.name.into(),
            paused: pause.is_some(),
            pause,
            orphan_policy: status.settings.orphan_policy,
            jobs: status.jobs,
            oldest_waiting_since: status.oldest_waiting_since,
            throughput: status.throughput.iter().map(QueueThroughput::from).collect(),
        }
    }
}
