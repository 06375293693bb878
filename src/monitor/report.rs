//! What a run of a scan did.

use super::rules::Action;
use crate::clock::Timestamp;
use crate::job::OrphanPolicy;
use crate::manager::ManagerError;

/// The results of one run of a scan.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of jobs that were read.
    pub looked_at: usize,
    /// The number of jobs that were found to take longer than expected.
    pub overdue: usize,
    /// The number of jobs that were flagged as orphans.
    pub flagged: usize,
    /// The number of jobs that were taken from a lost worker under the policy to requeue them.
    pub requeued: usize,
    /// The number of jobs that were taken from a lost worker under the policy to fail them.
    pub failed: usize,
    /// The number of jobs of lost workers that are held until an administrator decides.
    pub held: usize,
    /// The number of attempts that had exceeded their time limit.
    pub timed_out: usize,
    /// The number of jobs that no worker had started by their start deadline.
    pub expired: usize,
    /// The number of jobs that a clock had written that was ahead, and that were let run when they were meant to.
    pub moved_up: usize,
    /// The number of jobs that were removed.
    pub removed: usize,
    /// The number of jobs that were moved to the archive.
    pub moved: usize,
    /// The number of history entries that were written to the audit.
    pub audited: usize,
    /// When the oldest job that the run should have changed, and did not, became due; `None` when there is none.
    pub behind_since: Option<Timestamp>,
    /// Whether the run left jobs for the next run, because there are more than one run reads.
    pub unfinished: bool,
    /// The number of jobs that could not be changed, and the error of the first; `None` when there were none.
    pub fault: Option<(usize, ManagerError)>,
}

impl Report {
    /// Returns the number of jobs that were recovered, under any orphan policy.
    #[must_use]
    pub const fn recovered(&self) -> usize {
        self.requeued + self.failed + self.held
    }

    /// Counts an action that was written, also as a metric.
    pub(super) fn count(&mut self, action: Action, policy: OrphanPolicy) {
        let (counter, number) = match action {
            Action::Expire => ("leasehold_expired_total", &mut self.expired),
            Action::MoveUp => ("leasehold_moved_up_total", &mut self.moved_up),
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
        self.add_faults(1, error);
    }

    /// Records that `count` more jobs could not be changed, and why.
    pub(super) fn add_faults(&mut self, count: usize, error: ManagerError) {
        let (many, _) = self.fault.get_or_insert((0, error));
        *many += count;
    }

    /// Records that a job has waited for its change since `at`.
    pub(super) fn is_behind_since(&mut self, at: Option<Timestamp>) {
        self.behind_since = self.behind_since.into_iter().chain(at).min();
    }
}
