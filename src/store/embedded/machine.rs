//! The state machine: what a batch of commands makes of the store.
//!
//! A [`Batch`] follows from the state that it reads and its commands alone: no clock, no randomness, and no I/O but
//! what the reader does to look a document up. The same commands on the same state give the same outcomes and
//! effects on every machine, so that it can sit behind a replicated log as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hash;
use std::sync::Arc;

use foldhash::quality::RandomState;
use indexmap::IndexMap;
use indexmap::map::Entry;

use crate::clock::Timestamp;
use crate::job::{BodyId, Job, JobId, JobState, Json, NewBody, QueueName, ScheduleId};
use crate::store::{
    Record, RecordKey, RecordWrite, ScheduleResult, ScheduleWrite, StoreError, StoredSchedule, Version, Versioned,
    Write, WriteError, WriteResult,
};

/// One command to the state machine.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// A write of a job.
    Job(Write),
    /// A write of a record.
    Record(RecordWrite),
    /// A write of a schedule.
    Schedule(ScheduleWrite),
}

/// The state that a batch is decided on.
pub(super) trait Heads {
    /// Returns the job as the batch before left it.
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError>;

    /// Returns the row that the job, as the batch before left it, leaves when it is changed; `None` when it has none.
    fn row(&self, job: &Versioned) -> Result<Option<Row>, StoreError>;

    /// Returns the record as the batch before left it.
    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError>;

    /// Returns the schedule as the batch before left it.
    fn schedule(&self, id: &ScheduleId) -> Result<Option<StoredSchedule>, StoreError>;
}

/// The result of a batch.
#[derive(Debug)]
pub(super) struct Applied {
    /// The answers to the commands, which hold once the effects are durable.
    pub(super) outcomes: Outcomes,
    /// The changes to be made durable.
    pub(super) effects: Effects,
}

/// The answers to a batch: each sort in the order of its commands.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// The answers to the writes of jobs.
    pub(super) jobs: Vec<WriteResult>,
    /// The answers to the writes of records.
    pub(super) records: Vec<WriteResult<Record>>,
    /// The answers to the writes of schedules.
    pub(super) schedules: Vec<ScheduleResult>,
}

/// Changes by key, in the order in which a batch first comes to each: the same on every machine.
pub(super) type Changes<K, T> = IndexMap<K, Change<T>, RandomState>;

/// The difference that a batch makes. Each document and body is in it at most once, as it is after the whole batch:
/// a storage engine gives all parts of a batch one sequence number, so two writes of one key would have no order.
#[derive(Debug)]
pub(super) struct Effects {
    /// The jobs written.
    pub(super) heads: Changes<JobId, Versioned>,
    /// The rows that these jobs leave, in rising order.
    pub(super) left: BTreeSet<Row>,
    /// The bodies written (`Some`) and dropped (`None`).
    pub(super) bodies: BTreeMap<BodyId, Option<Json>>,
    /// The records written.
    pub(super) records: Changes<RecordKey, Record>,
    /// The schedules that were written or removed.
    pub(super) schedules: Changes<ScheduleId, StoredSchedule>,
    /// The version given last.
    pub(super) last: Version,
}

/// A job's row in the index of finished jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Row {
    /// The number of the block.
    pub(super) block: u32,
    /// The number of the row in the block.
    pub(super) row: u32,
}

/// A document before and after a batch; `None` when it does not exist.
#[derive(Debug, PartialEq)]
pub(super) struct Change<T> {
    pub(super) before: Option<T>,
    pub(super) after: Option<T>,
}

/// A batch while its commands are decided.
pub(super) struct Batch {
    outcomes: Outcomes,
    effects: Effects,
}

/// What is compared and swapped.
pub(super) trait Document: Clone {
    fn version(&self) -> Version;
}

impl Document for Versioned {
    fn version(&self) -> Version {
        self.version
    }
}

impl Document for Record {
    fn version(&self) -> Version {
        self.version
    }
}

impl Document for StoredSchedule {
    fn version(&self) -> Version {
        self.version
    }
}

impl<T: Document> Change<T> {
    /// Returns whether it is one: a document may be as it was.
    pub(super) fn is_one(&self) -> bool {
        self.before.as_ref().map(T::version) != self.after.as_ref().map(T::version)
    }

    /// Checks that the document has the version that a write expects.
    fn expect(&self, expected: Option<Version>) -> Result<(), WriteError<T>> {
        match self.after.as_ref().map(T::version) == expected {
            true => Ok(()),
            false => Err(WriteError::Conflict(self.after.clone())),
        }
    }

    /// Puts what `next` makes of the next version after `last` in the place of the version `expected`, and nothing in
    /// it when that is `None`.
    fn swap(
        &mut self,
        expected: Option<Version>,
        last: &mut Version,
        next: impl FnOnce(Version) -> Option<T>,
    ) -> WriteResult<T> {
        self.expect(expected)?;
        last.seq_no += 1;
        self.after = next(*last);
        let removed = expected.filter(|_| self.after.is_none());
        Ok(removed.unwrap_or(*last))
    }
}

/// Returns the change of the document with this key, which is read when the batch first comes to it.
fn change_of<'m, K: Hash + Eq + Clone, T: Clone>(
    changes: &'m mut Changes<K, T>,
    key: &K,
    read: impl FnOnce(&K) -> Result<Option<T>, StoreError>,
) -> Result<&'m mut Change<T>, StoreError> {
    Ok(match changes.entry(key.clone()) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => {
            let before = read(key)?;
            entry.insert(Change { after: before.clone(), before })
        }
    })
}

impl Effects {
    /// Returns how many documents it changes.
    pub(super) fn documents(&self) -> usize {
        self.heads.len() + self.records.len() + self.schedules.len()
    }

    /// Returns the latest time at which one of these jobs and schedules was changed.
    pub(super) fn time(&self) -> Option<Timestamp> {
        let jobs = self.heads.values().filter_map(|change| Some(change.after.as_ref()?.job.updated_at));
        let schedules = self.schedules.values().filter_map(|change| Some(change.after.as_ref()?.schedule.updated_at));
        jobs.chain(schedules).max()
    }

    /// Returns how the numbers of finished jobs change, by state and queue.
    pub(super) fn finished_deltas(&self) -> BTreeMap<(JobState, QueueName), i64> {
        let mut deltas = BTreeMap::new();
        for change in self.heads.values() {
            for (head, by) in [(&change.before, -1), (&change.after, 1)] {
                let Some(job) = head.as_ref().map(|head| &head.job) else { continue };
                if job.is_settled() {
                    *deltas.entry((job.state.name(), job.spec.queue.clone())).or_insert(0) += by;
                }
            }
        }
        deltas.retain(|_, by| *by != 0);
        deltas
    }
}

impl Batch {
    /// Returns an empty batch, where `last` is the version given last.
    pub(super) fn new(last: Version) -> Self {
        let effects = Effects {
            heads: Changes::default(),
            left: BTreeSet::new(),
            bodies: BTreeMap::new(),
            records: Changes::default(),
            schedules: Changes::default(),
            last,
        };
        Self { outcomes: Outcomes::default(), effects }
    }

    /// Decides commands on the state that `heads` shows, which is that before the batch, and on what the batch has made
    /// of it so far.
    pub(super) fn decide(&mut self, heads: &impl Heads, commands: impl IntoIterator<Item = Command>) {
        for command in commands {
            match command {
                Command::Job(write) => {
                    let outcome = self.decide_job(heads, write);
                    self.outcomes.jobs.push(outcome);
                }
                Command::Record(write) => {
                    let outcome = self.decide_record(heads, write);
                    self.outcomes.records.push(outcome);
                }
                Command::Schedule(write) => {
                    let outcome = self.decide_schedule(heads, &write);
                    self.outcomes.schedules.push(outcome);
                }
            }
        }
    }

    /// Returns what the batch has changed so far.
    pub(super) fn effects(&self) -> &Effects {
        &self.effects
    }

    /// Returns what has become of the batch.
    pub(super) fn end(self) -> Applied {
        let Self { outcomes, mut effects } = self;
        // A document that was created and removed within the batch, or was only read, is no change.
        effects.heads.retain(|_, change| change.is_one());
        effects.records.retain(|_, change| change.is_one());
        effects.schedules.retain(|_, change| change.is_one());
        Applied { outcomes, effects }
    }

    fn decide_job(&mut self, heads: &impl Heads, write: Write) -> WriteResult {
        let change = change_of(&mut self.effects.heads, &write.job().id, |id| heads.head(id))?;
        let expected = match &write {
            Write::Create { .. } => None,
            Write::Replace { expected, .. } | Write::Remove { expected, .. } => Some(*expected),
        };
        change.expect(expected)?;
        // Before anything is decided, so that only this job is refused when its row cannot be read.
        if let Some(before) = change.before.as_ref().filter(|before| expected == Some(before.version)) {
            self.effects.left.extend(heads.row(before)?);
        }
        self.effects.last.seq_no += 1;
        let version = self.effects.last;
        match write {
            Write::Create { job, bodies } | Write::Replace { job, bodies, .. } => {
                let former = change.after.replace(Versioned { job: Arc::clone(&job), version });
                self.keep_bodies(&job, bodies);
                self.drop_bodies(former, Some(&job));
                Ok(version)
            }
            Write::Remove { expected, .. } => {
                let former = change.after.take();
                self.drop_bodies(former, None);
                Ok(expected)
            }
        }
    }

    fn decide_record(&mut self, heads: &impl Heads, write: RecordWrite) -> WriteResult<Record> {
        let Effects { records, last, .. } = &mut self.effects;
        let change = change_of(records, write.key(), |key| heads.record(key))?;
        match write {
            RecordWrite::Create { key, body } => change.swap(None, last, |version| Some(Record { key, body, version })),
            RecordWrite::Replace { key, body, expected } => {
                change.swap(Some(expected), last, |version| Some(Record { key, body, version }))
            }
            RecordWrite::Remove { expected, .. } => change.swap(Some(expected), last, |_| None),
        }
    }

    fn decide_schedule(&mut self, heads: &impl Heads, write: &ScheduleWrite) -> ScheduleResult {
        let Effects { schedules, last, .. } = &mut self.effects;
        let change = change_of(schedules, write.id(), |id| heads.schedule(id))?;
        let stored = |version| Some(StoredSchedule { schedule: Arc::clone(write.schedule()?), version });
        change.swap(write.expected(), last, stored)
    }

    /// Keeps only bodies that the job refers to: no other would ever be removed again.
    fn keep_bodies(&mut self, job: &Job, bodies: Vec<NewBody>) {
        for body in bodies {
            if job.stored_bodies().any(|reference| *reference == body.reference) {
                self.effects.bodies.insert(body.reference.id, Some(body.json));
            }
        }
    }

    /// Drops the bodies that only the former version of a job referred to.
    fn drop_bodies(&mut self, former: Option<Versioned>, job: Option<&Arc<Job>>) {
        let Some(former) = former else { return };
        for reference in former.job.stored_bodies() {
            let is_kept = job.is_some_and(|job| job.stored_bodies().any(|kept| kept.id == reference.id));
            if !is_kept {
                self.effects.bodies.insert(reference.id, None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
