//! A store whose operations are counted and timed, whichever engine does them.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;

use super::{
    Archived, AuditEntry, AuditPage, AuditSearch, DueSchedules, Hang, Head, LeadershipMark, ListSchedules, OutputStore,
    Record, RecordKey, RecordKind, RecordWrite, Refresh, ScheduleResult, ScheduleWrite, Sought, Store, StoreError,
    StoredSchedule, Versioned, Write, WriteError, WriteResult,
};
use crate::clock::Timestamp;
use crate::job::{BodyRef, Job, JobId, Json, OrderingKey, RecordName, ScheduleId};
use crate::query::stats::{Stats, StatsRequest};
use crate::query::{Filter, Group, GroupField, ScheduleFilter, Search};

/// A store that records metrics of every operation on the store it wraps.
pub struct Measured(Arc<dyn Store>);

impl Measured {
    /// Wraps `store` so that its operations are counted and timed.
    #[must_use]
    pub fn around(store: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self(store))
    }
}

/// The outcomes of operations, as metric labels.
const OK: &str = "ok";
const CONFLICT: &str = "conflict";
const REFUSED: &str = "refused";
const UNKNOWN: &str = "unknown";

fn count(operation: &'static str, outcome: &'static str, number: u64) {
    metrics::counter!("leasehold_store_operations_total", "operation" => operation, "outcome" => outcome)
        .increment(number);
}

fn time(operation: &'static str, started: Instant) {
    metrics::histogram!("leasehold_store_operation_duration_seconds", "operation" => operation)
        .record(started.elapsed());
}

/// Counts and times a read.
async fn read<T>(
    operation: &'static str,
    reading: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let started = Instant::now();
    let result = reading.await;
    count(operation, if result.is_ok() { OK } else { REFUSED }, 1);
    time(operation, started);
    result
}

const fn outcome<T>(result: &WriteResult<T>) -> &'static str {
    match result {
        Ok(_) => OK,
        Err(WriteError::Conflict(_)) => CONFLICT,
        Err(WriteError::Refused(_)) => REFUSED,
        Err(WriteError::Unknown(_)) => UNKNOWN,
    }
}

/// Counts writes of one call by their outcomes.
fn count_writes<T>(operation: &'static str, results: &[WriteResult<T>]) {
    for label in [OK, CONFLICT, REFUSED, UNKNOWN] {
        let number = results.iter().filter(|result| outcome(result) == label).count();
        if number > 0 {
            count(operation, label, number as u64);
        }
    }
}

#[async_trait]
impl Store for Measured {
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        let started = Instant::now();
        let results = self.0.write(writes).await;
        count_writes("write", &results);
        time("write", started);
        results
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        read("get", self.0.get(ids)).await
    }

    async fn look_up(&self, sought: &[Sought<'_>]) -> Vec<Result<Option<Versioned>, StoreError>> {
        let started = Instant::now();
        let found = self.0.look_up(sought).await;
        count("get", if found.iter().all(Result::is_ok) { OK } else { REFUSED }, 1);
        time("get", started);
        found
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        read("bodies", self.0.bodies(references)).await
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        read("search", self.0.search(search)).await
    }

    async fn search_each(&self, searches: &[Search]) -> Result<Vec<Vec<Versioned>>, StoreError> {
        read("search", self.0.search_each(searches)).await
    }

    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
        read("heads", self.0.heads(keys)).await
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        read("count", self.0.count(filter, by)).await
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        read("stats", self.0.stats(request)).await
    }

    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        let started = Instant::now();
        let results = self.0.write_records(writes).await;
        count_writes("write_records", &results);
        time("write_records", started);
        results
    }

    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError> {
        read("records_of", self.0.records_of(keys)).await
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        read("records", self.0.records(kind)).await
    }

    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError> {
        read("records_after", self.0.records_after(kind, after)).await
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        let started = Instant::now();
        let results = self.0.write_schedules(writes).await;
        count_writes("write_schedules", &results);
        time("write_schedules", started);
        results
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        read("schedules", self.0.schedules(ids)).await
    }

    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        read("due_schedules", self.0.due_schedules(due)).await
    }

    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        read("list_schedules", self.0.list_schedules(list)).await
    }

    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError> {
        read("count_schedules", self.0.count_schedules(filter)).await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        read("append_audit", self.0.append_audit(entries)).await
    }

    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        read("read_audit", self.0.read_audit(search)).await
    }

    fn outputs(&self) -> Arc<dyn OutputStore> {
        self.0.outputs()
    }

    async fn refresh(&self, what: Refresh<'_>) -> Result<(), StoreError> {
        read("refresh", self.0.refresh(what)).await
    }

    async fn archive(&self, now: Timestamp, limit: usize) -> Result<Archived, StoreError> {
        read("archive", self.0.archive(now, limit)).await
    }

    async fn time(&self) -> Result<Option<Timestamp>, StoreError> {
        read("time", self.0.time()).await
    }

    fn has_realtime_search(&self) -> bool {
        self.0.has_realtime_search()
    }

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    fn keeps_holders(&self) -> bool {
        self.0.keeps_holders()
    }

    fn mark(&self) -> LeadershipMark {
        self.0.mark()
    }

    async fn confirm(&self, since: &LeadershipMark) -> Result<(), StoreError> {
        read("confirm", self.0.confirm(since)).await
    }

    fn pack(&self, job: &Job) -> Option<Json> {
        self.0.pack(job)
    }

    fn unpack(&self, packed: &Json) -> Result<Job, StoreError> {
        self.0.unpack(packed)
    }

    fn written_until(&self) -> Option<Timestamp> {
        self.0.written_until()
    }

    fn unreadable(&self) -> usize {
        self.0.unreadable()
    }

    fn dropped(&self) -> Option<String> {
        self.0.dropped()
    }

    fn stopped(&self) -> Option<String> {
        self.0.stopped()
    }

    fn hang(&self) -> Option<Hang> {
        self.0.hang()
    }

    fn out_of_order(&self) -> Option<String> {
        self.0.out_of_order()
    }

    fn unread_months(&self) -> Vec<String> {
        self.0.unread_months()
    }

    fn unequal(&self) -> Option<String> {
        self.0.unequal()
    }

    async fn has_lately_held_writes_back(&self) -> Result<bool, StoreError> {
        self.0.has_lately_held_writes_back().await
    }

    fn inline_limit(&self) -> usize {
        self.0.inline_limit()
    }

    async fn ready(&self) -> Result<(), StoreError> {
        read("ready", self.0.ready()).await
    }

    async fn close(&self) {
        self.0.close().await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    /// What other operations do, which are measured.
    const BY_OTHERS: [&str; 3] = ["confirm_now", "record", "write_record"];

    fn functions<'a>(code: &'a str, after: &str) -> BTreeSet<&'a str> {
        let (_, code) = code.split_once(after).expect("it is there");
        let code = code.split_once("\n}\n").expect("it ends").0;
        let lines = code.lines().filter_map(|line| line.strip_prefix("    "));
        let names = lines.filter_map(|line| line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn "));
        names.filter_map(|line| line.split_once('(').map(|(name, _)| name)).collect()
    }

    #[test]
    fn no_operation_of_the_store_that_is_measured_is_left_to_its_default() {
        let of_store = functions(include_str!("mod.rs"), "pub trait Store:");
        let here = functions(include_str!("measured.rs"), "impl Store for Measured {");
        let left: Vec<_> = of_store.difference(&here).collect();
        assert!(of_store.len() > 30, "{of_store:?}");
        assert_eq!(left, BY_OTHERS.iter().collect::<Vec<_>>());
    }
}
