//! `leasehold schedule add`: stores a schedule, or many.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;

use super::upload;
use crate::cli::duration::DurationSetting;
use crate::cli::failure::Failure;
use crate::cli::jobs;
use crate::cli::server::ClientArgs;
use crate::cli::settings::Settings;
use crate::cli::submit::label;
use crate::clock::{Timestamp, millis};
use crate::job::Json;
use crate::schedule::{Action, ActionType, Method, Overlap};
use crate::wire::{Period, PutSchedule, Schedule, SubmitJob};

/// Store a schedule: a command, a job or an HTTP call, and when it is due
///
/// A schedule that is there under the same id is left if it is the same one, and refused otherwise; with --replace, it
/// is written over. A command becomes a job of the kind `shell`, which a `leasehold worker` runs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold schedule add nightly '0 2 * * *' --time-zone Europe/Berlin -- ./backup.sh
  leasehold schedule add ping --every 30s --call https://example.org/ping
  leasehold schedule add report '@daily' --kind render --payload '{\"due\": \"{{due_at}}\"}'
  leasehold schedule add --file schedules.jsonl")]
pub(super) struct AddArgs {
    /// The id of the schedule
    #[arg(required_unless_present = "file")]
    id: Option<String>,
    /// The cron expression
    #[arg(required_unless_present_any = ["every", "at", "file"], conflicts_with_all = ["every", "at"])]
    cron: Option<String>,
    /// Store the schedules of this file, one JSON object per line, over those that there are; `-` for standard input.
    /// There may be any number. A schedule without an id is given one that follows from its line
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["id", "cron", "every", "at", "call", "command"])]
    file: Option<PathBuf>,
    /// Begin with this line of the file, where an earlier command ended
    #[arg(long, value_name = "N", requires = "file", conflicts_with = "id")]
    from_line: Option<NonZeroUsize>,
    /// Take the times of the expression in this time zone [default: UTC]
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// The distance between two due times, in place of an expression: 30s, 5m, 2h, 1d
    #[arg(long, value_name = "DURATION", conflicts_with = "at")]
    every: Option<DurationSetting>,
    /// The only due time (RFC 3339), in place of an expression
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// Call this URL when the schedule is due
    #[arg(long, value_name = "URL", conflicts_with_all = ["command", "queue", "kind", "payload"])]
    call: Option<String>,
    /// The method of the call: GET, POST, PUT, PATCH, DELETE or HEAD [default: POST]
    #[arg(long, requires = "call")]
    method: Option<Method>,
    /// The body of the call, as text
    #[arg(long, requires = "call", value_name = "TEXT")]
    body: Option<String>,
    /// A header of the call (repeatable)
    #[arg(long = "header", requires = "call", value_name = "NAME=VALUE", value_parser = label)]
    headers: Vec<(String, String)>,
    /// The queue of the job [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// The kind of the job, which names its handler [default: shell]
    #[arg(long)]
    kind: Option<String>,
    /// The input of the job, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "command")]
    payload: Option<String>,
    /// The owner of the schedule and of its jobs
    #[arg(long)]
    owner: Option<String>,
    /// A label to find the schedule by (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// How late it may start; later than that, it is missed [default: 1m]
    #[arg(long, value_name = "DURATION")]
    margin: Option<DurationSetting>,
    /// Give the schedule a fixed place of its own within this long after its times, so that many do not come at once
    #[arg(long, value_name = "DURATION")]
    spread: Option<DurationSetting>,
    /// What to do while an earlier one has not ended: allow, skip, `queue_one` or `cancel_previous` [default: allow]
    #[arg(long)]
    overlap: Option<Overlap>,
    /// Write over the schedule that is there under this id
    #[arg(long)]
    replace: bool,
    /// Store it paused
    #[arg(long)]
    paused: bool,
    #[command(flatten)]
    answer: ClientArgs,
    /// The program and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Stores one schedule or many.
pub(super) async fn run(mut args: AddArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    if let Some(file) = args.file.take() {
        let from_line = args.from_line.map_or(1, NonZeroUsize::get);
        return upload::put_file(&client, &file, from_line, args.answer.json()).await;
    }
    let replaces = args.replace;
    let (id, new) = one(&mut args)?;
    let stored = match replaces {
        true => client.put_schedule(&id, &new).await?,
        false => client.create_schedule(&new).await?,
    };
    args.answer.print(&stored, stored_line)
}

fn stored_line(stored: &Schedule) -> String {
    match stored.next_due_at {
        Some(next) => format!("{}: due next at {}", stored.id, Timestamp::to_rfc3339(next)),
        None => format!("{}: not due any more", stored.id),
    }
}

/// Returns the schedule that the flags describe.
fn one(args: &mut AddArgs) -> Result<(String, PutSchedule), Failure> {
    let id = args.id.take().ok_or_else(|| Failure::Usage("a schedule needs an id".to_owned()))?;
    let period = Period {
        cron: args.cron.take(),
        time_zone: args.time_zone.take(),
        every_ms: args.every.map(|DurationSetting(every)| millis(every)),
        at: args.at.take(),
        anchor: None,
    };
    let duration = |setting: Option<DurationSetting>| setting.map(|DurationSetting(duration)| millis(duration));
    let new = PutSchedule {
        id: Some(id.clone()),
        owner: args.owner.clone(),
        labels: std::mem::take(&mut args.labels).into_iter().collect(),
        margin_of_error_ms: duration(args.margin),
        spread_ms: duration(args.spread),
        overlap: args.overlap,
        paused: args.paused.then_some(true),
        ..PutSchedule::new(action(args)?, period)
    };
    new.clone().into_definition().map_err(|invalid| Failure::Usage(invalid.to_string()))?;
    Ok((id, new))
}

fn action(args: &mut AddArgs) -> Result<Action, Failure> {
    if let Some(url) = args.call.take() {
        let headers: BTreeMap<String, String> = std::mem::take(&mut args.headers).into_iter().collect();
        let body = args.body.take().map(|text| Json::of(&text)).transpose()?;
        let headers = Some(headers).filter(|headers| !headers.is_empty());
        return Ok(Action { url: Some(url), method: args.method, headers, body, ..Action::of(ActionType::Http) });
    }
    let command = std::mem::take(&mut args.command);
    let (kind, payload) = jobs::work_of(args.kind.take(), args.payload.take(), command, Default::default())?;
    let queue = args.queue.take().unwrap_or_else(|| jobs::DEFAULT_QUEUE.to_owned());
    let job = SubmitJob { payload, owner: args.owner.clone(), ..SubmitJob::new(queue, kind) };
    Ok(Action { job: Some(Json::of(&job)?), ..Action::of(ActionType::Job) })
}
