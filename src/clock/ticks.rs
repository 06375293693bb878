//! Moments of the wall clock at which something is to be looked at, signalled by `tokio-cron-scheduler`.
//!
//! What repeats within a period is a cron expression for every second and a check of the time since the last look. The
//! scheduler's own repeated tasks are not used: they count from moment to moment, and stop for good once the machine
//! was suspended for longer than their period.

use std::pin::Pin;

use tokio_cron_scheduler::{Job, JobScheduler, JobSchedulerError};

/// The expression for every second.
pub const EVERY_SECOND: &str = "* * * * * *";

/// What is done at a moment.
pub type Moment = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Why moments cannot be signalled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TicksError {
    /// The cron expression cannot be parsed.
    #[error("`{0}` is not a cron expression with seconds, such as */10 * * * * *")]
    Cron(String),
    /// The scheduler could not be started.
    #[error("the scheduler does not start: {0}")]
    Scheduler(String),
}

impl From<JobSchedulerError> for TicksError {
    fn from(error: JobSchedulerError) -> Self {
        Self::Scheduler(error.to_string())
    }
}

/// Moments that are signalled until they are stopped.
pub struct Ticks(JobScheduler);

impl Ticks {
    /// Creates ticks without any moments.
    ///
    /// # Errors
    /// [`TicksError::Scheduler`].
    pub async fn new() -> Result<Self, TicksError> {
        Ok(Self(JobScheduler::new().await?))
    }

    /// Adds the moments that a cron expression with seconds names, in UTC.
    ///
    /// # Errors
    /// [`TicksError`].
    pub async fn add(&self, cron: &str, moment: impl Fn() -> Moment + Send + Sync + 'static) -> Result<(), TicksError> {
        let job = Job::new_async(cron, move |_, _| moment()).map_err(|_| TicksError::Cron(cron.to_owned()))?;
        self.0.add(job).await?;
        Ok(())
    }

    /// Starts to signal the moments.
    ///
    /// # Errors
    /// [`TicksError::Scheduler`].
    pub async fn start(&self) -> Result<(), TicksError> {
        Ok(self.0.start().await?)
    }

    /// Stops the signals.
    pub async fn stop(mut self) {
        if let Err(error) = self.0.shutdown().await {
            tracing::debug!(%error, "the scheduler did not stop");
        }
    }
}
