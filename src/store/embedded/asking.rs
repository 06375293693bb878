//! How the store is asked: what is in memory at once, and what is on disk when there is a place for it, on a thread
//! that may block.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fjall::Snapshot;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::EmbeddedStore;
use super::budget::Budget;
use super::disk::Disk;
use super::engine::Engine;
use super::error::{closed, replaced};
use super::grouped::Index;
use super::state::Published;
use crate::job::QueueName;
use crate::store::StoreError;

/// How long a caller should wait before it repeats a query that did not get its turn.
const QUERY_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl EmbeddedStore {
    /// Reads what is in memory, at once. The engine is borrowed and not kept, so that closing waits for it.
    pub(super) fn in_memory<T>(&self, read: impl FnOnce(&Engine) -> T) -> Result<T, StoreError> {
        self.inner.engine.read().as_deref().map(read).ok_or_else(|| self.absent())
    }

    /// Returns why there is no engine.
    fn absent(&self) -> StoreError {
        if self.inner.is_closed.load(Ordering::Acquire) { closed() } else { replaced() }
    }

    /// Reads or writes the disk, on a thread that may block, when one of the permits is free.
    pub(super) async fn on_disk<T: Send + 'static>(
        &self,
        permits: &Arc<Semaphore>,
        read: impl FnOnce(&Engine) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let permit = Arc::clone(permits).acquire_owned().await.map_err(|_| closed())?;
        self.on_thread(permit, read).await
    }

    /// Checks that writes are answered.
    ///
    /// # Errors
    /// [`StoreError`] says why they are not.
    pub(super) async fn check(&self) -> Result<(), StoreError> {
        if let Some(reason) = self.queue().closed() {
            return Err(reason);
        }
        self.queue().unanswered().check()?;
        let checked = self.on_disk(&self.inner.lookups, |engine| engine.disk.check()).await;
        checked.map_err(|error| {
            tracing::warn!(%error, "the database takes no writes");
            StoreError::Unavailable("its database takes no writes; the log says why".to_owned())
        })
    }

    /// Reads documents of which some are in memory (`Some(None)` for one that was removed), and the others on disk.
    pub(super) async fn overlaid<K: Clone + Send + 'static, T: Send + 'static>(
        &self,
        keys: &[K],
        in_memory: impl Fn(&Published, &K) -> Option<Option<T>>,
        on_disk: impl Fn(&Disk, &Snapshot, &K) -> Result<Option<T>, StoreError> + Send + 'static,
    ) -> Result<Vec<Option<T>>, StoreError> {
        let (mut found, snapshot) = self.in_memory(|engine| {
            let published = engine.published.read();
            let found: Vec<_> = keys.iter().map(|key| in_memory(&published, key)).collect();
            (found, Arc::clone(&published.view.snapshot))
        })?;
        let missing = keys.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<K> = missing.map(|(key, _)| key.clone()).collect();
        if !missing.is_empty() {
            let stored = self.on_disk(&self.inner.lookups, move |engine| {
                missing.iter().map(|key| on_disk(&engine.disk, &snapshot, key)).collect::<Result<Vec<_>, _>>()
            });
            let mut stored = stored.await?.into_iter();
            for place in found.iter_mut().filter(|found| found.is_none()) {
                *place = stored.next();
            }
        }
        Ok(found.into_iter().map(Option::flatten).collect())
    }

    /// Makes an index of a queue's available jobs, unless it is there. That goes over all of them, once.
    pub(super) async fn make_index(&self, needed: Option<(Index, &QueueName)>) -> Result<(), StoreError> {
        let Some((index, queue)) = needed else { return Ok(()) };
        if self.in_memory(|engine| engine.published.read().live.has_index(index, queue))? {
            return Ok(());
        }
        let queue = queue.clone();
        let make = move |engine: &Engine| {
            engine.published.write().live.make_index(index, &queue);
            Ok(())
        };
        self.on_disk(&self.inner.lookups, make).await
    }

    /// Answers a query, within its time, when one of the places for such queries is free. `is_indexed` says whether the
    /// index of finished jobs answers it alone.
    pub(super) async fn query<T: Send + 'static>(
        &self,
        is_indexed: bool,
        read: impl FnOnce(&Engine, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let places = if is_indexed { &self.inner.indexed_scans } else { &self.inner.scans };
        let place = timeout(self.inner.query_time, Arc::clone(places).acquire_owned()).await;
        let place = place.map_err(|_| StoreError::Overloaded { retry_after: QUERY_AGAIN_AFTER })?;
        let (limit, is_abandoned) = (self.inner.query_time, CancellationToken::new());
        // A caller who goes away drops this future, while the thread goes on until it looks at its budget.
        let _caller = is_abandoned.clone().drop_guard();
        let read = move |engine: &Engine| read(engine, Budget::of(limit).unless(is_abandoned));
        self.on_thread(place.map_err(|_| closed())?, read).await
    }

    /// Answers a query for schedules: one that reads few of them at once, any other as a query for jobs.
    pub(super) async fn query_schedules<T: Send + 'static>(
        &self,
        is_quick: bool,
        read: impl FnOnce(&Engine, Budget) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        if !is_quick {
            return self.query(false, read).await;
        }
        let budget = Budget::of(self.inner.query_time);
        self.on_disk(&self.inner.lookups, move |engine| read(engine, budget)).await
    }

    /// Reads or writes the disk on a thread that may block, and then frees the permit.
    pub(super) async fn on_thread<T: Send + 'static>(
        &self,
        permit: OwnedSemaphorePermit,
        read: impl FnOnce(&Engine) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let engine = self.inner.engine.read().clone().ok_or_else(|| self.absent())?;
        let reading = spawn_blocking(move || {
            let found = read(&engine);
            // Before the permit: closing takes all permits to know that nobody has the engine.
            drop(engine);
            drop(permit);
            found
        });
        reading.await.map_err(|error| StoreError::Unavailable(format!("a read ended early: {error}")))?
    }
}
