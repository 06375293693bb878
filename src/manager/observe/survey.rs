//! How many jobs are in the store, looked up from time to time: for the gauges, and for whoever asks how the server is
//! without wanting to ask the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::debug;

use crate::clock::Timestamp;
use crate::job::JobState;
use crate::query::Filter;
use crate::store::StoreError;

use super::queues::{JobCounts, no_jobs};
use crate::manager::Manager;

/// How many queues are told apart. The others, those with the fewest jobs that have not ended, are counted together.
const MAX_QUEUES: usize = 100;

/// The name that stands for the others, in metrics. No queue is called so: names have no white space at their ends.
const OTHERS: &str = " others";

/// How the store stood when it was last looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// When that was.
    pub at: Timestamp,
    /// How many jobs were in each state, in all queues.
    pub jobs: BTreeMap<JobState, u64>,
    /// Since when the longest-waiting due job of all could have been claimed.
    pub oldest_waiting_since: Option<Timestamp>,
}

/// What is known of the store, and whether it answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SurveyState {
    /// The latest look at it that succeeded.
    pub latest: Option<Survey>,
    /// Since when every look has failed, if the latest one did.
    pub failing_since: Option<Timestamp>,
}

/// Where it is kept.
#[derive(Default)]
pub(crate) struct Surveys {
    state: Mutex<SurveyState>,
    /// The series that have been set, so that a queue that is gone is told as empty and not as it last was.
    told: Mutex<BTreeSet<(String, JobState)>>,
}

impl Surveys {
    pub(crate) fn state(&self) -> SurveyState {
        self.state.lock().clone()
    }
}

/// One queue's numbers.
struct QueueNumbers {
    name: String,
    jobs: JobCounts,
    oldest_waiting_since: Option<Timestamp>,
}

fn sum<'a>(counts: impl Iterator<Item = &'a JobCounts>) -> JobCounts {
    let mut sum = no_jobs();
    for (state, count) in counts.flatten() {
        *sum.entry(*state).or_default() += count;
    }
    sum
}

impl Manager {
    /// Looks again and again, until the manager ends.
    pub(crate) async fn keep_surveyed(&self, every: Duration) {
        loop {
            self.take_survey().await;
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }

    async fn take_survey(&self) {
        let result = self.count_queues().await;
        let now = self.shared.clock.now();
        match result {
            Ok(queues) => {
                self.shared.observe.surveys.tell(&queues, now);
                let jobs = sum(queues.iter().map(|queue| &queue.jobs));
                let oldest_waiting_since = queues.iter().filter_map(|queue| queue.oldest_waiting_since).min();
                let latest = Some(Survey { at: now, jobs, oldest_waiting_since });
                *self.shared.observe.surveys.state.lock() = SurveyState { latest, failing_since: None };
            }
            Err(error) => {
                debug!(%error, "the jobs could not be counted");
                self.shared.observe.surveys.state.lock().failing_since.get_or_insert(now);
            }
        }
    }

    /// Counts the jobs of every queue, and finds the oldest waiting of those that are told apart.
    async fn count_queues(&self) -> Result<Vec<QueueNumbers>, StoreError> {
        let mut queues: Vec<_> = self.count_by_queue(&Filter::default()).await?.into_iter().collect();
        queues.sort_by_key(|(_, jobs)| std::cmp::Reverse(jobs[&JobState::Available] + jobs[&JobState::Running]));
        let others = queues.split_off(MAX_QUEUES.min(queues.len()));
        let mut numbers = Vec::with_capacity(queues.len() + 1);
        for (queue, jobs) in queues {
            let oldest_waiting_since = self.oldest_waiting(&queue, &jobs).await?;
            numbers.push(QueueNumbers { name: queue.to_string(), jobs, oldest_waiting_since });
        }
        if !others.is_empty() {
            let jobs = sum(others.iter().map(|(_, jobs)| jobs));
            numbers.push(QueueNumbers { name: OTHERS.to_owned(), jobs, oldest_waiting_since: None });
        }
        Ok(numbers)
    }
}

impl Surveys {
    /// Sets the gauges.
    fn tell(&self, queues: &[QueueNumbers], now: Timestamp) {
        let mut before = std::mem::take(&mut *self.told.lock());
        let mut told = BTreeSet::new();
        for queue in queues {
            for state in JobState::ALL {
                set_jobs(&queue.name, state, queue.jobs.get(&state).copied().unwrap_or(0));
                before.remove(&(queue.name.clone(), state));
                told.insert((queue.name.clone(), state));
            }
            set_oldest(&queue.name, queue.oldest_waiting_since.map(|oldest| now.since(oldest)));
        }
        for (queue, state) in &before {
            set_jobs(queue, *state, 0);
            set_oldest(queue, None);
        }
        *self.told.lock() = told;
        metrics::gauge!("leasehold_jobs_counted_timestamp_seconds").set(now.as_millis() as f64 / 1000.0);
    }
}

fn set_jobs(queue: &str, state: JobState, count: u64) {
    metrics::gauge!("leasehold_jobs", "queue" => queue.to_owned(), "state" => state.as_str()).set(count as f64);
}

fn set_oldest(queue: &str, waiting: Option<Duration>) {
    metrics::gauge!("leasehold_queue_oldest_waiting_seconds", "queue" => queue.to_owned())
        .set(waiting.unwrap_or_default().as_secs_f64());
}
