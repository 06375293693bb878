//! A store that is a map: a model of what a shared store may do, with the faults that a seed makes up.
//!
//! Several processes have one model, each through a [`Handle`] of its own. Searches lag, calls take time and fail, and
//! a process can be killed or stand still between any two of its calls. All of that goes by tokio's time, which a test
//! pauses, and by seeds: there is no clock, thread or socket. The conformance suite (`tests/integration/store.rs`)
//! holds for the model as for the engines; filters are evaluated by the library, as the embedded engine does.

mod calls;
mod conforming;
mod faults;
mod shelf;
mod state;
mod statistics;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;

pub(crate) use conforming::Alone;
pub(crate) use faults::Odds;
use faults::{Course, Faults, refusal};
use leasehold::job::Job;
use leasehold::store::{RecordKind, StoreError};
pub(crate) use state::Seen;
use state::State;

/// Whether a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Runs,
    /// Its calls wait until it runs again.
    Frozen,
    /// Its calls never return.
    Dead,
}

/// The documents of all processes.
#[derive(Clone)]
pub(crate) struct Model {
    state: Arc<Mutex<State>>,
}

impl Model {
    /// A model with nothing in it, whose searches show a write after `lag` or a part of it.
    pub(crate) fn new(lag: Duration) -> Self {
        Self { state: Arc::new(Mutex::new(State::new(lag))) }
    }

    /// A way to the model for one process.
    pub(crate) fn handle(&self, odds: Odds, seed: u64) -> Arc<Handle> {
        Arc::new(Handle {
            state: Arc::clone(&self.state),
            faults: Mutex::new(Faults::new(odds, seed)),
            life: watch::Sender::new(Life::Runs),
            closed: watch::Sender::new(false),
        })
    }

    /// Has each write of a job seen at the moment at which it is made: the job before and after it.
    pub(crate) fn watch(&self, see: impl FnMut(Option<&Arc<Job>>, Option<&Arc<Job>>) -> Seen + Send + 'static) {
        self.state.lock().watch(Box::new(see));
    }

    /// What was seen that must not be, if anything was.
    pub(crate) fn violation(&self) -> Option<String> {
        self.state.lock().violation.clone()
    }

    /// All jobs as they are, by id.
    pub(crate) fn jobs(&self) -> Vec<Arc<Job>> {
        self.state.lock().jobs.all().map(|(_, job)| Arc::clone(job)).collect()
    }

    /// Makes the model a worse one, which a simulation has to notice.
    pub(crate) fn spoil(&self, spoilt: Spoilt) {
        self.state.lock().spoilt = Some(spoilt);
    }
}

/// What a model can do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spoilt {
    /// Writes of jobs are made whatever version is there.
    ConflictsOfJobs,
    /// The same for writes of records of a kind.
    ConflictsOfRecords(RecordKind),
    /// One in so many writes of jobs is acknowledged and not made.
    LostWrites(u64),
}

/// One process's way to the model.
pub(crate) struct Handle {
    state: Arc<Mutex<State>>,
    faults: Mutex<Faults>,
    life: watch::Sender<Life>,
    closed: watch::Sender<bool>,
}

impl Handle {
    /// Ends the process: what it has sent may still arrive, and nothing returns to it.
    pub(crate) fn kill(&self) {
        self.life.send_replace(Life::Dead);
    }

    /// Stops the process where it is, or lets it go on.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        let life = if is_frozen { Life::Frozen } else { Life::Runs };
        self.life.send_if_modified(|now| {
            let changes = *now != Life::Dead && *now != life;
            if changes {
                *now = life;
            }
            changes
        });
    }

    /// Waits while the process stands still, and for ever once it is dead.
    pub(crate) async fn lives(&self) {
        let mut life = self.life.subscribe();
        // The sender is this handle's own.
        drop(life.wait_for(|life| *life == Life::Runs).await);
    }

    /// Returns once the process is dead.
    pub(crate) async fn dies(&self) {
        let mut life = self.life.subscribe();
        drop(life.wait_for(|life| *life == Life::Dead).await);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.life.borrow() == Life::Dead
    }

    /// Comes before each call: its way to the store.
    async fn go(&self) -> Result<Course, StoreError> {
        self.lives().await;
        self.check_open()?;
        let course = self.faults.lock().next();
        if let Some(kind) = course.refusal {
            tokio::time::sleep(course.there).await;
            self.lives().await;
            return Err(refusal(kind));
        }
        Ok(course)
    }

    fn check_open(&self) -> Result<(), StoreError> {
        match *self.closed.borrow() {
            true => Err(StoreError::Unavailable("the store is closed".to_owned())),
            false => Ok(()),
        }
    }

    /// Reads at one moment.
    async fn read<T>(&self, read: impl FnOnce(&mut State) -> T) -> Result<T, StoreError> {
        let course = self.go().await?;
        tokio::time::sleep(course.there).await;
        let found = read(&mut self.state.lock());
        tokio::time::sleep(course.back).await;
        self.lives().await;
        Ok(found)
    }
}
