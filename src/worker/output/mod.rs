//! Where the output of attempts goes while they run: by default to the service that handed the jobs out.
//!
//! A handler writes with [`Attempt::write_output`](super::Attempt::write_output), at any rate. One that can wait asks
//! [`Attempt::output_ready`](super::Attempt::output_ready) before. A program that runs a worker may put a sink of its
//! own in place of [`ServiceOutput`].

mod pending;
mod sender;

use std::sync::Arc;

use async_trait::async_trait;

pub use sender::ServiceOutput;

use super::service::ClaimedJob;
pub use crate::store::Stream;

/// Takes the output of a worker's attempts.
pub trait OutputSink: Send + Sync + 'static {
    /// Returns what takes the output of this attempt, which begins now.
    fn begin(&self, job: &ClaimedJob) -> Arc<dyn AttemptSink>;
}

/// Takes the output of one attempt.
#[async_trait]
pub trait AttemptSink: Send + Sync + 'static {
    /// Waits while the sink is behind: what a command writes is not read meanwhile, so that the command waits too. By
    /// default a sink is never behind.
    async fn ready(&self) {}

    /// Adds bytes to a stream. It never blocks; what is too much for the sink is left out from the middle.
    fn write(&self, stream: Stream, bytes: &[u8]);

    /// Returns once the output is where it belongs, after the last write. A sink gives up in a few seconds.
    async fn end(&self);
}

/// Keeps nothing.
#[derive(Clone, Copy, Debug)]
pub struct NoOutput;

impl OutputSink for NoOutput {
    fn begin(&self, _: &ClaimedJob) -> Arc<dyn AttemptSink> {
        Arc::new(Self)
    }
}

#[async_trait]
impl AttemptSink for NoOutput {
    fn write(&self, _: Stream, _: &[u8]) {}

    async fn end(&self) {}
}
