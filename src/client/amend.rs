//! The calls by which people hold, edit, rerun and delete jobs, and the changes of many jobs.

use std::time::Duration;

use http::{HeaderName, HeaderValue, Method};

use super::error::ClientError;
use super::transport::{Client, Repeat};
use crate::job::JobId;
use crate::wire::{BulkChange, BulkReport, ChangeReason, EditJob, Job};

/// How long the server works on a bulk change before it answers with a cursor, including the page that it is
/// processing.
const MANY_TAKE: Duration = Duration::from_secs(30);

impl Client {
    /// Holds a job, so that it is not claimed.
    ///
    /// # Errors
    /// See [`ClientError`]; `already_final` when it has ended.
    pub async fn hold(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let hold = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "jobs", id, "hold"], Repeat::Safe, &hold).await
    }

    /// Lets a held job go.
    ///
    /// # Errors
    /// See [`ClientError`]; `already_final` when it has ended.
    pub async fn unhold(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let unhold = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "jobs", id, "unhold"], Repeat::Safe, &unhold).await
    }

    /// Makes a waiting job due now.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_available` when it runs, `already_final` when it has ended.
    pub async fn run_now(&self, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        let run = ChangeReason { reason: reason.map(str::to_owned) };
        self.post(&["v1", "jobs", id, "run-now"], Repeat::Unsafe, &run).await
    }

    /// Submits a job that runs an ended one again. It goes under a key of its own, so that a repetition after a lost
    /// answer does not make a second job.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_ended` when the job has not ended.
    pub async fn rerun(&self, id: &str) -> Result<Job, ClientError> {
        let key = JobId::generate();
        let call = self.call(Method::POST, &["v1", "jobs", id, "rerun"], Repeat::Safe);
        let key = HeaderValue::try_from(key.as_str()).map_err(|error| ClientError::Usage(error.to_string()))?;
        self.send(call.header(HeaderName::from_static("idempotency-key"), key)).await
    }

    /// Changes fields of a job that has not ended.
    ///
    /// # Errors
    /// See [`ClientError`]; `already_final`, or `not_available` for a time of a running job.
    pub async fn edit(&self, id: &str, edit: &EditJob) -> Result<Job, ClientError> {
        self.send(self.call(Method::PATCH, &["v1", "jobs", id], Repeat::Safe).json(edit)?).await
    }

    /// Removes a job that does not run.
    ///
    /// # Errors
    /// See [`ClientError`]; `still_running`, `not_found`.
    pub async fn delete(&self, id: &str, reason: Option<&str>) -> Result<(), ClientError> {
        let mut call = self.call(Method::DELETE, &["v1", "jobs", id], Repeat::Unsafe);
        if let Some(reason) = reason {
            call = call.query("reason", reason);
        }
        self.send_raw(call).await.map(drop)
    }

    /// Takes many jobs from their workers, or counts them. The call is repeated only when the server did not hear it: a
    /// repetition could take away jobs that were claimed again.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn release_many(&self, order: &BulkChange) -> Result<BulkReport<Job>, ClientError> {
        self.change_many("release", order).await
    }

    /// Cancels many jobs, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn cancel_many(&self, order: &BulkChange) -> Result<BulkReport<Job>, ClientError> {
        self.change_many("cancel", order).await
    }

    /// Retries many jobs, or counts them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn retry_many(&self, order: &BulkChange) -> Result<BulkReport<Job>, ClientError> {
        self.change_many("retry", order).await
    }

    /// Makes a change of many jobs, or counts them: `hold`, `unhold`, `run-now`, `edit`, `rerun`, `delete`, `cancel`,
    /// `retry` or `release`.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub async fn change_many(&self, action: &str, order: &BulkChange) -> Result<BulkReport<Job>, ClientError> {
        let repeat = if order.dry_run { Repeat::Safe } else { Repeat::Unsafe };
        let call = self.call(Method::POST, &["v1", "admin", "jobs", action], repeat);
        self.send(call.json(order)?.waiting(MANY_TAKE)).await
    }
}
