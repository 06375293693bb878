//! `leasehold cancel`, `retry`, `release`, `hold`, `unhold`, `run-now`, `rerun`, `edit` and `delete`: changes to jobs
//! by id, or to all jobs of a filter.

use clap::{Args, ValueEnum};

use super::chosen::Chosen;
use super::edit_fields::EditFields;
use super::failure::{ExitStatus, Failure};
use super::filter::warn_of;
use super::job_id;
use super::job_row::phase_of;
use super::layout::Column;
use super::look::time;
use super::many::{self, ManyChange};
use super::output::{complain, print};
use super::settings::Settings;
use crate::client::{Client, ClientError};
use crate::query::table::Table;
use crate::wire::{AdminRelease, BulkChange, BulkFilter, BulkReport, EditJob, Job, JobState, Then};

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

/// Hold jobs, so that no worker is given them; a running job is held when it is available again
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold hold my-job --reason 'wrong month'
  leasehold hold --query 'labels.month: 2030-01' --reason 'wrong month' --dry-run")]
pub(super) struct HoldArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

/// Let held jobs go
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold unhold my-job
  leasehold unhold --query 'hold.by: ann' --reason 'checked'")]
pub(super) struct UnholdArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

/// Make jobs due now that are due later or wait for their retry
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold run-now my-job
  leasehold run-now --query 'attempt > 0' --reason 'the disk is mended' --dry-run")]
pub(super) struct RunNowArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

/// Run ended jobs again, completed ones too, as new jobs that name their origin in `rerun_of`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold rerun my-job
  leasehold rerun --query 'state: completed and finished_at > now-1d' --dry-run")]
pub(super) struct RerunArgs {
    #[command(flatten)]
    jobs: Chosen,
}

/// Remove jobs that do not run, with their payloads and results; waiting ones are cancelled first
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold delete my-job --reason 'a test'
  leasehold delete --query 'labels.test: *' --reason 'tests' --dry-run")]
pub(super) struct DeleteArgs {
    #[command(flatten)]
    reason: ReasonArg,
    #[command(flatten)]
    jobs: Chosen,
}

/// Change fields of jobs that have not ended
///
/// Of a running job, the time limit counts from the attempt's beginning on, the number of attempts when the attempt
/// ends, and all else at the next attempt. What stays as it is need not be named.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  leasehold edit my-job --priority 5 --label month=2030-02 --remove-label draft
  leasehold edit my-job --run-at 'tomorrow 02:00'
  leasehold edit --query 'labels.month: 2030-01' --timeout 10m --reason 'it takes longer' --dry-run")]
pub(super) struct EditArgs {
    #[command(flatten)]
    fields: EditFields,
    #[command(flatten, next_help_heading = None::<&str>)]
    reason: ReasonArg,
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
#[derive(Clone, Debug, PartialEq)]
enum Action {
    Release {
        then: Then,
        expected_fence: Option<u64>,
    },
    Cancel,
    Retry,
    Hold,
    Unhold,
    RunNow,
    /// With the key under which no job is run again twice.
    Rerun(String),
    Edit(Box<EditJob>),
    Delete,
}

impl Action {
    /// Returns the change as a verb, which is its name in calls too.
    const fn verb(&self) -> &'static str {
        match self {
            Self::Release { .. } => "release",
            Self::Cancel => "cancel",
            Self::Retry => "retry",
            Self::Hold => "hold",
            Self::Unhold => "unhold",
            Self::RunNow => "run-now",
            Self::Rerun(_) => "rerun",
            Self::Edit(_) => "edit",
            Self::Delete => "delete",
        }
    }

    /// Changes one job. Returns the job after the change, and what is to be said of it.
    async fn one(&self, client: &Client, id: &str, reason: Option<&str>) -> Result<(Option<Job>, String), ClientError> {
        let job = match self {
            &Self::Release { then, expected_fence } => {
                let reason = reason.unwrap_or_default().to_owned();
                client.admin_release(id, &AdminRelease { reason, then, expected_fence }).await?
            }
            Self::Cancel => client.cancel(id, reason).await?,
            Self::Retry => client.retry(id, reason).await?,
            Self::Hold => client.hold(id, reason).await?,
            Self::Unhold => client.unhold(id, reason).await?,
            Self::RunNow => client.run_now(id, reason).await?,
            Self::Rerun(_) => client.rerun(id).await?,
            Self::Edit(edit) => {
                client.edit(id, &EditJob { reason: reason.map(str::to_owned), ..EditJob::clone(edit) }).await?
            }
            Self::Delete => {
                client.delete(id, reason).await?;
                return Ok((None, format!("{id}: deleted")));
            }
        };
        let became = match (self, job.state) {
            (Self::Hold, JobState::Running) => "held once its attempt is over".to_owned(),
            (Self::Hold, _) => "held".to_owned(),
            (Self::Unhold, _) => "not held".to_owned(),
            (Self::RunNow, _) => format!("due since {}", job.run_at),
            (Self::Rerun(_), _) => format!("runs again as {}", job.id),
            (Self::Edit(_), _) => "edited".to_owned(),
            (_, JobState::Running) => "asked to stop".to_owned(),
            (_, state) => state.as_str().to_owned(),
        };
        Ok((Some(job), format!("{id}: {became}")))
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
        self.reason.is_none() && !matches!(self.action, Action::Rerun(_))
    }

    async fn call(
        &self,
        client: &Client,
        dry_run: bool,
        cursor: Option<String>,
    ) -> Result<BulkReport<Job>, ClientError> {
        let (filter, reason) = (self.filter.clone(), self.reason.clone().filter(|_| !dry_run));
        let mut order = BulkChange { filter, reason, dry_run, cursor, ..BulkChange::default() };
        match &self.action {
            Action::Release { then, .. } => order.then = Some(*then),
            Action::Edit(edit) => order.edit = Some(EditJob::clone(edit)),
            Action::Rerun(key) => order.key = Some(key.clone()),
            _ => {}
        }
        client.change_many(self.action.verb(), &order).await
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

/// Holds jobs.
pub(super) async fn hold(args: HoldArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Hold, args.reason.reason, args.jobs, &settings).await
}

/// Lets held jobs go.
pub(super) async fn unhold(args: UnholdArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Unhold, args.reason.reason, args.jobs, &settings).await
}

/// Makes jobs due now.
pub(super) async fn run_now(args: RunNowArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::RunNow, args.reason.reason, args.jobs, &settings).await
}

/// Deletes jobs.
pub(super) async fn delete(args: DeleteArgs, settings: Settings) -> Result<(), Failure> {
    run(Action::Delete, args.reason.reason, args.jobs, &settings).await
}

/// Runs ended jobs again.
pub(super) async fn rerun(args: RerunArgs, settings: Settings) -> Result<(), Failure> {
    let key = crate::job::JobId::generate().as_str().to_owned();
    run(Action::Rerun(key), None, args.jobs, &settings).await
}

/// Edits jobs.
pub(super) async fn edit(args: EditArgs, settings: Settings) -> Result<(), Failure> {
    let edit = args.fields.edit()?;
    run(Action::Edit(Box::new(edit)), args.reason.reason, args.jobs, &settings).await
}

/// Changes the jobs of a filter together, or those of ids one after the other. A job that is refused does not keep the
/// others from being changed.
async fn run(action: Action, reason: Option<String>, jobs: Chosen, settings: &Settings) -> Result<(), Failure> {
    let client = jobs.answer.connect(&settings.client)?;
    if let Some(filter) = jobs.filter.filter() {
        warn_of(Table::Jobs, filter.kql.as_deref());
        let change = ManyJobs { action, filter, reason };
        return many::run(&client, &change, &jobs.confirmation, &jobs.answer).await;
    }
    let mut refused = None;
    for id in &job_id::resolve_all(&client, &jobs.ids).await? {
        match action.one(&client, id, reason.as_deref()).await {
            Ok((Some(job), said)) => jobs.answer.print(&job, |_| said)?,
            Ok((None, said)) => {
                if !jobs.answer.is_for_programs() {
                    print(&said)?;
                }
            }
            Err(error @ ClientError::Problem { .. }) if jobs.ids.len() > 1 => {
                complain(&format!("{id}: {error}"));
                refused = Some(Failure::Reported(ExitStatus::Failed));
            }
            Err(error) => return Err(error.into()),
        }
    }
    refused.map_or(Ok(()), Err)
}
