//! A real store with a test between it and its callers.

use std::sync::Arc;

use async_trait::async_trait;
use leasehold::clock::Timestamp;
use leasehold::job::{BodyRef, JobId, Json, OrderingKey, RecordName, ScheduleId};
use leasehold::query::stats::{Stats, StatsRequest};
use leasehold::query::{Filter, Group, GroupField, ScheduleFilter, Search};
use leasehold::store::{
    Archived, AuditEntry, AuditPage, AuditSearch, DueSchedules, Head, ListSchedules, OutputStore, Record, RecordKey,
    RecordKind, RecordWrite, Refresh, ScheduleResult, ScheduleWrite, Store, StoreError, StoredSchedule, Versioned,
    Write, WriteError, WriteResult,
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

    /// Comes before a write of schedules, and may use the store itself.
    async fn before_write_of_schedules(&self, _: &dyn Store, _: &[ScheduleWrite]) {}

    /// Comes after a write of schedules, before its caller hears of it.
    async fn after_write_of_schedules(&self, _: &[ScheduleWrite]) {}

    /// Whether this write is refused instead of done.
    fn refuses(&self, _: &Write) -> bool {
        false
    }

    /// Whether this schedule cannot be read.
    fn spoils_schedule(&self, _: &ScheduleId) -> bool {
        false
    }

    /// Whether this write of a schedule is refused instead of done.
    fn refuses_schedule(&self, _: &ScheduleWrite) -> bool {
        false
    }

    /// Comes before and after each read and write of jobs, and of the records that decide on them.
    async fn between(&self) {}

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

/// Returns whether records of this kind decide which jobs may be written.
fn is_decisive(kind: RecordKind) -> bool {
    matches!(kind, RecordKind::Slots | RecordKind::Unique | RecordKind::Line)
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
        self.interference.between().await;
        let (refused, done) = sort_out(writes.clone(), |write| self.interference.refuses(write));
        let results = self.store.write(done).await;
        self.interference.between().await;
        self.interference.after_write(&writes).await;
        answers(refused, results)
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        self.interference.between().await;
        let found = self.store.get(ids).await;
        self.interference.between().await;
        found
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        self.store.bodies(references).await
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        self.interference.before_call().await;
        self.interference.before_search(search).await;
        self.store.search(search).await
    }

    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
        self.interference.between().await;
        let heads = self.store.heads(keys).await;
        self.interference.between().await;
        heads
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        self.store.count(filter, by).await
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        self.store.stats(request).await
    }

    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        self.interference.before_call().await;
        let is_held_up = writes.iter().any(|write| is_decisive(write.key().kind));
        if is_held_up {
            self.interference.between().await;
        }
        let results = self.store.write_records(writes).await;
        if is_held_up {
            self.interference.between().await;
        }
        self.interference.record_is_written();
        results
    }

    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError> {
        if !keys.iter().any(|key| is_decisive(key.kind)) {
            return self.store.records_of(keys).await;
        }
        self.interference.between().await;
        let records = self.store.records_of(keys).await;
        self.interference.between().await;
        records
    }

    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError> {
        self.store.records_after(kind, after).await
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        self.store.records(kind).await
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        self.interference.before_call().await;
        self.interference.before_write_of_schedules(&*self.store, &writes).await;
        let (refused, done) = sort_out(writes.clone(), |write| self.interference.refuses_schedule(write));
        let results = self.store.write_schedules(done).await;
        self.interference.after_write_of_schedules(&writes).await;
        answers(refused, results)
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        self.interference.before_call().await;
        match ids.iter().find(|id| self.interference.spoils_schedule(id)) {
            Some(id) => Err(StoreError::Unreadable { what: format!("the schedule `{id}`"), why: "a test".to_owned() }),
            None => self.store.schedules(ids).await,
        }
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

    fn outputs(&self) -> Arc<dyn OutputStore> {
        self.store.outputs()
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        self.store.append_audit(entries).await
    }

    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        self.store.read_audit(search).await
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
