//! When scans run: `tokio-cron-scheduler` signals the moments, and the driver decides which scans are due.
//!
//! A period is a cron expression for every second and a check of the time since the last start. The scheduler's own
//! repeated tasks are not used: they count from moment to moment, and stop for good once the machine was suspended for
//! longer than their period.

use std::sync::{Arc, Weak};

use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

use super::config::{MonitorConfig, Schedule};
use super::drive::Driver;
use super::scan::Scan;

const EVERY_SECOND: &str = "* * * * * *";

/// A scan schedule that could not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// The cron expression cannot be parsed.
    #[error("`{0}` is not a cron expression with seconds, such as */10 * * * * *")]
    Cron(String),
    /// The scheduler could not be started.
    #[error("the scheduler does not start: {0}")]
    Scheduler(String),
}

/// The scheduler.
pub(super) struct Timetable(JobScheduler);

impl Timetable {
    /// Starts to signal moments to the driver, for as long as the driver exists.
    pub(super) async fn start(driver: &Arc<Driver>, config: &MonitorConfig) -> Result<Self, InvalidSchedule> {
        let cannot = |error: JobSchedulerError| InvalidSchedule::Scheduler(error.to_string());
        let scheduler = JobScheduler::new().await.map_err(cannot)?;
        for scan in Scan::ALL {
            let cron = match (&config.scans, scan) {
                (Schedule::Cron(cron), Scan::Watch) => cron.as_str(),
                _ => EVERY_SECOND,
            };
            scheduler.add(moments(cron, Arc::downgrade(driver), scan)?).await.map_err(cannot)?;
        }
        scheduler.start().await.map_err(cannot)?;
        Ok(Self(scheduler))
    }

    /// Stops the scheduler and its signals.
    pub(super) async fn stop(mut self) {
        if let Err(error) = self.0.shutdown().await {
            tracing::debug!(%error, "the scheduler did not stop");
        }
    }
}

fn moments(cron: &str, driver: Weak<Driver>, scan: Scan) -> Result<Job, InvalidSchedule> {
    let moment = move |_, _| -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> {
        let driver = driver.upgrade();
        Box::pin(async move {
            if let Some(driver) = driver {
                driver.tick(scan).await;
            }
        })
    };
    Job::new_async(cron, moment).map_err(|_| InvalidSchedule::Cron(cron.to_owned()))
}
