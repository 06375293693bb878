//! What has changed since the database was written last: it is durable in the log, and in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use foldhash::quality::RandomState;
use parking_lot::Mutex;

use super::block::Blocks;
use super::changed::ChangedSchedules;
use super::equality::sum::Sum;
use super::machine::{Change, Effects};
use crate::clock::Timestamp;
use crate::job::{BodyId, JobId, JobState, Json, QueueName};
use crate::store::{Membership, Record, RecordKey, Version, Versioned};

/// Changes that are not in the database yet. Each document is in it once, however often it was written.
#[derive(Debug, Default)]
pub(super) struct Unflushed {
    pub(super) jobs: HashMap<JobId, Changed, RandomState>,
    /// The bodies written (`Some`) and dropped (`None`).
    pub(super) bodies: HashMap<BodyId, Option<Json>>,
    pub(super) records: BTreeMap<RecordKey, Option<Record>>,
    pub(super) schedules: ChangedSchedules,
    /// The blocks that jobs have left.
    pub(super) blocks: BTreeSet<u32>,
    /// The groups of finished jobs whose number has changed.
    pub(super) counts: HashSet<(JobState, QueueName)>,
    /// How many changes of documents these were.
    pub(super) changes: u64,
    /// How many bytes of the log they take.
    pub(super) bytes: u64,
    /// When the first of them was made; `None` while there is none.
    pub(super) since: Option<Instant>,
}

/// A job that has changed.
#[derive(Debug)]
pub(super) struct Changed {
    /// Where the database has it.
    pub(super) was: Lies,
    /// The job as it is now; `None` when it was removed.
    pub(super) now: Option<Versioned>,
}

/// Where the database has a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lies {
    Nowhere,
    Live,
    /// Among the finished jobs, under this version.
    Finished(Version),
}

impl Lies {
    fn of(before: Option<&Versioned>) -> Self {
        match before {
            None => Self::Nowhere,
            Some(head) if head.job.is_settled() => Self::Finished(head.version),
            Some(_) => Self::Live,
        }
    }
}

impl Unflushed {
    /// Adds what a batch changes, which takes so many bytes of the log. Returns the jobs
    /// of which the database has a version, as a finished one, that is not current from now on.
    pub(super) fn add(&mut self, effects: &Effects, bytes: usize) -> Vec<JobId> {
        let mut stale = Vec::new();
        self.bytes += bytes as u64;
        self.since.get_or_insert_with(Instant::now);
        let Effects { heads, bodies, records, schedules, .. } = effects;
        // An entry that changes nothing counts as well: each is read again until it is flushed.
        self.changes += (heads.len() + bodies.len() + records.len() + schedules.len()).max(1) as u64;
        for (id, Change { before, after }) in heads {
            let changed = self.jobs.entry(id.clone()).or_insert_with(|| {
                let was = Lies::of(before.as_ref());
                stale.extend(matches!(was, Lies::Finished(_)).then(|| id.clone()));
                Changed { was, now: None }
            });
            changed.now.clone_from(after);
        }
        for (id, body) in bodies {
            self.bodies.insert(*id, body.clone());
        }
        for (key, change) in records {
            self.records.insert(key.clone(), change.after.clone());
        }
        for (id, change) in schedules {
            self.schedules.put(id, change);
        }
        stale
    }

    /// Returns the jobs of which the database has a version as finished that is not current.
    pub(super) fn stale(&self) -> Arc<HashSet<JobId>> {
        let stale = self.jobs.iter().filter(|(_, changed)| matches!(changed.was, Lies::Finished(_)));
        Arc::new(stale.map(|(id, _)| id.clone()).collect())
    }
}

/// About how many bytes of the database a document has.
const DOCUMENT_BYTES: u64 = 512;

/// A flush, or the writing of an entry, that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UnderWay {
    /// The last entry of the log that it has.
    pub(super) entry: u64,
    /// About how many bytes it writes.
    pub(super) bytes: u64,
}

/// What is under way that others wait for, if it is. Nothing is done under these locks.
#[derive(Default)]
pub(super) struct Awaited {
    pub(super) flush: Mutex<Option<UnderWay>>,
    /// The entry that the writer writes to the log.
    pub(super) append: Mutex<Option<UnderWay>>,
}

impl Flush {
    /// Returns what is known of it while it is under way.
    pub(super) fn under_way(&self) -> UnderWay {
        let Unflushed { bytes, changes, .. } = &*self.changes;
        UnderWay { entry: self.entry, bytes: bytes + changes * DOCUMENT_BYTES }
    }
}

/// What a flush writes.
pub(super) struct Flush {
    /// The last entry of the log that it contains.
    pub(super) entry: u64,
    /// The version given last.
    pub(super) last: Version,
    /// The latest time at which a job or schedule was changed.
    pub(super) time: Timestamp,
    pub(super) changes: Arc<Unflushed>,
    /// The finished jobs that are put in blocks.
    pub(super) cut: Vec<Cut>,
    /// The blocks as of the entry.
    pub(super) blocks: Arc<Blocks>,
    /// The changed numbers of finished jobs by group.
    pub(super) counts: Vec<((JobState, QueueName), u64)>,
    /// The members of the group, where these are not the ones that it was founded with.
    pub(super) members: Option<Arc<Membership>>,
    /// The sum over the documents as of the entry, where it is known, and by how much that had changed.
    pub(super) sum: Option<Sum>,
    pub(super) moved: Sum,
}

/// Finished jobs that become a block.
pub(super) struct Cut {
    pub(super) number: u32,
    pub(super) heads: Vec<Versioned>,
}
