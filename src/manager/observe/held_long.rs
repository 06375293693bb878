//! Jobs that are held for long: by a person, by a queue that is paused, or by a limit.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use crate::job::JobState;
use crate::manager::Manager;
use crate::query::kql::Expression;
use crate::query::{Filter, Query};
use crate::store::StoreError;

/// The metric, with what holds the jobs as a label.
const HELD_LONG: &str = "leasehold_jobs_held_long";

impl Manager {
    /// Counts the jobs that are held for longer than this.
    pub(super) async fn look_for_held_long(&self, bound: Duration) {
        let gauge = |by: &'static str, jobs: u64| metrics::gauge!(HELD_LONG, "by" => by).set(jobs as f64);
        match self.held_long(bound).await {
            Ok(held) => held.into_iter().for_each(|(by, jobs)| gauge(by, jobs)),
            Err(error) => debug!(%error, "the jobs that are held for long could not be counted"),
        }
    }

    /// Returns how many jobs are held for longer than this, by what holds them. A limit holds the jobs that claims at
    /// this manager have met there.
    pub(super) async fn held_long(&self, bound: Duration) -> Result<Vec<(&'static str, u64)>, StoreError> {
        let now = self.shared.clock.now();
        let before = now.minus(bound);
        let Ok(held) = Expression::parse(&format!("hold.at <= \"{before}\"")) else { return Ok(Vec::new()) };
        let query = Query { expression: Arc::new(held), now };
        let waiting = || Filter { states: vec![JobState::Available], ..Filter::default() };
        let by_people = Filter { held: Some(true), query: Some(query), ..waiting() };
        let by_people = self.count_of(&by_people).await?;
        let queues = self.shared.queue_settings.paused_before(before);
        let by_pauses = Filter { held: Some(false), queues, run_at_most: Some(before), ..waiting() };
        let by_pauses = if by_pauses.queues.is_empty() { 0 } else { self.count_of(&by_pauses).await? };
        let by_limits = self.shared.dispatch.held_by_limits(before) as u64;
        Ok(vec![("hold", by_people), ("pause", by_pauses), ("limit", by_limits)])
    }

    async fn count_of(&self, filter: &Filter) -> Result<u64, StoreError> {
        Ok(self.shared.store.count(filter, &[]).await?.iter().map(|group| group.count).sum())
    }
}
