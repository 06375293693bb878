//! Moving settled jobs out of the live index, on a store that does not do so by itself.

use super::pages::{MayAct, PAGE};
use super::report::Report;
use super::scan::Scans;
use crate::clock::Timestamp;
use crate::manager::ManagerError;
use crate::store::StoreError;

/// The most pages in one run, which hold more jobs than end in a minute.
const MAX_STEPS: usize = 500;

impl Scans {
    /// Archives page after page until the store has nothing left to archive.
    pub(super) async fn archive(&self, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, ManagerError> {
        let mut report = Report::default();
        for _ in 0..MAX_STEPS {
            if !may_act() {
                return Ok(report);
            }
            let archived = self.manager.archive(now, PAGE).await?;
            report.moved += archived.moved;
            metrics::counter!("leasehold_archive_moved_total").increment(archived.moved as u64);
            metrics::counter!("leasehold_archive_tombstones_cleared_total").increment(archived.cleared as u64);
            metrics::counter!("leasehold_archive_stale_copies_total").increment(archived.stale as u64);
            metrics::counter!("leasehold_archive_left_bodies_total").increment(archived.bodies as u64);
            metrics::counter!("leasehold_archive_left_total").increment(archived.left as u64);
            if let Some(why) = archived.obstacle {
                report.add_faults(archived.left.max(1), ManagerError::Store(StoreError::Unavailable(why)));
            }
            if !archived.more {
                return Ok(report);
            }
        }
        report.unfinished = true;
        Ok(report)
    }
}
