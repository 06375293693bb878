//! The context that all parts of the store share.

use std::time::Duration;

use tokio::time::Instant;

use super::bulk::{self, ItemOutcome, Lines};
use super::indices::Indices;
use super::locate::Locator;
use super::nodes::Nodes;
use super::write_id::{RecentWrites, WriteIdSource};
use crate::clock::SystemClock;
use crate::store::StoreError;

/// The context of reads and writes.
pub(super) struct Context {
    pub(super) nodes: Nodes,
    pub(super) indices: Indices,
    pub(super) ids: WriteIdSource,
    pub(super) clock: SystemClock,
    pub(super) recent: RecentWrites,
    pub(super) request_timeout: Duration,
    /// The time after which an undecided write is reported as unknown or refused.
    pub(super) write_timeout: Duration,
}

impl Context {
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
        let reply = self.nodes.call(&lines.into_request(alias, self.request_timeout), deadline).await?;
        Ok(bulk::outcomes(reply.status, &reply.body, count))
    }

    /// Returns a locator that works until `deadline`.
    pub(super) fn locator(&self, deadline: Instant) -> Locator<'_> {
        Locator { nodes: &self.nodes, indices: &self.indices, recent: &self.recent, deadline }
    }
}
