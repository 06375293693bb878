//! Schedules, and when they fire: pure calendar arithmetic, without I/O and without a clock.
//!
//! In reading order: [`period`] (what a schedule repeats, and the fire times that follow), [`cron`] (expressions over
//! the times that a wall clock shows), [`field`] (which text may stand in a field of an expression), [`local`] (which
//! moments those times are, also when the clocks change), [`zone`] (time zones by name), [`exclude`] (days without fire
//! times), [`count`] (how many fire times there are) and [`crontab`] (what the lines of a crontab say). [`text`] is how
//! people write all this, [`outcome`] what becomes of a due time, [`definition`] a schedule as it is stored, [`target`]
//! by what of its action it is found, [`plan`] what follows from it at a time: which triggers are made, and which due
//! times are missed; [`pause`] what a pause leaves out, and [`kept`] which outcomes a schedule keeps. [`trouble`] says
//! when a schedule is in trouble and when that is over, and [`notice`] what receivers are to be notified of.
//! `docs/schedules.md` describes the same for users.

mod count;
mod cron;
mod crontab;
mod definition;
mod exclude;
mod field;
mod kept;
mod local;
mod notice;
mod outcome;
mod pause;
mod period;
mod plan;
mod target;
mod text;
mod trouble;
mod zone;

pub use cron::{Cron, InvalidCron, MAX_CRON_BYTES};
pub use crontab::{Crontab, CrontabEntry, CrontabKind, Remark};
pub use definition::{
    Action, ActionType, Course, Definition, LOADED_AHEAD, MAX_RANGES, Method, NotRun, NotRunRange, Overlap, Schedule,
    SchedulePause, Timetable,
};
pub use exclude::{ExcludedDays, MAX_EXCLUDED, parse_day};
pub use kept::KEPT;
pub use notice::{MissedTimes, ScheduleEventName, ScheduleNotice, ScheduleNotifyTarget, ScheduleOutbox};
pub use outcome::{KeptOutcome, MissReason, Outcome};
pub use period::{EVERY_MS, Every, FireTimes, HORIZON, Period, Repeat};
pub use plan::{Plan, plan};
pub use text::{DatesText, Fault, PeriodText};
pub use trouble::{FAILING_AFTER, Occasion, SCHEDULER, TriggerEnd, Trouble};
pub use zone::{UnknownZone, parse_zone};

#[cfg(test)]
mod tests;
