//! How the server is, from what it has in memory.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::job::JobState;
use crate::clock::{Timestamp, rfc3339};
use crate::manager::{Insights, KindCounts, Quantiles, SurveyState};

/// From how late half of the jobs start on it is told as a warning.
const LATE: Duration = Duration::from_secs(60);
/// From how long a due job has waited on, with no claim granted meanwhile, it is told as a warning.
const UNASKED: Duration = Duration::from_secs(60);
/// From which share of claims that lose a race on it is told as a warning, and of how many.
const MANY_CONFLICTS: f64 = 0.5;
const ENOUGH_CLAIMS: u64 = 100;
/// From which share of attempts that end badly on it is told as a warning, and of how many.
const MANY_FAILURES: f64 = 0.5;
const ENOUGH_ATTEMPTS: u64 = 20;

/// How the server is. Served from what it has in memory: it is about what went through this very server lately, and
/// tells of the store as it was last counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerHealth {
    /// Whether something is wrong.
    pub status: HealthStatus,
    /// What, in a sentence each.
    pub reasons: Vec<String>,
    /// By the server's clock.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// How much time `performance` and `workload` are about.
    #[schema(example = 300_000)]
    pub window_ms: u64,
    /// How the server is set up, without anything secret.
    #[schema(value_type = Object)]
    pub configuration: serde_json::Value,
    /// How fast jobs get to workers and are done.
    pub performance: Performance,
    /// How much there is to do, and who does it.
    pub capacity: Capacity,
    /// What there was to do, by kind; the kind that took most of the workers' time first.
    pub workload: Vec<KindLoad>,
    /// The jobs of the store, as last counted; null before that.
    pub jobs: Option<JobCounts>,
}

/// Whether something is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// Nothing is.
    Ok,
    /// Somebody should look.
    Warn,
    /// Work stands still.
    Error,
}

/// How fast jobs get to workers and are done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Performance {
    /// For how long claims waited that got a job.
    pub claim_wait: Distribution,
    /// How long after they were due jobs were claimed.
    pub drift: Distribution,
    /// How long attempts took.
    pub run_time: Distribution,
    /// Jobs submitted a second.
    pub submitted_per_second: f64,
    /// Claims granted a second.
    pub claimed_per_second: f64,
    /// Attempts ended a second.
    pub ended_per_second: f64,
    /// Jobs put back for another attempt a second.
    pub retried_per_second: f64,
    /// Writes a second that lost a race for their job.
    pub conflicts_per_second: f64,
    /// Lost races for each claim granted or lost.
    #[schema(minimum = 0, maximum = 1)]
    pub conflict_rate: f64,
    /// Search hits that were out of date, and calls that spoke of another fence than the job's, a second.
    pub mismatches_per_second: f64,
    /// Those for each claim granted or lost.
    #[schema(minimum = 0)]
    pub mismatch_rate: f64,
}

/// How durations are distributed. Zero where there were none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Distribution {
    /// How many there were.
    pub count: u64,
    /// Half of them were at most this.
    pub p50_ms: u64,
    /// Nine of ten were at most this.
    pub p90_ms: u64,
    /// 99 of a hundred were at most this.
    pub p99_ms: u64,
    /// Their mean.
    pub mean_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

/// How much there is to do, and who does it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Capacity {
    /// How many workers this server has heard of lately.
    pub workers_seen: u64,
    /// How many of their claims wait for a job now: places with nothing to do.
    pub waiting_claims: u64,
    /// How many jobs run, in all of the installation, as last counted; null before that.
    pub running_jobs: Option<u64>,
    /// The share of the places known of that is taken: running jobs, of those and the claims that wait.
    #[schema(minimum = 0, maximum = 1)]
    pub used: Option<f64>,
    /// How many jobs have to run side by side to keep up with those that come in: jobs submitted a second, times their
    /// mean run time (Little's law). Null when none has ended lately.
    pub places_needed: Option<u64>,
    /// How many workers that is, at as many jobs a worker as there are now. Null where that is not known.
    pub workers_needed: Option<u64>,
}

/// What there was to do of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct KindLoad {
    /// The kind; null for all beyond those that are told apart.
    pub kind: Option<String>,
    /// How many jobs were submitted.
    pub submitted: u64,
    /// How many claims were granted.
    pub claimed: u64,
    /// How many attempts ended well.
    pub completed: u64,
    /// How many ended badly, for whatever reason.
    pub failed: u64,
    /// How long the attempts that ended took together.
    pub ran_for_ms: u64,
}

/// How many jobs there are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct JobCounts {
    /// When they were counted.
    #[serde(with = "rfc3339")]
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// How many are in each state.
    #[schema(example = json!({
        "available": 12, "running": 3, "completed": 840, "failed": 1, "cancelled": 0, "expired": 0,
    }))]
    pub by_state: BTreeMap<JobState, u64>,
    /// Since when the longest-waiting due job could have been claimed.
    #[serde(with = "rfc3339::option")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub oldest_waiting_since: Option<Timestamp>,
}

impl ServerHealth {
    /// What is to be told.
    pub(crate) fn new(
        configuration: serde_json::Value,
        insights: &Insights,
        survey: &SurveyState,
        waiting_claims: usize,
        now: Timestamp,
    ) -> Self {
        let (status, reasons) = judge(insights, survey, now);
        let running = survey
            .latest
            .as_ref()
            .map(|survey| survey.jobs.get(&crate::job::JobState::Running).copied().unwrap_or_default());
        let others = Some((None, insights.other_kinds)).filter(|(_, counts)| *counts != KindCounts::default());
        let kinds = insights.kinds.iter().map(|(kind, counts)| (Some(kind.as_str().to_owned()), *counts));
        Self {
            status,
            reasons,
            at: now,
            window_ms: millis(insights.window),
            configuration,
            performance: Performance::of(insights),
            capacity: Capacity::of(insights, running, waiting_claims as u64),
            workload: kinds.chain(others).map(|(kind, counts)| KindLoad::new(kind, &counts)).collect(),
            jobs: survey.latest.as_ref().map(|survey| JobCounts {
                at: survey.at,
                by_state: survey.jobs.iter().map(|(state, count)| (*state, *count)).collect(),
                oldest_waiting_since: survey.oldest_waiting_since,
            }),
        }
    }
}

/// Whether something is wrong, and what.
fn judge(insights: &Insights, survey: &SurveyState, now: Timestamp) -> (HealthStatus, Vec<String>) {
    let mut found: Vec<(HealthStatus, String)> = Vec::new();
    if let Some(since) = survey.failing_since {
        found.push((HealthStatus::Error, format!("the store has not let its jobs be counted since {since}")));
    }
    let oldest = survey.latest.as_ref().and_then(|survey| survey.oldest_waiting_since);
    if let Some(oldest) = oldest.filter(|oldest| now.since(*oldest) > UNASKED && insights.tally.claimed == 0) {
        found
            .push((HealthStatus::Warn, format!("a job has waited since {oldest}, and no worker has taken one lately")));
    }
    if insights.drift.count > 0 && insights.drift.p50 > LATE {
        let late = insights.drift.p50.as_secs();
        found.push((HealthStatus::Warn, format!("half of the jobs start {late} s or more after they are due")));
    }
    let tally = &insights.tally;
    let tries = tally.claimed + tally.conflicts;
    if tries >= ENOUGH_CLAIMS && share(tally.conflicts, tries) > MANY_CONFLICTS {
        let percent = 100.0 * share(tally.conflicts, tries);
        found.push((HealthStatus::Warn, format!("{percent:.0} % of the claims lose a race")));
    }
    let (completed, failed) = insights
        .kinds
        .iter()
        .map(|(_, counts)| counts)
        .chain([&insights.other_kinds])
        .fold((0, 0), |(completed, failed), counts| (completed + counts.completed, failed + counts.failed));
    if completed + failed >= ENOUGH_ATTEMPTS && share(failed, completed + failed) > MANY_FAILURES {
        let percent = 100.0 * share(failed, completed + failed);
        found.push((HealthStatus::Warn, format!("{percent:.0} % of the attempts end badly")));
    }
    let status = found.iter().map(|(status, _)| *status).max().unwrap_or(HealthStatus::Ok);
    (status, found.into_iter().map(|(_, reason)| reason).collect())
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

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::JobState;
    use crate::manager::{Survey, Tally};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000 * seconds)
    }

    fn calm() -> Insights {
        Insights {
            window: Duration::from_secs(100),
            claim_wait: Quantiles::default(),
            drift: Quantiles::default(),
            run_time: Quantiles::default(),
            tally: Tally::default(),
            kinds: Vec::new(),
            other_kinds: KindCounts::default(),
            workers: 0,
        }
    }

    fn counted(running: u64, oldest: Option<Timestamp>) -> SurveyState {
        let jobs = [(JobState::Running, running)].into();
        let latest = Some(Survey { at: at(0), jobs, oldest_waiting_since: oldest });
        SurveyState { latest, failing_since: None }
    }

    fn status(insights: &Insights, survey: &SurveyState) -> HealthStatus {
        let (status, reasons) = judge(insights, survey, at(1_000));
        assert_eq!(status == HealthStatus::Ok, reasons.is_empty(), "{reasons:?}");
        status
    }

    #[test]
    fn a_server_with_nothing_to_do_is_well() {
        assert_eq!(status(&calm(), &SurveyState::default()), HealthStatus::Ok);
        assert_eq!(status(&calm(), &counted(0, None)), HealthStatus::Ok);
    }

    #[test]
    fn a_store_that_does_not_answer_is_an_error_whatever_else_is() {
        let failing = SurveyState { failing_since: Some(at(900)), ..counted(0, Some(at(0))) };
        assert_eq!(status(&calm(), &failing), HealthStatus::Error);
    }

    #[test]
    fn a_job_that_waits_is_a_warning_only_while_nobody_takes_any() {
        assert_eq!(status(&calm(), &counted(0, Some(at(900)))), HealthStatus::Warn);
        assert_eq!(status(&calm(), &counted(0, Some(at(999)))), HealthStatus::Ok);
        let busy = Insights { tally: Tally { claimed: 1, ..Tally::default() }, ..calm() };
        assert_eq!(status(&busy, &counted(0, Some(at(900)))), HealthStatus::Ok);
    }

    #[test]
    fn late_starts_lost_races_and_failures_are_warnings_once_there_are_enough() {
        let late = Quantiles { count: 1, p50: Duration::from_secs(61), ..Quantiles::default() };
        assert_eq!(status(&Insights { drift: late, ..calm() }, &counted(0, None)), HealthStatus::Warn);
        for (conflicts, expected) in [(60, HealthStatus::Warn), (40, HealthStatus::Ok)] {
            let tally = Tally { claimed: 100 - conflicts, conflicts, ..Tally::default() };
            assert_eq!(status(&Insights { tally, ..calm() }, &counted(0, None)), expected);
        }
        for (failed, expected) in [(19, HealthStatus::Ok), (20, HealthStatus::Warn)] {
            let other_kinds = KindCounts { failed, ..KindCounts::default() };
            assert_eq!(status(&Insights { other_kinds, ..calm() }, &counted(0, None)), expected);
        }
    }

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
