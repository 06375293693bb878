//! Places of a limit that are kept free for urgent jobs.
//!
//! The other jobs have so many slots fewer. A slot says the priority of its job, so that what others have counts by the
//! same document as all slots do, and is exceeded no more than the limit itself.

use serde::{Deserialize, Serialize};
use tracing::debug;
use utoipa::ToSchema;

use crate::job::{JobState, LimitName, Priority, QueueName};
use crate::manager::Manager;
use crate::query::{Filter, Search, Sort};

/// The most limits whose urgent jobs are searched for at a time.
const SEARCHES_AT_A_TIME: usize = 16;

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

impl Manager {
    /// Searches for urgent jobs of limits that hold only a part of theirs: the others may be urgent, and are left out
    /// of all other searches. Goes on after the limit that was the last before, and returns the last one now.
    pub(super) async fn search_for_urgent(&self, after: Option<LimitName>) -> Option<LimitName> {
        let urgent = |(name, queues): (LimitName, Vec<QueueName>)| {
            Some((self.shared.limits.settings.get(&name)?.urgent?, name, queues))
        };
        let mut limits: Vec<(Urgent, LimitName, Vec<QueueName>)> =
            self.shared.dispatch.with_more().into_iter().filter_map(urgent).collect();
        let first = limits.partition_point(|(_, name, _)| Some(name) <= after.as_ref());
        limits.rotate_left(first);
        limits.truncate(SEARCHES_AT_A_TIME);
        for (urgent, name, queues) in &limits {
            let filter = Filter {
                states: vec![JobState::Available],
                held: Some(false),
                queues: queues.clone(),
                under: vec![name.clone()],
                run_at_most: Some(self.shared.clock.now()),
                ..Filter::default()
            };
            let limit = usize::try_from(urgent.places).unwrap_or(usize::MAX);
            match self.shared.store.search(&Search { filter, sort: Sort::Dispatch, after: None, limit }).await {
                Ok(mut found) => {
                    found.retain(|hit| urgent.is(hit.job.spec.priority) && !self.shared.work.known.is_outdated(hit));
                    self.shared.dispatch.hold_urgent(name, found);
                }
                Err(error) => debug!(%error, limit = %name, "cannot search for the urgent jobs of a limit"),
            }
        }
        limits.pop().map(|(_, name, _)| name)
    }
}
