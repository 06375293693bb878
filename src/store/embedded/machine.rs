//! The state machine: what a batch of commands makes of the store.
//!
//! [`apply`] is a pure function of the state it reads and the commands: no clock, no randomness, and no I/O but what
//! the reader does to look a job up. The same commands on the same state give the same outcomes and effects on every
//! machine, so that it can sit behind a replicated log as it is.

use std::collections::{BTreeMap, HashMap};

use crate::job::{BodyId, Job, JobId, Json, NewBody, QueueName, StateName};
use crate::store::{StoreError, Version, Versioned, Write, WriteError, WriteResult};

/// Where the state machine looks its own state up.
pub(super) trait Heads {
    /// The job as the last batch left it.
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError>;
}

/// What a batch came to.
#[derive(Debug)]
pub(super) struct Applied {
    /// The answer to each command, in order. They hold once the effects are durable.
    pub(super) outcomes: Vec<WriteResult>,
    /// What is to be made durable.
    pub(super) effects: Effects,
}

/// The difference that a batch makes. Each job and each body is in it at most once, as it is after the whole batch:
/// a storage engine gives all parts of a batch one sequence number, so two writes of one key would have no order.
#[derive(Debug)]
pub(super) struct Effects {
    /// The jobs written.
    pub(super) heads: Vec<HeadChange>,
    /// The bodies written (`Some`) and dropped (`None`).
    pub(super) bodies: BTreeMap<BodyId, Option<Json>>,
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

/// Decides a batch of commands on the state that `heads` shows, where `last` is the version given last.
pub(super) fn apply(heads: &impl Heads, last: Version, commands: Vec<Write>) -> Applied {
    let effects = Effects { heads: Vec::with_capacity(commands.len()), bodies: BTreeMap::new(), last };
    let mut batch = Batch { heads, effects, touched: HashMap::with_capacity(commands.len()) };
    let outcomes = commands.into_iter().map(|command| batch.decide(command)).collect();
    // A job that came and went within the batch, or was only looked at, is no change.
    batch.effects.heads.retain(|change| match (&change.before, &change.after) {
        (None, None) => false,
        (Some(before), Some(after)) => before.version != after.version,
        _ => true,
    });
    Applied { outcomes, effects: batch.effects }
}

impl Effects {
    /// How the numbers of finished jobs change, by state and queue.
    pub(super) fn finished_deltas(&self) -> BTreeMap<(StateName, QueueName), i64> {
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
        self.effects.last.seq_no += 1;
        let version = self.effects.last;
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
