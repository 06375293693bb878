//! The manager: the only writer of jobs.
//!
//! It decides with the job's pure transitions and writes through the store under the version it decided on. In reading
//! order: [`request`] (what it is asked), [`submit`], [`claim`] and [`dispatch`] (how a job finds its worker), [`queues`]
//! (what is set for a queue), [`workers`] (who asks for jobs), [`throughput`] (how many end), [`explain`] (why a job does
//! not run),
//! [`update`] (the one compare-and-swap loop, for heartbeats, finishes, cancellations), [`read`], [`known`] (what it
//! remembers of its own writes), [`events`] (what has happened, for those who follow it), [`oversee`] (what the monitor
//! asks of it), [`untold`] (whose events are yet to be told), [`bulk`] and [`orphans`] (what administrators do), [`insight`]
//! and [`survey`] (what it knows of itself and the store without asking), [`refill`] (how candidates come back from the
//! store).

mod bulk;
mod claim;
mod dispatch;
mod events;
mod explain;
mod insight;
mod known;
mod orphans;
mod oversee;
mod queues;
mod read;
mod refill;
pub mod request;
mod submit;
mod survey;
mod throughput;
mod untold;
mod update;
mod workers;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use bulk::{BULK_ORDER, BULK_PAGE, BulkAction, BulkBounds, BulkOrder, BulkPreview, BulkReport, BulkSelection};
pub use claim::Claimed;
pub use events::{EventFeed, EventFilter, EventId, EventsFrom, JobEvent, Told};
pub use explain::{Explanation, Reason};
pub use insight::{Insights, KindCounts, Quantiles, Tally, WINDOW};
pub use orphans::{ORPHAN_ORDER, OrphanStatus, Prospect};
pub use queues::{Pause, QueueSettings};
pub use request::{
    Caller, ClaimRequest, Finish, Heartbeat, HeartbeatAnswer, JobView, ManagerError, NewJob, Outcome, QueueStatus,
    Submitted,
};
pub use survey::{Survey, SurveyState};
pub use throughput::Throughput;
pub use workers::{Leases, Sighting, WorkerStatus, WorkerStatuses};

use crate::clock::{Clock, Timestamp};
use crate::job::EventName;
use crate::store::Store;
use claim::Deliveries;
use dispatch::{Dispatch, DispatchConfig};
use events::Events;
use insight::Insight;
use known::Known;
use queues::Queues;
use read::Watchers;
use survey::Surveys;
use throughput::Ends;
use untold::Untold;
use workers::Workers;

/// The manager's settings.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// How often a queue with waiting workers is looked up in a store that others write to as well. Not used on a
    /// store that is this process's own.
    pub poll_interval: Duration,
    /// How many candidates are kept in memory for each queue.
    pub candidates_per_queue: usize,
    /// How often the jobs are counted for the gauges.
    pub survey_interval: Duration,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self {
            poll_interval: Duration::from_millis(500),
            candidates_per_queue: 10_000,
            survey_interval: Duration::from_secs(15),
        }
    }
}

/// The Job Management Service. Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Manager {
    shared: Arc<Shared>,
}

pub(in crate::manager) struct Shared {
    store: Arc<dyn Store>,
    clock: Arc<dyn Clock>,
    dispatch: Dispatch,
    queues: Queues,
    workers: Workers,
    ends: Ends,
    started_at: Timestamp,
    known: Known,
    deliveries: Mutex<Deliveries>,
    watchers: Watchers,
    events: Events,
    insight: Insight,
    surveys: Surveys,
    /// The events that somebody wants to be told of, whichever job they happen to.
    wanted: RwLock<BTreeSet<EventName>>,
    untold: Untold,
    /// Set once searches see everything that was written before this manager started.
    caught_up: OnceCell<()>,
    /// Claims are answered with nothing from then on.
    no_claims: CancellationToken,
    /// Everything ends.
    stopping: CancellationToken,
    tasks: TaskTracker,
}

/// How many candidates one search asks for where it goes over a network.
const REMOTE_PAGE: usize = 2_000;

impl Manager {
    /// Starts a manager and its background tasks on the current tokio runtime.
    #[must_use]
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, config: ManagerConfig) -> Self {
        let realtime = store.is_realtime();
        let dispatch = DispatchConfig {
            capacity: config.candidates_per_queue,
            page: if realtime { config.candidates_per_queue } else { REMOTE_PAGE },
            poll_interval: (!realtime).then_some(config.poll_interval),
        };
        let shared = Arc::new(Shared {
            dispatch: Dispatch::new(dispatch, Arc::clone(&clock)),
            queues: Queues::default(),
            workers: Workers::default(),
            ends: Ends::default(),
            started_at: clock.now(),
            known: Known::new(!realtime),
            deliveries: Mutex::default(),
            watchers: Watchers::default(),
            events: Events::new(!realtime),
            insight: Insight::new(clock.now()),
            surveys: Surveys::default(),
            wanted: RwLock::default(),
            untold: Untold::default(),
            caught_up: OnceCell::new(),
            no_claims: CancellationToken::new(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            store,
            clock,
        });
        let background = Arc::clone(&shared);
        shared.spawn(async move { background.keep_filled().await });
        let background = Arc::clone(&shared);
        shared.spawn(async move { background.keep_surveyed(config.survey_interval).await });
        let background = Arc::clone(&shared);
        shared.spawn(async move { background.keep_queues_known().await });
        Self { shared }
    }

    /// What this manager has seen of its work lately. Never asks the store.
    #[must_use]
    pub fn insights(&self) -> Insights {
        self.shared.insight.told(self.shared.clock.now())
    }

    /// How the store stood when it was last looked at. Never asks it.
    #[must_use]
    pub fn survey(&self) -> SurveyState {
        self.shared.surveys.state()
    }

    /// The time by this manager's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Ends the background work, lets what is being written finish, and closes the store.
    pub async fn shutdown(&self) {
        self.stop_claims();
        self.shared.stopping.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
        self.shared.store.close().await;
    }
}

impl Shared {
    /// Runs something that [`Manager::shutdown`] waits for.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }
}
