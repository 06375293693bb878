//! The state that readers see: everything acknowledged and nothing else.
//!
//! [`Published`] holds the live jobs, the counts, and a snapshot of the disk taken right after the last commit, and is
//! moved on as one. A reader who takes all it needs under one lock sees one moment, however it then reads the disk.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fjall::Snapshot;

use super::block::Blocks;
use super::live::Live;
use super::machine::Effects;
use crate::job::{JobId, JobState, QueueName};
use crate::store::{Version, Versioned};

/// The store's state as of the last commit.
pub(super) struct Published {
    /// The live jobs.
    pub(super) live: Live,
    /// The finished jobs that are in no block yet.
    pub(super) recent: Recent,
    /// The blocks of all other finished jobs.
    pub(super) blocks: Arc<Blocks>,
    /// How many jobs have finished.
    pub(super) finished: Finished,
    /// The version assigned last.
    pub(super) last: Version,
    /// A snapshot of the disk at the same moment.
    pub(super) snapshot: Arc<Snapshot>,
}

impl Published {
    /// Returns a job that is in memory.
    pub(super) fn in_memory(&self, id: &JobId) -> Option<&Versioned> {
        self.live.get(id).or_else(|| self.recent.get(id))
    }
}

/// The jobs that have ended lately, by the number of the write that ended them. At most two blocks of them.
#[derive(Debug, Default)]
pub(super) struct Recent {
    by_write: BTreeMap<u64, Versioned>,
    by_id: HashMap<JobId, u64>,
}

impl Recent {
    /// Returns the job, if it has ended lately.
    pub(super) fn get(&self, id: &JobId) -> Option<&Versioned> {
        self.by_write.get(self.by_id.get(id)?)
    }

    /// Returns the number of these jobs.
    pub(super) fn len(&self) -> usize {
        self.by_write.len()
    }

    /// Returns all of these jobs, in the order in which they ended.
    pub(super) fn heads(&self) -> impl Iterator<Item = &Versioned> {
        self.by_write.values()
    }

    /// Puts a job in the place of its former version, and returns that.
    pub(super) fn put(&mut self, head: Versioned) -> Option<Versioned> {
        let former = self.remove(&head.job.id);
        self.by_id.insert(head.job.id.clone(), head.version.seq_no);
        self.by_write.insert(head.version.seq_no, head);
        former
    }

    /// Takes a job out, and returns it.
    pub(super) fn remove(&mut self, id: &JobId) -> Option<Versioned> {
        self.by_write.remove(&self.by_id.remove(id)?)
    }
}

/// How many finished jobs there are by state and queue.
#[derive(Debug, Default)]
pub(super) struct Finished(HashMap<(JobState, QueueName), u64>);

/// How many finished jobs there are in one state and queue.
pub(super) type FinishedCount = (JobState, QueueName, u64);

impl Finished {
    /// Returns the counts that a batch changes, as they are after it.
    pub(super) fn after(&self, effects: &Effects) -> Vec<FinishedCount> {
        let changed = effects.finished_deltas().into_iter();
        let after = changed.map(|(group, by)| {
            let before = self.0.get(&group).copied().unwrap_or(0);
            (group.0, group.1, before.saturating_add_signed(by))
        });
        after.collect()
    }

    /// Sets the number of finished jobs in a state and queue.
    pub(super) fn set(&mut self, state: JobState, queue: QueueName, count: u64) {
        if count == 0 {
            self.0.remove(&(state, queue));
        } else {
            self.0.insert((state, queue), count);
        }
    }

    /// Returns all counts that are not zero.
    pub(super) fn counts(&self) -> impl Iterator<Item = (JobState, &QueueName, u64)> {
        self.0.iter().map(|((state, queue), count)| (*state, queue, *count))
    }
}
