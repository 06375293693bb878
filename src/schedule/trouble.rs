//! The troubles of a schedule: when they begin, when they are over, and who is to hear of it.
//!
//! A trouble is recorded in the schedule's course whether anybody wants to hear of it or not, so that its end is
//! noticed as well. Each change is made to the schedule as it was read, for one conditional write.

use super::definition::{NotRunRange, Schedule, SchedulePause, Timetable};
use super::notice::{MissedTimes, ScheduleEventName, ScheduleNotice};
use crate::clock::Timestamp;
use crate::job::{Actor, words};

/// After how many triggers in a row that ended without success a schedule is failing. One that is paused after fewer
/// errors is failing by then.
pub const FAILING_AFTER: u32 = 3;

/// The actor's name of the part of the system that changes schedules by itself.
pub const SCHEDULER: &str = "scheduler";

words! {
    /// What is wrong with a schedule.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum Trouble: "a trouble", "troubles" {
        /// Due times were missed, and no action has succeeded since.
        Missed = "missed",
        /// Several triggers in a row have ended without success, and none has succeeded since.
        Failing = "failing",
        /// The system has paused it.
        Paused = "paused",
    }
}

/// How a trigger has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerEnd<'a> {
    /// Its action was performed.
    Succeeded,
    /// Its action was refused for a reason that is the user's to mend, and what was said.
    Refused(Option<&'a str>),
    /// Its action was tried until the margin of error was over, and what there is to say of it.
    GivenUp(&'a str),
}

/// When a schedule is changed, by whom, and who is to hear of it.
pub struct Occasion<'a> {
    /// When the change is made.
    pub at: Timestamp,
    /// Who makes the change.
    pub by: &'a Actor,
    /// Whether anybody is to be notified of this event of the schedule.
    pub is_wanted: &'a dyn Fn(ScheduleEventName) -> bool,
}

impl Schedule {
    /// Returns the troubles that the schedule has, each with the time since when.
    pub fn troubles(&self) -> impl Iterator<Item = (Trouble, Timestamp)> {
        let paused = self.paused.as_ref().filter(|pause| is_by_system(pause)).map(|pause| pause.at);
        let troubles = [
            (Trouble::Missed, self.course.missed_since),
            (Trouble::Failing, self.course.failing_since),
            (Trouble::Paused, paused),
        ];
        troubles.into_iter().filter_map(|(trouble, since)| Some((trouble, since?)))
    }

    /// Records that due times were missed, which are among those of its course that did not run.
    pub fn note_missed(&mut self, range: &NotRunRange, occasion: &Occasion<'_>) {
        let NotRunRange { first, last, count, .. } = *range;
        self.course.missed_since.get_or_insert(occasion.at);
        self.announce(ScheduleEventName::ScheduleMissed, occasion, None, Some(MissedTimes { first, last, count }));
    }

    /// Records how a trigger has ended. After so many errors of the user's in a row as the definition says, the
    /// schedule is paused. Returns whether anything has changed.
    pub fn note_end(&mut self, end: TriggerEnd<'_>, occasion: &Occasion<'_>) -> bool {
        let (is_error, said) = match end {
            TriggerEnd::Succeeded => return self.note_success(occasion),
            TriggerEnd::Refused(said) => (true, said),
            TriggerEnd::GivenUp(why) => (false, Some(why)),
        };
        let course = &mut self.course;
        course.failures = course.failures.saturating_add(1);
        course.errors = course.errors.saturating_add(is_error.into());
        let (failures, errors) = (course.failures, course.errors);
        let pause_after = self.definition.pause_after_errors;
        if course.failing_since.is_none() && failures >= FAILING_AFTER.min(pause_after.unwrap_or(FAILING_AFTER)) {
            course.failing_since = Some(occasion.at);
            self.announce(ScheduleEventName::ScheduleFailing, occasion, said.map(str::to_owned), None);
        }
        if is_error && pause_after.is_some_and(|limit| errors >= limit) {
            self.pause_by_system(format!("{errors} errors in a row"), occasion);
        }
        true
    }

    fn note_success(&mut self, occasion: &Occasion<'_>) -> bool {
        let course = &mut self.course;
        let before = (course.failures, course.errors);
        (course.failures, course.errors) = (0, 0);
        let (was_missed, was_failing) = (course.missed_since.take(), course.failing_since.take());
        let was_in_trouble = was_missed.or(was_failing).is_some();
        if was_in_trouble {
            self.announce(ScheduleEventName::ScheduleRecovered, occasion, None, None);
        }
        was_in_trouble || before != (0, 0)
    }

    /// Pauses the schedule by the system, if it is not paused.
    pub fn pause_by_system(&mut self, reason: String, occasion: &Occasion<'_>) {
        if self.paused.is_some() {
            return;
        }
        self.paused = Some(SchedulePause { at: occasion.at, by: occasion.by.clone(), reason: reason.clone() });
        self.revision += 1;
        self.announce(ScheduleEventName::SchedulePaused, occasion, Some(reason), None);
    }

    /// Ends the pause of the schedule. What was due in the pause is not made up for, and added to what did not run.
    pub fn resume(&mut self, timetable: &Timetable, occasion: &Occasion<'_>) {
        if let Some(left_out) = self.left_out(timetable, occasion.at) {
            self.course.add_not_run(left_out);
        }
        let was_by_system = self.paused.take().is_some_and(|pause| is_by_system(&pause));
        self.course.next_due_at = timetable.due_after(occasion.at).next();
        (self.course.errors, self.course.failures) = (0, 0);
        self.revision += 1;
        // A pause that people make is no trouble, and its end is none's.
        if was_by_system {
            self.announce(ScheduleEventName::ScheduleResumed, occasion, None, None);
        }
    }

    /// Puts a notice of an event into the outbox, if anybody wants to hear of it.
    fn announce(
        &mut self,
        event: ScheduleEventName,
        Occasion { at, by, is_wanted }: &Occasion<'_>,
        reason: Option<String>,
        missed: Option<MissedTimes>,
    ) {
        if is_wanted(event) {
            let actor = (*by).clone();
            self.course.outbox.put(ScheduleNotice { number: 0, event, at: *at, actor, reason, missed });
        }
    }
}

/// Returns whether the system has paused the schedule, and not people.
fn is_by_system(pause: &SchedulePause) -> bool {
    pause.by.as_str() == SCHEDULER
}
