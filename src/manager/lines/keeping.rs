//! Removing the documents of lines that have no live job any more.

use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at};
use tracing::debug;

use super::document::{Line, live};
use crate::job::{OrderingKey, RecordName};
use crate::manager::Manager;
use crate::store::{Record, RecordKind, Refresh, StoreError};

/// The time between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_secs(20);

/// The most pages that one sweep goes through.
const PAGES: usize = 20;

/// How old a document is, at the least, whose places are settled by the sweep: far older than any request that is under
/// way.
const LEFT_BEHIND: Duration = Duration::from_secs(600);

impl Manager {
    /// Removes the documents that nobody needs, until the manager stops.
    pub(in crate::manager) async fn sweep_lines(self) {
        let mut ticks = interval_at(Instant::now() + SWEEP_EVERY, SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut swept = None;
        loop {
            tokio::select! {
                biased;
                () = self.shared.stopping.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.shared.dispatch.forget_idle_lines();
            for _ in 0..PAGES {
                swept = match self.sweep_page_of_lines(swept.clone()).await {
                    Ok(last) => last,
                    Err(error) => {
                        debug!(%error, "cannot look for the documents of lines that nobody needs");
                        break;
                    }
                };
                if swept.is_none() || self.shared.stopping.is_cancelled() {
                    break;
                }
            }
        }
    }

    /// Removes the documents of a page after this name whose lines have no live job. Returns the name after which the
    /// next page begins.
    async fn sweep_page_of_lines(&self, after: Option<RecordName>) -> Result<Option<RecordName>, StoreError> {
        let page = self.shared.store.records_after(RecordKind::Line, after.as_ref()).await?;
        let last = page.last().map(|record| record.key.name.clone());
        let read =
            |record: Record| Some((OrderingKey::new(record.key.name.as_str()).ok()?, record.read().ok()?, record));
        let mut lines: Vec<(OrderingKey, Line, Record)> = page.into_iter().filter_map(read).collect();
        // Most have live jobs, and only for the others it has to be known for certain.
        self.keep_empty(&mut lines).await?;
        let mut settled = Vec::with_capacity(lines.len());
        for (key, line, record) in lines {
            // Before it is found out which lines are empty: a job that is created in between is live.
            if self.is_all_settled(&line).await? {
                settled.push((key, line, record));
            }
        }
        if settled.is_empty() {
            return Ok(last);
        }
        self.shared.store.refresh(Refresh::Jobs(&live())).await?;
        self.keep_empty(&mut settled).await?;
        for (key, _, record) in settled {
            if let Err(error) = self.shared.store.write_record(record.removal()).await {
                debug!(%error, %key, "the document of a line is left that nobody needs");
            }
        }
        Ok(last)
    }

    /// Drops the lines that have live jobs, as far as a search shows.
    async fn keep_empty(&self, lines: &mut Vec<(OrderingKey, Line, Record)>) -> Result<(), StoreError> {
        if lines.is_empty() {
            return Ok(());
        }
        let keys: Vec<OrderingKey> = lines.iter().map(|(key, ..)| key.clone()).collect();
        let heads = self.shared.store.heads(&keys).await?;
        let mut is_empty = heads.iter().map(Option::is_none);
        lines.retain(|_| is_empty.next().unwrap_or(false));
        Ok(())
    }

    /// Returns whether all places that a document announces are settled. In an old one those are barred that are not,
    /// and the next sweep removes it.
    async fn is_all_settled(&self, line: &Line) -> Result<bool, StoreError> {
        let doubtful = self.doubtful(line, u64::MAX).await?;
        if doubtful.is_empty() {
            return Ok(true);
        }
        if line.at.plus(LEFT_BEHIND) <= self.shared.clock.now()
            && let Err(error) = self.settle_entries(doubtful, Instant::now()).await
        {
            debug!(%error, "the places of a line are left unsettled");
        }
        Ok(false)
    }
}
