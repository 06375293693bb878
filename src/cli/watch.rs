//! `leasehold watch`: the events of jobs until they have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use futures::StreamExt as _;
use tokio::time::{Instant, MissedTickBehavior, interval_at};

use super::complete;
use super::failure::{ExitStatus, Failure};
use super::output::complain;
use super::server::ClientArgs;
use super::settings::Settings;
use super::signals::Signals;
use super::{events, job_id};
use crate::client::{Client, EventMessage, EventQuery};
use crate::job::JobState;
use crate::wire::JobEvent;
use crate::worker::Stop;

/// The time between two looks at the jobs while the stream says nothing of them: one may have been removed.
const LOOK_EVERY: Duration = Duration::from_secs(30);

/// Show what happens to jobs until they have ended
///
/// Shows how a job ended that has ended before. Exits with 0 when all were completed, and with 1 when one was not.
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
    let open = ids.into_iter().map(|id| (id, BTreeMap::new())).collect();
    let watch = Watch { client: &client, answer: &args.answer, open, all_completed: true };
    let signals = Signals::listen(|_| {})?;
    let mut stopped = signals.stop().listen();
    tokio::select! {
        watched = watch.run() => watched,
        () = stopped.reached(Stop::Drain) => {
            Err(Failure::Reported(signals.status().unwrap_or(ExitStatus::Interrupted)))
        }
    }
}

/// Jobs until they have ended.
struct Watch<'a> {
    client: &'a Client,
    answer: &'a ClientArgs,
    /// The jobs that have not ended, with those of their transitions that were shown: their numbers, and the states
    /// that they led to.
    open: BTreeMap<String, BTreeMap<u32, JobState>>,
    all_completed: bool,
}

impl Watch<'_> {
    async fn run(mut self) -> Result<(), Failure> {
        let jobs = self.open.keys().cloned().collect();
        let mut messages = self.client.events(EventQuery { jobs, ..EventQuery::default() });
        let mut looks = interval_at(Instant::now() + LOOK_EVERY, LOOK_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !self.open.is_empty() {
            let message = tokio::select! {
                message = messages.next() => message.transpose()?,
                _ = looks.tick() => {
                    self.look_at_all().await?;
                    continue;
                }
            };
            match message {
                Some(EventMessage::Event { event, .. }) => {
                    self.show(&event)?;
                    if event.job.state.is_final() {
                        // It may have been started again since.
                        self.look_at(&event.job.id).await?;
                    }
                }
                // What happened before the stream began is not in it.
                Some(EventMessage::Live) => self.look_at_all().await?,
                Some(EventMessage::Gap) => {
                    complain("leasehold: events are missing here: more happened than is kept");
                    self.look_at_all().await?;
                }
                Some(EventMessage::Interrupted { why }) => complain(&format!("leasehold: {why}; connecting again")),
                None => break,
            }
        }
        if self.all_completed { Ok(()) } else { Err(Failure::Reported(ExitStatus::Failed)) }
    }

    /// Shows an event of an open job, unless it was shown before.
    fn show(&mut self, event: &JobEvent) -> Result<(), Failure> {
        let Some(shown) = self.open.get_mut(&event.job.id) else { return Ok(()) };
        if shown.insert(event.number, event.job.state).is_some() {
            return Ok(());
        }
        self.answer.print(event, events::line)
    }

    async fn look_at_all(&mut self) -> Result<(), Failure> {
        for id in self.open.keys().cloned().collect::<Vec<_>>() {
            self.look_at(&id).await?;
        }
        Ok(())
    }

    /// Reads an open job. Of one that has ended it shows what is missing since the first event that was shown, or else
    /// the last one, and watches it no more.
    async fn look_at(&mut self, id: &str) -> Result<(), Failure> {
        let Some(shown) = self.open.get(id) else { return Ok(()) };
        let job = match self.client.job(id).await {
            Ok(job) if job.state.is_final() => job,
            Ok(_) => return Ok(()),
            Err(error) if error.code() == Some("not_found") => {
                let last = shown.last_key_value().map(|(_, state)| *state);
                if !last.is_some_and(JobState::is_final) {
                    complain(&format!("leasehold: {error}"));
                }
                self.all_completed &= last == Some(JobState::Completed);
                self.open.remove(id);
                return Ok(());
            }
            // The stream tells of a server that is away, and the next look is soon.
            Err(error) if error.status().is_none_or(|status| status >= 500) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let events = JobEvent::all_of(&job);
        let first = shown.first_key_value().map(|(number, _)| *number).or(events.last().map(|last| last.number));
        for event in events.iter().filter(|event| Some(event.number) >= first) {
            self.show(event)?;
        }
        self.all_completed &= job.state == JobState::Completed;
        self.open.remove(id);
        Ok(())
    }
}
