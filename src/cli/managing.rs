//! What a process does beside answering calls: it manages jobs, notifies, performs schedules and monitors. A process on
//! a store of its own does so for as long as it lives, and a member of a group while it leads.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use tokio::time::timeout;

use super::failure::Failure;
use super::notify::{self, Notifications};
use crate::api::access::Access;
use crate::api::{AppState, Limits};
use crate::clock::{AwakeInstant, Clock};
use crate::executor::HttpExecutor;
use crate::manager::{Manager, ManagerConfig};
use crate::monitor::{Monitor, MonitorConfig, MonitorWatch};
use crate::notify::Notifier;
use crate::peers::{PeerClient, PeerSecret, Teller};
use crate::scheduler::{OutcomeKeeper, Scheduler, SchedulerConfig, Schedules};
use crate::store::{LeadershipMark, Store};

/// How long a manager may take to end that is not waited for.
const ABANDONED_WITHIN: Duration = Duration::from_secs(2);

/// What a process does beside answering calls.
pub(super) struct Duties {
    /// Whether it monitors jobs.
    pub(super) oversees: bool,
    /// How it performs schedules, if it does.
    pub(super) performs: Option<SchedulerConfig>,
}

/// What the duties are done with.
pub(super) struct Means {
    pub(super) duties: Duties,
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Arc<dyn Clock>,
    /// The address by which the other managers of the store reach this one; `None` where they do not call each other.
    pub(super) address: Option<Arc<str>>,
    /// The secret that these managers share.
    pub(super) peer_secret: Option<PeerSecret>,
    pub(super) notifications: Notifications,
    pub(super) executor: HttpExecutor,
    pub(super) oversight: MonitorConfig,
    /// How long a job may be held before it is counted as held for long.
    pub(super) held_bound: Duration,
}

/// What is served of them.
pub(super) struct Shown {
    pub(super) access: Access,
    pub(super) metrics: PrometheusHandle,
    pub(super) limits: Limits,
    /// The process's configuration for its health page, which holds nothing secret.
    pub(super) configuration: serde_json::Value,
}

/// The running duties.
pub(super) struct Managing {
    manager: Manager,
    schedules: Schedules,
    notifier: Notifier,
    scheduler: Option<Scheduler>,
    monitor: Option<Monitor>,
    /// The look at the monitors of other processes, where this one has none.
    _watch: Option<MonitorWatch>,
    peers: Option<PeerClient>,
    teller: Option<Teller>,
}

impl Means {
    /// Returns the mark of this moment, for a manager that is started after it.
    pub(super) fn mark(&self) -> LeadershipMark {
        self.store.mark()
    }

    /// Starts a manager, for [`Self::start`].
    pub(super) fn manager(&self) -> Manager {
        let audit = self.oversight.audit_period.is_some();
        let (address, held_bound) = (self.address.clone(), self.held_bound);
        let config = ManagerConfig { address, audit, held_bound, ..ManagerConfig::default() };
        Manager::start(Arc::clone(&self.store), Arc::clone(&self.clock), config)
    }

    /// Starts what the process does with this manager. `leads_since` is the moment at which the process took the
    /// store over from another one, if it did. Whoever gives this up on the way retires the manager.
    pub(super) async fn start(&self, manager: Manager, leads_since: Option<AwakeInstant>) -> Result<Managing, Failure> {
        let (store, clock) = (&self.store, &self.clock);
        let client = |secret: PeerSecret| PeerClient::new(secret, self.address.as_deref(), Arc::clone(clock));
        let peers = self.peer_secret.clone().map(client).transpose().map_err(Failure::failed)?;
        let teller = peers.clone().map(|peers| Teller::start(manager.clone(), peers));
        let executor = self.executor.clone();
        let policy = executor.policy().clone();
        let calls = executor.clone();
        let notifier =
            notify::start(&self.notifications, calls, &manager, Arc::clone(store), Arc::clone(clock)).await?;
        let schedules = Schedules::new(manager.clone(), Arc::clone(store), Arc::clone(clock), policy);
        let schedules = schedules.notifying(notifier.of_schedules());
        let scheduler = self.duties.performs.map(|config| Scheduler::start(&schedules, executor, config));
        let monitor = match self.duties.oversees {
            false => None,
            true => {
                let keeper = Arc::new(OutcomeKeeper::new(manager.clone(), Arc::clone(store)));
                let config = MonitorConfig { leads_since, ..self.oversight.clone() };
                let (store, clock) = (Arc::clone(store), Arc::clone(clock));
                let started = Monitor::start(manager.clone(), store, clock, config, Some(keeper)).await;
                Some(started.map_err(|error| Failure::Usage(error.to_string()))?)
            }
        };
        let watch = || MonitorWatch::start(manager.clone(), Arc::clone(&self.store));
        let _watch = (!self.duties.oversees).then(watch);
        Ok(Managing { manager, schedules, notifier, scheduler, monitor, _watch, peers, teller })
    }
}

impl Managing {
    /// Returns what the calls of the API are answered with.
    pub(super) fn state(&self, shown: &Shown) -> AppState {
        AppState {
            manager: self.manager.clone(),
            subscriptions: Some(self.notifier.subscriptions().clone()),
            schedules: Some(self.schedules.clone()),
            access: shown.access.clone(),
            peers: self.peers.clone(),
            metrics: shown.metrics.clone(),
            limits: shown.limits.clone(),
            configuration: shown.configuration.clone(),
        }
    }

    /// Returns its manager.
    pub(super) fn manager(&self) -> &Manager {
        &self.manager
    }

    /// Ends everything in good order. The store stays open.
    pub(super) async fn shutdown(self) {
        self.wind_down().await.retire().await;
    }

    /// Ends everything but the manager, which it returns, in good order.
    pub(super) async fn wind_down(self) -> Manager {
        let Self { manager, notifier, scheduler, monitor, teller, .. } = self;
        // The monitor's last changes cause notifications as well.
        if let Some(monitor) = monitor {
            monitor.shutdown().await;
        }
        if let Some(scheduler) = scheduler {
            scheduler.shutdown().await;
        }
        notifier.shutdown().await;
        if let Some(teller) = teller {
            teller.shutdown().await;
        }
        manager
    }

    /// Ends everything at once, for a process that may not write to the store any more. The jobs of the system's own
    /// that are under way are done anew elsewhere, after their leases.
    pub(super) async fn abandon(self) {
        let Self { manager, notifier, scheduler, monitor, teller, .. } = self;
        drop((notifier, scheduler, teller));
        if let Some(monitor) = monitor {
            monitor.abandon().await;
        }
        retire(&manager).await;
    }
}

/// Ends a manager whose writes are refused by now, or will be.
pub(super) async fn retire(manager: &Manager) {
    if timeout(ABANDONED_WITHIN, manager.retire()).await.is_err() {
        tracing::debug!("calls of a manager that has ended are still under way");
    }
}
