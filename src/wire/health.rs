//! The health of the server, from its memory alone.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::clock::{Timestamp, millis};
use crate::job::{JobState, Kind};
use crate::manager::{Insights, KindCounts, Quantiles, Survey, SurveyState};

/// A median delay of starts above this is a warning.
const LATE: Duration = Duration::from_secs(60);
/// A due job that waits longer than this, with no claim granted meanwhile, is a warning.
const UNASKED: Duration = Duration::from_secs(60);
/// A share of claims that lose a race above this, of at least so many claims, is a warning.
const MANY_CONFLICTS: f64 = 0.5;
const ENOUGH_CLAIMS: u64 = 100;
/// A share of attempts that fail above this, of at least so many attempts, is a warning.
const MANY_FAILURES: f64 = 0.5;
const ENOUGH_ATTEMPTS: u64 = 20;

/// The health of the server, answered from memory. It covers what this server handled recently, and the jobs in the
/// store as last counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ServerHealth {
    /// Whether the server has a problem.
    pub status: HealthStatus,
    /// The problems, each as a sentence; empty when the status is `ok`.
    pub reasons: Vec<String>,
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

/// Whether a server has a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    /// The server has no known problem.
    Ok,
    /// The server works, but an operator should read the reasons.
    Warn,
    /// The store takes no more writes, is out of order, or does not let its jobs be counted.
    Error,
}

/// What is known of the store, and of the other managers on it, without asking them.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreHealth {
    /// Why it takes no more writes until the process is started again, and what can be done.
    pub(crate) stopped: Option<String>,
    /// Which of its parts are out of order, and what can be done.
    pub(crate) out_of_order: Option<String>,
    /// The number of documents that cannot be read.
    pub(crate) unreadable: usize,
    /// What was left behind and dropped when it was opened.
    pub(crate) dropped: Option<String>,
    /// How far its clock and this machine's differ, when they differ too far.
    pub(crate) clock_is_off: Option<String>,
    /// What is wrong between this manager and the others, each as a sentence.
    pub(crate) peer_troubles: Vec<String>,
    /// Which scans of this process's monitor fail, each as a sentence.
    pub(crate) scan_troubles: Vec<String>,
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
        let (status, reasons) = judge(insights, survey, store, now);
        let running =
            survey.latest.as_ref().map(|survey| survey.by_state.get(&JobState::Running).copied().unwrap_or_default());
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
            jobs: survey.latest.clone(),
        }
    }
}

/// Returns the status and the reasons for it.
fn judge(
    insights: &Insights,
    survey: &SurveyState,
    StoreHealth { stopped, out_of_order, unreadable, dropped, clock_is_off, peer_troubles, scan_troubles }: StoreHealth,
    now: Timestamp,
) -> (HealthStatus, Vec<String>) {
    let mut found: Vec<(HealthStatus, String)> = Vec::new();
    if let Some(why) = stopped {
        found.push((HealthStatus::Error, format!("the store takes no more writes: {why}")));
    }
    if let Some(what) = out_of_order {
        found.push((HealthStatus::Error, what));
    }
    if let Some(since) = survey.failing_since {
        found.push((HealthStatus::Error, format!("the store has not let its jobs be counted since {since}")));
    }
    if let Some(how) = clock_is_off {
        found.push((HealthStatus::Error, how));
    }
    if unreadable > 0 {
        let what = "a later version wrote them, or somebody changed them; the log names them";
        found.push((HealthStatus::Warn, format!("documents of the store that cannot be read: {unreadable} ({what})")));
    }
    found.extend(dropped.map(|what| (HealthStatus::Warn, what)));
    let troubles = peer_troubles.into_iter().chain(scan_troubles);
    found.extend(troubles.map(|trouble| (HealthStatus::Warn, trouble)));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manager::Tally;

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
        let by_state = [(JobState::Running, running)].into();
        let latest = Some(Survey { at: at(0), by_state, oldest_waiting_since: oldest });
        SurveyState { latest, failing_since: None }
    }

    fn status(insights: &Insights, survey: &SurveyState) -> HealthStatus {
        let (status, reasons) = judge(insights, survey, StoreHealth::default(), at(1_000));
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
    fn a_store_that_takes_no_more_writes_is_an_error_with_its_reason() {
        let store = StoreHealth { stopped: Some("the disk is full".to_owned()), ..StoreHealth::default() };
        let (status, reasons) = judge(&calm(), &SurveyState::default(), store, at(1_000));
        assert_eq!(status, HealthStatus::Error);
        assert!(reasons[0].contains("the disk is full"), "{reasons:?}");
    }

    #[test]
    fn a_store_that_is_out_of_order_is_an_error_in_its_own_words() {
        let store = StoreHealth { out_of_order: Some("an index is gone".to_owned()), ..StoreHealth::default() };
        let judged = judge(&calm(), &SurveyState::default(), store, at(1_000));
        assert_eq!(judged, (HealthStatus::Error, vec!["an index is gone".to_owned()]));
    }

    #[test]
    fn documents_that_cannot_be_read_are_a_warning() {
        let store = StoreHealth { unreadable: 3, ..StoreHealth::default() };
        let (status, reasons) = judge(&calm(), &SurveyState::default(), store, at(1_000));
        assert_eq!(status, HealthStatus::Warn);
        assert!(reasons[0].contains("cannot be read: 3"), "{reasons:?}");
    }

    #[test]
    fn what_a_crash_has_cut_short_is_a_warning_in_its_own_words() {
        let store = StoreHealth { dropped: Some("9 bytes were dropped".to_owned()), ..StoreHealth::default() };
        let judged = judge(&calm(), &SurveyState::default(), store, at(1_000));
        assert_eq!(judged, (HealthStatus::Warn, vec!["9 bytes were dropped".to_owned()]));
    }

    #[test]
    fn what_is_wrong_between_managers_is_a_warning_in_its_own_words() {
        let store = StoreHealth { peer_troubles: vec!["b cannot be told".to_owned()], ..StoreHealth::default() };
        let judged = judge(&calm(), &SurveyState::default(), store, at(1_000));
        assert_eq!(judged, (HealthStatus::Warn, vec!["b cannot be told".to_owned()]));
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
