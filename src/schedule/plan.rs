//! What follows from a schedule at a time.

use super::definition::{Course, NotRun, NotRunRange, Schedule, Timetable};
use crate::clock::Timestamp;

/// The most due times that one plan looks at. What is left is planned next, so that years of downtime are made up for
/// in steps of bounded length.
const MAX_DUE: usize = 10_000;

/// The triggers to make for a schedule, and how far it has come then.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The times for which a trigger is to be made, in order.
    pub triggers: Vec<Timestamp>,
    /// The due times that are found to be missed; they are among those of the course that did not run.
    pub missed: Option<NotRunRange>,
    /// How far the schedule has come when they are made.
    pub course: Course,
}

/// Plans the due times of a schedule up to `until`, of which at most `max_triggers` become triggers. Those whose margin
/// of error is over at `now` are missed. A plan has one or the other: what was missed is written before a later trigger
/// is made, whose success is the end of that.
#[must_use]
pub fn plan(schedule: &Schedule, timetable: &Timetable, now: Timestamp, until: Timestamp, max_triggers: usize) -> Plan {
    let mut course = schedule.course.clone();
    let mut triggers = Vec::new();
    let Some(first) = schedule.next_due() else { return Plan { triggers, missed: None, course } };
    let mut due = timetable.due_after(Timestamp::from_millis(first.as_millis() - 1));
    let mut missed: Option<NotRunRange> = None;
    course.next_due_at = due.next();
    for _ in 0..MAX_DUE {
        let Some(next) = course.next_due_at.filter(|next| *next <= until && triggers.len() < max_triggers) else {
            break;
        };
        // A trigger that was made, and then missed, has said so itself.
        let is_too_late = schedule.is_too_late(next, now);
        if is_too_late && !schedule.course.has_not_run(next) {
            let range = missed.get_or_insert(NotRunRange { first: next, last: next, count: 0, reason: NotRun::Missed });
            range.last = next;
            range.count += 1;
        } else if !is_too_late {
            if missed.is_some() {
                break;
            }
            triggers.push(next);
        }
        course.next_due_at = due.next();
    }
    // Whatever is missed comes before whatever is not: the margin is the same for all.
    if let Some(missed) = &missed {
        course.add_not_run(missed.clone());
    }
    course.last_due_at = triggers.last().copied().or(course.last_due_at);
    Plan { triggers, missed, course }
}
