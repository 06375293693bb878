//! A real store with a test between it and its callers.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::clock::Timestamp;
use leasehold::job::{BodyRef, JobId, Json, ScheduleId};
use leasehold::query::stats::{Stats, StatsRequest};
use leasehold::query::{Filter, Group, GroupField, ScheduleFilter, Search};
use leasehold::store::{
    Archived, AuditEntry, DueSchedules, ListSchedules, Record, RecordKey, RecordKind, RecordWrite, Refresh,
    ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule, Versioned, Write, WriteError, WriteResult,
};
use tokio_util::sync::CancellationToken;

use crate::engines::Engine;

/// What a test does to the calls of a store.
#[async_trait]
pub(crate) trait Interference: Send + Sync + 'static {
    /// Comes before any call.
    async fn before_call(&self) {}

    /// Comes before a search.
    async fn before_search(&self, _: &Search) {}

    /// Comes before a write of jobs.
    async fn before_write(&self, _: &[Write]) {}

    /// Comes after a write of jobs, before its caller hears of it.
    async fn after_write(&self, _: &[Write]) {}

    /// Comes before a write of schedules.
    async fn before_write_of_schedules(&self, _: &[ScheduleWrite]) {}

    /// Comes after a write of schedules, before its caller hears of it.
    async fn after_write_of_schedules(&self, _: &[ScheduleWrite]) {}

    /// Whether this write is refused instead of done.
    fn refuses(&self, _: &Write) -> bool {
        false
    }

    /// Whether this write of a schedule is refused instead of done.
    fn refuses_schedule(&self, _: &ScheduleWrite) -> bool {
        false
    }

    /// Comes before a refresh.
    fn before_refresh(&self, _: Refresh<'_>) {}

    /// Comes after a record was written, before its writer hears of it.
    fn record_is_written(&self) {}
}

/// Where a call is held up until the test lets it pass.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) reached: CancellationToken,
    pub(crate) open: CancellationToken,
}

impl Gate {
    /// Passes the gate once it is open.
    pub(crate) async fn pass(&self) {
        self.reached.cancel();
        self.open.cancelled().await;
    }
}

/// A store whose calls a test interferes with.
pub(crate) struct Interfered<I> {
    store: Arc<dyn Store>,
    interference: Arc<I>,
}

impl<I: Interference> Interfered<I> {
    pub(crate) fn around(store: Arc<dyn Store>, interference: &Arc<I>) -> Arc<dyn Store> {
        Arc::new(Self { store, interference: Arc::clone(interference) })
    }
}

/// An engine whose store is interfered with.
pub(crate) struct InterferedEngine {
    store: Arc<dyn Store>,
    _keeps: Box<dyn Engine>,
}

impl InterferedEngine {
    pub(crate) fn around(engine: Box<dyn Engine>, interference: &Arc<impl Interference>) -> Box<dyn Engine> {
        Box::new(Self { store: Interfered::around(engine.store(), interference), _keeps: engine })
    }
}

impl Engine for InterferedEngine {
    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store)
    }
}

/// Returns which writes are refused, and the others.
fn sort_out<W>(writes: Vec<W>, refuses: impl Fn(&W) -> bool) -> (Vec<bool>, Vec<W>) {
    let refused: Vec<bool> = writes.iter().map(refuses).collect();
    let done = writes.into_iter().zip(&refused).filter(|(_, refused)| !**refused).map(|(write, _)| write);
    let done = done.collect();
    (refused, done)
}

/// Returns the answers to all writes, with the results of those that were done.
fn answers<T>(refused: Vec<bool>, results: Vec<WriteResult<T>>) -> Vec<WriteResult<T>> {
    let mut results = results.into_iter();
    let refusal = || WriteError::Refused(StoreError::Unavailable("refused by the test".to_owned()));
    let answer = |refused| if refused { Err(refusal()) } else { results.next().expect("a result for each write") };
    refused.into_iter().map(answer).collect()
}

#[async_trait]
impl<I: Interference> Store for Interfered<I> {
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        self.interference.before_call().await;
        self.interference.before_write(&writes).await;
        let (refused, done) = sort_out(writes.clone(), |write| self.interference.refuses(write));
        let results = self.store.write(done).await;
        self.interference.after_write(&writes).await;
        answers(refused, results)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        self.store.get(ids).await
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        self.store.bodies(references).await
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        self.interference.before_call().await;
        self.interference.before_search(search).await;
        self.store.search(search).await
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        self.store.count(filter, by).await
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        self.store.stats(request).await
    }

    async fn write_record(&self, write: RecordWrite) -> WriteResult<Record> {
        self.interference.before_call().await;
        let result = self.store.write_record(write).await;
        self.interference.record_is_written();
        result
    }

    async fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.store.record(key).await
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.store.records(kind).await
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        self.interference.before_call().await;
        self.interference.before_write_of_schedules(&writes).await;
        let (refused, done) = sort_out(writes.clone(), |write| self.interference.refuses_schedule(write));
        let results = self.store.write_schedules(done).await;
        self.interference.after_write_of_schedules(&writes).await;
        answers(refused, results)
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        self.interference.before_call().await;
        self.store.schedules(ids).await
    }

    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        self.interference.before_call().await;
        self.store.due_schedules(due).await
    }

    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError> {
        self.store.count_schedules(filter).await
    }

    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        self.store.list_schedules(list).await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        self.store.append_audit(entries).await
    }

    async fn refresh(&self, what: Refresh<'_>) -> Result<(), StoreError> {
        self.interference.before_refresh(what);
        self.store.refresh(what).await
    }

    async fn archive(&self, now: Timestamp, limit: usize) -> Result<Archived, StoreError> {
        self.store.archive(now, limit).await
    }

    fn has_realtime_search(&self) -> bool {
        self.store.has_realtime_search()
    }

    fn is_exclusive(&self) -> bool {
        self.store.is_exclusive()
    }

    fn inline_limit(&self) -> usize {
        self.store.inline_limit()
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.store.ready().await
    }

    async fn close(&self) {
        self.store.close().await;
    }
}
