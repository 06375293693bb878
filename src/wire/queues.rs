//! Queues: how they stand, and what is set for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::{Timestamp, rfc3339};
use crate::job::OrphanPolicy;
use crate::manager::{Pause, QueueStatus, Throughput};

/// Every queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueList {
    /// The queues that have jobs or settings of their own, in the order of their names.
    pub items: Vec<Queue>,
    /// Always null: there is one page.
    pub next_cursor: Option<String>,
}

/// How a queue stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// Its name.
    #[schema(example = "reports")]
    pub name: String,
    /// Whether its jobs are held back.
    pub paused: bool,
    /// Since when, by whom and why, if they are.
    pub pause: Option<QueuePause>,
    /// What happens to its jobs whose lease expires, where they do not say it themselves: `requeue`, `fail` or `flag`;
    /// the installation's rule when null.
    #[schema(value_type = Option<String>)]
    pub orphan_policy: Option<OrphanPolicy>,
    /// How many jobs are in each state.
    #[schema(example = json!({
        "available": 12, "running": 3, "completed": 840, "failed": 1, "cancelled": 0, "expired": 0,
    }))]
    pub jobs: BTreeMap<JobState, u64>,
    /// Since when the longest-waiting due job could have been claimed, were the queue not paused.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest_waiting_since: Option<Timestamp>,
    /// How many of its jobs have ended in the last one, five and fifteen minutes. On an embedded store, since the server
    /// was started and to within ten seconds; on a shared one, whichever server they ended at.
    pub throughput: Vec<QueueThroughput>,
}

/// How many jobs of a queue have ended within a time up to now.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueueThroughput {
    /// How long that time is.
    #[schema(example = 60_000)]
    pub window_ms: u64,
    /// How many were completed.
    pub completed: u64,
    /// How many have failed for good.
    pub failed: u64,
    /// How many of both in a minute.
    pub per_minute: f64,
    /// The share of those that failed, from 0 to 1; null when none has ended.
    pub failure_rate: Option<f64>,
}

/// That a queue's jobs are held back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueuePause {
    /// Since when.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub since: Timestamp,
    /// Who wanted it.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
}

/// Changes what is set for a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeQueue {
    /// What happens to its jobs whose lease expires, where they do not say it themselves: `requeue`, `fail` or `flag`;
    /// null for the installation's rule.
    // Named so that it must be there: one that is forgotten is not meant to remove the rule.
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
