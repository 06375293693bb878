//! How many jobs of each queue have ended lately.
//!
//! On the embedded store this manager counts the ends in memory, since it writes them all. On a shared store, where
//! others end jobs too, they are counted by a query.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Timestamp, millis};
use crate::job::{JobState, QueueName};
use crate::query::{Filter, GroupField};
use crate::store::StoreError;

use super::sliding_window::SlidingWindow;
use crate::manager::Manager;

/// The windows of the throughput statistics, the longest last.
pub(crate) const WINDOWS: [Duration; 3] = [Duration::from_secs(60), Duration::from_secs(300), LONGEST];
const LONGEST: Duration = Duration::from_secs(900);

/// The length of a slice in memory, in milliseconds.
const SLICE_MILLIS: i64 = 10_000;
/// The number of slices that cover the longest window.
const SLICES: i64 = 900_000 / SLICE_MILLIS;
/// The most queues that are counted in memory. Jobs of further queues are not counted until no job has ended in one of
/// these for the longest window.
const MAX_QUEUES: usize = 1_000;

/// How many jobs of a queue ended within a recent window of time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Throughput {
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

/// The jobs that ended within each of the [`WINDOWS`].
pub(crate) type EndedInWindows = [Ended; 3];

/// Returns the throughput in each window.
pub(super) fn throughput(ended: &EndedInWindows) -> Vec<Throughput> {
    let in_window = |(window, Ended { completed, failed }): (Duration, Ended)| {
        let both = completed + failed;
        Throughput {
            window_ms: millis(window),
            completed,
            failed,
            per_minute: both as f64 * 60.0 / window.as_secs_f64(),
            failure_rate: (both > 0).then(|| failed as f64 / both as f64),
        }
    };
    WINDOWS.into_iter().zip(*ended).map(in_window).collect()
}

/// The number of jobs that ended at this manager, by queue.
#[derive(Default)]
pub(crate) struct EndedJobs {
    queues: Mutex<HashMap<QueueName, SlidingWindow<Ended, SLICE_MILLIS, SLICES>>>,
}

/// The number of a queue's jobs that ended.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ended {
    completed: u64,
    failed: u64,
}

impl EndedJobs {
    /// Counts a job that has ended in this state.
    pub(crate) fn count(&self, queue: &QueueName, state: JobState, now: Timestamp) {
        let (completed, failed) = match state {
            JobState::Completed => (1, 0),
            JobState::Failed => (0, 1),
            JobState::Available | JobState::Running | JobState::Cancelled | JobState::Expired => return,
        };
        let mut queues = self.queues.lock();
        if queues.len() >= MAX_QUEUES && !queues.contains_key(queue) {
            queues.retain(|_, ended| ended.within(LONGEST, now).next().is_some());
            if queues.len() >= MAX_QUEUES {
                return;
            }
        }
        queues.entry(queue.clone()).or_default().note(now, |ended| {
            ended.completed += completed;
            ended.failed += failed;
        });
    }

    fn of(&self, queue: &QueueName, now: Timestamp) -> EndedInWindows {
        let mut sums = EndedInWindows::default();
        if let Some(ended) = self.queues.lock().get(queue) {
            for (sum, window) in sums.iter_mut().zip(WINDOWS) {
                for slice in ended.within(window, now) {
                    sum.completed += slice.completed;
                    sum.failed += slice.failed;
                }
            }
        }
        sums
    }
}

impl Manager {
    /// Counts the jobs that ended lately in every queue, or in `only` this one.
    pub(crate) async fn ended_lately(
        &self,
        only: Option<&QueueName>,
    ) -> Result<HashMap<QueueName, EndedInWindows>, StoreError> {
        let now = self.shared.clock.now();
        if self.shared.store.is_exclusive() {
            let queues: Vec<QueueName> = match only {
                Some(queue) => vec![queue.clone()],
                None => self.shared.observe.ended.queues.lock().keys().cloned().collect(),
            };
            return Ok(queues
                .into_iter()
                .map(|queue| (queue.clone(), self.shared.observe.ended.of(&queue, now)))
                .collect());
        }
        let mut found: HashMap<QueueName, EndedInWindows> = HashMap::new();
        for (place, window) in WINDOWS.into_iter().enumerate() {
            let filter = Filter {
                states: vec![JobState::Completed, JobState::Failed],
                queues: only.into_iter().cloned().collect(),
                finished_after: Some(now.minus(window)),
                ..Filter::default()
            };
            for group in self.shared.store.count(&filter, &[GroupField::Queue, GroupField::State]).await? {
                let [Some(queue), Some(state)] = group.values.as_slice() else { continue };
                let Ok(queue) = QueueName::new(queue) else { continue };
                let sum = &mut found.entry(queue).or_default()[place];
                match state == JobState::Completed.as_str() {
                    true => sum.completed += group.count,
                    false => sum.failed += group.count,
                }
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: i64 = 1_900_000_000_000;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(START + seconds * 1000)
    }

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).expect("a name")
    }

    fn sums(ends: &EndedJobs, now: Timestamp) -> Vec<(u64, u64)> {
        ends.of(&queue("q"), now).iter().map(|sum| (sum.completed, sum.failed)).collect()
    }

    #[test]
    fn an_end_counts_in_each_window_for_as_long_as_it_lasts() {
        let ends = EndedJobs::default();
        ends.count(&queue("q"), JobState::Completed, at(0));
        assert_eq!(sums(&ends, at(0)), [(1, 0), (1, 0), (1, 0)]);
        ends.count(&queue("q"), JobState::Failed, at(100));
        ends.count(&queue("q"), JobState::Cancelled, at(100));
        assert_eq!(sums(&ends, at(100)), [(0, 1), (1, 1), (1, 1)]);
        assert_eq!(sums(&ends, at(320)), [(0, 0), (0, 1), (1, 1)]);
        assert_eq!(sums(&ends, at(950)), [(0, 0), (0, 0), (0, 1)]);
        assert_eq!(sums(&ends, at(5000)), [(0, 0), (0, 0), (0, 0)]);
    }

    #[test]
    fn the_memory_for_a_queue_and_for_all_queues_is_bounded() {
        let ends = EndedJobs::default();
        for second in 0..20_000 {
            ends.count(&queue("q"), JobState::Completed, at(second));
        }
        assert!(ends.queues.lock()[&queue("q")].within(20 * LONGEST, at(20_000)).count() <= 91);
        for number in 0..2 * MAX_QUEUES {
            ends.count(&queue(&format!("q{number}")), JobState::Completed, at(20_000));
        }
        assert_eq!(ends.queues.lock().len(), MAX_QUEUES);
        ends.count(&queue("late"), JobState::Completed, at(30_000));
        assert_eq!(ends.queues.lock().len(), 1);
    }
}
