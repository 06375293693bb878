//! When scans run: [`Ticks`] signal the moments, and the driver decides which scans are due.

use std::sync::{Arc, Weak};

use super::config::{MonitorConfig, Schedule};
use super::drive::Driver;
use super::scan::Scan;
use crate::clock::ticks::{EVERY_SECOND, Moment, Ticks, TicksError};

/// Starts to signal moments to the driver, for as long as the driver exists.
pub(super) async fn start(driver: &Arc<Driver>, config: &MonitorConfig) -> Result<Ticks, TicksError> {
    let ticks = Ticks::new().await?;
    for scan in Scan::ALL {
        let cron = match (&config.scans, scan) {
            (Schedule::Cron(cron), Scan::Watch) => cron.as_str(),
            _ => EVERY_SECOND,
        };
        let driver = Arc::downgrade(driver);
        ticks.add(cron, move || tick(&driver, scan)).await?;
    }
    ticks.start().await?;
    Ok(ticks)
}

fn tick(driver: &Weak<Driver>, scan: Scan) -> Moment {
    let driver = driver.upgrade();
    Box::pin(async move {
        if let Some(driver) = driver {
            driver.tick(scan).await;
        }
    })
}
