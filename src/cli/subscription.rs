//! `leasehold subscription`: receivers of notifications.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCompleter;

use super::complete;
use super::failure::Failure;
use super::look::date;
use super::output::{print, table};
use super::server::{ClientArgs, ServerArgs};
use super::settings::Settings;
use crate::job::NoticeFormat;
use crate::notify::SubscribableEvent;
use crate::wire::{Subscribe, Subscription};

/// Manage the receivers of notifications about jobs and schedules
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold subscription add https://example.org/hook --event failed --event orphaned
  leasehold subscription add https://example.org/hook --event schedule_missed --event schedule_failing
  leasehold subscription add https://hooks.slack.com/services/… --format slack --kql 'labels.team: blue'
  leasehold subscription list

Messages that could not be delivered are failed jobs:
  leasehold list --queue leasehold.notifications --state failed")]
pub(super) struct SubscriptionArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a receiver; prints the secret that signs its messages, which is not shown again
    Add(AddArgs),
    /// List the receivers
    List(ClientArgs),
    /// Remove a receiver
    Remove(OneArgs),
    /// Enable a receiver that was switched off because it answered 410
    Enable(OneArgs),
    /// Give a receiver a new secret; the former one signs as well until the next change
    Rotate(OneArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The URL to call, with http or https
    url: String,
    /// Notify of this event (repeatable) [default: all]
    #[arg(long, value_name = "EVENT", value_delimiter = ',')]
    event: Vec<SubscribableEvent>,
    /// The format of messages: cloud_events, slack or alertmanager
    #[arg(long, default_value = "cloud_events")]
    format: NoticeFormat,
    /// Notify of jobs in this queue (repeatable) [default: all]
    #[arg(long)]
    queue: Vec<String>,
    /// Notify of jobs of this kind (repeatable) [default: all]
    #[arg(long)]
    kind: Vec<String>,
    /// Notify of jobs and schedules of this owner (repeatable) [default: all]
    #[arg(long)]
    owner: Vec<String>,
    /// Notify of jobs that satisfy this query in Kibana's language
    #[arg(long, value_name = "QUERY")]
    kql: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The id of the receiver
    #[arg(add = ArgValueCompleter::new(complete::subscriptions))]
    id: String,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the subcommand.
pub(super) async fn run(args: SubscriptionArgs, settings: Settings) -> Result<(), Failure> {
    let connect = |server: ServerArgs| server.connect(&settings.client);
    match args.action {
        Action::Add(add) => {
            let client = connect(add.server)?;
            let subscribe = Subscribe {
                url: add.url,
                events: add.event,
                format: add.format,
                queues: add.queue,
                kinds: add.kind,
                owners: add.owner,
                kql: add.kql,
                secret: None,
            };
            print_secret(&client.subscribe(&subscribe).await?)
        }
        Action::List(list) => {
            let all = list.connect(&settings.client)?.subscriptions().await?;
            list.print_all(&all, show)
        }
        Action::Remove(one) => {
            connect(one.server)?.unsubscribe(&one.id).await?;
            print(&format!("{}: removed", one.id))
        }
        Action::Enable(one) => {
            connect(one.server)?.enable_subscription(&one.id).await?;
            print(&format!("{}: enabled", one.id))
        }
        Action::Rotate(one) => {
            let changed = connect(one.server)?.change_secret(&one.id).await?;
            print_secret(&changed)
        }
    }
}

fn print_secret(subscription: &Subscription) -> Result<(), Failure> {
    print(&format!("{} {}", subscription.id, subscription.secret.as_deref().unwrap_or_default()))
}

fn show(all: &[Subscription]) -> String {
    if all.is_empty() {
        return "no subscriptions".to_owned();
    }
    let rows = all.iter().map(|subscription| {
        let events: Vec<&str> = subscription.events.iter().map(|event| event.as_str()).collect();
        let or_all = |words: String| if words.is_empty() { "all".to_owned() } else { words };
        let enabled = match (&subscription.switched_off_at, &subscription.switched_off_reason) {
            (Some(at), reason) => format!("not since {}: {}", date(*at), reason.as_deref().unwrap_or_default()),
            (None, _) => "yes".to_owned(),
        };
        vec![
            subscription.id.clone(),
            subscription.url.clone(),
            or_all(events.join(",")),
            or_all(subscription.queues.join(",")),
            subscription.format.as_str().to_owned(),
            enabled,
        ]
    });
    table(&["id", "url", "events", "queues", "format", "enabled"], rows)
}
