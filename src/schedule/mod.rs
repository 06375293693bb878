//! When a schedule fires: pure calendar arithmetic, without I/O and without a clock.
//!
//! In reading order: [`period`] (what a schedule repeats, and the fire times that follow), [`cron`] (expressions over
//! the times that a wall clock shows), [`field`] (which text may stand in a field of an expression), [`local`] (which
//! moments those times are, also when the clocks change), [`zone`] (time zones by name), [`exclude`] (days without
//! fire times) and [`crontab`] (what the lines of a crontab say). `docs/schedules.md` describes the same for users.

mod cron;
mod crontab;
mod exclude;
mod field;
mod local;
mod period;
mod zone;

pub use cron::{Cron, InvalidCron, MAX_CRON_BYTES};
pub use crontab::{Crontab, CrontabEntry, CrontabKind, NotUnderstood};
pub use exclude::{ExcludedDays, MAX_EXCLUDED, parse_day};
pub use period::{EVERY_MS, Every, FireTimes, HORIZON, Period, Repeat};
pub use zone::{UnknownZone, parse_zone};

#[cfg(test)]
mod tests;
