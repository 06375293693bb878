//! Finds the jobs that need an action, and takes it.
//!
//! A scan searches for jobs whose `watch_at` has passed, page by page, and gives those that need an action to the
//! manager, which reads each again right before it writes. Pages, and pages in a run, are bounded; the next run
//! continues where a run had to stop.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::audit::Auditor;
use super::config::{MonitorConfig, Retention};
use super::keeper::Keeper;
use super::pages::{MayAct, Pages};
use super::report::Report;
use super::rules::{Action, Rules, Suspicion, decide};
use super::vigil::Vigil;
use crate::clock::{AwakeInstant, AwakeTime, Timestamp};
use crate::job::{Change, Job, JobId, JobState, OrphanPolicy, QueueName};
use crate::manager::{Manager, ManagerError};
use crate::query::{Direction, Filter, Search, Sort, SortField, SortKey};

/// The most pages that one run reads.
const MAX_PAGES: usize = 20;
/// How far ahead scans for expired leases look in a shared store that have found nothing, and how long none follows
/// then. A lease that is written meanwhile expires later than that, and is taken from its worker after a grace.
const REST: Duration = Duration::from_secs(3);
/// The most actions that one run takes on one job.
const MAX_ACTIONS: usize = 3;

/// A scan, named by what it searches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scan {
    /// Jobs that have not ended and need any action.
    Watch,
    /// Leases that have expired: the part of [`Self::Watch`] that runs more often, since workers wait for it.
    Recovery,
    /// Jobs that ended longer ago than they are kept.
    Retention,
    /// Transitions that are not in the audit yet.
    Audit,
    /// Settled jobs that are still in the live index.
    Archive,
}

impl Scan {
    /// Every scan.
    pub const ALL: [Self; 5] = [Self::Watch, Self::Recovery, Self::Retention, Self::Archive, Self::Audit];

    /// Returns the scan's name in metrics and the log.
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
        let states = if self == Self::Recovery { vec![JobState::Running] } else { Vec::new() };
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

/// How a look through jobs has ended.
enum End {
    /// Nothing may be done now.
    Held,
    /// The last page of the run was looked through.
    Through {
        /// When the last job was to be checked.
        reached: Option<Timestamp>,
        /// Whether a job is to be looked at again: it runs, or something was to be done.
        is_open: bool,
    },
}

/// How far the look at jobs that were written ahead of this clock has come.
#[derive(Clone, Default)]
struct LookAhead {
    /// The key after which the next run continues.
    after: Option<SortKey>,
    /// Whether a job was found since the first page that is to be looked at again.
    is_open: bool,
    /// Whether all was looked through and nothing is to be looked at again, until something else is written ahead.
    rests: bool,
    /// By what the look began.
    course: Option<Course>,
    /// When a run was last.
    at: Timestamp,
}

/// Why scans for expired leases are left out for a while.
#[derive(Clone, Default)]
struct Rest {
    /// Whether the last one found nothing.
    was_empty: bool,
    /// The times between which no lease expires.
    between: Option<(Timestamp, Timestamp)>,
}

/// What a look at jobs that were written ahead of this clock goes by; another one finds other jobs, or does more.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Course {
    written_until: Option<Timestamp>,
    in_order_since: AwakeInstant,
    is_far_off: bool,
}

/// The scans of one monitor.
pub struct Scans {
    pub(super) manager: Manager,
    pub(super) rules: Rules,
    policy: OrphanPolicy,
    pub(super) retention: Retention,
    pub(super) queue_retention: BTreeMap<QueueName, Duration>,
    pub(super) idempotency_window: Duration,
    pub(super) keeper: Option<Arc<dyn Keeper>>,
    auditor: Option<Auditor>,
    /// The awake time of the monitors before this one.
    vigil: Arc<Vigil>,
    /// The key after which the next run of a scan continues.
    resume: Mutex<HashMap<Scan, SortKey>>,
    /// The look at jobs that were written ahead of this clock.
    ahead: Mutex<LookAhead>,
    /// Whether a search costs other processes something, so that none is made in vain.
    is_shared: bool,
    rest: Mutex<Rest>,
}

impl Scans {
    /// Creates the scans of a configuration, for a store that only this process writes to, or for a shared one.
    #[must_use]
    pub fn new(manager: Manager, config: &MonitorConfig, own_store: bool) -> Self {
        Self {
            manager,
            rules: Rules::of(config, own_store),
            policy: config.orphan_policy,
            retention: config.retention,
            queue_retention: config.queue_retention.clone(),
            idempotency_window: config.idempotency_window,
            keeper: None,
            auditor: None,
            vigil: Arc::default(),
            resume: Mutex::default(),
            ahead: Mutex::default(),
            is_shared: !own_store,
            rest: Mutex::default(),
        }
    }

    /// Returns the scans as those of a monitor that follows others.
    #[must_use]
    pub fn following(mut self, vigil: Arc<Vigil>) -> Self {
        self.vigil = vigil;
        self
    }

    /// Returns the scans with the audit added.
    #[must_use]
    pub fn with_audit(mut self, auditor: Auditor) -> Self {
        self.auditor = Some(auditor);
        self
    }

    /// Runs a scan once.
    ///
    /// # Errors
    /// Returns the store's error when jobs cannot be searched. Actions taken before the error remain.
    pub async fn run_once(&self, scan: Scan, now: Timestamp) -> Result<Report, ManagerError> {
        self.run_while(scan, now, &|| true).await
    }

    /// Runs a scan once, for as long as it may act: every decision on a job asks anew.
    ///
    /// # Errors
    /// The errors of [`Scans::run_once`].
    pub async fn run_while(&self, scan: Scan, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, ManagerError> {
        match scan {
            Scan::Watch | Scan::Recovery => self.watch(scan, now, may_act).await,
            // What is removed or moved by a wrong time is not there again.
            Scan::Retention | Scan::Archive if self.manager.clock_is_far_off() => Ok(Report::default()),
            Scan::Retention => self.retain(now, may_act).await,
            Scan::Archive => self.archive(now, may_act).await,
            Scan::Audit => match &self.auditor {
                Some(auditor) => Ok(auditor.run(now, may_act).await?),
                None => Ok(Report::default()),
            },
        }
    }

    async fn watch(&self, scan: Scan, now: Timestamp, may_act: MayAct<'_>) -> Result<Report, ManagerError> {
        // A queue's own orphan policy decides what happens to its jobs.
        self.manager.know_queues().await?;
        let mut report = Report::default();
        if scan == Scan::Recovery && self.is_shared && self.rests(now).await? {
            return Ok(report);
        }
        if scan == Scan::Watch {
            self.look_ahead(now, may_act, &mut report).await?;
        }
        let after = self.resume.lock().remove(&scan);
        let mut pages = Pages::of(scan.filter(now), SortField::WatchAt, MAX_PAGES).after(after);
        let End::Through { reached, .. } = self.look_through(&mut pages, scan, now, may_act, &mut report).await? else {
            return Ok(report);
        };
        if let Some(key) = pages.rest() {
            report.unfinished = true;
            report.is_behind_since(reached);
            self.resume.lock().insert(scan, key.clone());
        }
        if scan == Scan::Recovery {
            self.rest.lock().was_empty = report.looked_at == 0;
        }
        Ok(report)
    }

    /// Returns whether no lease has expired, since none was to when that was last looked for.
    async fn rests(&self, now: Timestamp) -> Result<bool, ManagerError> {
        let Rest { was_empty, between } = self.rest.lock().clone();
        if between.is_some_and(|(from, until)| from <= now && now < until) || !was_empty {
            return Ok(was_empty);
        }
        let until = now.plus(REST);
        let sort = Sort::By(SortField::WatchAt, Direction::Ascending);
        let next = Search { filter: Scan::Recovery.filter(until), sort, after: None, limit: 1 };
        let was_empty = self.manager.search(&next).await?.is_empty();
        *self.rest.lock() = Rest { was_empty, between: was_empty.then_some((now, until)) };
        Ok(was_empty)
    }

    /// Acts on the jobs that were written ahead of this clock, whose next check is to come as well: on so many in one
    /// run, and goes on with the others in the next one. Where this process alone writes and none of them can need
    /// anything any more, it rests.
    async fn look_ahead(&self, now: Timestamp, may_act: MayAct<'_>, report: &mut Report) -> Result<(), ManagerError> {
        let Some((future, states)) = self.rules_now().written_ahead(now) else { return Ok(()) };
        let course = Course {
            written_until: self.manager.written_until(),
            in_order_since: self.manager.awake().in_order_since(),
            is_far_off: self.manager.clock_is_far_off(),
        };
        if course.written_until.is_some_and(|until| until <= future) {
            *self.ahead.lock() = LookAhead::default();
            return Ok(());
        }
        let mut look = self.ahead.lock().clone();
        if look.course != Some(course) || now < look.at {
            look = LookAhead { course: Some(course), ..LookAhead::default() };
        }
        look.at = now;
        if !look.rests {
            let ahead = Filter { states, updated_after: Some(future), ..Filter::default() };
            let mut pages = Pages::of(ahead, SortField::UpdatedAt, MAX_PAGES).after(look.after.clone());
            // What nothing may be done about now is looked at again.
            if let End::Through { is_open, .. } =
                self.look_through(&mut pages, Scan::Watch, now, may_act, report).await?
            {
                look.is_open |= is_open;
                look.after = pages.rest().cloned();
                if look.after.is_none() {
                    look.rests = !look.is_open && course.written_until.is_some();
                    look.is_open = false;
                }
            }
        }
        *self.ahead.lock() = look;
        Ok(())
    }

    /// Acts on the jobs of these pages that need it.
    async fn look_through(
        &self,
        pages: &mut Pages,
        scan: Scan,
        now: Timestamp,
        may_act: MayAct<'_>,
        report: &mut Report,
    ) -> Result<End, ManagerError> {
        let (mut reached, mut is_open) = (None, false);
        while let Some(search) = pages.next() {
            let page = self.manager.search(search).await?;
            report.looked_at += page.len();
            pages.passed(&page);
            reached = page.last().and_then(|found| found.job.watch_at());
            let (rules, awake) = (self.rules_now(), self.awake_now());
            let jobs = page.iter().map(|found| &*found.job);
            let due: Vec<&Job> = jobs.filter(|job| Self::due(scan, job, (now, &awake), &rules).is_some()).collect();
            is_open |= !due.is_empty() || page.iter().any(|found| found.job.lease().is_some());
            if !may_act() {
                return Ok(End::Held);
            }
            // What is taken away from a worker waits for what the worker may have said.
            if !due.is_empty() && self.manager.has_lately_held_writes_back().await? {
                report.is_behind_since(due.first().and_then(|job| job.watch_at()));
                return Ok(End::Held);
            }
            let faults = report.faults();
            self.act(scan, due.iter().map(|job| job.id.clone()).collect(), now, may_act, report).await;
            if report.faults() > faults {
                report.is_behind_since(due.first().and_then(|job| job.watch_at()));
            }
        }
        Ok(End::Through { reached, is_open })
    }

    /// Returns the rules, as this machine's clock is now.
    fn rules_now(&self) -> Rules {
        self.rules.by_clock(self.manager.clock_offset())
    }

    /// Returns how much awake time has passed, by this process or those before it.
    fn awake_now(&self) -> AwakeTime {
        self.vigil.goes_on_with(self.manager.awake())
    }

    /// Returns the action that a scan takes on a job now.
    fn due(scan: Scan, job: &Job, (now, awake): (Timestamp, &AwakeTime), rules: &Rules) -> Option<Action> {
        decide(job, now, awake, rules).filter(|action| scan.does(*action))
    }

    /// Returns the orphan policy of a job. Its own policy takes precedence over its queue's.
    fn policy(&self, job: &Job) -> OrphanPolicy {
        let own = job.spec.oversight.orphan_policy;
        own.or_else(|| self.manager.orphan_policy_of(&job.spec.queue)).unwrap_or(self.policy)
    }

    /// Takes the action that each of these jobs needs, and those that follow from it.
    async fn act(&self, scan: Scan, mut ids: Vec<JobId>, now: Timestamp, may_act: MayAct<'_>, report: &mut Report) {
        for _ in 0..MAX_ACTIONS {
            if ids.is_empty() {
                return;
            }
            ids = self.act_once(scan, ids, now, may_act, report).await;
        }
    }

    /// Takes one action on each job, and returns the jobs that need another.
    async fn act_once(
        &self,
        scan: Scan,
        ids: Vec<JobId>,
        now: Timestamp,
        may_act: MayAct<'_>,
        report: &mut Report,
    ) -> Vec<JobId> {
        // The last decision on a job is the one that was written: every conflict brings a new one.
        let decided: Mutex<HashMap<JobId, Action>> = Mutex::default();
        let decide_anew = |job: &Job, now: Timestamp| {
            // The read that this decision rests on may have taken longer than the rest of the term.
            let (rules, awake) = (self.rules_now(), self.awake_now());
            let Some(action) = Self::due(scan, job, (now, &awake), &rules).filter(|_| may_act()) else {
                decided.lock().remove(&job.id);
                return Ok(Change::Already);
            };
            let change = action.apply(job, &rules, self.policy(job), rand::random(), (now, &awake))?;
            match &change {
                Change::To(_) => decided.lock().insert(job.id.clone(), action),
                Change::Already => decided.lock().remove(&job.id),
            };
            Ok(change)
        };
        let results = self.manager.change_each(&ids, decide_anew).await;
        let (decided, rules, awake) = (decided.into_inner(), self.rules_now(), self.awake_now());
        let mut again = Vec::new();
        for (id, result) in ids.into_iter().zip(results) {
            match result {
                Ok(written) => {
                    if let Some(action) = decided.get(&id) {
                        report.count(*action, self.policy(&written.job));
                    }
                    if Self::due(scan, &written.job, (now, &awake), &rules).is_some() {
                        again.push(id);
                    }
                }
                // The job changed between the search and the read.
                Err(ManagerError::Refused(_) | ManagerError::NotFound(_)) => {}
                Err(error) => report.add_fault(error),
            }
        }
        again
    }
}
