//! How many jobs are in the store, looked up from time to time: for the gauges, and for whoever asks how the server is
//! without wanting to ask the store.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::debug;

use crate::clock::Timestamp;
use crate::job::{JobState, QueueName};
use crate::query::{Direction, Filter, GroupField, Search, Sort, SortField};
use crate::store::StoreError;

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
pub(in crate::manager) struct Surveys {
    state: Mutex<SurveyState>,
    /// The series that have been set, so that a queue that is gone is told as empty and not as it last was.
    told: Mutex<BTreeSet<(String, JobState)>>,
}

impl Surveys {
    pub(in crate::manager) fn state(&self) -> SurveyState {
        self.state.lock().clone()
    }
}

/// One queue's numbers.
struct Line {
    queue: String,
    jobs: BTreeMap<JobState, u64>,
    oldest: Option<Timestamp>,
}

impl Line {
    fn live(&self) -> u64 {
        [JobState::Available, JobState::Running].iter().filter_map(|state| self.jobs.get(state)).sum()
    }
}

impl Manager {
    /// Looks again and again, until the manager ends.
    pub(in crate::manager) async fn keep_surveyed(&self, every: Duration) {
        loop {
            self.take_survey().await;
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.shared.stopping.cancelled() => return,
            }
        }
    }

    async fn take_survey(&self) {
        let result = self.look_around().await;
        let now = self.shared.clock.now();
        match result {
            Ok(lines) => {
                self.shared.observe.surveys.tell(&lines, now);
                let mut jobs: BTreeMap<JobState, u64> = JobState::ALL.iter().map(|state| (*state, 0)).collect();
                for (state, count) in lines.iter().flat_map(|line| &line.jobs) {
                    *jobs.entry(*state).or_default() += count;
                }
                let oldest_waiting_since = lines.iter().filter_map(|line| line.oldest).min();
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
    async fn look_around(&self) -> Result<Vec<Line>, StoreError> {
        let groups = self.shared.store.count(&Filter::default(), &[GroupField::Queue, GroupField::State]).await?;
        let mut queues: BTreeMap<String, BTreeMap<JobState, u64>> = BTreeMap::new();
        for group in groups {
            let [Some(queue), Some(state)] = group.values.as_slice() else { continue };
            let Ok(state) = state.parse() else { continue };
            *queues.entry(queue.clone()).or_default().entry(state).or_default() += group.count;
        }
        let mut lines: Vec<Line> = queues.into_iter().map(|(queue, jobs)| Line { queue, jobs, oldest: None }).collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.live()));
        let others = lines.split_off(MAX_QUEUES.min(lines.len()));
        for line in &mut lines {
            if line.jobs.get(&JobState::Available).is_some_and(|waiting| *waiting > 0) {
                line.oldest = self.oldest_waiting(&line.queue).await?;
            }
        }
        if !others.is_empty() {
            let mut jobs: BTreeMap<JobState, u64> = BTreeMap::new();
            for (state, count) in others.iter().flat_map(|line| &line.jobs) {
                *jobs.entry(*state).or_default() += count;
            }
            lines.push(Line { queue: OTHERS.to_owned(), jobs, oldest: None });
        }
        Ok(lines)
    }

    async fn oldest_waiting(&self, queue: &str) -> Result<Option<Timestamp>, StoreError> {
        let Ok(queue) = QueueName::new(queue) else { return Ok(None) };
        let filter = Filter {
            states: vec![JobState::Available],
            queues: vec![queue],
            run_at_most: Some(self.shared.clock.now()),
            ..Filter::default()
        };
        let sort = Sort::By(SortField::RunAt, Direction::Ascending);
        let found = self.shared.store.search(&Search { filter, sort, after: None, limit: 1 }).await?;
        Ok(found.first().map(|found| found.job.run_at))
    }
}

impl Surveys {
    /// Sets the gauges.
    fn tell(&self, lines: &[Line], now: Timestamp) {
        let mut before = std::mem::take(&mut *self.told.lock());
        let mut told = BTreeSet::new();
        for line in lines {
            for state in JobState::ALL {
                set_jobs(&line.queue, state, line.jobs.get(&state).copied().unwrap_or(0));
                before.remove(&(line.queue.clone(), state));
                told.insert((line.queue.clone(), state));
            }
            set_oldest(&line.queue, line.oldest.map(|oldest| now.since(oldest)));
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
