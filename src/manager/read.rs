//! Reading jobs: one job, its end, lists and counts.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::select_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::job::{Body, BodyId, BodyRef, JobId, Json};
use crate::query::stats::{MAX_ROWS, Stats, StatsRequest};
use crate::query::{Filter, Group, GroupField, Search};
use crate::store::{Refresh, StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::request::{JobView, ManagerError};

/// The time between two reads of a job while a call waits for its end, in a store that other processes write to as
/// well.
pub(super) const WAIT_POLL: Duration = Duration::from_secs(1);

/// The calls that wait for news of a job, such as its end.
#[derive(Default)]
pub(super) struct Watchers {
    jobs: Mutex<HashMap<JobId, (Arc<Notify>, usize)>>,
}

impl Watchers {
    /// Wakes the calls that wait for news of this job.
    pub(super) fn wake(&self, id: &JobId) {
        let jobs = self.jobs.lock();
        if let Some((notify, _)) = jobs.get(id) {
            notify.notify_waiters();
        }
    }

    pub(super) fn watch(&self, id: &JobId) -> Watch<'_> {
        let mut jobs = self.jobs.lock();
        let (notify, watching) = jobs.entry(id.clone()).or_default();
        *watching += 1;
        Watch { watchers: self, id: id.clone(), notify: Arc::clone(notify) }
    }
}

/// A call that waits for news of a job. Dropping it removes it from the waiting calls.
pub(super) struct Watch<'a> {
    watchers: &'a Watchers,
    id: JobId,
    notify: Arc<Notify>,
}

impl Watch<'_> {
    /// Waits for the next news.
    pub(super) fn news(&self) -> Notified<'_> {
        self.notify.notified()
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        let mut jobs = self.watchers.jobs.lock();
        if let Some((_, watching)) = jobs.get_mut(&self.id) {
            *watching -= 1;
            if *watching == 0 {
                jobs.remove(&self.id);
            }
        }
    }
}

impl Manager {
    /// Returns the job with its bodies, read in real time.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is no such job; otherwise the store's error.
    pub async fn get(&self, id: &JobId) -> Result<JobView, ManagerError> {
        let found = self.shared.store.get(std::slice::from_ref(id)).await?.pop().flatten();
        let versioned = found.ok_or_else(|| ManagerError::NotFound(id.clone()))?;
        self.shared.work.known.learn(&versioned);
        self.view(vec![versioned]).await?.pop().ok_or_else(|| ManagerError::NotFound(id.clone()))
    }

    /// Waits until the job has ended, for `wait` at most, and returns it as [`Manager::get`] does.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is no such job; otherwise the store's error.
    pub async fn wait(&self, id: &JobId, wait: Duration) -> Result<JobView, ManagerError> {
        let found = self.wait_for_any(std::slice::from_ref(id), wait).await?.pop().flatten();
        let versioned = found.ok_or_else(|| ManagerError::NotFound(id.clone()))?;
        self.view(vec![versioned]).await?.pop().ok_or_else(|| ManagerError::NotFound(id.clone()))
    }

    /// Waits until one of the jobs has ended or does not exist, for `wait` at most and no longer than this manager
    /// runs, and returns them all as they are then, in the order of `ids`.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn wait_for_any(&self, ids: &[JobId], wait: Duration) -> Result<Vec<Option<Versioned>>, ManagerError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let deadline = Instant::now() + wait;
        let watches: Vec<Watch<'_>> = ids.iter().map(|id| self.shared.end_watchers.watch(id)).collect();
        let poll = if self.shared.store.is_exclusive() { wait } else { WAIT_POLL };
        // Bounded by the deadline: each turn waits for news or for the poll.
        loop {
            let mut ends: Vec<_> = watches.iter().map(|watch| Box::pin(watch.news())).collect();
            // Listening before reading, so that an end between the two is not missed.
            for end in &mut ends {
                end.as_mut().enable();
            }
            let found = self.shared.store.get(ids).await?;
            found.iter().flatten().for_each(|versioned| self.shared.work.known.learn(versioned));
            let now = Instant::now();
            let has_ended =
                |found: &Option<Versioned>| found.as_ref().is_none_or(|found| found.job.state.name().is_final());
            if found.iter().any(has_ended) || now >= deadline {
                return Ok(found);
            }
            tokio::select! {
                _ = select_all(ends) => {}
                () = tokio::time::sleep_until(deadline.min(now + poll)) => {}
                () = self.shared.stopping.cancelled() => return Ok(found),
            }
        }
    }

    /// Reads the bodies that are stored apart from these jobs, and returns the jobs with them.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn view(&self, jobs: Vec<Versioned>) -> Result<Vec<JobView>, ManagerError> {
        let apart: Vec<BodyRef> = jobs.iter().flat_map(|found| found.job.stored_bodies()).copied().collect();
        let bodies: HashMap<BodyId, Json> = if apart.is_empty() {
            HashMap::new()
        } else {
            let read = self.shared.store.bodies(&apart).await?;
            apart.iter().zip(read).filter_map(|(reference, json)| Some((reference.id, json?))).collect()
        };
        let body = |body: &Body| match body {
            Body::Empty => None,
            Body::Inline(json) => Some(json.clone()),
            Body::Stored(reference) => bodies.get(&reference.id).cloned(),
        };
        let view = |versioned: Versioned| JobView {
            payload: body(&versioned.job.payload),
            result: body(versioned.job.result()),
            versioned,
        };
        Ok(jobs.into_iter().map(view).collect())
    }

    /// Searches for jobs.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn search(&self, search: &Search) -> Result<Vec<Versioned>, ManagerError> {
        Ok(self.shared.store.search(search).await?)
    }

    /// Makes every acknowledged write visible to searches with this filter.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn refresh(&self, filter: &Filter) -> Result<(), ManagerError> {
        Ok(self.shared.store.refresh(Refresh::Jobs(filter)).await?)
    }

    /// Counts jobs by group, the largest group first.
    ///
    /// # Errors
    /// Returns the store's error.
    pub async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, ManagerError> {
        Ok(self.shared.store.count(filter, by).await?)
    }

    /// Computes statistics about jobs.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when the result would have too many rows; otherwise the store's error.
    pub async fn stats(&self, request: &StatsRequest) -> Result<Stats, ManagerError> {
        let stats = self.shared.store.stats(request).await?;
        stats.ok_or_else(|| ManagerError::Invalid {
            field: if request.over.is_some() { "interval" } else { "by" },
            message: format!(
                "makes more than {MAX_ROWS} rows, or ones that take too much memory: ask for fewer jobs, or coarser"
            ),
        })
    }

    /// Checks whether the store can serve requests.
    ///
    /// # Errors
    /// Returns why the store cannot serve requests.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.shared.store.ready().await
    }
}
