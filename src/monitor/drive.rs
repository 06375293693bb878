//! What a moment of the timetable sets off: a scan, if this process leads, the scan's time has come, and the one before
//! has ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;

use super::config::{MonitorConfig, Schedule};
use super::leader::Leadership;
use super::scan::{Report, Scan, Scans};
use crate::clock::{Clock, Timestamp};
use crate::manager::ManagerError;

/// A moment may come so much too early: the timetable's own clock looks twice a second.
const EARLY: Duration = Duration::from_millis(500);
/// The wait after a scan that failed; doubles with every further one.
const FIRST_REST: Duration = Duration::from_secs(1);
/// How long at most.
const LONGEST_REST: Duration = Duration::from_secs(10);

/// Runs the scans.
pub(super) struct Driver {
    scans: Scans,
    clock: Arc<dyn Clock>,
    leadership: Arc<Leadership>,
    lanes: [(Scan, Lane); 5],
}

/// One scan's runs, one at a time.
struct Lane {
    /// How long from one start to the next; none when the timetable itself says when.
    period: Option<Duration>,
    state: Mutex<LaneState>,
}

struct LaneState {
    /// Not before this.
    next: Option<Instant>,
    failures: u32,
    trouble: Trouble,
}

impl Lane {
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
        Self { period, state: Mutex::new(LaneState { next: None, failures: 0, trouble }) }
    }
}

impl Driver {
    pub(super) fn new(
        scans: Scans,
        clock: Arc<dyn Clock>,
        leadership: Arc<Leadership>,
        config: &MonitorConfig,
    ) -> Self {
        Self { scans, clock, leadership, lanes: Scan::ALL.map(|scan| (scan, Lane::of(scan, config))) }
    }

    /// A moment has come at which `scan` may be due.
    pub(super) async fn tick(&self, scan: Scan) {
        let Some((_, lane)) = self.lanes.iter().find(|(of, _)| *of == scan) else { return };
        // The one before still runs.
        let Ok(mut state) = lane.state.try_lock() else { return };
        let started = Instant::now();
        if !self.leadership.holds_at(started) || state.next.is_some_and(|next| started + EARLY < next) {
            return;
        }
        state.next = lane.period.map(|period| started + period);
        let now = self.clock.now();
        let result = self.scans.run_while(scan, now, &|| self.leadership.holds_at(Instant::now())).await;
        metrics::histogram!("leasehold_scan_duration_seconds", "scan" => scan.as_str()).record(started.elapsed());
        match told(result) {
            Ok(report) => {
                state.failures = 0;
                state.trouble.is_over();
                self.show(scan, &report, now);
            }
            Err(why) => {
                let rest = FIRST_REST.saturating_mul(1 << state.failures.min(16)).min(LONGEST_REST);
                state.failures = state.failures.saturating_add(1);
                state.next = Some(Instant::now() + rest);
                state.trouble.tell(&why);
            }
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

    /// Waits for the scans that run. None begins afterwards.
    pub(super) async fn finish(&self) {
        for (_, lane) in &self.lanes {
            let mut state = lane.state.lock().await;
            state.next = Some(Instant::now() + FOR_EVER);
        }
    }
}

/// As long as any process lives.
const FOR_EVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A run that could not do all it should counts as failed.
fn told(result: Result<Report, ManagerError>) -> Result<Report, String> {
    match result {
        Ok(Report { fault: Some((many, why)), .. }) => Err(format!("{many} jobs could not be changed: {why}")),
        Ok(report) => Ok(report),
        Err(error) => Err(error.to_string()),
    }
}

/// Something that may go wrong again and again: told when it begins and when it is over.
pub(super) struct Trouble {
    what: &'static str,
    since: Option<Instant>,
}

impl Trouble {
    pub(super) const fn of(what: &'static str) -> Self {
        Self { what, since: None }
    }

    /// It went wrong.
    pub(super) fn tell(&mut self, why: &str) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            tracing::warn!(what = self.what, why, "the monitor cannot do its work; it tries again");
        }
    }

    /// It went well.
    pub(super) fn is_over(&mut self) {
        if let Some(since) = self.since.take() {
            tracing::info!(what = self.what, seconds = since.elapsed().as_secs(), "the monitor works again");
        }
    }
}
