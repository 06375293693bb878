//! The monitor's settings.

use std::time::Duration;

use crate::job::{JobState, OrphanPolicy};
use crate::store::Store;

/// When something is done again and again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// After so long; a second at least.
    Every(Duration),
    /// As a cron expression with seconds says, in UTC: `*/5 * * * * *`.
    Cron(String),
}

/// The monitor's settings. What is `None` depends on the store: one that other machines write to as well has more than
/// one clock, and more than one monitor.
#[derive(Clone, Debug, PartialEq)]
pub struct MonitorConfig {
    /// When jobs are looked through for flags, time limits and start deadlines.
    pub scans: Schedule,
    /// How often jobs are recovered whose lease is over. What a recovery takes hangs on it, and it costs one search in
    /// an index.
    pub recovery_period: Duration,
    /// How often jobs are removed that ended long ago.
    pub retention_period: Duration,
    /// How often settled jobs are moved out of the live ones' way, where the store does not do so by itself.
    pub archive_period: Duration,
    /// How long a lease must have been over before its job is taken away.
    pub orphan_grace: Duration,
    /// How far the clocks of two machines may be apart; 5 s where there are several, 0 where there is one.
    pub clock_skew: Option<Duration>,
    /// How old a heartbeat looks abandoned; half the job's lease, and never less than that.
    pub heartbeat_stale: Option<Duration>,
    /// What becomes of a job whose lease is over, where neither it nor its queue says so.
    pub orphan_policy: OrphanPolicy,
    /// How long jobs are kept that have ended.
    pub retention: Retention,
    /// For how long a submission can be repeated and gives the same job: none is removed earlier.
    pub idempotency_window: Duration,
    /// How often the audit is brought up to date; no audit is kept when not said.
    pub audit_period: Option<Duration>,
    /// Whether the audit begins once more with all the histories there are, when this monitor first leads.
    pub audit_anew: bool,
    /// How long a leader may act without having renewed its lease; 3 s where there may be other monitors.
    pub term: Option<Duration>,
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
            idempotency_window: Duration::from_secs(24 * 3600),
            audit_period: None,
            audit_anew: false,
            term: None,
        }
    }
}

/// The clock skew allowed for where several machines write leases.
const SHARED_SKEW: Duration = Duration::from_secs(5);
/// A leader's term where another could take over.
const SHARED_TERM: Duration = Duration::from_secs(3);
/// A leader's term where there is no other: every renewal is a synced write, and nobody waits for its end.
const OWN_TERM: Duration = Duration::from_secs(60);

impl MonitorConfig {
    pub(super) fn skew(&self, own_store: bool) -> Duration {
        self.clock_skew.unwrap_or(if own_store { Duration::ZERO } else { SHARED_SKEW })
    }

    pub(super) fn term_on(&self, store: &dyn Store) -> Duration {
        self.term.unwrap_or(if store.is_exclusive() { OWN_TERM } else { SHARED_TERM })
    }
}

/// How long jobs are kept after their end, by the state they ended in; `None` is for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// Completed jobs.
    pub completed: Option<Duration>,
    /// Failed jobs.
    pub failed: Option<Duration>,
    /// Cancelled jobs.
    pub cancelled: Option<Duration>,
    /// Expired jobs.
    pub expired: Option<Duration>,
}

impl Retention {
    /// Everything is kept for ever.
    pub const FOR_EVER: Self = Self { completed: None, failed: None, cancelled: None, expired: None };

    /// The same for every state.
    #[must_use]
    pub const fn all(age: Option<Duration>) -> Self {
        Self { completed: age, failed: age, cancelled: age, expired: age }
    }

    /// How long jobs are kept that ended in `state`; for ever, when it is no final state.
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
