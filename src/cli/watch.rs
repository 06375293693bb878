//! `leasehold watch`: the events of jobs until they have ended.

use std::collections::BTreeSet;

use clap::Args;
use clap_complete::ArgValueCompleter;
use futures::StreamExt as _;

use super::complete;
use super::failure::{ExitStatus, Failure};
use super::output::complain;
use super::server::ClientArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{events, job_id};
use crate::client::{Client, EventMessage, EventQuery};
use crate::job::JobState;
use crate::worker::Stop;

/// Show what happens to jobs until they have ended
///
/// Exits with 0 when all were completed, and with 1 when one was not.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  leasehold watch my-job other-job")]
pub(super) struct WatchArgs {
    /// The ids of the jobs
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    ids: Vec<String>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Prints events until all jobs have ended.
pub(super) async fn run(args: WatchArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let ids = job_id::resolve_all(&client, &args.ids).await?;
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    tokio::select! {
        watched = watch(&client, ids, &args.answer) => watched,
        () = stopped.reached(Stop::Drain) => {
            Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)))
        }
    }
}

async fn watch(client: &Client, ids: Vec<String>, answer: &ClientArgs) -> Result<(), Failure> {
    let mut messages = client.events(EventQuery { jobs: ids.clone(), ..EventQuery::default() });
    let mut open: BTreeSet<String> = ids.into_iter().collect();
    let mut all_completed = true;
    while !open.is_empty() {
        let Some(message) = messages.next().await.transpose()? else { break };
        match message {
            EventMessage::Event { event, .. } => answer.print(&*event, events::line)?,
            EventMessage::Gap => complain("leasehold: events are missing here: more happened than is kept"),
            EventMessage::Interrupted { why } => complain(&format!("leasehold: {why}; connecting again")),
            // What had ended before the stream began has no event in it.
            EventMessage::Live => {}
        }
        for id in open.clone() {
            let state = client.job(&id).await?.state;
            if state.is_final() {
                all_completed &= state == JobState::Completed;
                open.remove(&id);
            }
        }
    }
    if all_completed { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
}
