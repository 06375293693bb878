//! When scans run: `tokio-cron-scheduler` says when a moment has come, the driver what is due then.
//!
//! A period is a cron expression for every second and a look at how long the last start was ago, and not a repeated
//! task of the scheduler's: that one reckons from moment to moment, and never comes again once a machine was held up
//! for longer than its period.

use std::sync::{Arc, Weak};

use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

use super::config::{MonitorConfig, Schedule};
use super::drive::Driver;
use super::scan::Scan;

const EVERY_SECOND: &str = "* * * * * *";

/// A schedule that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSchedule {
    /// The expression cannot be read.
    #[error("`{0}` is not a cron expression with seconds, such as */10 * * * * *")]
    Cron(String),
    /// The scheduler does not start.
    #[error("the scheduler does not start: {0}")]
    Scheduler(String),
}

/// The scheduler.
pub(super) struct Timetable(JobScheduler);

impl Timetable {
    /// Starts to tell the driver when moments have come, for as long as there is one.
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

    /// No further moment comes.
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
