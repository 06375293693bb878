//! What other managers write, found by searching for jobs that were written lately.
//!
//! A search does not find a write at once: it lags by a refresh, and the time in it is that of another machine's
//! clock. So the tail never moves past what is [`LATENESS`] old, reads the last seconds again each time, and the ring
//! drops what has arrived already.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::event::JobEvent;
use crate::clock::Timestamp;
use crate::manager::Manager;
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::StoreError;

/// By how much an event can be known later than its time says: what a machine's clock is off at most, and what a
/// write and a refresh take. Who goes on by a time goes back by this much first.
pub(super) const LATENESS: Duration = Duration::from_secs(5);

/// How often it looks.
const PERIOD: Duration = Duration::from_secs(1);

/// How many jobs one search asks for.
const PAGE: usize = 1_000;

/// How many pages it reads each time.
const PAGES: usize = 10;

/// How far it may fall behind. Beyond that it leaves out what it has not read, and says so.
const MAX_LAG: Duration = Duration::from_secs(60);

/// Publishes what others write from `position` on, until nobody listens any more or the manager stops.
pub(super) async fn follow(manager: Manager, mut position: Timestamp) {
    let mut failing = false;
    while !manager.shared.observe.events.ring.lock().end_tail(Instant::now()) {
        match manager.publish_others(position).await {
            Ok(reached) => {
                position = reached;
                failing = false;
            }
            // Said once; what was written meanwhile is read when the store is back.
            Err(error) if !failing => {
                warn!(%error, "cannot follow what other managers write");
                failing = true;
            }
            Err(_) => {}
        }
        if manager.shared.stopping.run_until_cancelled(sleep(PERIOD)).await.is_none() {
            return;
        }
    }
}

impl Manager {
    /// Publishes what was written after `position`. Gives the position to go on from.
    async fn publish_others(&self, position: Timestamp) -> Result<Timestamp, StoreError> {
        let now = self.shared.clock.now();
        let sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);
        let filter = Filter { updated_after: Some(position), ..Filter::default() };
        let mut search = Search { filter, sort, after: None, limit: PAGE };
        for _ in 0..PAGES {
            let page = self.shared.store.search(&search).await?;
            let mut found = Vec::new();
            for hit in &page {
                let new = hit.job.history.numbered().filter(|(_, entry)| entry.at > position);
                found.extend(new.map(|(number, entry)| JobEvent::new(&hit.job, number, entry)));
            }
            found.sort_by_key(|event| event.entry.at);
            let (_evicted, added) = self.shared.observe.events.ring.lock().push_found(found);
            if added {
                self.shared.observe.events.news.notify_waiters();
            }
            let Some(last) = page.last().filter(|_| page.len() >= PAGE) else {
                return Ok(position.max(now.minus(LATENESS)));
            };
            search.after = Some(sort.key(&last.job));
        }
        let reached = search.after.map_or(position.as_millis(), |last| last.ranks().0);
        let reached = Timestamp::from_millis(reached.saturating_sub(1)).min(now.minus(LATENESS)).max(position);
        if now.since(reached) <= MAX_LAG {
            return Ok(reached);
        }
        warn!("other managers write more than can be followed; events are left out");
        self.shared.observe.events.ring.lock().break_off();
        self.shared.observe.events.news.notify_waiters();
        Ok(now.minus(LATENESS))
    }
}
