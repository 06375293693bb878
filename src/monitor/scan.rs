//! Finding jobs that something is to be done about, and doing it.
//!
//! A scan asks for jobs whose `watch_at` has come, page by page, and hands those with something to do to the manager,
//! which reads each anew right before it writes. Pages, and pages a run, are bounded; the next run goes on where a run
//! had to stop.

use std::collections::HashMap;

use parking_lot::Mutex;

use super::audit::{Audited, Auditor};
use super::config::{MonitorConfig, Retention};
use super::rules::{Action, Rules, Suspicion, decide};
use crate::clock::Timestamp;
use crate::job::{Change, Job, JobId, JobState, OrphanPolicy};
use crate::manager::{Manager, ManagerError};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey, SortValue};

/// How many jobs one page holds.
pub(super) const PAGE: usize = 1_000;
/// How many pages one run looks through.
const MAX_PAGES: usize = 20;
/// How many things are done about one job in a run.
const MAX_STEPS: usize = 3;

/// Earliest first.
const ORDER: Sort = Sort::By(SortField::WatchAt, Direction::Ascending);

/// What is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Everything that is to be done about a job that has not ended.
    Watch,
    /// Leases that are over: the part of it that somebody waits for.
    Recovery,
    /// Jobs that ended long ago.
    Retention,
    /// What has happened and is not in the audit yet.
    Audit,
    /// Settled jobs that still lie among the live ones.
    Archive,
}

impl Scan {
    /// Every scan.
    pub const ALL: [Self; 5] = [Self::Watch, Self::Recovery, Self::Retention, Self::Archive, Self::Audit];

    /// The word for it, in metrics and the log.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Watch => "watch",
            Self::Recovery => "recovery",
            Self::Retention => "retention",
            Self::Audit => "audit",
            Self::Archive => "archive",
        }
    }

    fn filter(self, now: Timestamp) -> Filter {
        let states = match self {
            Self::Recovery => vec![JobState::Running],
            Self::Watch | Self::Retention | Self::Archive | Self::Audit => Vec::new(),
        };
        Filter { states, watch_at_most: Some(now), ..Filter::default() }
    }

    const fn does(self, action: Action) -> bool {
        match self {
            Self::Watch => true,
            Self::Recovery => matches!(action, Action::Recover | Action::Flag(Suspicion::LeaseExpired)),
            Self::Retention | Self::Archive | Self::Audit => false,
        }
    }
}

/// What a run came to.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// How many jobs were looked at.
    pub looked_at: usize,
    /// How many were found to take longer than expected.
    pub overdue: usize,
    /// How many were flagged as orphans.
    pub flagged: usize,
    /// How many were taken from a lost worker to be tried again, if attempts were left.
    pub requeued: usize,
    /// How many were taken from a lost worker for good.
    pub failed: usize,
    /// How many were left to a person.
    pub held: usize,
    /// How many attempts had taken longer than they may.
    pub timed_out: usize,
    /// How many nobody had started in time.
    pub expired: usize,
    /// How many were removed.
    pub removed: usize,
    /// How many were moved to where ended jobs are kept.
    pub moved: usize,
    /// Since when the oldest waits of those about which something is still to be done.
    pub behind_since: Option<Timestamp>,
    /// Whether there is more than one run looks at.
    pub unfinished: bool,
    /// What could not be done: for how many jobs, and why for the first.
    pub fault: Option<(usize, ManagerError)>,
}

impl Report {
    /// How many jobs were recovered, one way or another.
    #[must_use]
    pub const fn recovered(&self) -> usize {
        self.requeued + self.failed + self.held
    }

    fn count(&mut self, action: Action, policy: OrphanPolicy) {
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

    fn faults(&self) -> usize {
        self.fault.as_ref().map_or(0, |(many, _)| *many)
    }

    pub(super) fn add_fault(&mut self, error: ManagerError) {
        let (many, _) = self.fault.get_or_insert((0, error));
        *many += 1;
    }

    fn is_behind_since(&mut self, at: Timestamp) {
        self.behind_since = Some(self.behind_since.map_or(at, |earliest| earliest.min(at)));
    }
}

/// The scans, over one manager.
pub struct Scans {
    pub(super) manager: Manager,
    pub(super) rules: Rules,
    policy: OrphanPolicy,
    pub(super) retention: Retention,
    pub(super) idempotency_window: std::time::Duration,
    auditor: Option<Auditor>,
    /// Where the next run of a scan goes on.
    resume: Mutex<HashMap<Scan, SortKey>>,
}

impl Scans {
    /// The scans of a configuration, on a store that is this process's own or one that others write to as well.
    #[must_use]
    pub fn new(manager: Manager, config: &MonitorConfig, own_store: bool) -> Self {
        Self {
            manager,
            rules: Rules::of(config, own_store),
            policy: config.orphan_policy,
            retention: config.retention,
            idempotency_window: config.idempotency_window,
            auditor: None,
            resume: Mutex::default(),
        }
    }

    /// The same, which keep an audit.
    #[must_use]
    pub fn with_audit(mut self, auditor: Auditor) -> Self {
        self.auditor = Some(auditor);
        self
    }

    /// Runs a scan once.
    ///
    /// # Errors
    /// When jobs cannot be searched for. What was done until then is done.
    pub async fn run_once(&self, scan: Scan, now: Timestamp) -> Result<Report, ManagerError> {
        self.run_while(scan, now, &|| true).await
    }

    /// Runs a scan once, for as long as it may act.
    pub(super) async fn run_while(
        &self,
        scan: Scan,
        now: Timestamp,
        may_act: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Report, ManagerError> {
        match scan {
            Scan::Watch | Scan::Recovery => self.watch(scan, now, may_act).await,
            Scan::Retention => self.retain(now, may_act).await,
            Scan::Audit => self.audit(now, may_act).await,
            Scan::Archive => self.archive(now, may_act).await,
        }
    }

    async fn audit(&self, now: Timestamp, may_act: &(dyn Fn() -> bool + Send + Sync)) -> Result<Report, ManagerError> {
        let Some(auditor) = &self.auditor else { return Ok(Report::default()) };
        let Audited { jobs, unfinished, .. } = auditor.run(now, may_act).await?;
        Ok(Report { looked_at: jobs, unfinished, ..Report::default() })
    }

    async fn watch(
        &self,
        scan: Scan,
        now: Timestamp,
        may_act: &(dyn Fn() -> bool + Send + Sync),
    ) -> Result<Report, ManagerError> {
        // What becomes of a job hangs on the rules of its queue.
        self.manager.know_queues().await?;
        let after = self.resume.lock().remove(&scan);
        let mut search = Search { filter: scan.filter(now), sort: ORDER, after, limit: PAGE };
        let mut report = Report::default();
        for _ in 0..MAX_PAGES {
            let page = self.manager.search(&search).await?;
            report.looked_at += page.len();
            let due: Vec<&Job> =
                page.iter().map(|found| &*found.job).filter(|job| self.due(scan, job, now).is_some()).collect();
            if !may_act() {
                return Ok(report);
            }
            let faults = report.faults();
            self.act(scan, due.iter().map(|job| job.id.clone()).collect(), now, &mut report).await;
            if let Some(waiting_since) = due.first().and_then(|job| job.watch_at()).filter(|_| report.faults() > faults)
            {
                report.is_behind_since(waiting_since);
            }
            let last = page.last().filter(|_| page.len() == PAGE);
            let Some(last) = last.map(|found| ORDER.key(&found.job)) else { return Ok(report) };
            search.after = Some(last);
        }
        report.unfinished = true;
        if let Some(after) = search.after {
            if let [SortValue::Integer(Some(at))] = *ORDER.values(&after) {
                report.is_behind_since(Timestamp::from_millis(at));
            }
            self.resume.lock().insert(scan, after);
        }
        Ok(report)
    }

    /// What this scan does about a job now.
    fn due(&self, scan: Scan, job: &Job, now: Timestamp) -> Option<Action> {
        decide(job, now, &self.rules).filter(|action| scan.does(*action))
    }

    /// What becomes of a job whose lease is over: its own rule goes first, then its queue's.
    fn policy(&self, job: &Job) -> OrphanPolicy {
        let own = job.spec.oversight.orphan_policy;
        own.or_else(|| self.manager.orphan_policy_of(&job.spec.queue)).unwrap_or(self.policy)
    }

    /// Does what is to be done about these jobs, and what is to be done after that.
    async fn act(&self, scan: Scan, mut ids: Vec<JobId>, now: Timestamp, report: &mut Report) {
        for _ in 0..MAX_STEPS {
            if ids.is_empty() {
                return;
            }
            ids = self.act_once(scan, ids, now, report).await;
        }
    }

    /// Gives the jobs that something more is to be done about.
    async fn act_once(&self, scan: Scan, ids: Vec<JobId>, now: Timestamp, report: &mut Report) -> Vec<JobId> {
        // The last decision on a job is the one that was written: every conflict brings a new one.
        let decided: Mutex<HashMap<JobId, Action>> = Mutex::default();
        let decide_anew = |job: &Job, now: Timestamp| {
            let Some(action) = self.due(scan, job, now) else {
                decided.lock().remove(&job.id);
                return Ok(Change::Already);
            };
            let change = action.apply(job, &self.rules, self.policy(job), rand::random(), now)?;
            match &change {
                Change::To(_) => decided.lock().insert(job.id.clone(), action),
                Change::Already => decided.lock().remove(&job.id),
            };
            Ok(change)
        };
        let results = self.manager.change_each(&ids, decide_anew).await;
        let decided = decided.into_inner();
        let mut again = Vec::new();
        for (id, result) in ids.into_iter().zip(results) {
            match result {
                Ok(written) => {
                    if let Some(action) = decided.get(&id) {
                        report.count(*action, self.policy(&written.job));
                    }
                    if self.due(scan, &written.job, now).is_some() {
                        again.push(id);
                    }
                }
                // It moved on between the search and the read.
                Err(ManagerError::Refused(_) | ManagerError::NotFound(_)) => {}
                Err(error) => report.add_fault(error),
            }
        }
        again
    }
}
