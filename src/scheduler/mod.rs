//! The scheduler: turns schedules into jobs when they are due.
//!
//! 1. [`schedules`]: people create, change, pause and remove schedules, which are documents of the store, and [`bulk`]:
//!    many of them at once. What a change comes to is [`foreseen`] before it is written to the audit.
//! 2. The [`loader`] of each process looks ahead, and makes a [`trigger`] for every due time: a job of the system's
//!    own queue, under an id that only this schedule and due time have. Which schedules it loads follows from which
//!    partitions of that queue are its process's own, so that processes share them, and take over from one that is
//!    gone.
//! 3. A worker within the process claims triggers when they are due and [`perform`]s them: it reads the schedule as it
//!    is then, judges what became of earlier ones ([`overlap`]), and does the [`action`].
//! 4. [`outcomes`] tells what has become of each due time, and a [`backfill`] makes up for those that were not
//!    performed. When the monitor removes triggers by their age, [`keep`] notes the outcomes of each schedule's last
//!    ones in the schedule. [`troubles`] tells which schedules need somebody's care. What receivers are to be notified
//!    of is written with the schedule, and handed on by the loader.

mod action;
mod backfill;
mod bulk;
mod earlier;
mod foreseen;
mod keep;
mod lag;
mod loader;
mod outcomes;
mod overlap;
mod perform;
mod refusal;
pub mod schedules;
mod secrets;
pub mod trigger;
mod troubles;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

pub use backfill::{BackfillReport, MAX_DUE_TIMES, NewBackfill, StartedBackfill};
pub use bulk::{ScheduleAction, ScheduleOrder, SchedulePreview, ScheduleReport, ScheduleSelection};
pub use foreseen::Foreseen;
pub use keep::OutcomeKeeper;
pub use lag::SHARDS;
pub use outcomes::{DueTime, DueTimes};
pub use refusal::ScheduleError;
pub use schedules::{NewSchedule, Schedules, Stored};
pub use trigger::{Performed, Trigger};
pub use troubles::MAX_NAMED;

use crate::executor::{Hosts, HttpExecutor};
pub use crate::schedule::Outcome;
use crate::worker::in_process::SystemQueue;
use crate::worker::{Handler, Stop, StopHandle};
use action::Actions;
use backfill::RunBackfills;
use lag::Lags;
use loader::Loader;
use overlap::Overlaps;
use perform::Perform;

/// How long actions may take to end at a shutdown before their triggers are released.
const DRAIN: Duration = Duration::from_secs(10);
/// The part of the slots that triggers of backfills may take, so that there is always room for those that are due.
const BACKFILLED_PART: usize = 4;

/// How much a scheduler does at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// How many schedules are loaded at a time: their triggers are made with one call, and then they are written with
    /// one.
    pub page: usize,
    /// How many triggers are performed at once.
    pub slots: usize,
    /// How many of them may call one host, while that leaves as many for others.
    pub places: usize,
}

impl Default for SchedulerConfig {
    fn default() -> Self {
        Self { page: 1_000, slots: 512, places: 128 }
    }
}

/// The running scheduler of one process. Each of several processes may have one. It ends at once when it is dropped:
/// what is under way then is done anew by another one, after a lease has ended.
pub struct Scheduler {
    stopping: CancellationToken,
    worker: StopHandle,
    tasks: Vec<AbortOnDropHandle<()>>,
}

impl Scheduler {
    /// Starts the scheduler of these schedules.
    #[must_use]
    pub fn start(schedules: &Schedules, executor: HttpExecutor, config: SchedulerConfig) -> Self {
        let SchedulerConfig { page, slots, places } = config;
        let Schedules { manager, store, clock, changed, notifier, troubles, .. } = schedules.clone();
        let loader = Loader {
            manager: manager.clone(),
            store: store.clone(),
            clock: clock.clone(),
            changed,
            page,
            lags: Lags::new(),
            notifier: notifier.clone(),
            troubles: troubles.clone(),
            rest: Mutex::default(),
        };
        let actions = Actions { executor, hosts: Hosts::new(slots, places) };
        let overlaps = Overlaps { manager: manager.clone() };
        let (stopping, worker) = (CancellationToken::new(), StopHandle::default());
        let backfill = RunBackfills::new(manager.clone(), store.clone(), clock.clone(), stopping.clone());
        let backfills = Semaphore::new((slots / BACKFILLED_PART).max(1));
        let of_perform = manager.clone();
        let perform = Perform { manager: of_perform, store, clock, actions, overlaps, notifier, troubles, backfills };
        let handlers: [(_, Arc<dyn Handler>); 2] =
            [(trigger::KIND, Arc::new(perform)), (backfill::KIND, Arc::new(backfill))];
        let queue = SystemQueue { role: "scheduler", queue: trigger::QUEUE, slots, drain: DRAIN };
        let tasks = vec![
            AbortOnDropHandle::new(tokio::spawn(loader.run(stopping.clone()))),
            AbortOnDropHandle::new(tokio::spawn(queue.work(manager, handlers, worker.clone()))),
        ];
        Self { stopping, worker, tasks }
    }

    /// Stops the scheduler. Actions that are under way end, or their triggers are released.
    pub async fn shutdown(self) {
        self.stopping.cancel();
        self.worker.request(Stop::Drain);
        for task in self.tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a part of the scheduler has failed");
            }
        }
    }
}
