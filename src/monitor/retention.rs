//! Removing jobs that ended long ago.

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
    /// Removes jobs that ended longer ago than they are kept, in the versions found, so that a job that was retried
    /// meanwhile is kept.
    pub(super) async fn retain(&self, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, ManagerError> {
        let mut report = Report::default();
        for state in JobState::ALL {
            // States that are not final have no age.
            let Some(age) = self.retention.of(state) else { continue };
            let age = age.max(self.idempotency_window) + self.rules.clock_skew();
            self.remove_ended((state, None), now.minus(age), may_act, &mut report).await?;
        }
        for (queue, age) in &self.queue_retention {
            let age = *age + self.rules.clock_skew();
            for state in JobState::ALL.into_iter().filter(|state| state.is_final()) {
                self.remove_ended((state, Some(queue)), now.minus(age), may_act, &mut report).await?;
            }
        }
        metrics::counter!("leasehold_retention_removed_total").increment(report.removed as u64);
        Ok(report)
    }

    async fn remove_ended(
        &self,
        (state, queue): (JobState, Option<&QueueName>),
        until: Timestamp,
        may_act: MayAct<'_>,
        report: &mut Report,
    ) -> Result<(), ManagerError> {
        let queues = queue.into_iter().cloned().collect();
        let filter = Filter { states: vec![state], queues, finished_at_most: Some(until), ..Filter::default() };
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
            for removed in self.manager.remove(&settled).await {
                match removed {
                    Ok(true) => report.removed += 1,
                    Ok(false) => {}
                    Err(error) => report.add_fault(error),
                }
            }
        }
        report.unfinished |= pages.rest().is_some();
        Ok(())
    }
}
