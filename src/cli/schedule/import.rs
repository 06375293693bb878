//! `leasehold schedule import`: stores what a crontab says as schedules, or only reports it.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use xxhash_rust::xxh3::xxh3_64;

use super::local::local;
use super::next::zone_of;
use super::plan::{CRONTAB, LINE, New, Plan, Sketch, USER, replace};
use super::upload::report as report_item;
use crate::cli::failure::{ExitStatus, Failure};
use crate::cli::jobs::{DEFAULT_QUEUE, read_text_up_to};
use crate::cli::output::{clean, complain, print, print_json, shorten, table};
use crate::cli::server::ServerArgs;
use crate::cli::settings::Settings;
use crate::client::Client;
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::Json;
use crate::schedule::{Action, ActionType, Crontab, CrontabEntry, CrontabKind, ExcludedDays, Remark};
use crate::wire::{MAX_LABEL_BYTES, Period, PutSchedule, SubmitJob};
use crate::worker::shell::{self, CommandLine, ShellPayload};

/// The longest crontab, in bytes.
const MAX_BYTES: u64 = 256 * 1024;
/// How many schedules one call stores.
const BATCH: usize = 1_000;
/// The variable that has what a command reads from its standard input.
const INPUT: &str = "CRON_INPUT";
/// The shell of a crontab that names none.
const USUAL_SHELL: &str = "/bin/sh";
/// How many characters of a command are shown in the table.
const COMMAND_CHARACTERS: usize = 60;

/// Store the commands of a crontab as schedules, or report what it says
///
/// Each command becomes a schedule that submits a job of the kind `shell`, which a `leasehold worker` runs. The report
/// says when each command runs next, and which lines cannot be schedules: then nothing is stored, and the exit status
/// is 2. An import can be repeated: a line that was changed replaces its schedule, and schedules whose lines are gone
/// are named.
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
    /// Only report; what it would replace is known where a server answers
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
    /// Store what is understood although some lines are not
    #[arg(long)]
    partial: bool,
    /// Remove the schedules that the crontab has made before and has no longer
    #[arg(long)]
    prune: bool,
    /// The name by which the schedules of this crontab are found at the next import [default: that of the file; none
    /// for standard input]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
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

/// How a line was read that may look otherwise, as JSON.
#[derive(Serialize)]
struct NoteLine<'a> {
    line: usize,
    text: &'a str,
    note: &'a str,
}

/// A line of which another schedule was stored before, as JSON.
#[derive(Serialize)]
struct ChangedLine<'a> {
    line: usize,
    schedule: &'a str,
    was: Was<'a>,
}

/// A schedule whose line is gone, as JSON.
#[derive(Serialize)]
struct LostLine<'a> {
    lost: &'a str,
    was: Was<'a>,
}

#[derive(Serialize)]
struct Was<'a> {
    cron: &'a str,
    command: String,
}

/// Prints the report, and stores the schedules.
pub(super) async fn run(args: ImportArgs, settings: Settings) -> Result<(), Failure> {
    let kind = if args.system { CrontabKind::System } else { CrontabKind::User };
    let text = read_text_up_to(&args.file, MAX_BYTES)?;
    let name = args.crontab_name();
    let known = name.as_deref().unwrap_or_default();
    let mut crontab = Crontab::parse(&text, kind, zone_of(args.time_zone.as_deref())?, known);
    let mut new = schedules(&args, &mut crontab)?;
    let now = SystemClock::default().now();
    if args.json {
        crontab.entries.iter().try_for_each(|entry| print_json(&EntryLine::of(entry, now)))?;
        crontab.not_understood.iter().try_for_each(|refused| print_json(&NotUnderstoodLine::of(refused)))?;
        crontab.notes.iter().try_for_each(|note| print_json(&NoteLine::of(note)))?;
    } else {
        print(&report(&crontab, now))?;
    }
    let lacks_some = !crontab.not_understood.is_empty();
    let may_store = !lacks_some || args.partial;
    if !may_store {
        complain("nothing is stored, since some lines are not understood: --partial stores the others");
    }
    // What is not understood may mean a schedule that is there, and a crontab of nothing is most likely none.
    let prunes = args.prune && !lacks_some && !new.is_empty();
    if args.prune && !prunes {
        complain("nothing is removed, since the crontab has no commands, or lines that are not understood");
    }
    if args.dry_run {
        let client = args.server.connect(&settings.client)?.with_max_retries(0);
        let plan = args.plan(&client, &mut new).await.unwrap_or_default();
        tell(&args, &crontab, &plan, if prunes { "would be removed" } else { "--prune would remove them" })?;
    } else if may_store {
        let client = args.server.connect(&settings.client)?;
        let plan = args.plan(&client, &mut new).await?;
        tell(&args, &crontab, &plan, if prunes { "removed, once all is stored" } else { "--prune removes them" })?;
        store(&client, &args, &crontab, &new).await?;
        for lost in plan.lost.iter().filter(|_| prunes) {
            match client.remove_schedule(&lost.id).await {
                Err(error) if error.code() == Some("schedule_not_found") => {}
                removed => removed?,
            }
        }
    }
    if lacks_some { Err(Failure::Reported(ExitStatus::Usage)) } else { Ok(()) }
}

/// Says which schedules of before the crontab changes, and which it has no longer.
fn tell(args: &ImportArgs, crontab: &Crontab, plan: &Plan, removed: &str) -> Result<(), Failure> {
    let line_of = |place: usize| crontab.entries.get(place).map_or(0, |entry| entry.line);
    if args.json {
        for (place, was) in &plan.changed {
            print_json(&ChangedLine { line: line_of(*place), schedule: &was.id, was: Was::of(was) })?;
        }
        return plan.lost.iter().try_for_each(|lost| print_json(&LostLine { lost: &lost.id, was: Was::of(lost) }));
    }
    let mut lines = Vec::new();
    let of = |was: &Sketch| {
        let paused = if was.is_paused { ", paused" } else { "" };
        format!("{} {}{paused}", was.cron, shorten(&was.command(), COMMAND_CHARACTERS))
    };
    if !plan.changed.is_empty() {
        lines.push("\nchanged:".to_owned());
        let line = |(place, was): &(usize, Sketch)| format!("  line {}: {} was {}", line_of(*place), was.id, of(was));
        lines.extend(plan.changed.iter().map(line));
    }
    if !plan.lost.is_empty() {
        lines.push(format!("\nno longer in the crontab ({removed}):"));
        lines.extend(plan.lost.iter().map(|lost| format!("  {}: {}", lost.id, of(lost))));
    }
    if lines.is_empty() { Ok(()) } else { print(&lines.join("\n")) }
}

/// Stores the schedules of the lines.
async fn store(client: &Client, args: &ImportArgs, crontab: &Crontab, new: &[New]) -> Result<(), Failure> {
    let mut refused = 0;
    for (entries, batch) in crontab.entries.chunks(BATCH).zip(new.chunks(BATCH)) {
        let mut lines = Vec::new();
        for New { schedule, .. } in batch {
            serde_json::to_writer(&mut lines, schedule)?;
            lines.push(b'\n');
        }
        let items = client.put_schedules(lines).await?;
        for (entry, item) in entries.iter().zip(&items) {
            refused += report_item(&format!("line {}", entry.line), item, args.json, refused)?;
        }
    }
    if refused == 0 { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
}

/// Returns the schedules of the lines, in order. A line of which the server would refuse a schedule is none any more.
fn schedules(args: &ImportArgs, crontab: &mut Crontab) -> Result<Vec<New>, Failure> {
    let (mut schedules, mut entries) = (Vec::new(), Vec::new());
    // Lines that differ in variables only, and those that are there twice, are as many schedules.
    let mut times: HashMap<String, usize> = HashMap::new();
    let id = |identity: &[&str]| format!("crontab-{:016x}", xxh3_64(identity.join("\u{0}").as_bytes()));
    let name = args.crontab_name().unwrap_or_default();
    for entry in std::mem::take(&mut crontab.entries) {
        let (zone, user) = (entry.period.zone.name(), entry.user.as_deref().unwrap_or_default());
        let input = entry.input.as_deref().unwrap_or_default();
        let begun = [&*entry.expression, zone, user, &*entry.command];
        let before = times.entry([&begun[..], &[input]].concat().join("\u{0}")).or_default();
        *before += 1;
        let number = before.to_string();
        let former = |input: &str| id(&[&begun[..], &[input]].concat());
        // Earlier versions gave the input no end of its last line.
        let former_ids = match *before {
            1 => vec![former(input), former(input.strip_suffix('\n').unwrap_or(input))],
            _ => Vec::new(),
        };
        let mut schedule = schedule(args, &entry)?;
        schedule.id = match name.is_empty() {
            true if *before == 1 => former_ids.first().cloned(),
            _ => Some(id(&[&begun[..], &[input, &*name, &*number]].concat())),
        };
        match schedule.clone().into_definition() {
            Ok(_) => {
                schedules.push(New { schedule, former_ids });
                entries.push(entry);
            }
            Err(error) => {
                let (line, text) = (entry.line, entry.command);
                crontab.not_understood.push(Remark { line, text, why: error.to_string() });
            }
        }
    }
    crontab.entries = entries;
    crontab.not_understood.sort_by_key(|remark| remark.line);
    Ok(schedules)
}

/// Returns the schedule of a line, without its id.
fn schedule(args: &ImportArgs, entry: &CrontabEntry) -> Result<PutSchedule, Failure> {
    let owner = args.owner.clone().or_else(|| entry.user.clone());
    let mut env = entry.environment.clone();
    let home = env.get("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    env.extend(entry.input.clone().map(|input| (INPUT.to_owned(), input)));
    let payload = ShellPayload { command: command_line(entry), env, cwd: home };
    let queue = args.queue.clone().unwrap_or_else(|| DEFAULT_QUEUE.to_owned());
    let job =
        SubmitJob { payload: Some(Json::of(&payload)?), owner: owner.clone(), ..SubmitJob::new(queue, shell::KIND) };
    let action = Action { job: Some(Json::of(&job)?), ..Action::of(ActionType::Job) };
    let (cron, time_zone) = (Some(entry.expression.clone()), Some(entry.period.zone.name().to_owned()));
    let period = Period { cron, time_zone, ..Period::default() };
    let labels = [
        (CRONTAB, args.crontab_name()),
        (LINE, Some(entry.line.to_string())),
        (USER, entry.user.clone()),
        ("comment", entry.comment.as_deref().map(|comment| beginning(comment, MAX_LABEL_BYTES))),
    ];
    let labels = labels.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    Ok(PutSchedule { owner, labels, ..PutSchedule::new(action, period) })
}

/// Returns how the command of a line is run: by the shell that the lines above name, with its input, if it has one.
fn command_line(entry: &CrontabEntry) -> CommandLine {
    let named = entry.environment.get("SHELL").filter(|shell| !["sh", USUAL_SHELL].contains(&shell.as_str()));
    match (named, &entry.input) {
        (None, None) => CommandLine::Line(entry.command.clone()),
        (Some(shell), None) => CommandLine::Arguments([shell, "-c", &*entry.command].map(str::to_owned).into()),
        (shell, Some(_)) => {
            let piped = format!("printf %s \"${INPUT}\" | \"$0\" -c \"$1\"");
            let shell = shell.map_or(USUAL_SHELL, String::as_str);
            CommandLine::Arguments([USUAL_SHELL, "-c", &*piped, shell, &*entry.command].map(str::to_owned).into())
        }
    }
}

/// Returns the beginning of a text that has at most so many bytes.
fn beginning(text: &str, bytes: usize) -> String {
    const CUT: &str = "…";
    if text.len() <= bytes {
        return text.to_owned();
    }
    format!("{}{CUT}", &text[..text.floor_char_boundary(bytes - CUT.len())])
}

impl ImportArgs {
    /// Returns the name under which the schedules of the crontab are found again; `None` for one from standard input
    /// that is given none.
    fn crontab_name(&self) -> Option<String> {
        let of_file =
            || self.file.file_name().filter(|name| *name != "-").map(|name| name.to_string_lossy().into_owned());
        self.name.clone().or_else(of_file)
    }

    /// Has the schedules of lines replace those that the crontab has made before, as far as these can be known.
    /// Where the caller may not read them, and in a dry run, that is said only.
    async fn plan(&self, client: &Client, new: &mut [New]) -> Result<Plan, Failure> {
        let Some(name) = self.crontab_name() else {
            complain("what it replaces is not known: give the crontab of standard input a --name");
            return Ok(Plan::default());
        };
        match replace(client, &name, new).await {
            // A token that may submit alone imports as well.
            Err(why) if self.dry_run || (!self.prune && why.code() == Some("forbidden")) => {
                complain(&format!("what it replaces is not known: {why}"));
                Ok(Plan::default())
            }
            planned => Ok(planned?),
        }
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
    let remark = |Remark { line, text, why }: &Remark| {
        format!("  line {line}: {}\n    {}", clean(why), shorten(text, COMMAND_CHARACTERS))
    };
    lines.extend(crontab.not_understood.iter().map(remark));
    if !crontab.notes.is_empty() {
        lines.push("\nto be noted:".to_owned());
    }
    lines.extend(crontab.notes.iter().map(remark));
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
    fn of(refused: &'a Remark) -> Self {
        Self { line: refused.line, text: &refused.text, not_understood: &refused.why }
    }
}

impl<'a> NoteLine<'a> {
    fn of(note: &'a Remark) -> Self {
        Self { line: note.line, text: &note.text, note: &note.why }
    }
}

impl<'a> Was<'a> {
    fn of(was: &'a Sketch) -> Self {
        Self { cron: &was.cron, command: was.command() }
    }
}
