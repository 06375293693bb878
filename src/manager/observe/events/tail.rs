//! The events of other managers, found by searches for jobs that were written lately.
//!
//! A search does not find a write at once: it lags by a refresh, and the time in it is that of another machine's
//! clock. So the tail never moves past events that are [`LATENESS`] old, reads the last seconds again each time, and
//! the ring drops events that have arrived already. Where the clock was set back, it goes back as well, by the time
//! that has passed since it has read all that there was.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::event::JobEvent;
use crate::clock::Timestamp;
use crate::manager::Manager;
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::StoreError;

/// The longest time from an event's timestamp until a search finds it: the largest clock error, a write and a refresh.
/// A feed that continues from a time goes back by this much first.
pub(super) const LATENESS: Duration = Duration::from_secs(5);

/// The time between two rounds of searches by the tail.
const PERIOD: Duration = Duration::from_secs(1);

/// The most jobs that one search returns.
const PAGE: usize = 1_000;

/// The most pages that the tail reads in one round.
const PAGES: usize = 10;

/// The longest lag of the tail. Beyond it, the tail skips the unread events and reports a gap.
const MAX_LAG: Duration = Duration::from_secs(60);

/// Publishes other managers' events from `position` on, until no feed listens any more or the manager stops.
pub(super) async fn follow(manager: Manager, mut position: Timestamp) {
    let (mut failing, mut read_at) = (false, Instant::now());
    while !manager.shared.observe.events.ring.lock().end_tail(Instant::now()) {
        let (begun, now) = (Instant::now(), manager.shared.clock.now());
        if position > now {
            warn!("the clock was set back: events are followed from before that");
            position = now.minus(read_at.elapsed() + LATENESS);
        }
        match manager.publish_others(position).await {
            Ok(reached) => {
                (position, read_at) = (reached, begun);
                failing = false;
            }
            // Logged once; the events of the meantime are read when the store is back.
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
    /// Publishes the events after `position`, and returns the position from which to continue.
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
