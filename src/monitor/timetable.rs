//! When scans run: the moments are signalled, and the driver decides which scans are due.
//!
//! What has a period is signalled every second by the monotonic clock, so that no jump of the wall clock keeps scans
//! away; a cron expression names times of the wall clock, which [`Ticks`] signal.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::{MonitorConfig, Schedule};
use super::drive::Driver;
use super::scan::Scan;
use crate::clock::ticks::{Moment, Ticks, TicksError};

/// How often scans with a period are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The moments that are signalled until they are stopped.
pub(super) struct Timetable {
    ticks: Option<Ticks>,
    _looking: DropGuard,
}

/// Starts to signal moments to the driver, for as long as the driver exists.
pub(super) async fn start(driver: &Arc<Driver>, config: &MonitorConfig) -> Result<Timetable, TicksError> {
    let ticks = match &config.scans {
        Schedule::Every(_) => None,
        Schedule::Cron(cron) => {
            let (ticks, driver) = (Ticks::new().await?, Arc::downgrade(driver));
            ticks.add(cron, move || tick(&driver, Scan::Watch)).await?;
            ticks.start().await?;
            Some(ticks)
        }
    };
    let stopping = CancellationToken::new();
    for scan in Scan::ALL.into_iter().filter(|scan| *scan != Scan::Watch || ticks.is_none()) {
        tokio::spawn(look(Arc::downgrade(driver), scan, stopping.clone()));
    }
    Ok(Timetable { ticks, _looking: stopping.drop_guard() })
}

impl Timetable {
    /// Stops the signals. A run that is under way goes on.
    pub(super) async fn stop(self) {
        if let Some(ticks) = self.ticks {
            ticks.stop().await;
        }
    }
}

async fn look(driver: Weak<Driver>, scan: Scan, stopping: CancellationToken) {
    let mut moments = interval(LOOK_EVERY);
    moments.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stopping.run_until_cancelled(moments.tick()).await.is_some() {
        let Some(driver) = driver.upgrade() else { return };
        driver.tick(scan).await;
    }
}

fn tick(driver: &Weak<Driver>, scan: Scan) -> Moment {
    let driver = driver.upgrade();
    Box::pin(async move {
        if let Some(driver) = driver {
            driver.tick(scan).await;
        }
    })
}
