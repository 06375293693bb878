//! `leasehold schedule import`: stores what a crontab says as schedules, or only reports it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::local::local;
use super::next::zone_of;
use super::upload::report as report_item;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::jobs::DEFAULT_QUEUE;
use crate::cli::output::{clean, print, print_json, shorten, table};
use crate::cli::server::ServerArgs;
use crate::cli::settings::Settings;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::Json;
use crate::schedule::{Action, ActionType, Crontab, CrontabEntry, CrontabKind, ExcludedDays, NotUnderstood};
use crate::wire::{Period, PutSchedule, SubmitJob};
use crate::worker::shell::{self, CommandLine, ShellPayload};

/// The longest crontab, in bytes.
const MAX_BYTES: usize = 256 * 1024;
/// How many schedules one call stores.
const BATCH: usize = 1_000;
/// The variable that has what a command reads from its standard input.
const INPUT: &str = "CRON_INPUT";
/// How many characters of a command are shown in the table.
const COMMAND_CHARACTERS: usize = 60;

/// Store the commands of a crontab as schedules, or report what it says
///
/// Each command becomes a schedule that submits a job of the kind `shell`, which a `leasehold worker` runs. The id of a
/// schedule follows from its line's times, user and command, so that an import can be repeated. The report says when
/// each command runs next, and which lines cannot be schedules; with such lines the exit status is 2.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crontab -l | leasehold schedule import --dry-run -
  leasehold schedule import crontab.txt --owner web
  leasehold schedule import --dry-run --system --time-zone Europe/Berlin /etc/crontab")]
pub(super) struct ImportArgs {
    /// The crontab; - for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Only report; needs no server
    #[arg(long)]
    dry_run: bool,
    /// The queue of the jobs [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// The owner of the schedules [default: the user of the line, where there is one]
    #[arg(long)]
    owner: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Expect the name of a user before each command, as in /etc/crontab and /etc/cron.d
    #[arg(long)]
    system: bool,
    /// Take the crontab's times in this time zone, where no CRON_TZ names another [default: UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
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

/// Prints the report, and stores the schedules.
pub(super) async fn run(args: ImportArgs, settings: Settings) -> Result<(), Failure> {
    let kind = if args.system { CrontabKind::System } else { CrontabKind::User };
    let crontab = Crontab::parse(&read(&args.file)?, kind, zone_of(args.time_zone.as_deref())?);
    let now = SystemClock::default().now();
    if args.json {
        crontab.entries.iter().try_for_each(|entry| print_json(&EntryLine::of(entry, now)))?;
        crontab.not_understood.iter().try_for_each(|refused| print_json(&NotUnderstoodLine::of(refused)))?;
    } else {
        print(&report(&crontab, now))?;
    }
    if !args.dry_run {
        store(&args, &crontab, &settings).await?;
    }
    if crontab.not_understood.is_empty() { Ok(()) } else { Err(Failure::Reported(ExitStatus::Usage)) }
}

/// Stores the commands as schedules.
async fn store(args: &ImportArgs, crontab: &Crontab, settings: &Settings) -> Result<(), Failure> {
    let client = args.server.connect(&settings.client)?;
    let mut refused = 0;
    for batch in crontab.entries.chunks(BATCH) {
        let mut lines = Vec::new();
        for entry in batch {
            serde_json::to_writer(&mut lines, &schedule(args, entry)?)?;
            lines.push(b'\n');
        }
        let items = client.put_schedules(lines).await?;
        for (entry, item) in batch.iter().zip(&items) {
            refused += report_item(&format!("line {}", entry.line), item, args.json, refused)?;
        }
    }
    if refused == 0 { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
}

/// Returns the schedule of a line.
fn schedule(args: &ImportArgs, entry: &CrontabEntry) -> Result<PutSchedule, Failure> {
    let zone = entry.period.zone.name();
    let user = entry.user.as_deref().unwrap_or_default();
    let input = entry.input.as_deref().unwrap_or_default();
    let identity = [&*entry.expression, zone, user, &*entry.command, input].join("\u{0}");
    let owner = args.owner.clone().or_else(|| entry.user.clone());
    let mut env = entry.environment.clone();
    let command = match &entry.input {
        None => entry.command.clone(),
        Some(input) => {
            env.insert(INPUT.to_owned(), input.clone());
            format!("printf '%s' \"${INPUT}\" | {{ {}\n}}", entry.command)
        }
    };
    let payload = ShellPayload { command: CommandLine::Line(command), env, cwd: None };
    let queue = args.queue.clone().unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
    let job =
        SubmitJob { payload: Some(Json::of(&payload)?), owner: owner.clone(), ..SubmitJob::new(queue, shell::KIND) };
    let action = Action { job: Some(Json::of(&job)?), ..Action::of(ActionType::Job) };
    let (cron, time_zone) = (Some(entry.expression.clone()), Some(zone.to_owned()));
    let period = Period { cron, time_zone, ..Period::default() };
    let labels = [("crontab_line", Some(entry.line.to_string())), ("comment", entry.comment.clone())];
    Ok(PutSchedule {
        id: Some(format!("crontab-{:016x}", xxh3_64(identity.as_bytes()))),
        owner,
        labels: labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect(),
        ..PutSchedule::new(action, period)
    })
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
