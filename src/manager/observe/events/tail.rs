//! The events of other managers, found by searches for jobs that were written lately.
//!
//! A search does not find a write at once: it lags by a refresh, and the time in it is that of another machine's
//! clock. So the tail never moves past events that are [`LATENESS`] old, reads the last seconds again each time, and
//! the ring drops events that have arrived already. Where the clock was set back, it goes back as well, by the time
//! that has passed since it has read all that there was. What was written before shows up once more when the clock
//! shows its times again: the tail remembers how far the histories of the jobs had come that are ahead of it.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::warn;

use super::event::JobEvent;
use crate::clock::Timestamp;
use crate::job::JobId;
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

/// The most pages that the tail reads in one round, apart from those of one more millisecond.
const PAGES: usize = 10;

/// The longest lag of the tail. Beyond it, the tail skips the unread events and reports a gap.
const MAX_LAG: Duration = Duration::from_secs(60);

/// How many jobs that are ahead of the clock are remembered. Beyond that, the tail reports a gap.
const MAX_AHEAD: usize = 100_000;

/// The number of the last entry of each job that is ahead of the clock, as far as it was written before.
type Ahead = HashMap<JobId, u32>;

/// Publishes other managers' events from `position` on, until no feed listens any more or the manager stops.
pub(super) async fn follow(manager: Manager, mut position: Timestamp) {
    let (mut failing, mut read_at, mut ahead) = (false, Instant::now(), None);
    while !manager.shared.observe.events.ring.lock().end_tail(Instant::now()) {
        let (begun, now) = (Instant::now(), manager.shared.clock.now());
        let mut told_until = None;
        if position > now {
            warn!("the clock was set back: events are followed from before that");
            (told_until, ahead) = (Some(position), None);
            position = now.minus(read_at.elapsed() + LATENESS);
        }
        let told = async {
            let known = match ahead.take() {
                Some(known) => known,
                None => manager.look_ahead(now, told_until).await?,
            };
            let reached = manager.publish_others(position, &known).await;
            ahead = Some(known);
            reached
        };
        match told.await {
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
    /// Returns what is ahead of the clock since it was set back: the entries up to `told_until`, which the tail has
    /// read before that; or all of them, for a tail that begins.
    async fn look_ahead(&self, now: Timestamp, told_until: Option<Timestamp>) -> Result<Ahead, StoreError> {
        // Another machine's clock may be ahead a little.
        let is_set_back = self.shared.clock.went_back_from() > now;
        let from = if is_set_back { now } else { now.plus(LATENESS) };
        let sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);
        let filter = Filter { updated_after: Some(from), ..Filter::default() };
        let mut search = Search { filter, sort, after: None, limit: PAGE };
        let (mut ahead, told_until) = (Ahead::new(), told_until.unwrap_or(Timestamp::MAX));
        while ahead.len() < MAX_AHEAD {
            let page = self.shared.store.search(&search).await?;
            for hit in &page {
                let last = hit.job.history.numbered().rev().find(|(_, entry)| entry.at <= told_until);
                ahead.extend(last.map(|(number, _)| (hit.job.id.clone(), number)));
            }
            let Some(last) = page.last().filter(|_| page.len() >= PAGE) else { return Ok(ahead) };
            search.after = Some(sort.key(&last.job));
        }
        warn!("more jobs are ahead of the clock than can be remembered; events may come again");
        self.shared.observe.events.ring.lock().break_off();
        self.shared.observe.events.news.notify_waiters();
        Ok(ahead)
    }

    /// Publishes the events after `position`, and returns the position from which to continue.
    async fn publish_others(&self, position: Timestamp, ahead: &Ahead) -> Result<Timestamp, StoreError> {
        let now = self.shared.clock.now();
        let sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);
        let filter = Filter { updated_after: Some(position), ..Filter::default() };
        let mut search = Search { filter, sort, after: None, limit: PAGE };
        let (mut pages, mut reached) = (0, position);
        // The next round goes on from a time: one that ended within the first millisecond would not get on.
        while pages < PAGES || reached <= position {
            pages += 1;
            let page = self.shared.store.search(&search).await?;
            let mut found = Vec::new();
            for hit in &page {
                let known = ahead.get(&hit.job.id).copied().unwrap_or(0);
                let entries = hit.job.history.numbered();
                let new = entries.filter(|(number, entry)| entry.at > position && *number > known);
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
            reached = Timestamp::from_millis(last.job.updated_at.as_millis().saturating_sub(1));
        }
        let reached = reached.min(now.minus(LATENESS)).max(position);
        if now.since(reached) <= MAX_LAG {
            return Ok(reached);
        }
        warn!("other managers write more than can be followed; events are left out");
        self.shared.observe.events.ring.lock().break_off();
        self.shared.observe.events.news.notify_waiters();
        Ok(now.minus(LATENESS))
    }
}
