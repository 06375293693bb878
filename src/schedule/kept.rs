//! What a schedule keeps of its last triggers: the outcomes of those that were removed, and which ones these are.

use super::definition::{Course, Schedule, Timetable};
use super::outcome::{KeptOutcome, Outcome};
use crate::clock::Timestamp;

/// Of how many of its last triggers a schedule keeps the outcomes.
pub const KEPT: usize = 10;

impl Schedule {
    /// Returns the due time of the first of the last [`KEPT`] triggers that were due by `now`; `None` when there were
    /// fewer. Due times that are known not to have run do not count: the schedule has them as ranges.
    #[must_use]
    pub fn kept_from(&self, timetable: &Timetable, now: Timestamp) -> Option<Timestamp> {
        let mut until = self.course.last_due_at?.min(now);
        let mut left = KEPT;
        // Ends: each pass but the last leaves a range behind, of which there are few.
        'before: loop {
            for due in timetable.last_until(until, left, self.period_since).into_iter().rev() {
                if let Some(range) = self.course.not_run_at(due) {
                    until = Timestamp::from_millis(range.first.as_millis() - 1);
                    continue 'before;
                }
                left -= 1;
                if left == 0 {
                    return Some(due);
                }
            }
            return None;
        }
    }

    /// Returns the last due time before this one of which it is not known that it did not run; `None` when there is
    /// none since the schedule has its period.
    #[must_use]
    pub fn may_have_run_before(&self, timetable: &Timetable, due: Timestamp) -> Option<Timestamp> {
        let mut before = due;
        // Ends: each pass but the first leaves a range behind, of which there are few.
        loop {
            let until = self.course.not_run_at(before).map_or(before, |range| range.first);
            let until = Timestamp::from_millis(until.as_millis() - 1);
            before = timetable.last_until(until, 1, self.period_since).pop()?;
            if !self.course.has_not_run(before) {
                return Some(before);
            }
        }
    }
}

impl Course {
    /// Returns the outcome that is kept for a due time.
    #[must_use]
    pub fn kept_at(&self, due: Timestamp) -> Option<&KeptOutcome> {
        self.kept.iter().find(|kept| kept.due_at == due)
    }

    /// Returns whether the ranges of due times that did not run say the same as an outcome.
    #[must_use]
    pub fn says(&self, outcome: &KeptOutcome) -> bool {
        matches!(outcome.outcome, Outcome::Missed | Outcome::Skipped) && self.has_not_run(outcome.due_at)
    }

    /// Keeps an outcome if it is among the last [`KEPT`]; returns whether that has changed anything. Of a due time that
    /// was not performed when it was due, what a backfill made of it is kept.
    pub fn keep(&mut self, outcome: KeptOutcome) -> bool {
        let place = self.kept.partition_point(|kept| kept.due_at < outcome.due_at);
        if let Some(known) = self.kept.get_mut(place).filter(|known| known.due_at == outcome.due_at) {
            let counts = |kept: &KeptOutcome| (kept.outcome.is_done(), kept.backfilled);
            let is_overtaken = !known.outcome.is_done() && counts(known) < counts(&outcome);
            if is_overtaken {
                *known = outcome;
            }
            return is_overtaken;
        }
        let is_full = self.kept.len() >= KEPT;
        if is_full && place == 0 {
            return false;
        }
        self.kept.insert(place, outcome);
        if is_full {
            self.kept.remove(0);
        }
        true
    }

    /// Returns the last due time before the one of a removed trigger whose action was performed then; `None` when that
    /// of the trigger itself was, or there is none among those that are kept.
    #[must_use]
    pub fn kept_before(&self, due: Timestamp) -> Option<Timestamp> {
        let done = self.kept.iter().rev().find(|kept| kept.due_at <= due && kept.was_performed_when_due());
        done.map(|kept| kept.due_at).filter(|done| *done < due)
    }
}
