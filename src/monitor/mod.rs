//! The monitor: finds jobs that their workers have abandoned, reports them, and recovers them.
//!
//! In reading order: [`config`], [`rules`] (the action that one job needs: a pure function of the job, the time and the
//! rules), [`pages`] and [`scan`] (finding such jobs and acting on them, a bounded number at a time), [`retention`],
//! [`archive`] and [`audit`] (the other scans), [`keeper`] (what is noted of jobs before they are removed), [`report`]
//! (what a run did), [`leader`] (one of several monitors acts), [`vigil`] (what they pass on of their awake time),
//! [`timetable`] and [`drive`] (when scans run), [`trouble`] (logging failures that repeat),
//! [`watch`] (processes without a monitor see when the only one is gone).
//!
//! Two properties keep it safe. Every job has the time of its next check
//! ([`Job::watch_at`](crate::job::Job::watch_at)), so that a scan is one search by time. Every change is a conditional
//! write, decided again on a read right before it. So a monitor that is slow, late, doubled or wrong about who leads
//! costs conflicts and never a job.

mod archive;
pub mod audit;
pub mod config;
mod drive;
mod keeper;
pub mod leader;
mod pages;
pub mod report;
mod retention;
pub mod rules;
pub mod scan;
mod timetable;
mod trouble;
mod vigil;
mod watch;

use std::sync::Arc;
use std::time::Instant;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use audit::Auditor;
pub use config::{MonitorConfig, Retention, Schedule};
pub use keeper::Keeper;
pub use report::Report;
pub use rules::{Action, Rules, Suspicion, decide};
pub use scan::{Scan, Scans};
pub use vigil::Vigil;
pub use watch::MonitorWatch;

use crate::clock::Clock;
use crate::clock::ticks::TicksError;
use crate::manager::Manager;
use crate::store::Store;
use drive::Driver;
use leader::{Leader, Leadership};
use timetable::Timetable;

/// A running monitor.
pub struct Monitor {
    leadership: Arc<Leadership>,
    driver: Arc<Driver>,
    timetable: Timetable,
    stopping: CancellationToken,
    candidate: AbortOnDropHandle<()>,
}

impl Monitor {
    /// Starts a monitor on the current tokio runtime. It competes for leadership, and scans while it leads. The keeper
    /// is told of ended jobs before they are removed.
    ///
    /// # Errors
    /// [`TicksError`] when the configured schedule cannot be parsed.
    pub async fn start(
        manager: Manager,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        config: MonitorConfig,
        keeper: Option<Arc<dyn Keeper>>,
    ) -> Result<Self, TicksError> {
        let vigil = Arc::new(Vigil::of(config.leads_since));
        let leader = Leader::new(Arc::clone(&store), Arc::clone(&clock), config.term_on(&*store));
        let leader = leader.following(Arc::clone(&vigil));
        let leadership = leader.leadership();
        let mut scans = Scans::new(manager, &config, store.is_exclusive()).following(vigil);
        if let Some(keeper) = keeper {
            scans = scans.with_keeper(keeper);
        }
        if config.audit_period.is_some() {
            let auditor = Auditor::new(Arc::clone(&store), config.skew(store.is_exclusive()));
            scans = scans.with_audit(auditor.beginning(config.audit_anew));
        }
        let driver = Arc::new(Driver::new(scans, clock, Arc::clone(&leadership), &config));
        let timetable = timetable::start(&driver, &config).await?;
        let stopping = CancellationToken::new();
        let candidate = AbortOnDropHandle::new(tokio::spawn(leader.stand(stopping.clone())));
        Ok(Self { leadership, driver, timetable, stopping, candidate })
    }

    /// Returns whether this monitor leads, and therefore acts.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.leadership.holds_at(Instant::now())
    }

    /// Ends the scans at once, for a process that may not write to the store any more. What a scan has begun is refused
    /// there.
    pub async fn abandon(self) {
        let Self { driver, timetable, candidate, .. } = self;
        drop(candidate);
        metrics::gauge!("leasehold_monitor_leader").set(0.0);
        driver.stop();
        timetable.stop().await;
    }

    /// Ends the scans and releases the leadership, so that another monitor need not wait for the term to end. It must
    /// be called before the manager is shut down.
    pub async fn shutdown(self) {
        self.timetable.stop().await;
        self.driver.finish().await;
        self.stopping.cancel();
        if let Err(error) = self.candidate.await {
            tracing::error!(%error, "the monitor's leadership ended badly");
        }
    }
}
