//! `leasehold schedule import`: what a crontab says.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use chrono_tz::Tz;
use clap::Args;
use serde::Serialize;

use super::local::local;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::output::{clean, print, print_json, shorten, table};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::schedule::{Crontab, CrontabEntry, CrontabKind, ExcludedDays, NotUnderstood, parse_zone};

/// The longest crontab, in bytes.
const MAX_BYTES: usize = 256 * 1024;
/// How many characters of a command are shown in the table.
const COMMAND_CHARACTERS: usize = 60;

/// Report what a crontab says: when each command runs next, and which lines cannot be schedules
///
/// The exit status is 2 when there are such lines.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crontab -l | leasehold schedule import --dry-run -
  leasehold schedule import --dry-run --system --time-zone Europe/Berlin /etc/crontab")]
pub(super) struct ImportArgs {
    /// The crontab; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only report; required, since schedules cannot be stored yet
    #[arg(long, required = true)]
    dry_run: bool,
    /// Expect the name of a user before each command, as in /etc/crontab and /etc/cron.d
    #[arg(long)]
    system: bool,
    /// Take the crontab's times in this time zone, where no CRON_TZ names another
    #[arg(long, value_name = "ZONE", value_parser = parse_zone, default_value = "UTC")]
    time_zone: Tz,
    /// Print JSON, one line per line of the crontab
    #[arg(long)]
    json: bool,
}

/// A line with a command, as JSON.
#[derive(Serialize)]
struct EntryLine<'a> {
    line: usize,
    cron: &'a str,
    time_zone: &'a str,
    next: Option<Timestamp>,
    user: Option<&'a str>,
    command: &'a str,
    input: Option<&'a str>,
    environment: &'a BTreeMap<String, String>,
    comment: Option<&'a str>,
}

/// A line that cannot be a schedule, as JSON.
#[derive(Serialize)]
struct NotUnderstoodLine<'a> {
    line: usize,
    text: &'a str,
    not_understood: &'a str,
}

/// Prints the report.
pub(super) fn run(args: &ImportArgs) -> Result<(), Failure> {
    let kind = if args.system { CrontabKind::System } else { CrontabKind::User };
    let crontab = Crontab::parse(&read(&args.file)?, kind, args.time_zone);
    let now = SystemClock::default().now();
    if args.json {
        crontab.entries.iter().try_for_each(|entry| print_json(&EntryLine::of(entry, now)))?;
        crontab.not_understood.iter().try_for_each(|refused| print_json(&NotUnderstoodLine::of(refused)))?;
    } else {
        print(&report(&crontab, now))?;
    }
    if crontab.not_understood.is_empty() { Ok(()) } else { Err(Failure::Reported(ExitStatus::Usage)) }
}

fn read(file: &Path) -> Result<String, Failure> {
    let cannot = |error| Failure::Usage(format!("cannot read {}: {error}", file.display()));
    let mut text = String::new();
    let limit = MAX_BYTES as u64 + 1;
    match file.to_str() {
        Some("-") => std::io::stdin().take(limit).read_to_string(&mut text).map_err(cannot)?,
        _ => File::open(file).and_then(|file| file.take(limit).read_to_string(&mut text)).map_err(cannot)?,
    };
    match text.len() {
        ..=MAX_BYTES => Ok(text),
        _ => Err(Failure::Usage(format!("{} has more than {MAX_BYTES} bytes", file.display()))),
    }
}

fn next(entry: &CrontabEntry, now: Timestamp) -> Option<Timestamp> {
    entry.period.fire_times(now, &ExcludedDays::default()).next()
}

/// Formats the report for people.
fn report(crontab: &Crontab, now: Timestamp) -> String {
    let rows = crontab.entries.iter().map(|entry| {
        vec![
            entry.line.to_string(),
            entry.expression.clone(),
            next(entry, now).map(|at| local(at, entry.period.zone)).unwrap_or_default(),
            entry.user.clone().unwrap_or_default(),
            shorten(&entry.command, COMMAND_CHARACTERS),
        ]
    });
    let mut lines = vec![table(&["line", "expression", "next fire time", "user", "command"], rows)];
    if !crontab.not_understood.is_empty() {
        lines.push("\nnot understood:".to_owned());
    }
    for NotUnderstood { line, text, why } in &crontab.not_understood {
        lines.push(format!("  line {line}: {}\n    {}", clean(why), shorten(text, COMMAND_CHARACTERS)));
    }
    lines.join("\n")
}

impl<'a> EntryLine<'a> {
    fn of(entry: &'a CrontabEntry, now: Timestamp) -> Self {
        Self {
            line: entry.line,
            cron: &entry.expression,
            time_zone: entry.period.zone.name(),
            next: next(entry, now),
            user: entry.user.as_deref(),
            command: &entry.command,
            input: entry.input.as_deref(),
            environment: &entry.environment,
            comment: entry.comment.as_deref(),
        }
    }
}

impl<'a> NotUnderstoodLine<'a> {
    fn of(refused: &'a NotUnderstood) -> Self {
        Self { line: refused.line, text: &refused.text, not_understood: &refused.why }
    }
}
