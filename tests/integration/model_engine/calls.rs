//! The calls of one process: each takes its time, and may fail on its way.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use leasehold::job::{BodyRef, Fence, JobId, Json, OrderingKey, RecordName, ScheduleId};
use leasehold::query::stats::{Stats, StatsRequest};
use leasehold::query::{Filter, Group, GroupField, ScheduleFilter, Search};
use leasehold::store::{
    AuditEntry, AuditPage, AuditPlace, AuditSearch, CellKey, DueSchedules, Head, ListSchedules, MAX_RECORDS,
    OutputCell, OutputStore, Record, RecordKey, RecordKind, RecordWrite, Refresh, ScheduleResult, ScheduleWrite, Store,
    StoreError, StoredSchedule, Versioned, Write, WriteError, WriteResult,
};
use parking_lot::Mutex;

use super::faults::{Fate, Telling};
use super::state::State;
use super::{Handle, statistics};

/// The length of a page of [`Store::records_after`].
const PAGE: usize = 1_000;

impl Handle {
    /// Makes writes, each at a moment of its own. They are made even if the process dies meanwhile or nobody waits any
    /// more.
    async fn make<W, T>(&self, writes: Vec<W>, make: fn(&mut State, &W, bool) -> WriteResult<T>) -> Vec<WriteResult<T>>
    where
        W: Send + 'static,
        T: Send + 'static,
    {
        let count = writes.len();
        if count == 0 {
            return Vec::new();
        }
        let course = match self.go().await {
            Ok(course) => course,
            Err(error) => return (0..count).map(|_| Err(WriteError::Refused(error.clone()))).collect(),
        };
        let fates: Vec<Fate> = {
            let mut faults = self.faults.lock();
            writes.iter().map(|_| faults.fate_in(course)).collect()
        };
        let (told, untold): (Vec<_>, Vec<_>) =
            writes.into_iter().zip(fates.clone()).partition(|(_, fate)| fate.telling != Telling::MadeLater);
        let later = course.there + course.back + course.late;
        if !untold.is_empty() {
            tokio::spawn(make_after(Arc::clone(&self.state), later, untold, make));
        }
        let made = tokio::spawn(make_after(Arc::clone(&self.state), course.there, told, make));
        let mut answers = made.await.expect("a write does not panic").into_iter();
        tokio::time::sleep(course.back).await;
        self.lives().await;
        let answer = |fate: Fate| match fate.telling {
            Telling::MadeLater => Err(unknown()),
            Telling::Told => answers.next().expect("an answer for each write"),
            Telling::Made | Telling::Lost => {
                answers.next().and(Some(Err(unknown()))).expect("an answer for each write")
            }
        };
        fates.into_iter().map(answer).collect()
    }
}

/// Makes writes after a while, in their order where their fates do not put them apart.
async fn make_after<W, T>(
    state: Arc<Mutex<State>>,
    after: Duration,
    writes: Vec<(W, Fate)>,
    make: fn(&mut State, &W, bool) -> WriteResult<T>,
) -> Vec<WriteResult<T>> {
    let make = async |(write, fate): (W, Fate)| {
        tokio::time::sleep(after + fate.apart).await;
        match fate.telling {
            Telling::Lost => Err(unknown()),
            _ => make(&mut state.lock(), &write, fate.is_overtaken),
        }
    };
    join_all(writes.into_iter().map(make)).await
}

fn unknown<T>() -> WriteError<T> {
    WriteError::Unknown("the seed has it so".to_owned())
}

#[async_trait]
impl Store for Handle {
    async fn write(&self, writes: Vec<Write>) -> Vec<WriteResult> {
        self.make(writes, State::write).await
    }

    async fn get(&self, ids: &[JobId]) -> Result<Vec<Option<Versioned>>, StoreError> {
        let versioned = |(job, version)| Versioned { job, version };
        self.read(|state| ids.iter().map(|id| state.jobs.get(id).map(versioned)).collect()).await
    }

    async fn bodies(&self, references: &[BodyRef]) -> Result<Vec<Option<Json>>, StoreError> {
        let body = |state: &State, reference: &BodyRef| state.bodies.get(&reference.id).map(|(_, json)| json.clone());
        self.read(|state| references.iter().map(|reference| body(state, reference)).collect()).await
    }

    async fn search(&self, search: &Search) -> Result<Vec<Versioned>, StoreError> {
        self.read(|state| state.search(search)).await
    }

    async fn heads(&self, keys: &[OrderingKey]) -> Result<Vec<Option<Head>>, StoreError> {
        self.read(|state| state.heads(keys)).await
    }

    async fn count(&self, filter: &Filter, by: &[GroupField]) -> Result<Vec<Group>, StoreError> {
        self.read(|state| statistics::count(state.jobs.shown().iter().map(|(_, job, _)| &***job), filter, by)).await
    }

    async fn stats(&self, request: &StatsRequest) -> Result<Option<Stats>, StoreError> {
        self.read(|state| statistics::stats(state.jobs.shown().iter().map(|(_, job, _)| &***job), request)).await
    }

    async fn write_records(&self, writes: Vec<RecordWrite>) -> Vec<WriteResult<Record>> {
        self.make(writes, State::write_record).await
    }

    async fn records_of(&self, keys: &[RecordKey]) -> Result<Vec<Option<Record>>, StoreError> {
        self.read(|state| keys.iter().map(|key| record(state, key)).collect()).await
    }

    async fn records(&self, kind: RecordKind) -> Result<Vec<Record>, StoreError> {
        let found = self.read(|state| listed(state, kind, None)).await?;
        match found.len() > MAX_RECORDS {
            true => Err(StoreError::Corrupt(format!("more than {MAX_RECORDS} records of the kind `{kind}`"))),
            false => Ok(found),
        }
    }

    async fn records_after(&self, kind: RecordKind, after: Option<&RecordName>) -> Result<Vec<Record>, StoreError> {
        let mut found = self.read(|state| listed(state, kind, after)).await?;
        found.truncate(PAGE);
        Ok(found)
    }

    async fn write_schedules(&self, writes: Vec<ScheduleWrite>) -> Vec<ScheduleResult> {
        self.make(writes, State::write_schedule).await
    }

    async fn schedules(&self, ids: &[ScheduleId]) -> Result<Vec<Option<StoredSchedule>>, StoreError> {
        let stored = |(schedule, version)| StoredSchedule { schedule, version };
        self.read(|state| ids.iter().map(|id| state.schedules.get(id).map(stored)).collect()).await
    }

    async fn due_schedules(&self, due: &DueSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        self.read(|state| {
            let mut found = schedules(state, |stored| {
                let is_due = stored.schedule.load_at().is_some_and(|at| at <= due.until);
                is_due && due.partitions.contains(stored.schedule.partition())
            });
            found.sort_by_key(|stored| (stored.schedule.load_at(), stored.schedule.id.clone()));
            found.truncate(due.limit);
            found
        })
        .await
    }

    async fn list_schedules(&self, list: &ListSchedules) -> Result<Vec<StoredSchedule>, StoreError> {
        let is_after = |id: &ScheduleId| list.after.as_ref().is_none_or(|after| id > after);
        let selects = |stored: &StoredSchedule| is_after(&stored.schedule.id) && list.filter.matches(&stored.schedule);
        let mut found = self.read(|state| schedules(state, selects)).await?;
        found.truncate(list.limit);
        Ok(found)
    }

    async fn count_schedules(&self, filter: &ScheduleFilter) -> Result<u64, StoreError> {
        self.read(|state| schedules(state, |stored| filter.matches(&stored.schedule)).len() as u64).await
    }

    async fn append_audit(&self, entries: &[AuditEntry]) -> Result<(), StoreError> {
        let add = |state: &mut State| {
            for entry in entries {
                state.audit.entry((entry.at, entry.id.clone())).or_insert_with(|| entry.clone());
            }
        };
        self.read(add).await
    }

    async fn read_audit(&self, search: &AuditSearch) -> Result<AuditPage, StoreError> {
        let place = |entry: &AuditEntry| (entry.at.as_millis(), entry.id.clone());
        let after = match &search.after {
            None => None,
            Some(AuditPlace::InTime { at, id, .. }) => Some((*at, id.clone())),
            Some(AuditPlace::InFiles { .. }) => return Err(StoreError::Unsupported("a place of another store")),
        };
        let is_wanted = |entry: &&AuditEntry| {
            search.selects(entry.at, &entry.document) && after.as_ref().is_none_or(|after| place(entry) < *after)
        };
        let read = |state: &mut State| -> Vec<AuditEntry> {
            state.audit.values().rev().filter(is_wanted).take(search.limit).cloned().collect()
        };
        let entries = self.read(read).await?;
        let last = entries.last().filter(|_| entries.len() == search.limit).map(place);
        let next = last.map(|(at, id)| AuditPlace::InTime { at, sequence: 0, id });
        Ok(AuditPage { entries, next, is_there: true })
    }

    fn outputs(&self) -> Arc<dyn OutputStore> {
        Arc::new(Outputs(Arc::clone(&self.state)))
    }

    async fn refresh(&self, what: Refresh<'_>) -> Result<(), StoreError> {
        let refresh = |state: &mut State| match what {
            Refresh::Jobs(_) => state.jobs.refresh(),
            Refresh::Records => state.records.refresh(),
            Refresh::Schedules => state.schedules.refresh(),
        };
        self.read(refresh).await
    }

    fn has_realtime_search(&self) -> bool {
        false
    }

    fn is_exclusive(&self) -> bool {
        false
    }

    fn inline_limit(&self) -> usize {
        1_024
    }

    async fn ready(&self) -> Result<(), StoreError> {
        self.read(|_| ()).await
    }

    async fn close(&self) {
        self.closed.send_replace(true);
    }
}

fn record(state: &State, key: &RecordKey) -> Option<Record> {
    state.records.get(key).map(|(body, version)| Record { key: key.clone(), body, version })
}

/// The records that a list shows, each as it is now.
fn listed(state: &mut State, kind: RecordKind, after: Option<&RecordName>) -> Vec<Record> {
    let is_asked_for = |key: &RecordKey| key.kind == kind && after.is_none_or(|after| key.name > *after);
    let shown = state.records.shown().into_iter().map(|(key, ..)| key).filter(|key| is_asked_for(key));
    let keys: Vec<RecordKey> = shown.cloned().collect();
    keys.iter().filter_map(|key| record(state, key)).collect()
}

fn schedules(state: &mut State, selects: impl Fn(&StoredSchedule) -> bool) -> Vec<StoredSchedule> {
    let shown = state.schedules.shown().into_iter();
    let stored = shown.map(|(_, schedule, version)| StoredSchedule { schedule: Arc::clone(schedule), version });
    stored.filter(|stored| selects(stored)).collect()
}

/// The output of attempts, which no fault befalls: it is under weaker promises.
struct Outputs(Arc<Mutex<State>>);

#[async_trait]
impl OutputStore for Outputs {
    async fn write(&self, cells: Vec<(CellKey, OutputCell)>) -> Result<(), StoreError> {
        let mut state = self.0.lock();
        for (key, cell) in cells {
            let is_outranked = |found: &(CellKey, OutputCell)| found.0 == key && found.1.rank() >= cell.rank();
            if !state.outputs.iter().any(is_outranked) {
                state.outputs.retain(|(found, _)| *found != key);
                state.outputs.push((key, cell));
            }
        }
        Ok(())
    }

    async fn read(&self, keys: &[CellKey]) -> Result<Vec<Option<OutputCell>>, StoreError> {
        let state = self.0.lock();
        let cell = |key: &CellKey| state.outputs.iter().find(|(found, _)| found == key).map(|(_, cell)| cell.clone());
        Ok(keys.iter().map(cell).collect())
    }

    async fn remove(&self, attempts: &[(JobId, RangeInclusive<Fence>)]) -> Result<(), StoreError> {
        let is_of = |key: &CellKey| attempts.iter().any(|(job, of)| key.of.job == *job && of.contains(&key.of.fence));
        self.0.lock().outputs.retain(|(key, _)| !is_of(key));
        Ok(())
    }
}
