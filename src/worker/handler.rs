//! The work itself: what a program implements for its own kinds of jobs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::output::AttemptSink;
use super::service::ClaimedJob;
use crate::job::{JobError, Json, Progress, WorkerId};
use crate::manager::Outcome;
use crate::store::Stream;

/// Runs one kind of job.
///
/// A handler is asked to end early through [`Attempt::ended`]. One that does not listen is dropped after the worker's
/// grace, so whatever it holds must be released when it is dropped.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Runs one attempt to its end and returns the job's result.
    ///
    /// # Errors
    /// Returns how the attempt failed, and whether another one may succeed.
    async fn run(&self, attempt: Attempt) -> Result<Option<Json>, HandlerError>;
}

/// How an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct HandlerError {
    /// A stable code for programs.
    pub code: String,
    /// A message for people.
    pub message: String,
    /// Whether another attempt may succeed.
    pub retryable: bool,
    /// The shortest wait before the next attempt, if there is one.
    pub retry_after: Option<Duration>,
    /// Whether the job was not begun: it is released and the attempt does not count.
    pub not_begun: bool,
}

impl HandlerError {
    /// Creates a failure after which another attempt may succeed.
    pub fn retryable(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: code.into(), message: message.into(), retryable: true, retry_after: None, not_begun: false }
    }

    /// Creates the release of a job that was not begun and can be claimed again after `delay`.
    pub fn postponed(code: impl Into<String>, message: impl Into<String>, delay: Duration) -> Self {
        Self { retry_after: Some(delay), not_begun: true, ..Self::retryable(code, message) }
    }

    /// Creates a failure that every further attempt would repeat.
    pub fn permanent(code: impl Into<String>, message: impl Into<String>) -> Self {
        Self { retryable: false, ..Self::retryable(code, message) }
    }
}

impl From<HandlerError> for Outcome {
    fn from(failure: HandlerError) -> Self {
        let HandlerError { code, message, retryable, retry_after, not_begun } = failure;
        if not_begun {
            return Self::Released { reason: message, delay: retry_after.unwrap_or_default() };
        }
        Self::Failed { error: JobError { code, message }, retryable, retry_after }
    }
}

/// The reason to end a running attempt early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The job's cancellation was requested.
    Cancelled,
    /// The lease is lost, so that the service refuses every report of this attempt.
    LeaseLost,
    /// The attempt has reached its time limit.
    TimedOut,
    /// The worker stops and releases the job.
    WorkerStops,
}

/// One attempt as its handler sees it.
#[derive(Clone)]
pub struct Attempt {
    /// The job that is run.
    pub job: ClaimedJob,
    /// The worker that runs the attempt.
    pub worker_id: WorkerId,
    ending: watch::Receiver<Option<Ending>>,
    progress: Arc<Mutex<Option<Progress>>>,
    pub(super) output: Arc<dyn AttemptSink>,
}

impl Attempt {
    pub(super) fn new(
        job: ClaimedJob,
        worker_id: WorkerId,
        ending: watch::Receiver<Option<Ending>>,
        progress: Arc<Mutex<Option<Progress>>>,
        output: Arc<dyn AttemptSink>,
    ) -> Self {
        Self { job, worker_id, ending, progress, output }
    }

    /// Waits until the attempt is requested to end early, and returns why.
    pub async fn ended(&mut self) -> Ending {
        match self.ending.wait_for(Option::is_some).await.ok().and_then(|ending| *ending) {
            Some(ending) => ending,
            None => std::future::pending().await,
        }
    }

    /// Adds bytes to the attempt's output. Of much output, the middle is left out.
    pub fn write_output(&self, stream: Stream, bytes: &[u8]) {
        self.output.write(stream, bytes);
    }

    /// Waits while what takes the attempt's output is behind.
    pub async fn output_ready(&self) {
        self.output.ready().await;
    }

    /// Reports progress, which the next heartbeat sends to the service.
    pub fn progress(&self, progress: Progress) {
        *self.progress.lock() = Some(progress);
    }
}
