//! `leasehold schedule next`: what a cron expression means.

use std::ops::RangeInclusive;

use chrono::NaiveDate;
use chrono_tz::Tz;
use clap::Args;

use super::local::local;
use crate::cli::duration::{self, DurationSetting};
use crate::cli::failure::Failure;
use crate::cli::output::{print, print_json, table};
use crate::clock::{self, Clock as _, SystemClock, Timestamp};
use crate::schedule::{Cron, Every, ExcludedDays, Period, Repeat, parse_day, parse_zone};
use crate::wire::FireTimes;

/// The most fire times that are printed.
const MAX_FIRE_TIMES: i64 = 100_000;

/// Show the next fire times of a cron expression or a fixed distance; needs no server
///
/// An expression has 5 fields (minute, hour, day of the month, month, day of the week), or 6 with the second first, or
/// is one of @hourly, @daily, @midnight, @weekly, @monthly, @yearly and @annually. See docs/schedules.md.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule next '*/5 8-18 * * MON-FRI'
  leasehold schedule next '30 2 * * *' --time-zone Europe/Berlin --from 2030-03-30T00:00:00Z -n 3
  leasehold schedule next '0 9 * * FRIL' --exclude 2030-12-24..2031-01-01
  leasehold schedule next --every 15m")]
pub(super) struct NextArgs {
    /// The cron expression
    #[arg(required_unless_present = "every", conflicts_with = "every")]
    cron: Option<Cron>,
    /// Take the times of the expression, and the excluded days, in this time zone [default: UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// The distance between two fire times, in place of an expression: 30s, 5m, 2h, 1d
    #[arg(long, value_name = "DURATION")]
    every: Option<DurationSetting>,
    /// Count the distance from this time (RFC 3339) [default: 1970-01-01T00:00:00Z]
    #[arg(long, value_name = "TIME", requires = "every", value_parser = Timestamp::parse_rfc3339)]
    anchor: Option<Timestamp>,
    /// Leave out a day, or days from one to another: 2030-12-24..2031-01-01 (repeatable)
    #[arg(long, value_name = "DAYS", value_delimiter = ',', value_parser = days)]
    exclude: Vec<RangeInclusive<NaiveDate>>,
    /// Show the fire times after this time (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME", value_parser = Timestamp::parse_rfc3339)]
    from: Option<Timestamp>,
    /// Show at most this many fire times
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=MAX_FIRE_TIMES))]
    limit: u32,
    /// Print JSON, as the server returns it
    #[arg(long)]
    json: bool,
}

/// Prints the fire times.
pub(super) fn run(args: NextArgs) -> Result<(), Failure> {
    let now = SystemClock::default().now();
    let repeat = match (args.cron, args.every) {
        (Some(cron), _) => Repeat::Cron(cron),
        (None, every) => {
            let every =
                every.map(|DurationSetting(every)| Every::new(clock::millis(every), args.anchor.unwrap_or_default()));
            let every = every.flatten().ok_or_else(|| Failure::Usage("--every must be from 1s to 366d".to_owned()))?;
            Repeat::Every(every)
        }
    };
    let period = Period { repeat, zone: zone_of(args.time_zone.as_deref())? };
    let excluded = ExcludedDays::new(args.exclude);
    let fire_times = period.fire_times(args.from.unwrap_or(now), &excluded).take(args.limit as usize).collect();
    let found = FireTimes { fire_times };
    if args.json { print_json(&found) } else { print(&show(&found, period.zone, now)) }
}

/// Parses the zone of a period, which is UTC where none is named.
pub(super) fn zone_of(named: Option<&str>) -> Result<Tz, Failure> {
    named.map_or(Ok(Tz::UTC), |zone| {
        parse_zone(zone).map_err(|why| Failure::Usage(format!("--time-zone: `{zone}` {why}")))
    })
}

/// Parses a day, or a first and a last day with two points between them.
fn days(text: &str) -> Result<RangeInclusive<NaiveDate>, String> {
    let (from, to) = text.split_once("..").unwrap_or((text, text));
    let range = parse_day(from)?..=parse_day(to)?;
    if range.is_empty() { Err("the last day is before the first".to_owned()) } else { Ok(range) }
}

/// Formats fire times as the clock of the zone shows them, and how far away they are.
fn show(found: &FireTimes, zone: Tz, now: Timestamp) -> String {
    if found.fire_times.is_empty() {
        return "no fire time within a hundred years".to_owned();
    }
    let rows = found.fire_times.iter().map(|&at| {
        let away = match at >= now {
            true => format!("in {}", duration::show(at.since(now))),
            false => format!("{} ago", duration::show(now.since(at))),
        };
        vec![local(at, zone), away]
    });
    table(&[&format!("fire time ({zone})"), "away"], rows)
}
