//! The manager: the only writer of jobs. (Signatures only on this branch.)
#![expect(clippy::todo, clippy::unused_async, unused_variables, reason = "signatures only on this branch")]
#![expect(missing_docs, reason = "signatures only on this branch")]
pub mod request;

use std::sync::Arc;
use std::time::Duration;

pub use request::{
    Caller, ClaimRequest, Finish, Heartbeat, HeartbeatAnswer, JobView, ManagerError, NewJob, Outcome, QueueStatus,
    Submitted,
};

use crate::clock::Clock;
use crate::job::{AdminRelease, JobId, WorkerId};
use crate::query::{Filter, Group, GroupField, Search};
use crate::store::{Store, StoreError, Versioned};

/// The manager's settings.
#[derive(Clone, Debug, Default)]
pub struct ManagerConfig {
    pub poll_interval: Duration,
    pub candidates_per_queue: usize,
}

/// Cheap to clone: clones share everything.
#[derive(Clone)]
pub struct Manager {}

/// Claimed jobs on their way to the worker. Dropped before [`Claimed::delivered`], they are given back at once, attempt
/// and all, unless the claim named a request id under which the worker can find them again.
pub struct Claimed {}

impl Claimed {
    /// The jobs claimed; none when none came in time.
    pub fn jobs(&self) -> &[JobView] {
        todo!()
    }
    /// The answer is on its way: the jobs are the worker's.
    pub fn delivered(self) {
        todo!()
    }
}

impl Manager {
    /// Starts a manager and its background tasks on the current tokio runtime.
    pub fn start(store: Arc<dyn Store>, clock: Arc<dyn Clock>, config: ManagerConfig) -> Self {
        todo!()
    }
    /// Submits jobs; answers in order. A repeated key or id in one call is answered as in two.
    pub async fn submit(&self, caller: &Caller, jobs: Vec<NewJob>) -> Vec<Result<Submitted, ManagerError>> {
        todo!()
    }
    /// Claims up to `max_jobs`, waiting up to `wait` for the first. Cancel-safe: a dropped call takes no job.
    pub async fn claim(&self, request: ClaimRequest) -> Result<Claimed, ManagerError> {
        todo!()
    }
    pub async fn heartbeat(
        &self,
        worker: &WorkerId,
        beats: Vec<Heartbeat>,
    ) -> Vec<Result<HeartbeatAnswer, ManagerError>> {
        todo!()
    }
    /// Completes, fails or releases attempts; answers in order with the job as it is then.
    pub async fn finish(&self, worker: &WorkerId, finishes: Vec<Finish>) -> Vec<Result<Versioned, ManagerError>> {
        todo!()
    }
    pub async fn cancel(&self, caller: &Caller, id: &JobId, reason: Option<String>) -> Result<Versioned, ManagerError> {
        todo!()
    }
    /// Starts a failed, cancelled or expired job again.
    pub async fn retry(&self, caller: &Caller, id: &JobId) -> Result<Versioned, ManagerError> {
        todo!()
    }
    /// Ends a running job's lease without its worker.
    pub async fn admin_release(&self, id: &JobId, order: AdminRelease) -> Result<Versioned, ManagerError> {
        todo!()
    }
    /// Gives every running job back, attempt and all: for the start of a process that owns its store alone, whose
    /// former workers died with it. Returns how many.
    pub async fn reclaim_all(&self, reason: &str) -> Result<usize, ManagerError> {
        todo!()
    }
    /// The job with its bodies, read in real time; `ManagerError::NotFound` when there is none.
    pub async fn get(&self, id: &JobId) -> Result<JobView, ManagerError> {
        todo!()
    }
    /// As [`Manager::get`], once the job is final or the time is up.
    pub async fn wait(&self, id: &JobId, wait: Duration) -> Result<JobView, ManagerError> {
        todo!()
    }
    /// Adds the bodies that are kept apart to jobs just written or read.
    pub async fn view(&self, jobs: Vec<Versioned>) -> Result<Vec<JobView>, ManagerError> {
        todo!()
    }
    pub async fn search(&self, search: &Search) -> Result<Vec<Versioned>, ManagerError> {
        todo!()
    }
    pub async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, ManagerError> {
        todo!()
    }
    /// Every queue that has jobs, in the order of their names.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>, ManagerError> {
        todo!()
    }
    pub async fn ready(&self) -> Result<(), StoreError> {
        todo!()
    }
    /// How many waiting claims there are now (for tests and metrics).
    pub fn waiting_claims(&self) -> usize {
        todo!()
    }
    /// Answers waiting claims with nothing and refuses new ones; other calls still work.
    pub fn stop_claims(&self) {
        todo!()
    }
    /// Ends the background tasks, finishes the writes and closes the store.
    pub async fn shutdown(&self) {
        todo!()
    }
}
