//! The calls for the output of attempts.

use std::time::Duration;

use http::Method;

use super::error::ClientError;
use super::transport::{Client, Repeat};
use crate::wire::{AttemptOutput, BulkAnswer, OutputItem, PutOutputs};

/// Selects the output that is returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputQuery {
    /// The number of the attempt. Default: the latest one.
    pub attempt: Option<u32>,
    /// The fence of the attempt, in the place of its number.
    pub fence: Option<u64>,
    /// Leaves out the bytes of standard output before this place.
    pub stdout_from: u64,
    /// Leaves out the bytes of standard error before this place.
    pub stderr_from: u64,
    /// The longest wait for more than that, at most a minute.
    pub wait: Duration,
}

impl Client {
    /// Sends pieces of the output of a worker's attempts; the answers come in order.
    ///
    /// # Errors
    /// See [`ClientError`], for the call as a whole.
    pub async fn put_outputs(&self, outputs: &PutOutputs) -> Result<Vec<OutputItem>, ClientError> {
        let call = self.call(Method::POST, &["v1", "outputs"], Repeat::Safe).json(outputs)?;
        Ok(self.send::<BulkAnswer<OutputItem>>(call).await?.items)
    }

    /// Returns the output of an attempt of a job.
    ///
    /// # Errors
    /// See [`ClientError`]; `not_found` when there is no such job.
    pub async fn output(&self, id: &str, query: &OutputQuery) -> Result<AttemptOutput, ClientError> {
        let number = query.attempt.map(|attempt| attempt.to_string());
        let path: &[&str] = match &number {
            Some(number) => &["v1", "jobs", id, "attempts", number, "output"],
            None => &["v1", "jobs", id, "output"],
        };
        let call = self
            .call(Method::GET, path, Repeat::Safe)
            .each("fence", query.fence)
            .each("stdout_from", Some(query.stdout_from))
            .each("stderr_from", Some(query.stderr_from))
            .each("wait_ms", Some(query.wait.as_millis()))
            .waiting(query.wait);
        self.send(call).await
    }
}
