//! Schedules in a store: documents that are compared and swapped as jobs are.

use std::sync::Arc;

use super::{Version, WriteResult};
use crate::clock::Timestamp;
use crate::job::{PartitionSet, ScheduleId};
use crate::query::ScheduleFilter;
use crate::schedule::Schedule;

/// A schedule as it is stored, with the version to write it back under.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredSchedule {
    /// The schedule as of this version.
    pub schedule: Arc<Schedule>,
    /// The version that was last read or written.
    pub version: Version,
}

/// One conditional write of a schedule.
#[derive(Clone, Debug)]
pub enum ScheduleWrite {
    /// Writes a schedule that must not exist yet.
    Create {
        /// The schedule that is written.
        schedule: Arc<Schedule>,
    },
    /// Writes a schedule over the version `expected` and no other.
    Replace {
        /// The schedule that is written.
        schedule: Arc<Schedule>,
        /// The version under which the schedule was read.
        expected: Version,
    },
    /// Removes the version `expected` of a schedule and no other.
    Remove {
        /// The id of the schedule that is removed.
        id: ScheduleId,
        /// The version under which the schedule was read.
        expected: Version,
    },
}

impl ScheduleWrite {
    /// Returns the id of the schedule.
    #[must_use]
    pub fn id(&self) -> &ScheduleId {
        match self {
            Self::Create { schedule } | Self::Replace { schedule, .. } => &schedule.id,
            Self::Remove { id, .. } => id,
        }
    }

    /// Returns the version that must be stored; `None` when the schedule must not exist.
    #[must_use]
    pub fn expected(&self) -> Option<Version> {
        match self {
            Self::Create { .. } => None,
            Self::Replace { expected, .. } | Self::Remove { expected, .. } => Some(*expected),
        }
    }

    /// Returns the schedule that is written; `None` for a removal.
    #[must_use]
    pub fn schedule(&self) -> Option<&Arc<Schedule>> {
        match self {
            Self::Create { schedule } | Self::Replace { schedule, .. } => Some(schedule),
            Self::Remove { .. } => None,
        }
    }
}

/// The result of a write of a schedule.
pub type ScheduleResult = WriteResult<StoredSchedule>;

/// A page of the schedules that a loader has to look at ([`Schedule::load_at`]), by that time and then by id.
#[derive(Clone, Copy, Debug)]
pub struct DueSchedules {
    /// Selects schedules in these partitions.
    pub partitions: PartitionSet,
    /// Selects schedules that are to be looked at by this time.
    pub until: Timestamp,
    /// The most schedules to return.
    pub limit: usize,
}

/// A page of a list of schedules, by id.
#[derive(Clone, Debug)]
pub struct ListSchedules {
    /// Selects schedules.
    pub filter: ScheduleFilter,
    /// Selects schedules with a greater id.
    pub after: Option<ScheduleId>,
    /// The most schedules to return.
    pub limit: usize,
}
