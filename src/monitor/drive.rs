//! Runs a scan at a moment of the timetable, if this process leads, the scan is due, and its last run has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::config::{MonitorConfig, Schedule};
use super::leader::Leadership;
use super::report::Report;
use super::scan::{Scan, Scans};
use super::trouble::Trouble;
use crate::clock::{Clock, Timestamp};

/// How early a moment may be signalled, since the timetable's own clock ticks twice a second.
const EARLY: Duration = Duration::from_millis(500);
/// The wait after a failed run; it doubles with every further failure.
const FIRST_REST: Duration = Duration::from_secs(1);
/// The longest wait after a failed run.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Runs the scans when they are due.
pub(super) struct Driver {
    scans: Scans,
    clock: Arc<dyn Clock>,
    leadership: Arc<Leadership>,
    runs: [Runs; 5],
    /// Whether no further run begins.
    stopping: AtomicBool,
}

/// The state of one scan, which runs once at a time.
struct Runs {
    scan: Scan,
    /// The time from one start to the next; `None` for a scan with a cron expression or a disabled one.
    period: Option<Duration>,
    state: Mutex<RunsState>,
}

struct RunsState {
    /// The earliest time of the next run.
    next: Option<Instant>,
    failures: u32,
    trouble: Trouble,
}

impl Runs {
    fn of(scan: Scan, config: &MonitorConfig) -> Self {
        let period = match (scan, &config.scans) {
            (Scan::Watch, Schedule::Every(period)) => Some(*period),
            (Scan::Watch, Schedule::Cron(_)) => None,
            (Scan::Recovery, _) => Some(config.recovery_period),
            (Scan::Retention, _) => Some(config.retention_period),
            (Scan::Audit, _) => config.audit_period,
            (Scan::Archive, _) => Some(config.archive_period),
        };
        let trouble = Trouble::of(scan.as_str());
        Self { scan, period, state: Mutex::new(RunsState { next: None, failures: 0, trouble }) }
    }
}

impl Driver {
    pub(super) fn new(
        scans: Scans,
        clock: Arc<dyn Clock>,
        leadership: Arc<Leadership>,
        config: &MonitorConfig,
    ) -> Self {
        let runs = Scan::ALL.map(|scan| Runs::of(scan, config));
        Self { scans, clock, leadership, runs, stopping: AtomicBool::new(false) }
    }

    /// Runs `scan` if it is due. It must be called at every moment of the scan's timetable.
    pub(super) async fn tick(&self, scan: Scan) {
        let Some(runs) = self.runs.iter().find(|runs| runs.scan == scan) else { return };
        // The previous run has not ended.
        let Ok(mut state) = runs.state.try_lock() else { return };
        let started = Instant::now();
        if !self.leadership.holds_at(started) {
            // Another process acts, and what has failed here is told there if it fails on.
            self.scans.manager.scan_ended(scan.as_str(), None);
            return;
        }
        let is_early = state.next.is_some_and(|next| started + EARLY < next);
        if is_early || self.stopping.load(Ordering::SeqCst) {
            return;
        }
        state.next = runs.period.map(|period| started + period);
        let now = self.clock.now();
        let result = self.scans.run_while(scan, now, &|| self.leadership.holds_at(Instant::now())).await;
        metrics::histogram!("leasehold_scan_duration_seconds", "scan" => scan.as_str()).record(started.elapsed());
        // A run that could not change every job that it should have changed counts as failed.
        let (error, failure) = match &result {
            Ok(Report { fault: Some((many, why)), .. }) => {
                (Some(why), Some(format!("{many} jobs could not be changed: {why}")))
            }
            Ok(_) => (None, None),
            Err(error) => (Some(error), Some(error.to_string())),
        };
        self.scans.manager.scan_ended(scan.as_str(), error);
        if let Some(why) = failure {
            let rest = FIRST_REST.saturating_mul(1 << state.failures.min(16)).min(LONGEST_REST);
            state.failures = state.failures.saturating_add(1);
            state.next = Some(Instant::now() + rest);
            state.trouble.begin(&why);
        } else if let Ok(report) = result {
            state.failures = 0;
            state.trouble.end();
            // What one run had to leave does not wait for a whole period.
            if report.unfinished {
                state.next = None;
            }
            self.show(scan, &report, now);
        }
    }

    fn show(&self, scan: Scan, report: &Report, now: Timestamp) {
        let behind = report.behind_since.map_or(Duration::ZERO, |since| now.since(since));
        metrics::gauge!("leasehold_scan_lag_seconds", "scan" => scan.as_str()).set(behind.as_secs_f64());
        metrics::gauge!("leasehold_scan_last_success_timestamp_seconds", "scan" => scan.as_str())
            .set(self.clock.now().as_millis() as f64 / 1000.0);
        if report.recovered() + report.timed_out + report.expired + report.removed > 0 {
            tracing::info!(
                scan = scan.as_str(),
                recovered = report.recovered(),
                timed_out = report.timed_out,
                expired = report.expired,
                removed = report.removed,
                "the monitor stepped in"
            );
        }
    }

    /// Lets no further run begin.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
    }

    /// Waits for the runs that are under way. No further run begins.
    pub(super) async fn finish(&self) {
        self.stop();
        for runs in &self.runs {
            drop(runs.state.lock().await);
        }
    }
}
