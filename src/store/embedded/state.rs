//! The state that readers see: everything acknowledged and nothing else.
//!
//! [`Published`] holds the live jobs, the counts, and a snapshot of the disk taken right after the last commit, and is
//! moved on as one. A reader who takes all it needs under one lock sees one moment, however it then reads the disk.

use std::collections::HashMap;
use std::sync::Arc;

use fjall::Snapshot;
use parking_lot::RwLock;

use super::disk::Disk;
use super::live::Live;
use super::machine::{self, Applied, Command, Effects, Heads, Outcomes};
use crate::job::{JobId, QueueName, StateName};
use crate::store::{Record, RecordKey, StoreError, Version, Versioned, WriteError};

/// The store's state as of the last commit.
pub(super) struct Published {
    /// The jobs that have not ended.
    pub(super) live: Live,
    /// How many have.
    pub(super) finished: Finished,
    /// The version given last.
    pub(super) last: Version,
    /// The disk at the same moment.
    pub(super) snapshot: Arc<Snapshot>,
}

/// How many finished jobs there are by state and queue.
#[derive(Debug, Default)]
pub(super) struct Finished(HashMap<(StateName, QueueName), u64>);

/// How many finished jobs there are in one state and queue.
pub(super) type FinishedCount = (StateName, QueueName, u64);

impl Finished {
    /// The counts that a batch changes, as they are after it.
    fn after(&self, effects: &Effects) -> Vec<FinishedCount> {
        let changed = effects.finished_deltas().into_iter();
        let after = changed.map(|(group, by)| {
            let before = self.0.get(&group).copied().unwrap_or(0);
            (group.0, group.1, before.saturating_add_signed(by))
        });
        after.collect()
    }

    /// Sets how many.
    pub(super) fn set(&mut self, state: StateName, queue: QueueName, count: u64) {
        if count == 0 {
            self.0.remove(&(state, queue));
        } else {
            self.0.insert((state, queue), count);
        }
    }

    /// All that are not zero.
    pub(super) fn counts(&self) -> impl Iterator<Item = (StateName, &QueueName, u64)> {
        self.0.iter().map(|((state, queue), count)| (*state, queue, *count))
    }
}

/// The disk, and the state that readers see.
pub(super) struct Engine {
    pub(super) published: RwLock<Published>,
    pub(super) disk: Disk,
}

impl Engine {
    /// Decides a batch, makes it durable, shows it to readers, and gives the answers. Only the writer calls this, one
    /// batch after the other. No lock is held while the disk is written to, but a shared one while documents are looked
    /// up.
    ///
    /// # Errors
    /// When the batch could not be made durable: then none of its answers holds, and the caller must stop.
    pub(super) fn commit(&self, commands: Vec<Command>) -> Result<Committed, StoreError> {
        let (Applied { outcomes, effects }, counts) = {
            let published = self.published.read();
            let heads = Reader { published: &published, disk: &self.disk };
            let applied = machine::apply(&heads, published.last, commands);
            if applied.effects.last == published.last {
                return Ok(Committed { outcomes: applied.outcomes, _effects: applied.effects });
            }
            let counts = published.finished.after(&applied.effects);
            (applied, counts)
        };
        self.disk.commit(&effects, &counts)?;
        self.publish(&effects, counts);
        Ok(Committed { outcomes, _effects: effects })
    }

    fn publish(&self, effects: &Effects, counts: Vec<FinishedCount>) {
        let snapshot = self.disk.snapshot();
        let mut published = self.published.write();
        published.last = effects.last;
        published.snapshot = snapshot;
        for (state, queue, count) in counts {
            published.finished.set(state, queue, count);
        }
        for change in &effects.heads {
            // `effects` still holds what this displaces, so nothing is freed under the lock.
            match &change.after {
                Some(head) if !head.job.is_settled() => published.live.put(head.clone()),
                _ => published.live.remove(&change.id),
            };
        }
    }
}

/// A durable batch.
pub(super) struct Committed {
    /// The answers to its commands.
    pub(super) outcomes: Outcomes,
    /// Freed by the caller once it has answered.
    _effects: Effects,
}

struct Reader<'a> {
    published: &'a Published,
    disk: &'a Disk,
}

impl Heads for Reader<'_> {
    fn head(&self, id: &JobId) -> Result<Option<Versioned>, StoreError> {
        match self.published.live.get(id) {
            Some(head) => Ok(Some(head.clone())),
            None => self.disk.finished(&self.published.snapshot, id),
        }
    }

    fn record(&self, key: &RecordKey) -> Result<Option<Record>, StoreError> {
        self.disk.record(&self.published.snapshot, key)
    }
}

impl From<super::Corrupt> for StoreError {
    fn from(super::Corrupt(what): super::Corrupt) -> Self {
        Self::Corrupt(what)
    }
}

/// The answer to every command of a batch that could not be made durable.
pub(super) fn undecided<T>(failure: &StoreError) -> WriteError<T> {
    WriteError::Unknown(failure.to_string())
}
