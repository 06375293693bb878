//! Removing jobs that ended long ago.

use super::scan::{PAGE, Report, Scans};
use crate::clock::Timestamp;
use crate::job::JobState;
use crate::manager::ManagerError;
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::Versioned;

/// How many pages of one state a run looks through.
const MAX_PAGES: usize = 100;

/// Oldest first.
const ORDER: Sort = Sort::By(SortField::CreatedAt, Direction::Ascending);

const FINAL: [JobState; 4] = [JobState::Completed, JobState::Failed, JobState::Cancelled, JobState::Expired];

impl Scans {
    /// Removes what is older than it is kept, in the versions found: a job that was started again meanwhile stays.
    pub(super) async fn retain(
        &self,
        now: Timestamp,
        may_act: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Report, ManagerError> {
        let mut report = Report::default();
        for state in FINAL {
            let Some(age) = self.retention.of(state) else { continue };
            let age = age.max(self.idempotency_window) + self.rules.clock_skew();
            self.remove_ended(state, now.minus(age), may_act, &mut report).await?;
        }
        metrics::counter!("leasehold_retention_removed_total").increment(report.removed as u64);
        Ok(report)
    }

    async fn remove_ended(
        &self,
        state: JobState,
        until: Timestamp,
        may_act: &(dyn Fn() -> bool + Send + Sync),
        report: &mut Report,
    ) -> Result<(), ManagerError> {
        let filter = Filter { states: vec![state], finished_at_most: Some(until), ..Filter::default() };
        let mut search = Search { filter, sort: ORDER, after: None, limit: PAGE };
        for _ in 0..MAX_PAGES {
            let page = self.manager.search(&search).await?;
            report.looked_at += page.len();
            search.after = page.last().map(|found| ORDER.key(&found.job));
            let is_last = page.len() < PAGE;
            // One that somebody is yet to be told of is not settled.
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
            if is_last {
                return Ok(());
            }
        }
        report.unfinished = true;
        Ok(())
    }
}
