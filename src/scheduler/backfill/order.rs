//! What a backfill is to do, and what it has done.

use serde::{Deserialize, Serialize};

use crate::clock::Timestamp;
use crate::job::{JobId, ScheduleId};
use crate::schedule::Schedule;

/// The kind of backfills, which are jobs in the queue of triggers: a queue of their own would be looked at all the
/// time, and would nearly always be empty.
pub(crate) const KIND: &str = "leasehold.backfill";

/// The most due times of one backfill.
pub const MAX_DUE_TIMES: usize = 100_000;
/// How many of what failed a report names.
const NAMED_FAILURES: usize = 100;

/// A backfill, as the payload of its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Order {
    pub(super) schedule_id: ScheduleId,
    /// When the schedule was created: another one may have its id since.
    pub(super) created_at: Timestamp,
    /// When people had last changed the schedule when the backfill was asked for.
    pub(super) changed_at: Timestamp,
    /// The first due time that is run is at this moment or after it.
    pub(super) from: Timestamp,
    /// The last one is at this moment or before it.
    pub(super) to: Timestamp,
    pub(super) max_concurrent: usize,
    /// How many due times are in between.
    pub(super) due: u64,
}

impl Order {
    /// Returns whether the schedule is the one that the backfill was asked for. A pause does not change it.
    pub(super) fn is_for(&self, schedule: &Schedule) -> bool {
        (&schedule.id, schedule.created_at, schedule.updated_at)
            == (&self.schedule_id, self.created_at, self.changed_at)
    }

    /// Returns whether both are asked for in the same words, though the schedule may have changed in between.
    pub(super) fn is_asked_alike(&self, other: &Self) -> bool {
        let asked = |order: &Self| (order.schedule_id.clone(), order.from, order.to, order.max_concurrent);
        asked(self) == asked(other)
    }
}

/// What became of a due time that a backfill has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// The action was performed, and the job that it submitted, if any, is completed.
    Performed,
    /// The receiver refused the call, or the job cannot be submitted.
    Consumed,
    /// The action was not performed, or the job that it submitted has ended in another way.
    Failed,
}

/// What a backfill has done, as its job's result.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackfillReport {
    /// The moment from which on due times were run.
    pub from: Timestamp,
    /// The moment up to which they were.
    pub to: Timestamp,
    /// How many due times there are.
    pub due: u64,
    /// How many of them were performed or under way without this backfill.
    pub already: u64,
    /// How many were performed by it, with the job that was submitted.
    pub performed: u64,
    /// How many it ran in vain since the receiver refused the call, or the job cannot be submitted.
    pub consumed: u64,
    /// How many it ran of which the action or the job that was submitted has failed.
    pub failed: u64,
    /// The first hundred triggers and jobs that failed.
    pub failed_ids: Vec<JobId>,
}

impl BackfillReport {
    /// Counts a due time that was run: what became of it, and which job says so.
    pub(super) fn count(&mut self, fate: Fate, id: JobId) {
        match fate {
            Fate::Performed => self.performed += 1,
            Fate::Consumed => self.consumed += 1,
            Fate::Failed => {
                self.failed += 1;
                if self.failed_ids.len() < NAMED_FAILURES {
                    self.failed_ids.push(id);
                }
            }
        }
    }

    /// Returns how many due times are done with.
    pub(super) fn done(&self) -> u64 {
        self.already + self.performed + self.consumed + self.failed
    }
}
