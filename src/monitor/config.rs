//! The monitor's settings.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::AwakeInstant;
use crate::job::{JobState, OrphanPolicy, QueueName};
use crate::store::Store;

/// When a scan runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The time from one run to the next, at least a second.
    Every(Duration),
    /// A cron expression with seconds, in UTC: `*/5 * * * * *`.
    Cron(String),
}

/// The monitor's settings. The default of a setting that is `None` depends on the store: a shared store has more than
/// one clock and more than one monitor.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorConfig {
    /// When jobs are checked for orphans, time limits and start deadlines.
    pub scans: Schedule,
    /// The time between scans for expired leases. A shorter one recovers jobs sooner; each scan costs one search in the
    /// index.
    pub recovery_period: Duration,
    /// The time between scans for jobs that ended longer ago than they are kept.
    pub retention_period: Duration,
    /// The time between moves of settled jobs to the archive, on a store that does not archive by itself.
    pub archive_period: Duration,
    /// How long a lease must have been expired before its job is recovered.
    pub orphan_grace: Duration,
    /// How far the clocks of two machines may differ; by default 5 s on a shared store, otherwise 0.
    pub clock_skew: Option<Duration>,
    /// The age at which a heartbeat is stale; by default, and at least, half the lease's term.
    pub heartbeat_stale: Option<Duration>,
    /// What happens to a job whose lease has expired, unless the job or its queue has a policy.
    pub orphan_policy: OrphanPolicy,
    /// How long ended jobs are kept.
    pub retention: Retention,
    /// How long the ended jobs of single queues are kept, where that is shorter.
    pub queue_retention: BTreeMap<QueueName, Duration>,
    /// How long a repeated submission returns the same job. No ended job is removed earlier.
    pub idempotency_window: Duration,
    /// The time between updates of the audit; `None` keeps no audit.
    pub audit_period: Option<Duration>,
    /// Whether the first update of the audit by this monitor copies every history again.
    pub audit_anew: bool,
    /// How long a leader may act without renewing its lease; by default 3 s where there may be other monitors.
    pub term: Option<Duration>,
    /// The moment at which this process took over a store that another one wrote to before, by its own awake time;
    /// `None` where there was none. Workers could not be heard for a while by then, so each lease counts as renewed at
    /// this moment.
    pub leads_since: Option<AwakeInstant>,
}

impl Default for MonitorConfig {
    fn default() -> Self {
        Self {
            scans: Schedule::Every(Duration::from_secs(5)),
            recovery_period: Duration::from_secs(1),
            retention_period: Duration::from_secs(600),
            archive_period: Duration::from_secs(60),
            orphan_grace: Duration::from_secs(2),
            clock_skew: None,
            heartbeat_stale: None,
            orphan_policy: OrphanPolicy::default(),
            retention: Retention::default(),
            queue_retention: BTreeMap::new(),
            idempotency_window: Duration::from_secs(24 * 3600),
            audit_period: None,
            audit_anew: false,
            term: None,
            leads_since: None,
        }
    }
}

/// The default clock skew on a shared store, where several machines write leases.
const SHARED_SKEW: Duration = Duration::from_secs(5);
/// A leader's term on a shared store, where another monitor could take over.
const SHARED_TERM: Duration = Duration::from_secs(3);
/// A leader's term where there is no other monitor: every renewal is a synced write, and no standby waits for its end.
const OWN_TERM: Duration = Duration::from_secs(60);

impl MonitorConfig {
    /// Returns how far the clocks of two machines may differ.
    #[must_use]
    pub fn skew(&self, own_store: bool) -> Duration {
        self.clock_skew.unwrap_or(if own_store { Duration::ZERO } else { SHARED_SKEW })
    }

    pub(super) fn term_on(&self, store: &dyn Store) -> Duration {
        self.term.unwrap_or(if store.is_exclusive() { OWN_TERM } else { SHARED_TERM })
    }
}

/// How long jobs are kept after their end, by their final state; `None` keeps them for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// How long completed jobs are kept.
    pub completed: Option<Duration>,
    /// How long failed jobs are kept.
    pub failed: Option<Duration>,
    /// How long cancelled jobs are kept.
    pub cancelled: Option<Duration>,
    /// How long expired jobs are kept.
    pub expired: Option<Duration>,
}

impl Retention {
    /// Keeps every job for ever.
    pub const FOR_EVER: Self = Self { completed: None, failed: None, cancelled: None, expired: None };

    /// Keeps the jobs of every state for the same time.
    #[must_use]
    pub const fn all(age: Option<Duration>) -> Self {
        Self { completed: age, failed: age, cancelled: age, expired: age }
    }

    /// Returns how long jobs in `state` are kept; `None` for a state that is not final.
    #[must_use]
    pub const fn of(&self, state: JobState) -> Option<Duration> {
        match state {
            JobState::Completed => self.completed,
            JobState::Failed => self.failed,
            JobState::Cancelled => self.cancelled,
            JobState::Expired => self.expired,
            JobState::Available | JobState::Running => None,
        }
    }
}

impl Default for Retention {
    fn default() -> Self {
        Self::all(Some(Duration::from_secs(30 * 24 * 3600)))
    }
}
