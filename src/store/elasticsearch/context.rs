//! What everything that writes has in common.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::indices::Indices;
use super::locate::Locator;
use super::nodes::Nodes;
use super::write_id::{RecentWrites, WriteIdSource};
use crate::clock::SystemClock;

/// What the parts of the writer, the mover and the bodies work with.
pub(super) struct WriteContext {
    pub(super) nodes: Arc<Nodes>,
    pub(super) indices: Indices,
    pub(super) ids: WriteIdSource,
    pub(super) clock: SystemClock,
    pub(super) recent: Arc<RecentWrites>,
    pub(super) request_timeout: Duration,
    /// After this long, what is not decided is reported as such.
    pub(super) write_timeout: Duration,
}

impl WriteContext {
    /// Looks for jobs until `deadline`.
    pub(super) fn locator(&self, deadline: Instant) -> Locator<'_> {
        Locator { nodes: &self.nodes, indices: &self.indices, recent: &self.recent, deadline }
    }
}
