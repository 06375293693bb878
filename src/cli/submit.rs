//! `leasehold submit`: submits jobs to a server.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::clean::clean;
use super::failure::{ExitStatus, Failure};
use super::meter::Meter;
use super::output::{complain, print, print_json};
use super::server::ClientArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{duration, jobs, logs, wait, when};
use crate::client::Client;
use crate::clock::{Clock as _, SystemClock, Timestamp, millis};
use crate::job::shell::leasehold;
use crate::job::{EventName, Json, NoticeFormat};
use crate::manager::OnDuplicate;
use crate::schedule::{Action, ActionType};
use crate::wire::{JobState, NotifyTarget, Period, PutSchedule, SubmitJob};
use crate::worker::Stop;

/// How many jobs one call submits.
const BATCH: usize = 1000;
/// How many refusals are printed one by one.
const MAX_SHOWN: usize = 20;

/// Submit jobs to a server, and print their ids
///
/// Submits one job from the command line, or many from a file of JSON lines, each a job as the API takes it, or just
/// {"command": ["program", "argument"]}. Jobs without an id are given one before they are sent, so that a repetition
/// after a lost answer does not make a second job.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold submit -- convert in.png out.webp
  leasehold submit --queue reports --label month=2030-01 -- make report
  leasehold submit --kind render --payload '{\"scene\": 7}'
  leasehold submit --requires 'hw = fpga' --requires 'build >= 42' -- flash image.bit
  leasehold submit --unique-key report-7 --on-duplicate existing -- make report
  leasehold submit --ordering-key account-7 -- post booking.json
  leasehold submit --at 'tomorrow 02:00' --retries 5 --timeout 1h -- ./backup.sh
  leasehold submit --wait --env SCENE=7 --cwd /srv/render -- ./render.sh
  leasehold submit --file jobs.jsonl")]
pub(super) struct SubmitArgs {
    /// Submit the jobs of this file, one JSON object per line; `-` for standard input
    #[arg(long, short, value_name = "FILE",
          conflicts_with_all = ["command", "payload", "id", "queue", "kind", "priority", "owner", "labels", "requires",
                                "concurrency_key", "unique_key", "ordering_key", "timeout", "max_attempts",
                                "run_at", "wait_for", "every", "expires_at", "resources", "notify"])]
    file: Option<PathBuf>,
    /// The queue of the job [default: default]
    #[arg(long)]
    queue: Option<String>,
    /// The kind of the job, which names its handler [default: shell]
    #[arg(long)]
    kind: Option<String>,
    /// The input of the job, as JSON
    #[arg(long, value_name = "JSON", conflicts_with = "command")]
    payload: Option<String>,
    /// The id of the job; submitting the same job again under its id returns the first one
    #[arg(long)]
    id: Option<String>,
    /// The priority, from -100 to 100; higher runs first [default: 0]
    #[arg(long, allow_hyphen_values = true)]
    priority: Option<i64>,
    /// The owner of the job
    #[arg(long)]
    owner: Option<String>,
    /// A label to find the job by (repeatable)
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// What a worker must offer to be given the job: 'hw = fpga', 'os in (linux, darwin)', 'build >= 42', 'gpu' or
    /// '!gpu' (repeatable)
    #[arg(long, value_name = "REQUIREMENT")]
    requires: Vec<String>,
    /// A key of which only so many jobs run at once, over all queues
    #[arg(long, value_name = "KEY")]
    concurrency_key: Option<String>,
    /// The most jobs of the key that run at once [default: 1]
    #[arg(long, value_name = "N", requires = "concurrency_key")]
    max_concurrent: Option<u64>,
    /// A key of which at most one job waits or runs, over all queues
    #[arg(long, value_name = "KEY")]
    unique_key: Option<String>,
    /// What becomes of the submission while another job of the unique key waits or runs: refuse, existing (answer
    /// with that job) or replace (give that job the new payload, while it waits) [default: refuse]
    #[arg(long, value_name = "ANSWER", requires = "unique_key")]
    on_duplicate: Option<OnDuplicate>,
    /// How long after its submission a waiting job may be put off to by later ones that replace it [default: no end]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "on_duplicate")]
    longest_wait: Option<Duration>,
    /// A key whose jobs run one after another, over all queues, in the order of their submission
    #[arg(long, value_name = "KEY")]
    ordering_key: Option<String>,
    /// The time limit of each attempt [default: none]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// How many attempts the job gets, the first one included [default: 3]
    #[arg(long, visible_alias = "retries", value_name = "N")]
    max_attempts: Option<u64>,
    /// The time at which the job is due, such as 'tomorrow 02:00', 'monday 8:30' or 2030-01-31T08:00:00Z [default: now]
    #[arg(long, visible_alias = "at", value_name = "TIME", value_parser = when::parse,
          conflicts_with_all = ["wait_for", "every"])]
    run_at: Option<Timestamp>,
    /// How long from now the job is due, such as 10m
    #[arg(long = "in", id = "wait_for", value_name = "DURATION", value_parser = duration::parse,
          conflicts_with = "every")]
    wait_for: Option<Duration>,
    /// Make a schedule that submits such a job at this distance, such as 1h, in place of one job; its id is --id
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "wait", requires = "id")]
    every: Option<Duration>,
    /// The time by which the job has to be started; after it, the job expires
    #[arg(long, visible_alias = "expires", value_name = "TIME", value_parser = when::parse)]
    expires_at: Option<Timestamp>,
    /// The amount of a resource that the job needs (repeatable)
    #[arg(long = "resource", value_name = "NAME=AMOUNT", value_parser = resource)]
    resources: Vec<(String, u64)>,
    /// A variable of the command's environment (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = variable, requires = "command")]
    env: Vec<(String, String)>,
    /// The command's working directory [default: the worker's]
    #[arg(long, value_name = "FOLDER", requires = "command")]
    cwd: Option<PathBuf>,
    /// Tell this URL when the job has ended (repeatable)
    #[arg(long = "notify", value_name = "URL")]
    notify: Vec<String>,
    /// Wait until the job has ended, print what it writes, and exit as its command did
    #[arg(long, conflicts_with = "file")]
    wait: bool,
    #[command(flatten)]
    answer: ClientArgs,
    /// The program and its arguments, for a shell job
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Parses a name and a value.
pub(super) fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is no NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses a name and an amount.
pub(super) fn resource(text: &str) -> Result<(String, u64), String> {
    let wrong = || "a resource is NAME=AMOUNT, such as memory_mib=4096".to_owned();
    let (name, amount) = text.split_once('=').ok_or_else(wrong)?;
    Ok((name.to_owned(), amount.parse().map_err(|_| wrong())?))
}

/// Returns a receiver that is told when the job has ended, however it did.
fn notified(url: String) -> NotifyTarget {
    let events = vec![EventName::Completed, EventName::Failed, EventName::Cancelled, EventName::Expired];
    NotifyTarget { url, events, format: NoticeFormat::default() }
}

/// Parses a variable of the environment.
fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a variable is NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Submits one job or many.
pub(super) async fn run(mut args: SubmitArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    if let Some(file) = args.file.take() {
        return submit_file(&client, &file, args.answer.json()).await;
    }
    let (json, waits, every) = (args.answer.json(), args.wait, args.every);
    let job = one(args)?;
    if let Some(every) = every {
        return repeat(&client, job, every, json).await;
    }
    let job = client.submit(&job).await?;
    if waits {
        return until_ended(&client, &job.id, json).await;
    }
    if json { print_json(&job) } else { print(&job.id) }
}

/// Makes a schedule of the job.
async fn repeat(client: &Client, mut job: SubmitJob, every: Duration, json: bool) -> Result<(), Failure> {
    let id = job.id.take();
    let action = Action { job: Some(Json::of(&job)?), ..Action::of(ActionType::Job) };
    let period = Period { cron: None, time_zone: None, every_ms: Some(millis(every)), at: None, anchor: None };
    let schedule = PutSchedule { id, owner: job.owner, ..PutSchedule::new(action, period) };
    let stored = client.create_schedule(&schedule).await?;
    if json { print_json(&stored) } else { print(&stored.id) }
}

/// Prints what a job writes until it has ended, and ends as its command did.
async fn until_ended(client: &Client, id: &str, json: bool) -> Result<(), Failure> {
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    let ended = async {
        match json {
            true => Ok(wait::until_ended(client, id, None).await?),
            false => logs::follow_job(client, id).await,
        }
    };
    let job = tokio::select! {
        job = ended => job?,
        () = stopped.reached(Stop::Drain) => {
            let more = leasehold("logs --follow").operand(id);
            complain(&format!("leasehold: the job goes on; `{more}` shows more of it"));
            return Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)));
        }
    };
    if json {
        print_json(&job)?;
    }
    if job.state == JobState::Completed {
        return Ok(());
    }
    let error = job.error.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
    complain(&clean(&format!("leasehold: {id} {}{error}", job.state.as_str())));
    Err(job
        .error
        .and_then(|error| exit_status(&error.message))
        .map_or(Failure::Reported(ExitStatus::Failed), Failure::Command))
}

/// Returns the exit status that the message of a failed command names.
fn exit_status(message: &str) -> Option<u8> {
    let rest = message.strip_prefix("exit status ")?;
    rest.split(|character: char| !character.is_ascii_digit()).next()?.parse().ok().filter(|status| *status > 0)
}

/// Returns the job that the flags describe.
fn one(args: SubmitArgs) -> Result<SubmitJob, Failure> {
    let surroundings = (args.env.into_iter().collect(), args.cwd);
    let (kind, payload) = jobs::work_of(args.kind, args.payload, args.command, surroundings)?;
    let run_at = args.run_at.or_else(|| args.wait_for.map(|wait| SystemClock::default().now().plus(wait)));
    let job = SubmitJob {
        id: args.id,
        payload,
        priority: args.priority,
        owner: args.owner,
        labels: args.labels.into_iter().collect(),
        requires: args.requires,
        concurrency_key: args.concurrency_key,
        max_concurrent: args.max_concurrent,
        unique_key: args.unique_key,
        on_duplicate: args.on_duplicate,
        longest_wait_ms: args.longest_wait.map(millis),
        ordering_key: args.ordering_key,
        run_at: run_at.map(Timestamp::to_rfc3339),
        expires_at: args.expires_at.map(Timestamp::to_rfc3339),
        resources: args.resources.into_iter().collect(),
        notify: args.notify.into_iter().map(notified).collect(),
        timeout_ms: args.timeout.map(millis),
        max_attempts: args.max_attempts,
        ..SubmitJob::new(args.queue.unwrap_or_else(|| jobs::DEFAULT_QUEUE.to_owned()), kind)
    };
    job.clone().into_new_job().map_err(|invalid| Failure::Usage(invalid.to_string()))?;
    Ok(job)
}

async fn submit_file(client: &Client, file: &Path, json: bool) -> Result<(), Failure> {
    let name = file.display().to_string();
    let lines = jobs::parse(&name, &jobs::read_text(file)?)?;
    let meter = Meter::start(lines.len() as u64);
    let mut refused = 0;
    for batch in lines.chunks(BATCH) {
        let jobs: Vec<SubmitJob> = batch.iter().map(|line| line.job.clone()).collect();
        let items = client.submit_bulk(&jobs).await?;
        for (line, item) in batch.iter().zip(&items) {
            meter.advance(item.error.is_none());
            match &item.error {
                _ if json => print_json(item)?,
                None => print(item.id.as_deref().unwrap_or_default())?,
                Some(_) => {}
            }
            if let Some(error) = &item.error {
                refused += 1;
                if refused <= MAX_SHOWN {
                    complain(&format!("{name}:{}: {} ({})", line.number, error.message, error.code));
                }
            }
        }
    }
    meter.end();
    if refused == 0 {
        return Ok(());
    }
    complain(&format!("leasehold: {refused} of {} jobs were refused", lines.len()));
    Err(Failure::Reported(ExitStatus::Failed))
}
