//! The context that all writing parts of the store share.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bulk::{self, ItemOutcome, Lines};
use super::indices::Indices;
use super::locate::Locator;
use super::nodes::Nodes;
use super::write_id::{RecentWrites, WriteIdSource};
use crate::clock::SystemClock;
use crate::store::StoreError;

/// The context of the writer, the mover and the bodies.
pub(super) struct WriteContext {
    pub(super) nodes: Arc<Nodes>,
    pub(super) indices: Indices,
    pub(super) ids: WriteIdSource,
    pub(super) clock: SystemClock,
    pub(super) recent: Arc<RecentWrites>,
    pub(super) request_timeout: Duration,
    /// The time after which an undecided write is reported as unknown or refused.
    pub(super) write_timeout: Duration,
}

impl WriteContext {
    /// Sends a bulk to the index behind `alias`, and returns the outcome of each item.
    pub(super) async fn send(
        &self,
        alias: &str,
        lines: Lines,
        deadline: Instant,
    ) -> Result<Vec<ItemOutcome>, StoreError> {
        let count = lines.count();
        if count == 0 {
            return Ok(Vec::new());
        }
        match self.nodes.call(&lines.into_request(alias, self.request_timeout), deadline).await {
            Ok(reply) => Ok(bulk::outcomes(reply.status, &reply.body, count)),
            Err(error) => Err(StoreError::Unavailable(error.message)),
        }
    }

    /// Returns a locator that works until `deadline`.
    pub(super) fn locator(&self, deadline: Instant) -> Locator<'_> {
        Locator { nodes: &self.nodes, indices: &self.indices, recent: &self.recent, deadline }
    }
}
