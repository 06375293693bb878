//! The health of the server, from its memory alone.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::health_check::{HealthCheck, HealthStatus, StoreHealth, judge, of_member, share};
use crate::clock::{Timestamp, millis};
use crate::job::{JobState, Kind};
use crate::manager::{Insights, KindCounts, Quantiles, Survey, SurveyState};

/// The health of the server, answered from memory. It covers what this server handled recently, and the jobs in the
/// store as last counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerHealth {
    /// Whether the server has a problem.
    pub status: HealthStatus,
    /// The problems, each as a sentence; empty when the status is `ok`.
    pub reasons: Vec<String>,
    /// Every check that was made: what it found, and what to do about it. `reasons` has what they found.
    pub checks: Vec<HealthCheck>,
    /// The time of the answer, by the server's clock.
    pub at: Timestamp,
    /// The length of the recent time that `performance` and `workload` cover, in milliseconds.
    #[schema(example = 300_000)]
    pub window_ms: u64,
    /// The server's configuration, without secrets.
    #[schema(value_type = Object)]
    pub configuration: serde_json::Value,
    /// How fast jobs reach workers and end.
    pub performance: Performance,
    /// How much work there is, and how many workers there are for it.
    pub capacity: Capacity,
    /// The recent work by kind; the kind that took most of the workers' time comes first.
    pub workload: Vec<KindLoad>,
    /// The number of jobs in the store, as last counted; null before the first count.
    pub jobs: Option<Survey>,
}

/// How fast jobs reach workers and end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Performance {
    /// How long successful claims waited for a job.
    pub claim_wait: Distribution,
    /// How long jobs waited after they were due until they were claimed.
    pub drift: Distribution,
    /// How long attempts took.
    pub run_time: Distribution,
    /// The number of jobs submitted per second.
    pub submitted_per_second: f64,
    /// The number of claims granted per second.
    pub claimed_per_second: f64,
    /// The number of attempts ended per second.
    pub ended_per_second: f64,
    /// The number of jobs queued for another attempt per second.
    pub retried_per_second: f64,
    /// The number of writes per second that lost a race for their job.
    pub conflicts_per_second: f64,
    /// The share of claims, granted or lost, that lost a race, from 0 to 1.
    #[schema(minimum = 0, maximum = 1)]
    pub conflict_rate: f64,
    /// The number of outdated search hits and of calls under another fence than the job's, per second.
    pub mismatches_per_second: f64,
    /// The number of mismatches per claim, granted or lost.
    #[schema(minimum = 0)]
    pub mismatch_rate: f64,
}

/// The distribution of durations in milliseconds. All values are zero when there were no durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Distribution {
    /// The number of durations.
    pub count: u64,
    /// The median, in milliseconds.
    pub p50_ms: u64,
    /// The 90th percentile, in milliseconds.
    pub p90_ms: u64,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: u64,
    /// The mean, in milliseconds.
    pub mean_ms: u64,
    /// The longest duration, in milliseconds.
    pub max_ms: u64,
}

/// How much work there is, and how many workers there are for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// The number of workers that called this server recently.
    pub workers_seen: u64,
    /// The number of claims that wait for a job now.
    pub waiting_claims: u64,
    /// The number of running jobs in the whole installation, as last counted; null before the first count.
    pub running_jobs: Option<u64>,
    /// The share of known worker capacity in use, from 0 to 1: running jobs, divided by running jobs and waiting
    /// claims. Null when there are neither, or before the first count.
    #[schema(minimum = 0, maximum = 1)]
    pub used: Option<f64>,
    /// How many jobs must run at the same time to keep up with submissions: jobs submitted per second, times the mean
    /// run time in seconds (Little's law). Null when no attempt ended recently.
    pub places_needed: Option<u64>,
    /// The number of workers needed for `places_needed`, at the present number of jobs per worker. Null when unknown.
    pub workers_needed: Option<u64>,
}

/// The recent work of one kind of job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KindLoad {
    /// The kind of the jobs; null for all kinds beyond those listed separately.
    #[schema(value_type = Option<Kind>)]
    pub kind: Option<String>,
    /// The number of jobs submitted.
    pub submitted: u64,
    /// The number of claims granted.
    pub claimed: u64,
    /// The number of attempts that completed their job.
    pub completed: u64,
    /// The number of attempts that ended otherwise.
    pub failed: u64,
    /// The total run time of the ended attempts, in milliseconds.
    pub ran_for_ms: u64,
}

impl ServerHealth {
    /// Returns the health at this time.
    pub(crate) fn new(
        configuration: serde_json::Value,
        insights: &Insights,
        survey: &SurveyState,
        waiting_claims: usize,
        store: StoreHealth,
        now: Timestamp,
    ) -> Self {
        let checks = judge(insights, survey, store, now);
        let running =
            survey.latest.as_ref().map(|survey| survey.by_state.get(&JobState::Running).copied().unwrap_or_default());
        let others = Some((None, insights.other_kinds)).filter(|(_, counts)| *counts != KindCounts::default());
        let kinds = insights.kinds.iter().map(|(kind, counts)| (Some(kind.as_str().to_owned()), *counts));
        Self {
            status: checks.iter().map(|check| check.status).max().unwrap_or(HealthStatus::Ok),
            reasons: checks.iter().filter_map(|check| check.found.clone()).collect(),
            checks,
            at: now,
            window_ms: millis(insights.window),
            configuration,
            performance: Performance::of(insights),
            capacity: Capacity::of(insights, running, waiting_claims as u64),
            workload: kinds.chain(others).map(|(kind, counts)| KindLoad::new(kind, &counts)).collect(),
            jobs: survey.latest.clone(),
        }
    }
}

impl ServerHealth {
    /// Returns the same health with what is wrong with the store of a member that does not lead.
    pub(crate) fn with_member(mut self, member: u64, store: StoreHealth) -> Self {
        for check in of_member(member, store) {
            self.status = self.status.max(check.status);
            self.reasons.extend(check.found.clone());
            self.checks.push(check);
        }
        self
    }
}

impl Performance {
    fn of(insights: &Insights) -> Self {
        let Insights { tally, window, .. } = insights;
        let a_second = |count: u64| if window.is_zero() { 0.0 } else { count as f64 / window.as_secs_f64() };
        let tries = tally.claimed + tally.conflicts;
        Self {
            claim_wait: insights.claim_wait.into(),
            drift: insights.drift.into(),
            run_time: insights.run_time.into(),
            submitted_per_second: a_second(tally.submitted),
            claimed_per_second: a_second(tally.claimed),
            ended_per_second: a_second(tally.ended),
            retried_per_second: a_second(tally.retried),
            conflicts_per_second: a_second(tally.conflicts),
            conflict_rate: share(tally.conflicts, tries),
            mismatches_per_second: a_second(tally.mismatches),
            mismatch_rate: share(tally.mismatches, tries),
        }
    }
}

impl Capacity {
    fn of(insights: &Insights, running: Option<u64>, waiting: u64) -> Self {
        let places = running.map(|running| running + waiting).filter(|places| *places > 0);
        let arrivals = insights.tally.submitted as f64 / insights.window.as_secs_f64().max(1.0);
        let needed = (insights.run_time.count > 0)
            .then(|| (arrivals * insights.run_time.mean.as_secs_f64()).ceil())
            .map(|places| places as u64);
        let workers = insights.workers as u64;
        Self {
            workers_seen: workers,
            waiting_claims: waiting,
            running_jobs: running,
            used: running.zip(places).map(|(running, places)| share(running, places)),
            places_needed: needed,
            workers_needed: needed
                .zip(places.filter(|_| workers > 0))
                .map(|(needed, places)| (needed * workers).div_ceil(places)),
        }
    }
}

impl KindLoad {
    fn new(kind: Option<String>, counts: &KindCounts) -> Self {
        let KindCounts { submitted, claimed, completed, failed, ran_for } = *counts;
        Self { kind, submitted, claimed, completed, failed, ran_for_ms: millis(ran_for) }
    }
}

impl From<Quantiles> for Distribution {
    fn from(seen: Quantiles) -> Self {
        Self {
            count: seen.count,
            p50_ms: millis(seen.p50),
            p90_ms: millis(seen.p90),
            p99_ms: millis(seen.p99),
            mean_ms: millis(seen.mean),
            max_ms: millis(seen.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::health_check::tests::calm;
    use super::*;
    use crate::manager::Tally;

    #[test]
    fn the_workers_needed_follow_from_what_comes_in_and_how_long_it_takes() {
        let run_time = Quantiles { count: 10, mean: Duration::from_secs(30), ..Quantiles::default() };
        let tally = Tally { submitted: 50, ..Tally::default() };
        let insights = Insights { run_time, tally, workers: 2, ..calm() };
        // Half a job a second, half a minute each: 15 side by side. Two workers have ten places now.
        let capacity = Capacity::of(&insights, Some(8), 2);
        assert_eq!((capacity.places_needed, capacity.workers_needed), (Some(15), Some(3)));
        assert_eq!(capacity.used, Some(0.8));
        let unknown = Capacity::of(&Insights { run_time: Quantiles::default(), ..insights }, None, 0);
        assert_eq!((unknown.places_needed, unknown.workers_needed, unknown.used), (None, None, None));
    }
}
