//! Notifications: every receiver gets a message about an event at least once, whichever process dies meanwhile.
//!
//! The write that records an event also puts a notice into the job's outbox ([`crate::job::event`]). From there:
//!
//! 1. the [`outbox`] is handed on: for each notice and receiver a delivery is submitted, a job of the system's own
//!    queue, under an id that only this notice and receiver have; then the notice is taken out of the outbox. Done
//!    twice, the first half changes nothing; so a crash between the two costs nothing.
//! 2. the [`delivery`] is run as any job is, by a worker within this process: with a lease, attempts and a backoff.
//!    When the attempts are used up it has failed, and lies there as the dead letter, to be looked at and retried. Of
//!    the receivers' hosts none takes all places.
//!
//! [`subscriptions`] are receivers of events of any job or schedule ([`event`]). Schedules have outboxes as well, which
//! the scheduler empties as it goes over its schedules ([`schedules`]). The [`handover`] is the same for both.

mod config;
pub mod delivery;
pub mod event;
mod handover;
mod outbox;
pub mod schedules;
pub mod subscriptions;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use config::NotifyConfig;
pub use delivery::{KIND, QUEUE};
pub use event::SubscribableEvent;
pub use schedules::ScheduleNotifier;
pub use subscriptions::{NewSubscription, Subscription, SubscriptionError, Subscriptions};

use crate::clock::Clock;
use crate::executor::{Hosts, HttpExecutor};
use crate::manager::Manager;
use crate::store::{Store, StoreError};
use crate::worker::in_process::SystemQueue;
use crate::worker::{Handler, Stop, StopHandle};
use delivery::Deliver;
use outbox::Outbox;

/// How long deliveries may take to end at a shutdown before they are released.
const DRAIN: Duration = Duration::from_secs(2);

/// The running notifier of one process. Each of several processes may have one. It ends at once when it is dropped:
/// deliveries that are under way then are made anew by another one, after a lease has ended.
pub struct Notifier {
    subscriptions: Arc<Subscriptions>,
    config: NotifyConfig,
    stopping: CancellationToken,
    worker: StopHandle,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Notifier {
    /// Starts the notifier.
    ///
    /// # Errors
    /// Returns an error when the subscriptions cannot be read, since events would be missed without them.
    pub async fn start(
        manager: Manager,
        store: Arc<dyn Store>,
        clock: Arc<dyn Clock>,
        executor: HttpExecutor,
        config: NotifyConfig,
    ) -> Result<Self, StoreError> {
        let policy = executor.policy().clone();
        let subscriptions = Subscriptions::load(store.clone(), manager.clone(), clock.clone(), policy).await?;
        let subscriptions = Arc::new(subscriptions);
        let stopping = CancellationToken::new();
        let outbox = Outbox {
            manager: manager.clone(),
            store,
            clock: clock.clone(),
            subscriptions: subscriptions.clone(),
            config: config.clone(),
        };
        let hosts = Hosts::new(config.concurrency, config.concurrency / 2);
        // Calls of schedules take none of these places.
        let executor = executor.with_own_places(config.concurrency.max(1));
        let deliver = Deliver { executor, hosts, subscriptions: subscriptions.clone(), clock, config: config.clone() };
        let slots = config.concurrency;
        let queue = SystemQueue { role: "notifier", queue: QUEUE, slots, drain: DRAIN };
        let handlers: [(_, Arc<dyn Handler>); 1] = [(KIND, Arc::new(deliver))];
        let worker = StopHandle::default();
        let tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(outbox.run(stopping.clone()))),
            AbortOnDropHandle::new(tokio::spawn(queue.work(manager, handlers, worker.clone()))),
        ];
        Ok(Self { subscriptions, config, stopping, worker, tasks })
    }

    /// Returns the subscriptions.
    #[must_use]
    pub fn subscriptions(&self) -> &Arc<Subscriptions> {
        &self.subscriptions
    }

    /// Returns what notifies receivers of the events of schedules.
    #[must_use]
    pub fn of_schedules(&self) -> ScheduleNotifier {
        ScheduleNotifier::new(self.subscriptions.clone(), self.config.clone())
    }

    /// Stops the notifier. Deliveries that are under way end or are released.
    pub async fn shutdown(self) {
        self.stopping.cancel();
        self.worker.request(Stop::Drain);
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a part of the notifier has failed");
            }
        }
    }
}
