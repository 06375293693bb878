//! The manager: the only writer of jobs.
//!
//! It decides with the job's pure transitions and writes through the store under the version it decided on. In reading
//! order: [`request`] (what it is asked), [`submit`], [`claim`] and [`dispatch`] (how a job finds its worker),
//! [`update`] (the one compare-and-swap loop, for heartbeats, finishes, cancellations), [`read`], [`known`] (what it
//! remembers of its own writes), [`oversee`] (what the monitor asks of it), [`refill`] (how candidates come back from the store).

mod claim;
mod dispatch;
mod known;
mod oversee;
mod read;
mod refill;
pub mod request;
mod submit;
mod update;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use claim::Claimed;
pub use request::{
    Caller, ClaimRequest, Finish, Heartbeat, HeartbeatAnswer, JobView, ManagerError, NewJob, Outcome, QueueStatus,
    Submitted,
};

use crate::clock::Clock;
use crate::job::EventName;
use crate::store::Store;
use claim::Deliveries;
use dispatch::{Dispatch, DispatchConfig};
use known::Known;
use read::Watchers;

/// The manager's settings.
#[derive(Clone, Debug)]
pub struct ManagerConfig {
    /// How often a queue with waiting workers is looked up in a store that others write to as well. Not used on a
    /// store that is this process's own.
    pub poll_interval: Duration,
    /// How many candidates are kept in memory for each queue.
    pub candidates_per_queue: usize,
}

impl Default for ManagerConfig {
    fn default() -> Self {
        Self { poll_interval: Duration::from_millis(500), candidates_per_queue: 10_000 }
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
    known: Known,
    deliveries: Mutex<Deliveries>,
    watchers: Watchers,
    /// The events that somebody wants to be told of, whichever job they happen to.
    wanted: RwLock<BTreeSet<EventName>>,
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
    /// Starts a manager and its background task on the current tokio runtime.
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
            known: Known::new(!realtime),
            deliveries: Mutex::default(),
            watchers: Watchers::default(),
            wanted: RwLock::default(),
            caught_up: OnceCell::new(),
            no_claims: CancellationToken::new(),
            stopping: CancellationToken::new(),
            tasks: TaskTracker::new(),
            store,
            clock,
        });
        let background = Arc::clone(&shared);
        shared.spawn(async move { background.keep_filled().await });
        Self { shared }
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
