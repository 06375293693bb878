//! `leasehold cancel`, `retry` and `release`: an administrator's changes, to jobs by id or to all jobs of a filter.

use clap::{Args, ValueEnum};

use super::chosen::Chosen;
use super::failure::Failure;
use super::filter::warn_of;
use super::job_id;
use super::job_row::phase_of;
use super::layout::Column;
use super::look::time;
use super::many::{self, ManyChange};
use super::output::one_line;
use super::settings::Settings;
use crate::client::{Client, ClientError};
use crate::query::table::Table;
use crate::wire::{AdminRelease, BulkChange, BulkFilter, BulkReport, Job, JobState, Then};

/// Cancel jobs; the worker of a running job is asked to stop it with the next heartbeat
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold cancel my-job --reason 'wrong month'
  leasehold cancel --queue reports --reason 'wrong month' --dry-run")]
pub(super) struct CancelArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

/// Start failed, cancelled or expired jobs again, with all their attempts
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold retry my-job
  leasehold retry --state failed --reason 'the disk is mended' --dry-run")]
pub(super) struct RetryArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

#[derive(Debug, Args)]
struct ReasonArg {
    /// Record this reason in the history; required for many jobs at once
    #[arg(long)]
    reason: Option<String>,
}

/// Take running jobs from their workers
///
/// The worker's lease ends at once, and whatever it still reports about the job is refused. The work itself goes on
/// until the worker sends its next heartbeat.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold release my-job --reason 'host7 burnt down' --expected-fence 3
  leasehold release --worker host7:4711 --reason 'host7 burnt down' --dry-run")]
pub(super) struct ReleaseArgs {
    /// Record this reason in the history; not required for a dry run
    #[arg(long, required_unless_present = "dry_run")]
    reason: Option<String>,
    /// What becomes of the jobs
    #[arg(long, value_enum, default_value_t = Fate::Requeue)]
    then: Fate,
    /// Release the job only while it has this fence, as `leasehold orphans` shows it: a newer claim is left alone
    #[arg(long, value_name = "FENCE", conflicts_with = "filter")]
    expected_fence: Option<u64>,
    #[command(flatten)]
    jobs: Chosen,
}

/// What becomes of a released job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Fate {
    /// The job waits to be claimed again
    Requeue,
    /// The job fails
    Fail,
    /// The job is cancelled
    Cancel,
}

/// A change to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Release { then: Then, expected_fence: Option<u64> },
    Cancel,
    Retry,
}

impl Action {
    /// Returns the change as a verb.
    const fn verb(self) -> &'static str {
        match self {
            Self::Release { .. } => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
        }
    }

    /// Changes one job.
    async fn one(self, client: &Client, id: &str, reason: Option<&str>) -> Result<Job, ClientError> {
        match self {
            Self::Release { then, expected_fence } => {
                let reason = reason.unwrap_or_default().to_owned();
                client.admin_release(id, &AdminRelease { reason, then, expected_fence }).await
            }
            Self::Cancel => client.cancel(id, reason).await,
            Self::Retry => client.retry(id, reason).await,
        }
    }
}

/// A change of the jobs of a filter.
struct ManyJobs {
    action: Action,
    filter: BulkFilter,
    reason: Option<String>,
}

impl ManyChange for ManyJobs {
    type Item = Job;

    const NOUNS: [&'static str; 2] = ["job", "jobs"];
    const SAMPLE: &'static str = "youngest";
    const COLUMNS: &'static [Column] = &[
        Column::id("id"),
        Column::text("queue").weight(70),
        Column::text("kind").weight(60),
        Column::state("phase"),
        Column::text("worker").weight(50),
        Column::word("created").weight(40),
    ];

    fn verb(&self) -> &'static str {
        self.action.verb()
    }

    fn lacks_reason(&self) -> bool {
        self.reason.is_none()
    }

    async fn call(
        &self,
        client: &Client,
        dry_run: bool,
        cursor: Option<String>,
    ) -> Result<BulkReport<Job>, ClientError> {
        let (filter, reason) = (self.filter.clone(), self.reason.clone().filter(|_| !dry_run));
        let order = BulkChange { filter, reason, dry_run, cursor, ..BulkChange::default() };
        match self.action {
            Action::Release { then, .. } => client.release_many(&BulkChange { then: Some(then), ..order }).await,
            Action::Cancel => client.cancel_many(&order).await,
            Action::Retry => client.retry_many(&order).await,
        }
    }

    fn row(job: &Job) -> Vec<String> {
        vec![
            job.id.to_string(),
            job.queue.to_string(),
            job.kind.to_string(),
            phase_of(job),
            job.lease.as_ref().map(|lease| lease.worker_id.to_string()).unwrap_or_default(),
            time(job.created_at),
        ]
    }
}

/// Cancels jobs.
pub(super) async fn cancel(args: CancelArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Cancel, args.reason.reason, args.jobs, &settings).await
}

/// Retries jobs.
pub(super) async fn retry(args: RetryArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Retry, args.reason.reason, args.jobs, &settings).await
}

/// Releases jobs.
pub(super) async fn release(args: ReleaseArgs, settings: Settings) -> Result<(), Failure> {
    let then = match args.then {
        Fate::Requeue => Then::Requeue,
        Fate::Fail => Then::Fail,
        Fate::Cancel => Then::Cancel,
    };
    run(Action::Release { then, expected_fence: args.expected_fence }, args.reason, args.jobs, &settings).await
}

/// Changes the jobs of a filter together, or those of ids one after the other.
async fn run(action: Action, reason: Option<String>, jobs: Chosen, settings: &Settings) -> Result<(), Failure> {
    let client = jobs.answer.connect(&settings.client)?;
    if let Some(filter) = jobs.filter.filter() {
        warn_of(Table::Jobs, filter.kql.as_deref());
        let change = ManyJobs { action, filter, reason };
        return many::run(&client, &change, &jobs.confirmation, &jobs.answer).await;
    }
    for id in &job_id::resolve_all(&client, &jobs.ids).await? {
        let job = action.one(&client, id, reason.as_deref()).await?;
        let became = match job.state {
            JobState::Running => "asked to stop",
            state => state.as_str(),
        };
        jobs.answer.print(&job, |_| format!("{}: {became}", one_line(id)))?;
    }
    Ok(())
}
