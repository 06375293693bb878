//! The state machine: what a batch of commands makes of the store.
//!
//! [`apply`] is a pure function of the state it reads and the commands: no clock, no randomness, and no I/O but what
//! the reader does to look a job or a record up. The same commands on the same state give the same outcomes and effects on every
//! machine, so that it can sit behind a replicated log as it is.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use crate::job::{BodyId, Job, JobId, JobState, Json, NewBody, QueueName};
use crate::store::{Record, RecordKey, RecordWrite, StoreError, Version, Versioned, Write, WriteError, WriteResult};

/// What is asked of the state machine.
#[derive(Clone, Debug)]
pub(super) enum Command {
    /// A write of a job.
    Job(Write),
    /// A write of a record.
    Record(RecordWrite),
}

/// Where the state machine looks its own state up.
pub(super) trait Heads {
    /// The job as the last batch left it.
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError>;

    /// The record as the last batch left it.
    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError>;
}

/// What a batch came to.
#[derive(Debug)]
pub(super) struct Applied {
    /// The answers to the commands. They hold once the effects are durable.
    pub(super) outcomes: Outcomes,
    /// What is to be made durable.
    pub(super) effects: Effects,
}

/// The answers to a batch: each sort in the order of its commands.
#[derive(Debug, Default)]
pub(super) struct Outcomes {
    /// To the writes of jobs.
    pub(super) jobs: Vec<WriteResult>,
    /// To the writes of records.
    pub(super) records: Vec<WriteResult<Record>>,
}

/// The difference that a batch makes. Each job, body and record is in it at most once, as it is after the whole batch:
/// a storage engine gives all parts of a batch one sequence number, so two writes of one key would have no order.
#[derive(Debug)]
pub(super) struct Effects {
    /// The jobs written.
    pub(super) heads: Vec<HeadChange>,
    /// The bodies written (`Some`) and dropped (`None`).
    pub(super) bodies: BTreeMap<BodyId, Option<Json>>,
    /// The records written.
    pub(super) records: BTreeMap<RecordKey, RecordChange>,
    /// The version given last.
    pub(super) last: Version,
}

/// A job before and after a batch.
#[derive(Debug)]
pub(super) struct HeadChange {
    /// Which one.
    pub(super) id: JobId,
    /// Before, if there was one.
    pub(super) before: Option<Versioned>,
    /// After, if there is one.
    pub(super) after: Option<Versioned>,
}

/// A record before and after a batch.
#[derive(Debug, PartialEq)]
pub(super) struct RecordChange {
    /// Before, if there was one.
    pub(super) before: Option<Record>,
    /// After, if there is one.
    pub(super) after: Option<Record>,
}

/// Decides a batch of commands on the state that `heads` shows, where `last` is the version given last.
pub(super) fn apply(heads: &impl Heads, last: Version, commands: Vec<Command>) -> Applied {
    let (heads_changed, bodies, records) = (Vec::with_capacity(commands.len()), BTreeMap::new(), BTreeMap::new());
    let effects = Effects { heads: heads_changed, bodies, records, last };
    let mut batch = Batch { heads, effects, touched: HashMap::with_capacity(commands.len()) };
    let mut outcomes = Outcomes { jobs: Vec::with_capacity(commands.len()), records: Vec::new() };
    for command in commands {
        match command {
            Command::Job(write) => outcomes.jobs.push(batch.decide(write)),
            Command::Record(write) => outcomes.records.push(batch.decide_record(write)),
        }
    }
    // What came and went within the batch, or was only looked at, is no change.
    let version = |head: &Versioned| head.version;
    batch.effects.heads.retain(|change| change.before.as_ref().map(version) != change.after.as_ref().map(version));
    let version = |record: &Record| record.version;
    batch.effects.records.retain(|_, change| change.before.as_ref().map(version) != change.after.as_ref().map(version));
    Applied { outcomes, effects: batch.effects }
}

impl Effects {
    /// How the numbers of finished jobs change, by state and queue.
    pub(super) fn finished_deltas(&self) -> BTreeMap<(JobState, QueueName), i64> {
        let mut deltas = BTreeMap::new();
        for change in &self.heads {
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

struct Batch<'a, H> {
    heads: &'a H,
    effects: Effects,
    /// Where in `effects.heads` a job is that an earlier command of this batch has looked up.
    touched: HashMap<JobId, usize>,
}

impl<H: Heads> Batch<'_, H> {
    fn decide(&mut self, command: Write) -> WriteResult {
        let place = self.look_up(&command.job().id)?;
        let current = self.effects.heads[place].after.as_ref();
        let found = current.map(|current| current.version);
        let met = match &command {
            Write::Create { .. } => found.is_none(),
            Write::Replace { expected, .. } | Write::Remove { expected, .. } => found == Some(*expected),
        };
        if !met {
            return Err(WriteError::Conflict(current.cloned()));
        }
        let version = self.next_version();
        match command {
            Write::Create { job, bodies } | Write::Replace { job, bodies, .. } => {
                self.keep_bodies(&job, bodies);
                self.put(place, Some(Versioned { job, version }));
                Ok(version)
            }
            Write::Remove { expected, .. } => {
                self.put(place, None);
                Ok(expected)
            }
        }
    }

    fn decide_record(&mut self, write: RecordWrite) -> WriteResult<Record> {
        let current = &self.look_up_record(write.key())?.after;
        let found = current.as_ref().map(|current| current.version);
        let met = match &write {
            RecordWrite::Create { .. } => found.is_none(),
            RecordWrite::Replace { expected, .. } | RecordWrite::Remove { expected, .. } => found == Some(*expected),
        };
        if !met {
            return Err(WriteError::Conflict(current.clone()));
        }
        let version = self.next_version();
        let key = write.key().clone();
        let (after, answer) = match write {
            RecordWrite::Create { body, .. } | RecordWrite::Replace { body, .. } => {
                (Some(Record { key: key.clone(), body, version }), version)
            }
            RecordWrite::Remove { expected, .. } => (None, expected),
        };
        self.look_up_record(&key)?.after = after;
        Ok(answer)
    }

    fn next_version(&mut self) -> Version {
        self.effects.last.seq_no += 1;
        self.effects.last
    }

    fn look_up_record(&mut self, key: &RecordKey) -> Result<&mut RecordChange, StoreError> {
        match self.effects.records.entry(key.clone()) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => {
                let before = self.heads.record(key)?;
                Ok(entry.insert(RecordChange { after: before.clone(), before }))
            }
        }
    }

    fn look_up(&mut self, id: &JobId) -> Result<usize, StoreError> {
        if let Some(place) = self.touched.get(id) {
            return Ok(*place);
        }
        let before = self.heads.head(id)?;
        let place = self.effects.heads.len();
        self.effects.heads.push(HeadChange { id: id.clone(), after: before.clone(), before });
        self.touched.insert(id.clone(), place);
        Ok(place)
    }

    /// Only bodies that the job refers to: no other would ever be removed again.
    fn keep_bodies(&mut self, job: &Job, bodies: Vec<NewBody>) {
        for body in bodies {
            if job.stored_bodies().any(|reference| *reference == body.reference) {
                self.effects.bodies.insert(body.reference.id, Some(body.json));
            }
        }
    }

    /// Sets the job and drops the bodies that only its former version referred to.
    fn put(&mut self, place: usize, after: Option<Versioned>) {
        let former = std::mem::replace(&mut self.effects.heads[place].after, after);
        let Some(former) = former else { return };
        for reference in former.job.stored_bodies() {
            let kept = self.effects.heads[place].after.as_ref().is_some_and(|head| {
                let mut references = head.job.stored_bodies();
                references.any(|other| other.id == reference.id)
            });
            if !kept {
                self.effects.bodies.insert(reference.id, None);
            }
        }
    }
}

#[cfg(test)]
mod tests;
