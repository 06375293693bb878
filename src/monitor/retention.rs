//! Removing jobs that ended long ago.

use std::sync::Arc;
use std::time::Duration;

use super::keeper::Keeper;
use super::pages::{MayAct, Pages};
use super::report::Report;
use super::scan::Scans;
use crate::clock::Timestamp;
use crate::job::{JobState, QueueName};
use crate::manager::ManagerError;
use crate::query::{Filter, SortField};
use crate::store::Versioned;

/// The most pages of one state that a run reads.
const MAX_PAGES: usize = 100;

impl Scans {
    /// Returns the scans with somebody who notes what is to be known of jobs after their removal.
    #[must_use]
    pub fn with_keeper(mut self, keeper: Arc<dyn Keeper>) -> Self {
        self.keeper = Some(keeper);
        self
    }

    /// Removes jobs that ended longer ago than they are kept, in the versions found, so that a job that was retried
    /// meanwhile is kept.
    pub(super) async fn retain(&self, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, ManagerError> {
        let mut report = Report::default();
        for state in JobState::ALL {
            // States that are not final have no age.
            let Some(age) = self.retention.of(state) else { continue };
            let age = age.max(self.idempotency_window) + self.rules.clock_skew();
            self.remove_ended((state, None), (now, age), may_act, &mut report).await?;
        }
        for (queue, age) in &self.queue_retention {
            let age = *age + self.rules.clock_skew();
            for state in JobState::ALL.into_iter().filter(|state| state.is_final()) {
                self.remove_ended((state, Some(queue)), (now, age), may_act, &mut report).await?;
            }
        }
        Ok(report)
    }

    async fn remove_ended(
        &self,
        (state, queue): (JobState, Option<&QueueName>),
        (now, age): (Timestamp, Duration),
        may_act: MayAct<'_>,
        report: &mut Report,
    ) -> Result<(), ManagerError> {
        let queues = queue.into_iter().cloned().collect();
        let until = Some(now.minus(age));
        let filter = Filter { states: vec![state], queues, finished_at_most: until, ..Filter::default() };
        let mut pages = Pages::of(filter, SortField::CreatedAt, MAX_PAGES);
        while let Some(search) = pages.next() {
            let page = self.manager.search(search).await?;
            report.looked_at += page.len();
            pages.passed(&page);
            // A job with pending notices is not settled.
            let settled: Vec<Versioned> = page.into_iter().filter(|found| found.job.is_settled()).collect();
            if !may_act() {
                return Ok(());
            }
            let leaving = self.leaving(settled, now, report).await;
            // To note what is kept may have taken longer than the rest of the term.
            if !may_act() {
                return Ok(());
            }
            let former = report.removed;
            for removed in self.manager.remove(&leaving).await {
                match removed {
                    Ok(true) => report.removed += 1,
                    Ok(false) => {}
                    Err(error) => report.add_fault(error),
                }
            }
            metrics::counter!("leasehold_retention_removed_total").increment((report.removed - former) as u64);
        }
        report.unfinished |= pages.rest().is_some();
        Ok(())
    }

    /// Returns those of these jobs of which everything is noted that has to outlive them.
    async fn leaving(&self, settled: Vec<Versioned>, now: Timestamp, report: &mut Report) -> Vec<Versioned> {
        let Some(keeper) = &self.keeper else { return settled };
        let kept = keeper.keep(settled, now).await;
        kept.into_iter().filter_map(|job| job.map_err(|error| report.add_fault(error)).ok()).collect()
    }
}
