//! Reading: one job, its end, lists, counts, queues.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures::future::try_join_all;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::clock::Timestamp;
use crate::job::{Body, BodyId, BodyRef, JobId, JobState, Json, QueueName};
use crate::query::stats::{MAX_ROWS, Stats, StatsRequest};
use crate::query::{Direction, Filter, Group, GroupField, Search, Sort, SortField};
use crate::store::{StoreError, Versioned};

use crate::manager::Manager;
use crate::manager::admin::queue_settings::QueueSettings;
use crate::manager::observe::throughput::{self, Throughput};
use crate::manager::request::{JobView, ManagerError};

/// How often a job is read again while somebody waits for its end, where others write to the store too.
const WAIT_POLL: Duration = Duration::from_secs(1);

/// How many queues are asked for their oldest job at once.
const QUEUES_AT_ONCE: usize = 8;

/// How a queue stands.
#[derive(Clone, Debug)]
pub struct QueueStatus {
    /// Its name.
    pub name: QueueName,
    /// How many jobs are in each state, every state named.
    pub jobs: BTreeMap<JobState, u64>,
    /// Since when the longest-waiting due job could have been claimed, were the queue not paused.
    pub oldest_waiting_since: Option<Timestamp>,
    /// What is set for it.
    pub settings: QueueSettings,
    /// How many of its jobs have ended in the last one, five and fifteen minutes. On a store of the manager's own, since
    /// the manager was started.
    pub throughput: [Throughput; 3],
}

fn no_jobs() -> BTreeMap<JobState, u64> {
    JobState::ALL.iter().map(|state| (*state, 0)).collect()
}

/// Those who wait for a job's end.
#[derive(Default)]
pub(super) struct EndWatchers {
    jobs: Mutex<HashMap<JobId, (Arc<Notify>, usize)>>,
}

impl EndWatchers {
    /// The job has ended.
    pub(super) fn wake(&self, id: &JobId) {
        let jobs = self.jobs.lock();
        if let Some((notify, _)) = jobs.get(id) {
            notify.notify_waiters();
        }
    }

    fn watch(&self, id: &JobId) -> Watch<'_> {
        let mut jobs = self.jobs.lock();
        let (notify, watching) = jobs.entry(id.clone()).or_default();
        *watching += 1;
        Watch { watchers: self, id: id.clone(), notify: Arc::clone(notify) }
    }
}

/// One who waits; forgotten when dropped.
struct Watch<'a> {
    watchers: &'a EndWatchers,
    id: JobId,
    notify: Arc<Notify>,
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
    /// The job with its bodies, read in real time.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is none.
    pub async fn get(&self, id: &JobId) -> Result<JobView, ManagerError> {
        let found = self.shared.store.get(std::slice::from_ref(id)).await?.pop().flatten();
        let versioned = found.ok_or_else(|| ManagerError::NotFound(id.clone()))?;
        self.shared.work.known.learn(&versioned);
        self.view(vec![versioned]).await?.pop().ok_or_else(|| ManagerError::NotFound(id.clone()))
    }

    /// As [`Manager::get`], once the job has ended or the time is up.
    ///
    /// # Errors
    /// [`ManagerError::NotFound`] when there is none.
    pub async fn wait(&self, id: &JobId, wait: Duration) -> Result<JobView, ManagerError> {
        let deadline = Instant::now() + wait;
        let watch = self.shared.end_watchers.watch(id);
        let poll = if self.shared.store.is_exclusive() { wait } else { WAIT_POLL };
        // Bounded by the deadline: each turn waits for news or for the poll.
        loop {
            let told = watch.notify.notified();
            tokio::pin!(told);
            // Listening before reading, so that an end between the two is not missed.
            told.as_mut().enable();
            let view = self.get(id).await?;
            let now = Instant::now();
            if view.versioned.job.state.name().is_final() || now >= deadline {
                return Ok(view);
            }
            tokio::select! {
                () = told => {}
                () = tokio::time::sleep_until(deadline.min(now + poll)) => {}
                () = self.shared.stopping.cancelled() => return Ok(view),
            }
        }
    }

    /// Adds the bodies that are kept apart to jobs just written or read.
    ///
    /// # Errors
    /// The store's.
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

    /// Finds jobs.
    ///
    /// # Errors
    /// The store's.
    pub async fn search(&self, search: &Search) -> Result<Vec<Versioned>, ManagerError> {
        Ok(self.shared.store.search(search).await?)
    }

    /// Makes what was acknowledged visible to searches.
    ///
    /// # Errors
    /// The store's.
    pub async fn refresh(&self) -> Result<(), ManagerError> {
        Ok(self.shared.store.refresh().await?)
    }

    /// Counts jobs by group, most first.
    ///
    /// # Errors
    /// The store's.
    pub async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, ManagerError> {
        Ok(self.shared.store.count(filter, by).await?)
    }

    /// Reckons figures about jobs.
    ///
    /// # Errors
    /// [`ManagerError::Invalid`] when that makes more rows than are reckoned; the store's.
    pub async fn stats(&self, request: &StatsRequest) -> Result<Stats, ManagerError> {
        let stats = self.shared.store.stats(request).await?;
        stats.ok_or_else(|| ManagerError::Invalid {
            field: if request.over.is_some() { "interval" } else { "by" },
            message: format!(
                "makes more than {MAX_ROWS} rows, or ones that take too much memory: ask for fewer jobs, or coarser"
            ),
        })
    }

    /// Every queue that has jobs or settings of its own, in the order of their names.
    ///
    /// # Errors
    /// The store's.
    pub async fn queues(&self) -> Result<Vec<QueueStatus>, ManagerError> {
        self.know_queues().await?;
        let groups = self.shared.store.count(&Filter::default(), &[GroupField::Queue, GroupField::State]).await?;
        let mut queues: BTreeMap<QueueName, BTreeMap<JobState, u64>> =
            self.shared.queue_settings.queues().into_iter().map(|name| (name, no_jobs())).collect();
        for group in groups {
            let [Some(queue), Some(state)] = group.values.as_slice() else { continue };
            let corrupt = |what: &str| StoreError::Corrupt(format!("{what} in a count"));
            let name = QueueName::new(queue).map_err(|_| corrupt("a queue without a valid name"))?;
            let state: JobState = state.parse().map_err(|_| corrupt("an unknown state"))?;
            queues.entry(name).or_insert_with(no_jobs).insert(state, group.count);
        }
        let ended = self.throughput(None).await?;
        let mut answered = Vec::with_capacity(queues.len());
        let queues: Vec<_> = queues.into_iter().collect();
        for some in queues.chunks(QUEUES_AT_ONCE) {
            answered.extend(try_join_all(some.iter().map(|(name, jobs)| self.queue_status(name, jobs, &ended))).await?);
        }
        Ok(answered)
    }

    /// One queue, whether it has jobs or not.
    ///
    /// # Errors
    /// The store's.
    pub async fn queue(&self, name: &QueueName) -> Result<QueueStatus, ManagerError> {
        self.know_queues().await?;
        let filter = Filter { queues: vec![name.clone()], ..Filter::default() };
        let mut jobs = no_jobs();
        for group in self.shared.store.count(&filter, &[GroupField::State]).await? {
            let state = group.values.first().and_then(Option::as_deref).and_then(|state| state.parse().ok());
            let state = state.ok_or_else(|| StoreError::Corrupt("an unknown state in a count".to_owned()))?;
            jobs.insert(state, group.count);
        }
        let ended = self.throughput(Some(name)).await?;
        self.queue_status(name, &jobs, &ended).await
    }

    async fn queue_status(
        &self,
        name: &QueueName,
        jobs: &BTreeMap<JobState, u64>,
        ended: &HashMap<QueueName, [Throughput; 3]>,
    ) -> Result<QueueStatus, ManagerError> {
        let waiting = jobs.get(&JobState::Available).copied().unwrap_or(0);
        let oldest = if waiting == 0 {
            None
        } else {
            let filter = Filter {
                states: vec![JobState::Available],
                queues: vec![name.clone()],
                run_at_most: Some(self.shared.clock.now()),
                ..Filter::default()
            };
            let sort = Sort::By(SortField::RunAt, Direction::Ascending);
            self.shared.store.search(&Search { filter, sort, after: None, limit: 1 }).await?.pop()
        };
        let oldest_waiting_since = oldest.map(|found| found.job.run_at);
        let settings = self.shared.queue_settings.of(name);
        let throughput = ended.get(name).copied().unwrap_or_else(throughput::nothing);
        Ok(QueueStatus { name: name.clone(), jobs: jobs.clone(), oldest_waiting_since, settings, throughput })
    }

    /// Asks whether the store could serve now.
    ///
    /// # Errors
    /// Why not.
    pub async fn ready(&self) -> Result<(), StoreError> {
        self.shared.store.ready().await
    }
}
