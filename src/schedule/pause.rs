//! The due times that a pause has left out.

use super::definition::{NotRun, NotRunRange, Schedule, SchedulePause, Timetable};
use crate::clock::Timestamp;

impl Schedule {
    /// Returns whether this due time falls within the pause of a schedule that is paused at `now`. So do those before
    /// the pause for which no trigger had been made.
    #[must_use]
    pub fn is_in_pause(&self, due: Timestamp, now: Timestamp) -> bool {
        self.paused.as_ref().is_some_and(|pause| due > self.ran_until(pause) && due <= now)
    }

    /// Returns the due times that the pause of a schedule has left out by `now`, without those that are known not to
    /// have run; `None` when there are none.
    #[must_use]
    pub fn left_out(&self, timetable: &Timetable, now: Timestamp) -> Option<NotRunRange> {
        let after = self.ran_until(self.paused.as_ref()?).max(self.period_since);
        let (first, last, count) = timetable.span(after, now)?;
        let is_within = |range: &&NotRunRange| first <= range.first && range.last <= last;
        let known: u64 = self.course.not_run.iter().filter(is_within).map(|range| range.count).sum();
        let count = count.saturating_sub(known);
        (count > 0).then_some(NotRunRange { first, last, count, reason: NotRun::Paused })
    }

    /// Returns the moment after which no trigger was performed because of this pause.
    fn ran_until(&self, pause: &SchedulePause) -> Timestamp {
        let next = self.course.next_due_at.map_or(pause.at, |next| Timestamp::from_millis(next.as_millis() - 1));
        pause.at.min(next)
    }
}
