//! What a run of a scan did.

use super::rules::Action;
use crate::clock::Timestamp;
use crate::job::OrphanPolicy;
use crate::manager::ManagerError;

/// What a run of a scan did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of jobs that were read.
    pub looked_at: usize,
    /// The number of jobs that were found to take longer than expected.
    pub overdue: usize,
    /// The number of jobs that were flagged as orphans.
    pub flagged: usize,
    /// The number of jobs that were taken from a lost worker to be tried again, if attempts were left.
    pub requeued: usize,
    /// The number of jobs that were taken from a lost worker for good.
    pub failed: usize,
    /// The number of jobs of lost workers that were left to a person.
    pub held: usize,
    /// The number of attempts that had taken longer than they may.
    pub timed_out: usize,
    /// The number of jobs that no worker had started in time.
    pub expired: usize,
    /// The number of jobs that were removed.
    pub removed: usize,
    /// The number of jobs that were moved to the archive.
    pub moved: usize,
    /// The number of entries that were written to the audit.
    pub audited: usize,
    /// The time since which the oldest job waits that the run should have changed and did not.
    pub behind_since: Option<Timestamp>,
    /// Whether there are more jobs than one run reads.
    pub unfinished: bool,
    /// The number of jobs that could not be changed, and the error of the first.
    pub fault: Option<(usize, ManagerError)>,
}

impl Report {
    /// The number of jobs that were recovered, whatever became of them.
    #[must_use]
    pub const fn recovered(&self) -> usize {
        self.requeued + self.failed + self.held
    }

    /// Counts an action that was written, also as a metric.
    pub(super) fn count(&mut self, action: Action, policy: OrphanPolicy) {
        let (counter, number) = match action {
            Action::Expire => ("leasehold_expired_total", &mut self.expired),
            Action::TimeOut => ("leasehold_timeouts_total", &mut self.timed_out),
            Action::MarkOverdue => ("leasehold_overdue_total", &mut self.overdue),
            Action::Flag(_) => ("leasehold_orphans_flagged_total", &mut self.flagged),
            Action::Recover => {
                metrics::counter!("leasehold_recoveries_total", "policy" => policy.as_str()).increment(1);
                match policy {
                    OrphanPolicy::Requeue => self.requeued += 1,
                    OrphanPolicy::Fail => self.failed += 1,
                    OrphanPolicy::Flag => self.held += 1,
                }
                return;
            }
        };
        *number += 1;
        metrics::counter!(counter).increment(1);
    }

    pub(super) fn faults(&self) -> usize {
        self.fault.as_ref().map_or(0, |(many, _)| *many)
    }

    pub(super) fn add_fault(&mut self, error: ManagerError) {
        let (many, _) = self.fault.get_or_insert((0, error));
        *many += 1;
    }

    /// Notes that a job waits since `at`.
    pub(super) fn is_behind_since(&mut self, at: Option<Timestamp>) {
        self.behind_since = self.behind_since.into_iter().chain(at).min();
    }
}
