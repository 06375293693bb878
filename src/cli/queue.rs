//! `leasehold queue`: the statistics and settings of queues.

use clap::{ArgGroup, Args, Subcommand, ValueEnum};

use super::failure::Failure;
use super::look::date;
use super::output::{Fit, Page, clean, shorten, table_to};
use super::server::ClientArgs;
use super::settings::Settings;
use super::statistics::{age, failing, per_minute};
use crate::clock::{Clock as _, SystemClock, Timestamp};
use crate::job::{OrphanPolicy, Owner};
use crate::wire::{ChangeQueue, Fairness, JobOrder, JobState, Queue};

/// How many characters of a reason are shown in a table.
const REASON_CHARACTERS: usize = 40;

/// Show, pause, resume and set up queues
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold queue list
  leasehold queue pause reports --reason 'the printer burns'
  leasehold queue resume reports
  leasehold queue set reports --fairness owner --weight team-a=3
  leasehold queue set reports --order shortest")]
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
    /// Set whether a queue's owners take turns, which job is next, and what happens to its jobs whose lease expires
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
#[command(group = ArgGroup::new("settings").required(true).multiple(true))]
struct SetArgs {
    #[command(flatten)]
    one: OneArgs,
    /// What happens to the queue's jobs whose lease expires, unless they have a policy of their own
    #[arg(long, value_enum, group = "settings")]
    orphan_policy: Option<Policy>,
    /// Whose turn it is among the due jobs of one priority: `none` for the job that has been due longest, `owner` to
    /// let the owners take turns, `owner_runtime` to let them take turns by their jobs' expected runtimes
    #[arg(long, group = "settings")]
    fairness: Option<Fairness>,
    /// Which of the due jobs of one priority is next: `dispatch` for the one that has been due longest, `shortest` for
    /// the one that is expected to run shortest, unless another has waited long
    #[arg(long, group = "settings")]
    order: Option<JobOrder>,
    /// Give an owner so many jobs for each of an owner without a weight, where owners take turns; replaces all weights
    #[arg(long = "weight", value_name = "OWNER=NUMBER", value_parser = weight, group = "settings")]
    weights: Vec<(String, u64)>,
    /// Remove all weights
    #[arg(long, group = "settings", conflicts_with = "weights")]
    no_weights: bool,
}

/// Parses the weight of one owner or queue, `name=number`.
pub(super) fn weight(text: &str) -> Result<(String, u64), String> {
    let parts = text.rsplit_once('=').ok_or("must be a name and a number, as in `team-a=3`")?;
    let number = parts.1.parse().map_err(|_| format!("`{}` is not a number", parts.1))?;
    Ok((parts.0.to_owned(), number))
}

impl SetArgs {
    fn into_change(self) -> (OneArgs, ChangeQueue) {
        let has_weights = self.no_weights || !self.weights.is_empty();
        let weights = has_weights.then(|| self.weights.into_iter().collect());
        let orphan_policy = self.orphan_policy.map(Into::into);
        (self.one, ChangeQueue { orphan_policy, fairness: self.fairness, weights, order: self.order })
    }
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
        Action::Set(set) => {
            let (OneArgs { queue, answer }, change) = set.into_change();
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
    let order = order(queue).map(|order| format!(", {order}")).unwrap_or_default();
    format!("{}: {stands}{rule}{order}", clean(queue.name.as_str()))
}

/// Says in which order a queue's jobs go; `None` for the usual one.
fn order(queue: &Queue) -> Option<String> {
    let turns = match queue.fairness {
        Fairness::None => None,
        Fairness::Owner => Some(format!("owners take turns{}", weights(queue))),
        Fairness::OwnerRuntime => Some(format!("owners take turns by expected runtime{}", weights(queue))),
    };
    let shorter = (queue.order == JobOrder::Shortest).then(|| "shorter jobs go first".to_owned());
    let said: Vec<String> = turns.into_iter().chain(shorter).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// Formats the weights of a queue's owners.
fn weights(queue: &Queue) -> String {
    let weight = |(owner, weight): (&Owner, &u32)| format!("{} {weight}", clean(owner.as_str()));
    match queue.weights.is_empty() {
        true => String::new(),
        false => format!(" ({})", queue.weights.iter().map(weight).collect::<Vec<_>>().join(", ")),
    }
}

/// Formats the queues as a table.
pub(super) fn overview(queues: &[Queue], now: Timestamp, fit: Fit) -> String {
    if queues.is_empty() && fit == Fit::Terminal {
        return "no queue has jobs or settings".to_owned();
    }
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
        format!("since {} by {}{reason}", date(pause.since), pause.by)
    });
    page.line("paused", pause.as_deref().unwrap_or("no"));
    page.line("orphans", queue.orphan_policy.map_or("as the monitor is set up", OrphanPolicy::as_str));
    if let Some(order) = order(queue) {
        page.line("order", &order);
    }
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
