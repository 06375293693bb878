//! Places of a limit that are kept free for urgent jobs.
//!
//! The other jobs have so many slots fewer. A slot says the priority of its job, so that what others have counts by the
//! same document as all slots do, and is exceeded no more than the limit itself.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::job::Priority;

/// How many places of a limit are kept free for urgent jobs, and which jobs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Urgent {
    /// The places that are kept free; fewer than jobs may run at once.
    pub places: u32,
    /// The least priority of an urgent job, from -99 to 100.
    #[schema(value_type = i64, minimum = -99, maximum = 100)]
    pub min_priority: Priority,
}

impl Urgent {
    /// The least priorities that there can be: all jobs have the lowest one at least.
    pub const MIN_PRIORITY: std::ops::RangeInclusive<i64> = Priority::LOWEST + 1..=Priority::HIGHEST;

    /// Returns whether a job of this priority is urgent.
    #[must_use]
    pub fn is(&self, priority: Priority) -> bool {
        priority >= self.min_priority
    }

    /// Returns how many of the jobs that are not urgent run at once, where `most` of all do.
    #[must_use]
    pub const fn most_others(&self, most: u32) -> u32 {
        most.saturating_sub(self.places)
    }
}
