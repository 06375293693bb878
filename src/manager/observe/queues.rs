//! The status of queues: jobs by state, the oldest waiting job, settings and throughput.

use std::collections::{BTreeMap, HashMap};

use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::{JobState, OrphanPolicy, Owner, QueueName};
use crate::query::{Direction, Filter, GroupField, Search, Sort, SortField};
use crate::store::StoreError;

use super::throughput::{EndedInWindows, Throughput, throughput};
use crate::manager::Manager;
use crate::manager::admin::queue_settings::{Fairness, JobOrder, Pause, QueueSettings};
use crate::manager::request::ManagerError;

/// The most queues whose oldest jobs are searched for at once.
const QUEUES_AT_ONCE: usize = 8;

/// The number of jobs in each state; every state has an entry.
pub(super) type JobCounts = BTreeMap<JobState, u64>;

pub(super) fn no_jobs() -> JobCounts {
    JobState::ALL.iter().map(|state| (*state, 0)).collect()
}

/// A queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Queue {
    /// The queue's name.
    #[schema(example = "reports")]
    pub name: QueueName,
    /// Whether the queue is paused: none of its jobs is claimed.
    pub paused: bool,
    /// When, by whom and why the queue was paused; null when it is not paused.
    pub pause: Option<Pause>,
    /// What happens to jobs of the queue whose lease expires, unless they have a policy themselves. The installation's
    /// policy applies when null.
    pub orphan_policy: Option<OrphanPolicy>,
    /// Whose turn it is among the due jobs of one priority: `none` for the job that has been due longest, `owner` where
    /// the owners take turns, `owner_runtime` where they do by the time that their jobs are expected to run.
    pub fairness: Fairness,
    /// The weights of owners, where owners take turns: how many jobs an owner is given for each of an owner that is not
    /// named here.
    #[schema(example = json!({ "team-a": 3 }))]
    pub weights: BTreeMap<Owner, u32>,
    /// Which of the due jobs of one priority is next, of one owner where owners take turns: `dispatch` for the job that
    /// has been due longest, `shortest` for the one that is expected to run shortest, unless another has waited long.
    pub order: JobOrder,
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
    pub throughput: Vec<Throughput>,
}

impl Manager {
    /// Returns every queue that has jobs or settings of its own, in the order of their names.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn queues(&self) -> Result<Vec<Queue>, ManagerError> {
        self.know_queues().await?;
        let mut queues = self.count_by_queue(&Filter::default()).await?;
        for name in self.shared.queue_settings.queues() {
            queues.entry(name).or_insert_with(no_jobs);
        }
        let ended = self.ended_lately(None).await?;
        let queues: Vec<_> = queues.into_iter().collect();
        let mut answered = Vec::with_capacity(queues.len());
        for some in queues.chunks(QUEUES_AT_ONCE) {
            answered.extend(try_join_all(some.iter().map(|(name, jobs)| self.queue_status(name, jobs, &ended))).await?);
        }
        Ok(answered)
    }

    /// Returns one queue, whether it has jobs or not.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn queue(&self, name: &QueueName) -> Result<Queue, ManagerError> {
        self.know_queues().await?;
        let filter = Filter { queues: vec![name.clone()], ..Filter::default() };
        let jobs = self.count_by_queue(&filter).await?.remove(name).unwrap_or_else(no_jobs);
        let ended = self.ended_lately(Some(name)).await?;
        self.queue_status(name, &jobs, &ended).await
    }

    async fn queue_status(
        &self,
        name: &QueueName,
        jobs: &JobCounts,
        ended: &HashMap<QueueName, EndedInWindows>,
    ) -> Result<Queue, ManagerError> {
        let QueueSettings { paused, orphan_policy, fairness, weights, order } = self.shared.queue_settings.of(name);
        Ok(Queue {
            name: name.clone(),
            paused: paused.is_some(),
            pause: paused,
            orphan_policy,
            fairness,
            weights,
            order,
            jobs: jobs.clone(),
            oldest_waiting_since: self.oldest_waiting(name, jobs).await?,
            throughput: throughput(&ended.get(name).copied().unwrap_or_default()),
        })
    }

    /// Counts the jobs that satisfy `filter` by queue and state.
    pub(super) async fn count_by_queue(&self, filter: &Filter) -> Result<BTreeMap<QueueName, JobCounts>, StoreError> {
        let corrupt = |what: &str| StoreError::Corrupt(format!("{what} in a count"));
        let mut queues: BTreeMap<QueueName, JobCounts> = BTreeMap::new();
        for group in self.shared.store.count(filter, &[GroupField::Queue, GroupField::State]).await? {
            let [Some(queue), Some(state)] = group.values.as_slice() else { continue };
            let name = QueueName::new(queue).map_err(|_| corrupt("a queue without a valid name"))?;
            let state = state.parse().map_err(|_| corrupt("an unknown state"))?;
            queues.entry(name).or_insert_with(no_jobs).insert(state, group.count);
        }
        Ok(queues)
    }

    /// Returns the due time of the due job that has waited longest, in a queue with these counts.
    pub(super) async fn oldest_waiting(
        &self,
        queue: &QueueName,
        jobs: &JobCounts,
    ) -> Result<Option<Timestamp>, StoreError> {
        if jobs.get(&JobState::Available).is_none_or(|waiting| *waiting == 0) {
            return Ok(None);
        }
        let filter = Filter {
            states: vec![JobState::Available],
            held: Some(false),
            queues: vec![queue.clone()],
            run_at_most: Some(self.shared.clock.now()),
            ..Filter::default()
        };
        let sort = Sort::By(SortField::RunAt, Direction::Ascending);
        let found = self.shared.store.search(&Search { filter, sort, after: None, limit: 1 }).await?;
        Ok(found.first().map(|found| found.job.run_at))
    }
}
