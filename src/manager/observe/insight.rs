//! Statistics of this manager's work over the last five minutes, in memory: how long jobs and workers wait, how long
//! jobs run, how often writes lose a race. The same is counted in the process's metrics, where it can be kept for
//! longer.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use foldhash::quality::RandomState;
use hdrhistogram::Histogram;
use parking_lot::Mutex;

use crate::clock::{Timestamp, millis};
use crate::job::{EventName, Job, JobState, Kind, Lease, State, WorkerId};

use super::sliding_window::SlidingWindow;
use crate::manager::work::write::Acknowledged;

/// The longest time that insights cover: five minutes.
pub const WINDOW: Duration = Duration::from_secs(300);

/// The length of a slice, in milliseconds, and the number of slices that are kept.
const SLICE_MILLIS: i64 = 30_000;
const SLICES: i64 = 10;

/// The most kinds of job that are counted separately in a slice; the rest are counted together.
const MAX_KINDS: usize = 100;

/// The most workers that are counted in a slice.
const MAX_WORKERS: usize = 10_000;

/// The precision of durations, in significant digits.
const DIGITS: u8 = 2;

/// The longest duration that is recorded as such, in milliseconds (a week); longer ones count as this.
const LONGEST_MILLIS: u64 = 7 * 24 * 3600 * 1000;

/// A histogram of durations, in milliseconds.
#[derive(Clone)]
struct Durations(Histogram<u32>);

impl Default for Durations {
    fn default() -> Self {
        // Without a bound it grows with what it is given.
        Self(Histogram::new(DIGITS).expect("two digits are fewer than it can keep"))
    }
}

impl Durations {
    fn add(&mut self, duration: Duration) {
        let millis = millis(duration).min(LONGEST_MILLIS);
        self.0.record(millis).expect("it grows with what it is given");
    }

    fn add_all(&mut self, other: &Self) {
        self.0.add(&other.0).expect("it grows with what it is given");
    }

    fn quantiles(&self) -> Quantiles {
        let at = |quantile| Duration::from_millis(self.0.value_at_quantile(quantile));
        Quantiles {
            count: self.0.len(),
            mean: Duration::from_secs_f64(self.0.mean() / 1000.0),
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: Duration::from_millis(self.0.max()),
        }
    }
}

/// The distribution of durations.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quantiles {
    /// The number of durations. When it is zero, all other values are zero.
    pub count: u64,
    /// The mean duration.
    pub mean: Duration,
    /// The median duration.
    pub p50: Duration,
    /// The 90th percentile.
    pub p90: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The longest duration.
    pub max: Duration,
}

/// The counts for one kind of job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KindCounts {
    /// The number of jobs submitted.
    pub submitted: u64,
    /// The number of claims granted.
    pub claimed: u64,
    /// The number of attempts that completed.
    pub completed: u64,
    /// The number of attempts that ended in another way, except those that were released.
    pub failed: u64,
    /// The total duration of the attempts that ended.
    pub ran_for: Duration,
}

impl KindCounts {
    fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.claimed += other.claimed;
        self.completed += other.completed;
        self.failed += other.failed;
        self.ran_for += other.ran_for;
    }
}

/// The counts for all kinds of jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of jobs submitted.
    pub submitted: u64,
    /// The number of claims granted.
    pub claimed: u64,
    /// The number of attempts that ended.
    pub ended: u64,
    /// The number of times that a job was put back for another attempt.
    pub retried: u64,
    /// The number of writes that met a conflict.
    pub conflicts: u64,
    /// The number of search hits that were out of date and of calls with an outdated fence.
    pub mismatches: u64,
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.claimed += other.claimed;
        self.ended += other.ended;
        self.retried += other.retried;
        self.conflicts += other.conflicts;
        self.mismatches += other.mismatches;
    }
}

/// The statistics of one manager's work.
#[derive(Clone, Debug, PartialEq)]
pub struct Insights {
    /// The time that the statistics cover: [`WINDOW`], or less when the manager was started more recently.
    pub window: Duration,
    /// How long claims waited that received a job.
    pub claim_wait: Quantiles,
    /// The time between a job's due time and its claim.
    pub drift: Quantiles,
    /// How long attempts took.
    pub run_time: Quantiles,
    /// The counts for all kinds of jobs.
    pub tally: Tally,
    /// The counts by kind, in descending order of the workers' time that they took.
    pub kinds: Vec<(Kind, KindCounts)>,
    /// The counts for all other kinds together.
    pub other_kinds: KindCounts,
    /// The number of workers that claimed a job or sent a heartbeat.
    pub workers: usize,
}

/// The statistics of one slice of time, or the sum over all slices.
#[derive(Default)]
struct Slice {
    claim_wait: Durations,
    drift: Durations,
    run_time: Durations,
    tally: Tally,
    kinds: HashMap<Kind, KindCounts, RandomState>,
    other_kinds: KindCounts,
    workers: HashSet<WorkerId, RandomState>,
}

impl Slice {
    fn kind(&mut self, kind: &Kind) -> &mut KindCounts {
        if !self.kinds.contains_key(kind) && self.kinds.len() >= MAX_KINDS {
            return &mut self.other_kinds;
        }
        self.kinds.entry(kind.clone()).or_default()
    }

    fn add(&mut self, other: &Self) {
        self.claim_wait.add_all(&other.claim_wait);
        self.drift.add_all(&other.drift);
        self.run_time.add_all(&other.run_time);
        self.tally.add(&other.tally);
        self.other_kinds.add(&other.other_kinds);
        for (kind, counts) in &other.kinds {
            self.kinds.entry(kind.clone()).or_default().add(counts);
        }
        self.workers.extend(other.workers.iter().cloned());
    }

    fn saw(&mut self, worker: &WorkerId) {
        if !worker.is_internal() && self.workers.len() < MAX_WORKERS && !self.workers.contains(worker) {
            self.workers.insert(worker.clone());
        }
    }
}

/// The collected statistics of this manager's work.
pub(crate) struct Insight {
    since: Timestamp,
    slices: Mutex<SlidingWindow<Slice, SLICE_MILLIS, SLICES>>,
}

impl Insight {
    pub(crate) fn new(now: Timestamp) -> Self {
        Self { since: now, slices: Mutex::default() }
    }

    /// Counts acknowledged writes.
    pub(crate) fn written(&self, writes: &[Acknowledged], now: Timestamp) {
        let seen: Vec<Counted<'_>> = writes.iter().flat_map(Counted::of).collect();
        if seen.is_empty() {
            return;
        }
        let submitted = seen.iter().filter(|seen| matches!(seen, Counted::Submitted(_))).count();
        let claimed = seen.iter().filter(|seen| matches!(seen, Counted::Claimed(..))).count();
        metrics::counter!("leasehold_submissions_total").increment(submitted as u64);
        metrics::counter!("leasehold_claims_total").increment(claimed as u64);
        self.note(now, |slice| seen.iter().for_each(|seen| slice.count(seen)));
    }

    /// Records how long a claim waited that received a job.
    pub(crate) fn claim_waited(&self, wait: Duration, now: Timestamp) {
        metrics::histogram!("leasehold_claim_wait_seconds").record(wait);
        self.note(now, |slice| slice.claim_wait.add(wait));
    }

    /// Counts heartbeats of a worker.
    pub(crate) fn heard_of(&self, worker: &WorkerId, beats: usize, now: Timestamp) {
        metrics::counter!("leasehold_heartbeats_total").increment(beats as u64);
        self.note(now, |slice| slice.saw(worker));
    }

    /// Counts a write that met a conflict.
    pub(crate) fn conflicted(&self, operation: &'static str, now: Timestamp) {
        metrics::counter!("leasehold_conflicts_total", "operation" => operation).increment(1);
        self.note(now, |slice| slice.tally.conflicts += 1);
    }

    /// Counts a search hit (`stale_hit`) or a call (`fence`) that refers to an outdated version of a job.
    pub(crate) fn mismatched(&self, reason: &'static str, now: Timestamp) {
        metrics::counter!("leasehold_mismatches_total", "reason" => reason).increment(1);
        self.note(now, |slice| slice.tally.mismatches += 1);
    }

    /// Returns the statistics of the last five minutes.
    pub(crate) fn insights(&self, now: Timestamp) -> Insights {
        let mut total = Slice::default();
        self.slices.lock().within(WINDOW, now).for_each(|slice| total.add(slice));
        let Slice { claim_wait, drift, run_time, tally, kinds, mut other_kinds, workers } = total;
        let mut kinds: Vec<_> = kinds.into_iter().collect();
        kinds.sort_by(|(name, one), (other_name, other)| {
            (other.ran_for, other.submitted, name).cmp(&(one.ran_for, one.submitted, other_name))
        });
        for (_, counts) in kinds.drain(MAX_KINDS.min(kinds.len())..) {
            other_kinds.add(&counts);
        }
        Insights {
            window: now.since(self.since).min(WINDOW),
            claim_wait: claim_wait.quantiles(),
            drift: drift.quantiles(),
            run_time: run_time.quantiles(),
            tally,
            kinds,
            other_kinds,
            workers: workers.len(),
        }
    }

    fn note(&self, now: Timestamp, note: impl FnOnce(&mut Slice)) {
        self.slices.lock().note(now, note);
    }
}

/// The event as which an acknowledged write is counted.
enum Counted<'a> {
    Submitted(&'a Job),
    Claimed(&'a Job, &'a Lease),
    /// Any other event in the job's history, with the duration of the attempt that it ended.
    Changed {
        after: &'a Job,
        events: Vec<EventName>,
        ran_for: Option<Duration>,
    },
}

impl<'a> Counted<'a> {
    /// Returns nothing for a write that is not counted, such as a heartbeat, and two events for a job that was claimed
    /// in the write that created it.
    fn of(write: &'a Acknowledged) -> impl Iterator<Item = Self> {
        let after = write.after.as_ref().map(|after| &*after.job);
        let submitted = after.filter(|_| write.before.is_none()).map(Self::Submitted);
        let changed = after.and_then(|after| Self::change(write.before.as_deref(), after));
        submitted.into_iter().chain(changed)
    }

    fn change(before: Option<&Job>, after: &'a Job) -> Option<Self> {
        let was_available = before.is_none_or(|before| before.state == State::Available);
        if let (true, State::Running(running)) = (was_available, &after.state) {
            return Some(Self::Claimed(after, &running.lease));
        }
        let before = before?;
        let ran_for = match (&before.state, &after.state) {
            (State::Running(_), State::Running(_)) => None,
            (State::Running(running), _) => Some(after.updated_at.since(running.lease.acquired_at)),
            _ => None,
        };
        let events = events_between(before, after);
        (!events.is_empty()).then_some(Self::Changed { after, events, ran_for })
    }
}

impl Slice {
    fn count(&mut self, seen: &Counted<'_>) {
        match seen {
            Counted::Submitted(job) => {
                self.tally.submitted += 1;
                self.kind(&job.spec.kind).submitted += 1;
            }
            Counted::Claimed(job, lease) => {
                let late = lease.acquired_at.since(job.run_at);
                metrics::histogram!("leasehold_claim_drift_seconds").record(late);
                self.tally.claimed += 1;
                self.drift.add(late);
                self.saw(&lease.worker_id);
                self.kind(&job.spec.kind).claimed += 1;
            }
            Counted::Changed { after, events, ran_for } => self.count_change(after, events, *ran_for),
        }
    }

    fn count_change(&mut self, after: &Job, events: &[EventName], ran_for: Option<Duration>) {
        for event in events {
            metrics::counter!("leasehold_transitions_total", "event" => event.as_str()).increment(1);
        }
        if events.contains(&EventName::Retried) {
            metrics::counter!("leasehold_retries_total").increment(1);
            self.tally.retried += 1;
        }
        let Some(ran_for) = ran_for else { return };
        let state = after.state.name();
        metrics::histogram!("leasehold_run_seconds", "state" => state.as_str()).record(ran_for);
        metrics::counter!("leasehold_attempts_ended_total", "state" => state.as_str()).increment(1);
        self.tally.ended += 1;
        self.run_time.add(ran_for);
        let kind = self.kind(&after.spec.kind);
        kind.ran_for += ran_for;
        if state == JobState::Completed {
            kind.completed += 1;
        } else if !events.contains(&EventName::Returned) {
            kind.failed += 1;
        }
    }
}

/// Returns the events between two versions of a job.
fn events_between(before: &Job, after: &Job) -> Vec<EventName> {
    let entries = after.history.entries();
    let new = after.history.len().saturating_sub(before.history.len()).min(entries.len());
    entries[entries.len() - new..].iter().map(|entry| entry.event).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_millis(1_000 * seconds)
    }

    #[test]
    fn insights_cover_the_last_minutes_only() {
        let insight = Insight::new(at(0));
        insight.claim_waited(Duration::from_secs(50), at(0));
        for seconds in 0..100 {
            insight.claim_waited(Duration::from_millis(10), at(200 + seconds));
        }
        let all = insight.insights(at(299));
        assert_eq!((all.claim_wait.count, all.window), (101, Duration::from_secs(299)));
        assert!(all.claim_wait.max >= Duration::from_secs(50));
        let lately = insight.insights(at(301));
        assert_eq!((lately.claim_wait.count, lately.window), (100, WINDOW));
        assert_eq!(lately.claim_wait.p99, Duration::from_millis(10));
        assert_eq!(insight.insights(at(10_000)).claim_wait, Quantiles::default());
    }

    #[test]
    fn kinds_beyond_those_that_are_counted_separately_are_counted_together() {
        let insight = Insight::new(at(0));
        insight.note(at(0), |slice| {
            for number in 0..MAX_KINDS + 7 {
                slice.kind(&Kind::new(format!("k{number}")).expect("a name")).submitted += 1;
            }
        });
        let insights = insight.insights(at(1));
        assert_eq!((insights.kinds.len(), insights.other_kinds.submitted), (MAX_KINDS, 7));
    }

    #[test]
    fn a_longer_time_than_is_recorded_counts_as_the_longest() {
        let insight = Insight::new(at(0));
        insight.claim_waited(Duration::MAX, at(0));
        let max = insight.insights(at(1)).claim_wait.max;
        assert!(max >= Duration::from_millis(LONGEST_MILLIS) && max < Duration::from_millis(2 * LONGEST_MILLIS));
    }
}
