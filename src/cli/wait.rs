//! `leasehold wait`: waits until jobs have ended.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;
use clap_complete::ArgValueCompleter;
use futures::StreamExt as _;
use tokio::time::Instant;

use super::complete;
use super::duration;
use super::failure::{ExitStatus, Failure};
use super::job_id;
use super::job_row::{error_of, phase_of};
use super::layout::Column;
use super::meter::Meter;
use super::output::{print, table_with};
use super::server::ClientArgs;
use super::settings::Settings;
use crate::client::{Client, ClientError};
use crate::job::JobState;
use crate::wire::Job;

/// How long one call waits; the server allows a minute.
const ONE_CALL: Duration = Duration::from_secs(30);
/// How many jobs are waited for at a time.
const AT_A_TIME: usize = 50;
/// The columns of the table of what has ended.
const COLUMNS: &[Column] =
    &[Column::id("id"), Column::state("state"), Column::word("took"), Column::text("error").weight(60)];

/// Wait until jobs have ended
///
/// Exits with 0 when all were completed, 1 when one was not, 4 when the time limit ran out first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold wait my-job
  leasehold submit -- make report | leasehold wait --timeout 10m -")]
pub(super) struct WaitArgs {
    /// The ids of the jobs; `-` reads them from standard input
    #[arg(required = true, value_name = "ID", add = ArgValueCompleter::new(complete::job_ids))]
    ids: Vec<String>,
    /// The longest wait [default: as long as it takes]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    timeout: Option<Duration>,
    #[command(flatten)]
    answer: ClientArgs,
}

/// Waits for the jobs.
pub(super) async fn run(args: WaitArgs, settings: Settings) -> Result<(), Failure> {
    let client = args.answer.connect(&settings.client)?;
    let ids = job_id::resolve_all(&client, &ids(&args.ids)?).await?;
    let deadline = args.timeout.map(|timeout| Instant::now() + timeout);
    let meter = Meter::start(ids.len() as u64);
    let mut waiting =
        futures::stream::iter(ids.iter().map(|id| until_ended(&client, id, deadline))).buffer_unordered(AT_A_TIME);
    let mut ended = BTreeMap::new();
    while let Some(job) = waiting.next().await {
        let job = job?;
        if args.answer.is_for_programs() {
            args.answer.print_item(&job)?;
        }
        if job.state.is_final() {
            meter.advance(job.state == JobState::Completed);
        }
        ended.insert(job.id.to_string(), job);
    }
    meter.end();
    if !args.answer.is_for_programs() {
        print(&table_with(COLUMNS, ended.values().map(row)))?;
    }
    verdict(ended.values().map(|job| job.state))
}

/// Returns the ids of the command line or of standard input.
fn ids(named: &[String]) -> Result<Vec<String>, Failure> {
    if named != ["-"] {
        return Ok(named.to_vec());
    }
    let text = super::jobs::read_text(std::path::Path::new("-"))?;
    let ids: Vec<String> = text.lines().map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect();
    if ids.is_empty() { Err(Failure::Usage("standard input names no job".to_owned())) } else { Ok(ids) }
}

/// Returns the job once it has ended, or as it is when the time is up.
pub(super) async fn until_ended(client: &Client, id: &str, deadline: Option<Instant>) -> Result<Job, ClientError> {
    loop {
        let left = deadline.map_or(ONE_CALL, |deadline| deadline.saturating_duration_since(Instant::now()));
        let job = client.wait(id, left.min(ONE_CALL)).await?;
        if job.state.is_final() || deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(job);
        }
    }
}

fn verdict(mut states: impl Iterator<Item = JobState> + Clone) -> Result<(), Failure> {
    if states.clone().any(|state| state.is_final() && state != JobState::Completed) {
        Err(Failure::Reported(ExitStatus::Failed))
    } else if states.all(JobState::is_final) {
        Ok(())
    } else {
        Err(Failure::Reported(ExitStatus::TimeIsUp))
    }
}

fn row(job: &Job) -> Vec<String> {
    let took = job.started_at.zip(job.finished_at).map(|(started, finished)| duration::show(finished.since(started)));
    vec![job.id.to_string(), phase_of(job), took.unwrap_or_default(), error_of(job)]
}
