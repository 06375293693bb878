//! The manager: the only writer of jobs.
//!
//! It decides with the job's pure transitions and writes through the store under the version it decided on. In
//! reading order:
//!
//! 1. [`request`] – what callers pass in and get back; [`claimant`] – who claims, and jobs on their way to them.
//! 2. [`work`] – how jobs change: submit, claim, update, bulk changes.
//! 3. [`dispatch`] – where jobs and waiting workers meet, and how candidates come back from the store.
//! 4. [`limits`] – how many jobs of a queue, kind, owner or key run at once.
//! 5. [`unique`] – of the jobs of a key, at most one waits or runs; [`sweep`] – records that nobody needs.
//! 6. [`lines`] – the jobs of a key run one after another.
//! 7. [`members`] – the managers that share a store, and its jobs; [`hints`] – what they tell each other of them.
//! 8. [`admin`] – queue settings, orphans, and what the monitor does; [`audit_entry`] and [`audit`] – what the audit
//!    has of it, written and read.
//! 9. [`observe`] – live events, workers, statistics, explanations.
//! 10. [`read`] – one job, its end, lists, counts, queues; [`output`] – what its attempts wrote.
//! 11. [`changes`] – which of what each manager keeps in memory another one has changed.
//! 12. [`sessions`] – who has signed in at the web page.

mod admin;
mod announced;
mod audit;
mod audit_change;
pub(crate) mod audit_entry;
mod changes;
mod claimant;
mod dispatch;
mod hints;
mod limits;
mod lines;
mod members;
mod observe;
mod output;
pub(crate) mod own;
mod read;
mod replay;
pub mod request;
mod sessions;
mod sweep;
mod turns;
mod unique;
mod work;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use admin::orphans::{ORPHAN_ORDER, OrphanAction, OrphanEvidence, OrphanNext, OrphanedJob};
pub use admin::queue_settings::{Fairness, JobOrder, MAX_WEIGHT, MAX_WEIGHTS, Pause, QueueChange, QueueSettings};
pub use audit::{AuditEventName, AuditQuery};
pub use audit_change::{AuditChange, ChangeName};
pub use changes::Topic;
pub use claimant::Claimed;
pub use hints::{Hint, MAX_HINTED_BYTES, MAX_HINTED_JOBS, Other, Outgoing};
pub use limits::{LimitSettings, LimitState, NewLimit, Rate, SlotHolder, Urgent};
pub use observe::events::{EventFeed, EventFilter, EventId, EventsFrom, FeedItem, JobEvent};
pub use observe::explain::{Explanation, Reason};
pub use observe::insight::{Insights, KindCounts, Quantiles, Tally, WINDOW};
pub use observe::queues::Queue;
pub use observe::survey::{Survey, SurveyState, SurveyedQueue};
pub use observe::throughput::Throughput;
pub use observe::workers::{SeenElsewhere, Worker, WorkerStatuses};
pub use output::{AttemptChoice, AttemptOutput, OutputFrom, OutputPiece, StreamOutput};
pub use replay::{RecordedJob, replay};
pub use request::{
    Caller, ClaimOrder, ClaimRequest, Duplicate, Finish, Heartbeat, HeartbeatAnswer, JobView, MAX_CLAIMED_KINDS,
    MAX_QUEUE_WEIGHT, ManagerError, NewJob, OnDuplicate, Outcome, QueueOrder, QueueWeights, Reach, Submitted,
};
pub use sessions::{MAX_SESSIONS, SESSION_LASTS, Session, SessionKey, Sessions};
pub use work::bulk::{BULK_ORDER, BulkAction, BulkOrder, BulkPreview, BulkSelection};
pub(crate) use work::claim::NOT_DELIVERED;
pub use work::in_pages::{BULK_PAGE, BulkBounds, BulkReport};
pub(crate) use work::in_pages::{BULK_SAMPLE, Fate, InPages};
pub use work::recalls::{Recall, RecallReason};

use crate::clock::{AwakeTime, Clock, Offset, Timestamp, in_words};
use crate::job::UniqueKey;
use crate::store::{Hang, Store};
use admin::oversight::MonitorSeen;
use admin::queue_settings::QueueSettingsCache;
use admin::scan_troubles::ScanTroubles;
use changes::Changes;
use dispatch::{Dispatch, DispatchConfig};
use hints::Hints;
use limits::{LimitSettingsCache, Limits};
use lines::Lines;
use members::Membership;
use observe::Observations;
use output::Outputs;
use read::Watchers;
use turns::KeyTurns;
use work::Work;

/// The manager's settings.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// The time between two searches for a queue with waiting claims, in a store that other processes write to as
    /// well.
    pub poll_interval: Duration,
    /// The most candidates kept in memory for each queue.
    pub candidates_per_queue: usize,
    /// The time between two counts of the store's jobs for the gauges.
    pub survey_interval: Duration,
    /// How long a job may be held before it is counted as held for long.
    pub held_bound: Duration,
    /// Whether an audit is kept, in which the removal of jobs on request has to stand.
    pub audit: bool,
    /// The address by which the other managers of the store reach this one; `None` where they do not call each other.
    pub address: Option<Arc<str>>,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(500),
            candidates_per_queue: 10_000,
            survey_interval: Duration::from_secs(15),
            held_bound: Duration::from_secs(24 * 3600),
            audit: false,
            address: None,
        }
    }
}

/// The job manager. Cheap to clone: all clones share one state.
#[derive(Clone)]
pub struct Manager {
    shared: Arc<ManagerState>,
}

pub(crate) struct ManagerState {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    own_ids: own::OwnIds,
    work: Work,
    dispatch: Dispatch,
    members: Membership,
    changes: Changes,
    hints: Hints,
    queue_settings: QueueSettingsCache,
    limits: Limits,
    /// The turns of calls at unique keys.
    unique: KeyTurns<UniqueKey>,
    lines: Lines,
    observe: Observations,
    keeps_audit: bool,
    scan_troubles: ScanTroubles,
    monitor_seen: MonitorSeen,
    outputs: Outputs,
    end_watchers: Watchers,
    /// Cancelled when the manager shuts down.
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// What is not done by a time that is far off.
const NOT_DONE_FAR_OFF: &str = "no job expires or is removed, no job is handed out that waits for a named time, and \
                                schedules perform nothing";

/// By how much a clock has to be set back for it to be said.
const WORTH_SAYING: Duration = Duration::from_secs(5);

/// The most candidates that one search over a network returns.
const REMOTE_PAGE: usize = 2_000;

impl Manager {
    /// Starts a manager and its background tasks on the current tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, config: ManagerConfig) -> Self {
        let (realtime, exclusive) = (store.has_realtime_search(), store.is_exclusive());
        let dispatch = DispatchConfig {
            capacity: config.candidates_per_queue,
            page: if exclusive { config.candidates_per_queue } else { REMOTE_PAGE },
            poll_interval: (!exclusive).then_some(config.poll_interval),
        };
        let (limits, slot_requests) = Limits::new(LimitSettingsCache::new(Arc::clone(&store)));
        let (lines, order_requests) = Lines::new();
        let shared = Arc::new(ManagerState {
            lines,
            limits,
            unique: KeyTurns::default(),
            work: Work::new(!realtime),
            dispatch: Dispatch::new(dispatch, Arc::clone(&clock)),
            members: Membership::default(),
            changes: Changes::default(),
            hints: Hints::new(config.address),
            queue_settings: QueueSettingsCache::new(Arc::clone(&store)),
            keeps_audit: config.audit,
            scan_troubles: ScanTroubles::default(),
            monitor_seen: MonitorSeen::default(),
            observe: Observations::new(!exclusive, clock.now()),
            own_ids: own::OwnIds::default(),
            outputs: Outputs::new(store.outputs()),
            end_watchers: Watchers::default(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            store,
            clock,
        });
        let manager = Self { shared };
        let [
            filling,
            surveying,
            looking,
            listing,
            meeting,
            limiting,
            unique,
            ordering,
            lines,
            swept,
            recalling,
            noting,
            signing,
            slots,
            urgent,
        ] = [(); 15].map(|()| manager.clone());
        let tasks = &manager.shared.tasks;
        tasks.spawn(async move { filling.keep_filled().await });
        tasks.spawn(async move { surveying.keep_surveyed(config.survey_interval).await });
        tasks.spawn(async move { looking.keep_looked_at(config.survey_interval, config.held_bound).await });
        tasks.spawn(async move { listing.keep_queues_known().await });
        tasks.spawn(async move { meeting.keep_members_known().await });
        tasks.spawn(async move { recalling.keep_recalled().await });
        tasks.spawn(urgent.keep_urgent_known());
        tasks.spawn(limiting.keep_limits(slot_requests));
        tasks.spawn(unique.keep_unique_keys());
        tasks.spawn(ordering.keep_order(order_requests));
        tasks.spawn(lines.keep_lines());
        tasks.spawn(swept.sweep_lines());
        tasks.spawn(slots.keep_slots_swept());
        tasks.spawn(signing.sweep_sessions());
        tasks.spawn(async move { noting.keep_steps_noted().await });
        manager
    }

    /// Returns statistics of this manager's work over the last five minutes, without reading the store.
    #[must_use]
    pub fn insights(&self) -> Insights {
        self.shared.observe.insight.insights(self.shared.clock.now())
    }

    /// Returns the latest counts of the store's jobs, without reading the store.
    #[must_use]
    pub fn survey(&self) -> SurveyState {
        self.shared.observe.surveys.state()
    }

    /// Returns how many documents of the store could not be read in the last minutes, without reading the store.
    #[must_use]
    pub fn unreadable(&self) -> usize {
        self.shared.store.unreadable()
    }

    /// Returns what of the store was left behind and dropped when it was opened, if anything was.
    #[must_use]
    pub fn dropped(&self) -> Option<String> {
        self.shared.store.dropped()
    }

    /// Returns the queues that had jobs when the store's jobs were last counted, without reading the store.
    #[must_use]
    pub fn surveyed_queues(&self) -> Arc<[SurveyedQueue]> {
        self.shared.observe.surveys.queues()
    }

    /// Returns why the store takes no more writes until the process is started again, and what can be done about it;
    /// `None` while it takes them.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        self.shared.store.stopped()
    }

    /// Returns how the store hangs, without asking it; `None` while it does not.
    #[must_use]
    pub fn hang(&self) -> Option<Hang> {
        self.shared.store.hang()
    }

    /// Returns which parts of the store are known to be out of order, without reading the store; `None` when none is.
    #[must_use]
    pub fn out_of_order(&self) -> Option<String> {
        self.shared.store.out_of_order()
    }

    /// Returns which months of the archive cannot be read, each as a sentence, without reading the store.
    #[must_use]
    pub fn unread_months(&self) -> Vec<String> {
        self.shared.store.unread_months()
    }

    /// Returns what shows that documents of the store cannot be read, or differ between its members, without reading
    /// it.
    #[must_use]
    pub fn unequal(&self) -> Option<String> {
        self.shared.store.unequal()
    }

    /// Returns how far this manager's clock may be from the store's; `None` when nobody compares the two.
    #[must_use]
    pub fn clock_offset(&self) -> Option<Offset> {
        self.shared.clock.offset()
    }

    /// Returns whether this manager's time is certainly so far off that nothing may be done by it that cannot be
    /// undone.
    #[must_use]
    pub fn clock_is_far_off(&self) -> bool {
        self.clock_offset().is_some_and(|offset| offset.is_far_off)
    }

    /// Returns the latest time that stands in the store as that of a change; `None` where nobody knows.
    #[must_use]
    pub fn written_until(&self) -> Option<Timestamp> {
        self.shared.store.written_until()
    }

    /// Returns that this machine's clock is further from the store's than clocks may differ, or that it was set back
    /// and is waited for, and what is not done meanwhile; `None` when neither is so.
    #[must_use]
    pub fn clock_is_off(&self) -> Option<String> {
        self.is_off().or_else(|| self.is_set_back())
    }

    /// Returns what is wrong with clocks and keeps this manager from nothing: those of the group's members are too far
    /// apart, this machine's is behind times that others have written, or the store has times that are to come. `None`
    /// when none of these is so.
    #[must_use]
    pub fn has_doubtful_times(&self) -> Option<String> {
        self.shared.clock.disagreement().or_else(|| self.is_ahead_of_machine()).or_else(|| self.has_times_to_come())
    }

    /// Returns that this manager goes by later times than this machine's clock shows, since others have written them.
    fn is_ahead_of_machine(&self) -> Option<String> {
        let by = Some(self.shared.clock.ahead_of_machine()).filter(|by| *by >= WORTH_SAYING)?;
        Some(format!(
            "another clock has written times up to {} ahead of this machine's: until this one has caught up, time \
             passes here at half the speed",
            in_words(by)
        ))
    }

    /// Returns that the store has times that are to come.
    fn has_times_to_come(&self) -> Option<String> {
        let by = Some(self.shared.clock.behind_written()).filter(|by| *by >= WORTH_SAYING)?;
        Some(format!(
            "the store has times up to {}, {} ahead of this machine's clock: either this clock is wrong now, and is to \
             be set right, or the one that has written them was. A schedule whose `next_due_at` is as far ahead \
             performs nothing until then; where this clock is right, unless it is put with another period and then \
             with its own again",
            self.shared.clock.now().plus(by),
            in_words(by)
        ))
    }

    /// Returns that this machine's clock was set back, and does not show the latest time again yet.
    fn is_set_back(&self) -> Option<String> {
        let by = Some(self.shared.clock.set_back_by()).filter(|by| *by >= WORTH_SAYING)?;
        Some(format!(
            "the clock of this machine was set back, and is {:.0} s behind the latest time that it has shown: due \
             times of schedules up to that time have been performed, and are not performed once more",
            by.as_secs_f64()
        ))
    }

    fn is_off(&self) -> Option<String> {
        let offset = self.clock_offset().filter(|offset| offset.is_off)?;
        if offset == Offset::FAR {
            return Some(format!(
                "this process goes by a time that is more than a minute from the clocks of most members: until it \
                 follows its machine's clock, or another member leads, {NOT_DONE_FAR_OFF}"
            ));
        }
        let (way, by) =
            if offset.ahead > offset.behind { ("ahead of", offset.ahead) } else { ("behind", offset.behind) };
        let by = by.as_secs_f64();
        let also = if offset.is_far_off { format!("; {NOT_DONE_FAR_OFF}") } else { String::new() };
        Some(format!(
            "the clock of this machine is {by:.1} s {way} the store's, more than clocks may differ \
             (`--clock-skew-ms`): until one of the two is set right, its monitor takes no job from a worker, and ends \
             none{also}"
        ))
    }

    /// Returns how much longer than its term a lease lasts that this manager writes.
    fn lease_margin(&self) -> Duration {
        self.clock_offset().map_or(Duration::ZERO, |offset| offset.behind)
    }

    /// Returns how much awake time has passed at which times by this manager's clock.
    #[must_use]
    pub fn awake(&self) -> AwakeTime {
        self.shared.clock.awake()
    }

    /// Returns the time by this manager's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Ends the background work, waits for all writes that are under way, and closes the store.
    pub async fn shutdown(&self) {
        self.retire().await;
        self.shared.store.close().await;
    }

    /// Ends the background work, and waits for all writes that are under way. The store stays open, for another
    /// manager.
    pub async fn retire(&self) {
        self.stop_claims();
        self.shared.stopping.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}
