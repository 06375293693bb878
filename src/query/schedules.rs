//! Searches of schedules.

use super::Query;
use crate::job::Owner;
use crate::schedule::Schedule;

/// Selects the schedules that satisfy every part. A part that is `None` selects every schedule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleFilter {
    /// Selects schedules of this owner.
    pub owner: Option<Owner>,
    /// Selects schedules that are paused, or those that are not.
    pub paused: Option<bool>,
    /// Selects the schedules that this KQL query matches, which is about schedules.
    pub query: Option<Query>,
}

impl ScheduleFilter {
    /// Returns whether the filter selects `schedule`.
    #[must_use]
    pub fn matches(&self, schedule: &Schedule) -> bool {
        let owner = schedule.definition.owner.as_ref();
        self.owner.as_ref().is_none_or(|wanted| owner == Some(wanted))
            && self.paused.is_none_or(|paused| schedule.paused.is_some() == paused)
            && self.query.as_ref().is_none_or(|query| query.expression.matches_schedule(schedule, query.now))
    }
}
