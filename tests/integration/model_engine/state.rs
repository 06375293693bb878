//! The documents, and what a write does to them.

use std::collections::BTreeMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Timestamp;
use leasehold::job::{Body, BodyId, Job, JobId, Json, NewBody, OrderingKey, ScheduleId};
use leasehold::query::Search;
use leasehold::schedule::Schedule;
use leasehold::store::{
    AuditEntry, CellKey, Head, OutputCell, Record, RecordKey, RecordWrite, ScheduleResult, ScheduleWrite,
    StoredSchedule, Version, Versioned, Write, WriteError, WriteResult,
};

use super::Spoilt;
use super::shelf::{Shelf, version};

/// What whoever watches says of a write: `Err` with what must not be.
pub(crate) type Seen = Result<(), String>;

/// Sees each write of a job as it is made: the job before and after it; `None` where there is none.
pub(super) type Watcher = Box<dyn FnMut(Option<&Arc<Job>>, Option<&Arc<Job>>) -> Seen + Send>;

pub(super) struct State {
    pub(super) jobs: Shelf<JobId, Arc<Job>>,
    pub(super) records: Shelf<RecordKey, Json>,
    pub(super) schedules: Shelf<ScheduleId, Arc<Schedule>>,
    pub(super) bodies: BTreeMap<BodyId, (JobId, Json)>,
    pub(super) audit: BTreeMap<(Timestamp, String), AuditEntry>,
    pub(super) outputs: Vec<(CellKey, OutputCell)>,
    pub(super) violation: Option<String>,
    pub(super) spoilt: Option<Spoilt>,
    lag: Duration,
    /// How many writes there were: the version of the last one.
    writes: u64,
    watcher: Option<Watcher>,
}

/// A document that a write is about.
struct Wanted<K, D> {
    key: K,
    /// The version that must be there; `None` for none.
    expected: Option<Version>,
    /// `None` for a removal.
    document: Option<D>,
}

impl State {
    pub(super) fn new(lag: Duration) -> Self {
        Self {
            jobs: Shelf::default(),
            records: Shelf::default(),
            schedules: Shelf::default(),
            bodies: BTreeMap::new(),
            audit: BTreeMap::new(),
            outputs: Vec::new(),
            violation: None,
            spoilt: None,
            lag,
            writes: 0,
            watcher: None,
        }
    }

    pub(super) fn watch(&mut self, watcher: Watcher) {
        self.watcher = Some(watcher);
    }

    fn tell(&mut self, before: Option<&Arc<Job>>, after: Option<&Arc<Job>>) {
        if let Some(Err(wrong)) = self.watcher.as_mut().map(|watcher| watcher(before, after)) {
            self.violation.get_or_insert(wrong);
        }
    }

    /// Makes one write of a job. Where somebody else comes first, its document is the same with another version.
    pub(super) fn write(&mut self, write: &Write, is_overtaken: bool) -> WriteResult {
        let job = write.job();
        let (expected, document) = match write {
            Write::Create { job, .. } => (None, Some(Arc::clone(job))),
            Write::Replace { job, expected, .. } => (Some(*expected), Some(Arc::clone(job))),
            Write::Remove { expected, .. } => (Some(*expected), None),
        };
        self.writes += 1;
        let before = self.jobs.get(&job.id).map(|(job, _)| job);
        match self.spoilt {
            Some(Spoilt::LostWrites(one_in)) if self.writes.is_multiple_of(one_in) => return Ok(version(self.writes)),
            Some(Spoilt::ConflictsOfJobs) if before.is_some() => {
                self.jobs.put(&job.id, document.clone(), self.writes, self.lag);
                self.tell(before.as_ref(), document.as_ref());
                return Ok(version(self.writes));
            }
            _ => {}
        }
        let wanted = Wanted { key: job.id.clone(), expected, document: document.clone() };
        let written = swap(&mut self.jobs, wanted, (&mut self.writes, is_overtaken), self.lag);
        let made = written.map_err(|now| WriteError::Conflict(now.map(|(job, version)| Versioned { job, version })))?;
        self.keep_bodies(job, write.bodies(), document.as_deref());
        self.tell(before.as_ref(), document.as_ref());
        Ok(made)
    }

    /// Keeps the bodies that a job refers to, and no others of it.
    fn keep_bodies(&mut self, job: &Job, new: &[NewBody], after: Option<&Job>) {
        for body in new {
            self.bodies.insert(body.reference.id, (job.id.clone(), body.json.clone()));
        }
        let stored = |body: &Body| if let Body::Stored(reference) = body { Some(reference.id) } else { None };
        let kept: Vec<BodyId> =
            after.into_iter().flat_map(|job| [stored(&job.payload), stored(job.result())]).flatten().collect();
        self.bodies.retain(|id, (of, _)| *of != job.id || kept.contains(id));
    }

    pub(super) fn write_record(&mut self, write: &RecordWrite, is_overtaken: bool) -> WriteResult<Record> {
        let expected = match write {
            RecordWrite::Create { .. } => None,
            RecordWrite::Replace { expected, .. } | RecordWrite::Remove { expected, .. } => Some(*expected),
        };
        self.writes += 1;
        let key = write.key().clone();
        if self.spoilt == Some(Spoilt::ConflictsOfRecords(key.kind)) {
            self.records.put(&key, write.body().cloned(), self.writes, self.lag);
            return Ok(version(self.writes));
        }
        let wanted = Wanted { key: key.clone(), expected, document: write.body().cloned() };
        let written = swap(&mut self.records, wanted, (&mut self.writes, is_overtaken), self.lag);
        let record = |(body, version)| Record { key: key.clone(), body, version };
        written.map_err(|now| WriteError::Conflict(now.map(record)))
    }

    pub(super) fn write_schedule(&mut self, write: &ScheduleWrite, is_overtaken: bool) -> ScheduleResult {
        self.writes += 1;
        let (key, document) = (write.id().clone(), write.schedule().cloned());
        let wanted = Wanted { key, expected: write.expected(), document };
        let written = swap(&mut self.schedules, wanted, (&mut self.writes, is_overtaken), self.lag);
        let stored = |(schedule, version)| StoredSchedule { schedule, version };
        written.map_err(|now| WriteError::Conflict(now.map(stored)))
    }

    pub(super) fn search(&mut self, search: &Search) -> Vec<Versioned> {
        let shown = self.jobs.shown().into_iter().filter(|(_, job, _)| search.filter.matches(job));
        let mut found: Vec<_> = shown.map(|(_, job, version)| (search.sort.key(job), job, version)).collect();
        found.retain(|(key, ..)| search.after.as_ref().is_none_or(|after| key > after));
        found.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        let found = found.into_iter().take(search.limit);
        found.map(|(_, job, version)| Versioned { job: Arc::clone(job), version }).collect()
    }

    pub(super) fn heads(&mut self, keys: &[OrderingKey]) -> Vec<Option<Head>> {
        let mut heads: BTreeMap<OrderingKey, Head> = BTreeMap::new();
        for (id, job, _) in self.jobs.shown() {
            let Some(place) = job.spec.ordering().filter(|_| !job.state.name().is_final()) else { continue };
            if heads.get(&place.key).is_none_or(|head| place.seq < head.seq) {
                let head = Head { job: id.clone(), seq: place.seq, state: job.state.name() };
                heads.insert(place.key.clone(), head);
            }
        }
        keys.iter().map(|key| heads.get(key).cloned()).collect()
    }
}

/// Writes a document if the expected one is there; otherwise returns what is there. Where somebody else comes first,
/// what is there is written again before.
fn swap<K: Clone + Hash + Ord, D: Clone>(
    shelf: &mut Shelf<K, D>,
    wanted: Wanted<K, D>,
    (writes, is_overtaken): (&mut u64, bool),
    lag: Duration,
) -> Result<Version, Option<(D, Version)>> {
    let Wanted { key, expected, document } = wanted;
    if is_overtaken && let Some((same, _)) = shelf.get(&key) {
        shelf.put(&key, Some(same), *writes, lag);
        *writes += 1;
    }
    let now = shelf.get(&key);
    if now.as_ref().map(|(_, version)| *version) != expected {
        return Err(now);
    }
    let removed = expected.filter(|_| document.is_none());
    if removed.is_some() || document.is_some() {
        shelf.put(&key, document, *writes, lag);
    }
    Ok(removed.unwrap_or_else(|| version(*writes)))
}
