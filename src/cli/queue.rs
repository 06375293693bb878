//! `leasehold queue`: the statistics and settings of queues.

use clap::{Args, Subcommand, ValueEnum};

use super::failure::Failure;
use super::output::{Fit, Page, clean, shorten, table_to};
use super::server::ClientArgs;
use super::settings::Settings;
use super::statistics::{age, failing, per_minute};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::OrphanPolicy;
use crate::wire::{ChangeQueue, JobState, Queue};

/// How many characters of a reason are shown in a table.
const REASON_CHARACTERS: usize = 40;

/// Show, pause, resume and set up queues
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold queue list
  leasehold queue pause reports --reason 'the printer burns'
  leasehold queue resume reports")]
pub(super) struct QueueArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the queues that have jobs or settings
    List(ClientArgs),
    /// Show everything about a queue
    Show(OneArgs),
    /// Pause a queue: its jobs are not claimed until it is resumed; running ones go on
    Pause(PauseArgs),
    /// Resume a paused queue
    Resume(OneArgs),
    /// Set what happens to a queue's jobs whose lease expires
    Set(SetArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The name of the queue
    #[arg(value_name = "QUEUE")]
    queue: String,
    #[command(flatten)]
    answer: ClientArgs,
}

#[derive(Debug, Args)]
struct PauseArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Record this reason, which is shown to people who ask why a job does not run
    #[arg(long)]
    reason: Option<String>,
}

#[derive(Debug, Args)]
struct SetArgs {
    #[command(flatten)]
    one: OneArgs,
    /// What happens to the queue's jobs whose lease expires, unless they have a policy of their own
    #[arg(long, value_enum)]
    orphan_policy: Policy,
}

/// What happens to a job whose lease expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// The job waits for its next attempt
    Requeue,
    /// The job fails
    Fail,
    /// The job is flagged, and a person decides
    Flag,
    /// As the monitor is set up
    Default,
}

/// Runs the subcommand.
pub(super) async fn run(args: QueueArgs, settings: Settings) -> Result<(), Failure> {
    match args.action {
        Action::List(answer) => {
            let queues = answer.connect(&settings.client)?.queues().await?.items;
            answer.print_all(&queues, |queues| overview(queues, SystemClock::default().now(), Fit::Terminal))
        }
        Action::Show(OneArgs { queue, answer }) => {
            answer.print(&answer.connect(&settings.client)?.queue(&queue).await?, describe)
        }
        Action::Pause(PauseArgs { one: OneArgs { queue, answer }, reason }) => {
            answer.print(&answer.connect(&settings.client)?.pause_queue(&queue, reason.as_deref()).await?, summary)
        }
        Action::Resume(OneArgs { queue, answer }) => {
            answer.print(&answer.connect(&settings.client)?.resume_queue(&queue).await?, summary)
        }
        Action::Set(SetArgs { one: OneArgs { queue, answer }, orphan_policy }) => {
            let change = ChangeQueue { orphan_policy: orphan_policy.into() };
            answer.print(&answer.connect(&settings.client)?.change_queue(&queue, &change).await?, summary)
        }
    }
}

impl From<Policy> for Option<OrphanPolicy> {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Requeue => Some(OrphanPolicy::Requeue),
            Policy::Fail => Some(OrphanPolicy::Fail),
            Policy::Flag => Some(OrphanPolicy::Flag),
            Policy::Default => None,
        }
    }
}

/// Formats a queue's settings on one line.
fn summary(queue: &Queue) -> String {
    let stands = if queue.paused { "paused" } else { "not paused" };
    let rule = queue.orphan_policy.map(|policy| format!(", orphans: {}", policy.as_str())).unwrap_or_default();
    format!("{}: {stands}{rule}", clean(queue.name.as_str()))
}

/// Formats the queues as a table.
pub(super) fn overview(queues: &[Queue], now: Timestamp, fit: Fit) -> String {
    let rows = queues.iter().map(|queue| {
        let count = |state: JobState| queue.jobs.get(&state).copied().unwrap_or(0).to_string();
        let pause = queue.pause.as_ref().map(|pause| match &pause.reason {
            Some(reason) => format!("by {}: {}", pause.by, shorten(reason, REASON_CHARACTERS)),
            None => format!("by {}", pause.by),
        });
        vec![
            queue.name.to_string(),
            count(JobState::Available),
            count(JobState::Running),
            count(JobState::Failed),
            age(queue.oldest_waiting_since, now),
            per_minute(queue),
            failing(queue),
            pause.unwrap_or_default(),
        ]
    });
    table_to(fit, &["queue", "waiting", "running", "failed", "oldest", "a minute", "failing", "paused"], rows)
}

/// Formats a queue on a page.
fn describe(queue: &Queue) -> String {
    let mut page = Page::new(14);
    page.line("queue", queue.name.as_str());
    let pause = queue.pause.as_ref().map(|pause| {
        let reason = pause.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        format!("since {} by {}{reason}", pause.since, pause.by)
    });
    page.line("paused", pause.as_deref().unwrap_or("no"));
    page.line("orphans", queue.orphan_policy.map_or("as the monitor is set up", OrphanPolicy::as_str));
    for (state, count) in &queue.jobs {
        page.line(state.as_str(), &count.to_string());
    }
    page.time("oldest waiting", queue.oldest_waiting_since);
    for ended in &queue.throughput {
        let (completed, failed, rate) = (ended.completed, ended.failed, ended.per_minute);
        let name = format!("last {} min", ended.window_ms / 60_000);
        page.line(&name, &format!("{completed} completed, {failed} failed, {rate:.1} a minute"));
    }
    page.text()
}
