//! `leasehold limit`: how many jobs of a queue, kind, owner or key run at once.

use std::time::Duration;

use clap::{Args, Subcommand};

use super::duration;
use super::failure::Failure;
use super::look::date;
use super::output::{Page, clean, complain, print, table};
use super::server::ClientArgs;
use super::settings::Settings;
use crate::clock::millis;
use crate::job::{LimitName, MAX_CONCURRENT};
use crate::manager::{LimitState, Rate, Urgent};
use crate::wire::{SetLimit, SetRate, SetUrgent};

/// Show and set how many jobs of a queue, kind, owner or key run at once
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold limit set queue:reports 7
  leasehold limit set key:db-7 50
  leasehold limit set queue:reports 10 --urgent-places 2 --urgent-priority 50
  leasehold limit set kind:mail --rate 100/1m --burst 10
  leasehold limit set key:api.example.org --paused-until 2030-01-31T08:00:00Z
  leasehold limit list
  leasehold limit show key:db-7
  leasehold limit remove queue:reports

A job names a key with `leasehold submit --concurrency-key db-7 --max-concurrent 5`.")]
pub(super) struct LimitArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List the limits that are set, and how many jobs run under each
    List(ClientArgs),
    /// Show a limit and the jobs that run under it, also a key that only jobs have named
    Show(OneArgs),
    /// Set how many jobs run at once; those that run already go on, and count
    Set(SetArgs),
    /// Take a limit away
    Remove(OneArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The limit: queue:NAME, kind:NAME, owner:NAME or key:NAME
    #[arg(value_name = "LIMIT")]
    limit: LimitName,
    #[command(flatten)]
    answer: ClientArgs,
}

#[derive(Debug, Args)]
struct SetArgs {
    /// The limit: queue:NAME, kind:NAME, owner:NAME or key:NAME
    #[arg(value_name = "LIMIT")]
    limit: LimitName,
    /// The most jobs that run at once
    #[arg(value_name = "N", required_unless_present_any = ["rate", "paused_until"],
        value_parser = clap::value_parser!(u64).range(1..=u64::from(MAX_CONCURRENT)))]
    max_concurrent: Option<u64>,
    /// Keep so many of these places free for jobs of --urgent-priority and above
    #[arg(long, value_name = "N", requires_all = ["max_concurrent", "urgent_priority"])]
    urgent_places: Option<u64>,
    /// The least priority of the jobs that may use all places, from -99 to 100
    #[arg(long, value_name = "PRIORITY", requires = "urgent_places", allow_negative_numbers = true)]
    urgent_priority: Option<i64>,
    /// How many jobs begin in a time, such as 100/1m or 5/1s
    #[arg(long, value_name = "COUNT/DURATION", value_parser = rate)]
    rate: Option<(u64, Duration)>,
    /// How many jobs begin at once when none has for a while [default: as many as the rate says]
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u64>,
    /// Let none begin before this time, such as 2030-01-31T08:00:00Z
    #[arg(long, value_name = "TIME")]
    paused_until: Option<String>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Runs the subcommand.
pub(super) async fn run(args: LimitArgs, settings: Settings) -> Result<(), Failure> {
    match args.action {
        Action::List(answer) => {
            let limits = answer.connect(&settings.client)?.limits().await?.items;
            answer.print_all(&limits, overview)
        }
        Action::Show(OneArgs { limit, answer }) => {
            answer.print(&answer.connect(&settings.client)?.limit(&limit).await?, describe)
        }
        Action::Set(SetArgs {
            limit,
            max_concurrent,
            urgent_places,
            urgent_priority,
            rate,
            burst,
            paused_until,
            answer,
        }) => {
            let rate = rate.map(|(count, per)| SetRate { count, per_ms: millis(per), burst });
            let urgent =
                urgent_places.zip(urgent_priority).map(|(places, min_priority)| SetUrgent { places, min_priority });
            let set = SetLimit { max_concurrent, urgent, rate, paused_until };
            let new = set.clone().into_new_limit().map_err(|invalid| Failure::Usage(invalid.to_string()))?;
            if let Some(doubt) = new.rate.and_then(too_small) {
                complain(&format!("leasehold: {doubt}"));
            }
            answer.print(&answer.connect(&settings.client)?.set_limit(&limit, &set).await?, summary)
        }
        Action::Remove(OneArgs { limit, answer }) => {
            answer.connect(&settings.client)?.remove_limit(&limit).await?;
            print(&format!("{}: removed", clean(&limit.to_string())))
        }
    }
}

/// Says that a burst is too small for its rate: what begins at once is taken up by looks, writes and claims, which take
/// some time each.
fn too_small(rate: Rate) -> Option<String> {
    let Rate { count, per_ms, burst } = rate;
    let tenth = (u64::from(count) * 100).div_ceil(per_ms);
    (u64::from(burst) < tenth).then(|| {
        format!(
            "a burst of {burst} is less than a tenth of a second's worth of the rate ({tenth}): fewer jobs may begin \
             than the rate says"
        )
    })
}

/// Parses a number and a time.
fn rate(text: &str) -> Result<(u64, Duration), String> {
    let (count, per) = text.split_once('/').ok_or("a rate is COUNT/DURATION, such as 100/1m")?;
    Ok((count.parse().map_err(|_| format!("`{count}` is not a number"))?, duration::parse(per)?))
}

/// Formats what a limit says.
fn most(limit: &LimitState) -> String {
    let at_once = limit.max_concurrent.map(|most| format!("{most} at once"));
    let urgent = limit.urgent.map(|Urgent { places, min_priority }| {
        format!("{places} of them for priorities from {} on", min_priority.get())
    });
    let rate = limit.rate.map(|rate| {
        let per = duration::show(Duration::from_millis(rate.per_ms));
        format!("{} in {per} (burst {})", rate.count, rate.burst)
    });
    let paused = limit.paused_until.map(|until| format!("none before {}", date(until)));
    let said: Vec<String> = [at_once, urgent, rate, paused].into_iter().flatten().collect();
    if said.is_empty() { "as the jobs say".to_owned() } else { said.join(", ") }
}

/// Formats a limit on one line.
fn summary(limit: &LimitState) -> String {
    format!("{}: {} run, at most {}", clean(&limit.limit.to_string()), limit.running.len(), most(limit))
}

/// Formats the limits as a table.
fn overview(limits: &[LimitState]) -> String {
    if limits.is_empty() {
        return "no limit is set".to_owned();
    }
    let rows = limits.iter().map(|limit| {
        let by = limit.by.as_ref().map(ToString::to_string).unwrap_or_default();
        vec![limit.limit.to_string(), limit.running.len().to_string(), most(limit), by]
    });
    table(&["limit", "running", "at most", "set by"], rows)
}

/// Formats a limit on a page.
fn describe(limit: &LimitState) -> String {
    let mut page = Page::new(10);
    page.line("limit", &limit.limit.to_string());
    page.line("at most", &most(limit));
    page.time("set at", limit.set_at);
    page.line("set by", limit.by.as_ref().map_or("", |by| by.as_str()));
    for (number, holder) in limit.running.iter().enumerate() {
        let name = if number == 0 { "running" } else { "" };
        page.line(name, &format!("{} (fence {})", holder.job_id, holder.fence.get()));
    }
    page.text()
}
