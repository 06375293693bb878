//! The monitor: finds what its worker does no longer look after, tells of it, and recovers it.
//!
//! In reading order: [`config`], [`rules`] (what is to be done about one job: a pure function of the job, the time and
//! the rules), [`scan`], [`retention`] and [`archive`] (finding such jobs and doing it, a bounded number at a time),
//! [`audit`] (keeping what happened for good), [`leader`] (of several monitors one acts), [`timetable`] and [`drive`] (when).
//!
//! What it relies on: every job says by itself when to look at it next ([`Job::watch_at`](crate::job::Job::watch_at)),
//! so that a scan is one search by time; and everything it does is a conditional write, decided again on a read right
//! before it. So a monitor that is slow, late, doubled or wrong about who leads costs conflicts and never a job.

mod archive;
pub mod audit;
pub mod config;
mod drive;
pub mod leader;
mod pages;
pub mod report;
mod retention;
pub mod rules;
pub mod scan;
mod timetable;
mod trouble;

use std::sync::Arc;
use std::time::Instant;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use audit::Auditor;
pub use config::{MonitorConfig, Retention, Schedule};
pub use report::Report;
pub use rules::{Action, Rules, Suspicion, decide};
pub use scan::{Scan, Scans};
pub use timetable::InvalidSchedule;

use crate::clock::Clock;
use crate::manager::Manager;
use crate::store::Store;
use drive::Driver;
use leader::{Leader, Leadership};
use timetable::Timetable;

/// A monitor at work.
pub struct Monitor {
    leadership: Arc<Leadership>,
    driver: Arc<Driver>,
    timetable: Timetable,
    stopping: CancellationToken,
    candidate: JoinHandle<()>,
}

impl Monitor {
    /// Starts a monitor on the current tokio runtime: it stands for leadership, and scans while it leads.
    ///
    /// # Errors
    /// When the configuration has a schedule that is none.
    pub async fn start(
        manager: Manager,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: MonitorConfig,
    ) -> Result<Self, InvalidSchedule> {
        let leader = Leader::new(Arc::clone(&store), Arc::clone(&clock), config.term_on(&*store));
        let leadership = leader.leadership();
        let mut scans = Scans::new(manager, &config, store.is_exclusive());
        if config.audit_period.is_some() {
            let auditor = Auditor::new(Arc::clone(&store), config.skew(store.is_exclusive()));
            scans = scans.with_audit(auditor.beginning(config.audit_anew));
        }
        let driver = Arc::new(Driver::new(scans, clock, Arc::clone(&leadership), &config));
        let timetable = Timetable::start(&driver, &config).await?;
        let stopping = CancellationToken::new();
        let candidate = tokio::spawn(leader.stand(stopping.clone()));
        Ok(Self { leadership, driver, timetable, stopping, candidate })
    }

    /// Whether it acts.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.leadership.holds_at(Instant::now())
    }

    /// Ends the scans and gives the leadership back, so that another monitor need not wait for its term to end. To be
    /// called before the manager is shut down.
    pub async fn shutdown(self) {
        self.timetable.stop().await;
        self.driver.finish().await;
        self.stopping.cancel();
        if let Err(error) = self.candidate.await {
            tracing::error!(%error, "the monitor's leadership ended badly");
        }
    }
}
