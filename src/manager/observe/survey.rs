//! Periodic counts of the store's jobs, for metrics and status pages that must not query the store.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::debug;
use utoipa::ToSchema;

use crate::clock::Timestamp;
use crate::job::JobState;
use crate::query::Filter;
use crate::store::StoreError;

use super::queues::{JobCounts, no_jobs};
use crate::manager::Manager;

/// The most queues that are counted separately. The others, which have the fewest unfinished jobs, are counted
/// together.
const MAX_QUEUES: usize = 100;

/// The name of the other queues in metrics. No queue can have it, since names have no white space at their ends.
const OTHERS: &str = " others";

/// The number of jobs in the store at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Survey {
    /// When the jobs were counted.
    pub at: Timestamp,
    /// The number of jobs in each state, in all queues.
    #[schema(example = json!({
        "available": 12, "running": 3, "completed": 840, "failed": 1, "cancelled": 0, "expired": 0,
    }))]
    pub by_state: BTreeMap<JobState, u64>,
    /// The time from which the longest-waiting due job could have been claimed; null when no due job waits.
    pub oldest_waiting_since: Option<Timestamp>,
}

/// The latest counts, and whether counting succeeds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyState {
    /// The latest successful survey.
    pub latest: Option<Survey>,
    /// When the first failure since the last success happened; `None` when the latest survey succeeded.
    pub failing_since: Option<Timestamp>,
}

/// The jobs of one queue, as a survey found them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurveyedQueue {
    /// The queue's name, or ` others` for all queues that are not counted separately.
    pub name: String,
    /// The number of the queue's jobs in each state.
    pub jobs: BTreeMap<JobState, u64>,
    /// The time from which the longest-waiting due job could have been claimed; `None` when no due job waits.
    pub oldest_waiting_since: Option<Timestamp>,
}

/// The latest survey, in memory.
#[derive(Default)]
pub(crate) struct Surveys {
    state: Mutex<SurveyState>,
    queues: Mutex<Arc<[SurveyedQueue]>>,
}

impl Surveys {
    pub(crate) fn state(&self) -> SurveyState {
        self.state.lock().clone()
    }

    /// Returns the queues that had jobs at the latest survey.
    pub(crate) fn queues(&self) -> Arc<[SurveyedQueue]> {
        Arc::clone(&self.queues.lock())
    }
}

fn sum<'a>(counts: impl Iterator<Item = &'a JobCounts>) -> JobCounts {
    let mut sum = no_jobs();
    for (state, count) in counts.flatten() {
        *sum.entry(*state).or_default() += count;
    }
    sum
}

impl Manager {
    /// Takes a survey periodically, until the manager ends.
    pub(crate) async fn keep_surveyed(&self, every: Duration) {
        loop {
            self.take_survey().await;
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }

    pub(super) async fn take_survey(&self) {
        let result = self.count_queues().await;
        let now = self.shared.clock.now();
        match result {
            Ok(queues) => {
                metrics::gauge!("leasehold_jobs_counted_timestamp_seconds").set(now.as_millis() as f64 / 1000.0);
                let by_state = sum(queues.iter().map(|queue| &queue.jobs));
                let oldest_waiting_since = queues.iter().filter_map(|queue| queue.oldest_waiting_since).min();
                let latest = Some(Survey { at: now, by_state, oldest_waiting_since });
                *self.shared.observe.surveys.state.lock() = SurveyState { latest, failing_since: None };
                *self.shared.observe.surveys.queues.lock() = queues.into();
            }
            Err(error) => {
                debug!(%error, "the jobs could not be counted");
                self.shared.observe.surveys.state.lock().failing_since.get_or_insert(now);
            }
        }
    }

    /// Counts the jobs of every queue, and finds the oldest waiting of those that are counted apart.
    async fn count_queues(&self) -> Result<Vec<SurveyedQueue>, StoreError> {
        let mut queues: Vec<_> = self.count_by_queue(&Filter::default()).await?.into_iter().collect();
        queues.sort_by_key(|(_, jobs)| std::cmp::Reverse(jobs[&JobState::Available] + jobs[&JobState::Running]));
        let others = queues.split_off(MAX_QUEUES.min(queues.len()));
        let mut numbers = Vec::with_capacity(queues.len() + 1);
        for (queue, jobs) in queues {
            let oldest_waiting_since = self.oldest_waiting(&queue, &jobs).await?;
            numbers.push(SurveyedQueue { name: queue.to_string(), jobs, oldest_waiting_since });
        }
        if !others.is_empty() {
            let jobs = sum(others.iter().map(|(_, jobs)| jobs));
            numbers.push(SurveyedQueue { name: OTHERS.to_owned(), jobs, oldest_waiting_since: None });
        }
        Ok(numbers)
    }
}
