//! Past events, read from the jobs' histories in the store.

use std::collections::HashMap;

use super::event::{EventFilter, JobEvent};
use crate::clock::Timestamp;
use crate::job::{Job, JobId};
use crate::manager::Manager;
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::{Refresh, StoreError};

/// The most jobs that one search returns.
const PAGE: usize = 2_000;

/// The most pages that one replay reads.
const MAX_PAGES: usize = 10;

/// The most events that one replay returns.
const MAX_EVENTS: usize = 20_000;

/// The past events of a replay.
pub(super) struct Replayed {
    /// The events, in the order of their times.
    pub(super) events: Vec<JobEvent>,
    /// Whether the replay is complete; otherwise the later events are missing.
    pub(super) complete: bool,
}

impl Manager {
    /// Reads the events at `since` or later that are still in a job's history.
    pub(super) async fn replay(&self, filter: &EventFilter, since: Timestamp) -> Result<Replayed, StoreError> {
        // The semaphore is never closed.
        let _place = self.shared.observe.events.replays.acquire().await;
        let mut collected = Collected { filter, since, events: Vec::new(), told: HashMap::new() };
        let mut complete = true;
        if filter.jobs.is_empty() {
            complete = self.collect_all(&mut collected).await?;
        } else {
            for found in self.shared.store.get(&filter.jobs).await?.into_iter().flatten() {
                collected.add(&found.job);
            }
        }
        let mut events = collected.events;
        events.sort_by_key(|event| event.entry.at);
        complete &= events.len() <= MAX_EVENTS;
        events.truncate(MAX_EVENTS);
        Ok(Replayed { events, complete })
    }

    /// Reads the jobs in the order of their last writes, and returns whether it read them all. A job that is written
    /// meanwhile moves ahead and is found again, so that none is missed.
    async fn collect_all(&self, collected: &mut Collected<'_>) -> Result<bool, StoreError> {
        let filter = Filter {
            queues: collected.filter.queues.clone(),
            kinds: collected.filter.kinds.clone(),
            owners: collected.filter.owners.clone(),
            updated_after: Some(Timestamp::from_millis(collected.since.as_millis().saturating_sub(1))),
            ..Filter::default()
        };
        // Acknowledged writes must be found, since the feed continues with events that are published from here on.
        self.shared.store.refresh(Refresh::Jobs(&filter)).await?;
        let sort = Sort::By(SortField::UpdatedAt, Direction::Ascending);
        let mut search = Search { filter, sort, after: None, limit: PAGE };
        for _ in 0..MAX_PAGES {
            let page = self.shared.store.search(&search).await?;
            page.iter().for_each(|found| collected.add(&found.job));
            let Some(last) = page.last().filter(|_| page.len() >= PAGE) else { return Ok(true) };
            if collected.events.len() > MAX_EVENTS {
                return Ok(false);
            }
            search.after = Some(sort.key(&last.job));
        }
        Ok(false)
    }
}

struct Collected<'a> {
    filter: &'a EventFilter,
    since: Timestamp,
    events: Vec<JobEvent>,
    /// The number of the last history entry that was read of each job.
    told: HashMap<JobId, u32>,
}

impl Collected<'_> {
    fn add(&mut self, job: &Job) {
        let told = self.told.entry(job.id.clone()).or_default();
        for (number, entry) in job.history.numbered().filter(|(_, entry)| entry.at >= self.since) {
            if number <= *told {
                continue;
            }
            *told = number;
            let event = JobEvent::new(job, number, entry);
            if self.filter.matches(&event) {
                self.events.push(event);
            }
        }
    }
}
