//! The start of a run: cleans up what a former start left, and submits the jobs.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rand::seq::SliceRandom as _;

use super::source::Planned;
use super::watch::{Failed, Tally};
use crate::cli::engine;
use crate::cli::failure::Failure;
use crate::cli::output::complain;
use crate::clock::SystemClock;
use crate::job::{Job, JobError, JobId, JobState};
use crate::manager::{Caller, Manager, ManagerConfig, ManagerError, NewJob};
use crate::query::{Direction, Filter, Search, Sort, SortField};
use crate::store::embedded::EmbeddedOptions;
use crate::worker::shell::Scope;

/// How long the processes of a former start may take to be gone once they are killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How many jobs one call submits.
const BATCH: usize = 1000;
/// How many jobs one search returns.
const PAGE: usize = 1000;

/// The actor in the jobs' histories.
pub(super) fn caller() -> Caller {
    Caller::system("run")
}

/// The jobs that are left to run, and the results of former starts.
#[derive(Default)]
pub(super) struct Started {
    /// The jobs to run.
    pub(super) waiting: HashSet<JobId>,
    /// How many jobs were completed by a former start.
    pub(super) before: u64,
    /// How many jobs were cancelled because their lines are gone.
    pub(super) removed: usize,
    /// The jobs that failed before and are not to be retried.
    pub(super) tally: Tally,
}

/// How jobs are put into the run's store.
#[derive(Clone, Copy)]
pub(super) struct StartOrder {
    /// Whether they start in random order.
    pub(super) shuffled: bool,
    /// Whether those that failed before are run again.
    pub(super) retry_failed: bool,
}

/// The jobs of a run as a former start left them.
pub(super) type Former = HashMap<JobId, JobState>;

/// A run whose store is open.
pub(super) struct Opened {
    pub(super) manager: Manager,
    pub(super) former: Former,
}

impl Opened {
    /// Returns whether the run's jobs are there and all of them have ended. Jobs are stored before the first one runs,
    /// so a start that was killed earlier leaves some that wait, or none. A job of the list that was cancelled had no
    /// line for a while, and is still to run.
    pub(super) fn has_ended(&self, planned: &[Planned]) -> bool {
        let is_cancelled = |planned: &Planned| self.former.get(&planned.id) == Some(&JobState::Cancelled);
        let is_final = self.former.values().all(|state| state.is_final());
        !self.former.is_empty() && is_final && !planned.iter().any(is_cancelled)
    }

    /// Returns how many of these jobs had ended and will not run again.
    pub(super) fn done(&self, planned: &[Planned], retry_failed: bool) -> usize {
        let is_done = |planned: &&Planned| match self.former.get(&planned.id) {
            Some(JobState::Completed) => true,
            Some(JobState::Failed | JobState::Expired) => !retry_failed,
            Some(JobState::Cancelled | JobState::Available | JobState::Running) | None => false,
        };
        planned.iter().filter(is_done).count()
    }
}

/// Opens the store of a run. It has no monitor: the worker is this process, so no lease is lost while it lives, and it
/// enforces time limits itself; ended jobs are what the next start goes by.
pub(super) async fn open(folder: &Path) -> Result<Opened, Failure> {
    let store = engine::embedded(folder, EmbeddedOptions::default()).await?;
    let manager = Manager::start(store, Arc::new(SystemClock::default()), ManagerConfig::default());
    match former(&manager).await {
        Ok(former) => Ok(Opened { manager, former }),
        Err(failure) => {
            manager.shutdown().await;
            Err(failure)
        }
    }
}

/// Submits the jobs of a run, and returns what is left of them. On failure the store is closed.
pub(super) async fn start(
    Opened { manager, former }: Opened,
    source: &str,
    planned: &[Planned],
    order: StartOrder,
) -> Result<(Manager, Started), Failure> {
    match put_in_order(&manager, &former, source, planned, order).await {
        Ok(started) => Ok((manager, started)),
        Err(failure) => {
            manager.shutdown().await;
            Err(failure)
        }
    }
}

/// Ends the processes that a former start has left, and returns their number. The caller holds the data directory, so
/// whatever carries its scope is a former start's.
pub(super) async fn end_former_processes(scope: &Scope) -> Result<usize, Failure> {
    let leftovers = scope.end_leftovers(PATIENCE).await;
    if !leftovers.alive.is_empty() {
        return Err(Failure::Failed(format!(
            "the processes {:?} of a former start are still there and cannot be killed; end them, then start again",
            leftovers.alive
        )));
    }
    Ok(leftovers.ended.len())
}

async fn former(manager: &Manager) -> Result<Former, Failure> {
    let sort = Sort::By(SortField::CreatedAt, Direction::Ascending);
    let mut search = Search { filter: Filter::default(), sort, after: None, limit: PAGE };
    let mut former = Former::new();
    loop {
        let page = manager.search(&search).await.map_err(Failure::failed)?;
        former.extend(page.iter().map(|found| (found.job.id.clone(), found.job.state.name())));
        match page.last() {
            Some(last) if page.len() == PAGE => search.after = Some(sort.key(&last.job)),
            _ => return Ok(former),
        }
    }
}

async fn put_in_order(
    manager: &Manager,
    former: &Former,
    source: &str,
    planned: &[Planned],
    order: StartOrder,
) -> Result<Started, Failure> {
    let reclaimed = manager.reclaim_all("the run was started again").await.map_err(Failure::failed)?;
    if reclaimed > 0 {
        complain(&format!("{reclaimed} jobs were interrupted and will run again"));
    }
    let mut started = Started::default();
    // Jobs are handed out by their due times: a millisecond apart and all of them past, they run in the list's order.
    let mut due = manager.now().minus(Duration::from_millis(planned.len() as u64));
    let mut in_order: Vec<&Planned> = planned.iter().collect();
    if order.shuffled {
        in_order.shuffle(&mut rand::rng());
    }
    for batch in in_order.chunks(BATCH) {
        let mut jobs = Vec::with_capacity(batch.len());
        for planned in batch {
            jobs.push(NewJob { run_at: planned.job.run_at.or(Some(due)), ..planned.job.clone() });
            due = due.plus(Duration::from_millis(1));
        }
        let submitted = manager.submit(&caller(), jobs).await;
        for (planned, submitted) in batch.iter().zip(submitted) {
            let job = match submitted {
                Ok(submitted) => submitted.job.versioned.job,
                // Handed in by a former start, with its due time and perhaps other defaults. It stays as it was then.
                Err(ManagerError::SubmissionDiffers(id)) => {
                    let former = manager.get(&id).await.map_err(Failure::failed)?;
                    if former.payload != planned.job.payload {
                        return Err(Failure::Usage(format!(
                            "{source}:{}: a former start ran another job under the id {id}; give this one another id",
                            planned.number
                        )));
                    }
                    former.versioned.job
                }
                Err(error) => return Err(Failure::Failed(format!("{source}:{}: {error}", planned.number))),
            };
            resume(manager, &mut started, planned, &job, order.retry_failed).await?;
        }
    }
    // Last, when every line was found to be good and is stored.
    started.removed = cancel_removed(manager, former, planned).await?;
    Ok(started)
}

/// Cancels jobs that had not ended and are not planned any more.
async fn cancel_removed(manager: &Manager, former: &Former, planned: &[Planned]) -> Result<usize, Failure> {
    let planned: HashSet<&JobId> = planned.iter().map(|planned| &planned.id).collect();
    let is_removed = |(id, state): &(&JobId, &JobState)| !state.is_final() && !planned.contains(*id);
    let removed: Vec<&JobId> = former.iter().filter(is_removed).map(|(id, _)| id).collect();
    for id in &removed {
        manager.cancel(&caller(), id, Some("its line is gone".to_owned())).await.map_err(Failure::failed)?;
    }
    Ok(removed.len())
}

/// Decides what to do with a job that was submitted just now or by a former start.
async fn resume(
    manager: &Manager,
    started: &mut Started,
    planned: &Planned,
    job: &Job,
    retry_failed: bool,
) -> Result<(), Failure> {
    let state = job.state.name();
    let again = match state {
        // The job was cancelled because its line was gone, and now the line is back.
        JobState::Cancelled => true,
        JobState::Failed | JobState::Expired => retry_failed,
        JobState::Available | JobState::Running | JobState::Completed => false,
    };
    match state {
        _ if again => {
            manager.retry(&caller(), &job.id, None).await.map_err(Failure::failed)?;
            started.waiting.insert(job.id.clone());
        }
        JobState::Available | JobState::Running => {
            started.waiting.insert(job.id.clone());
        }
        JobState::Completed => started.before += 1,
        JobState::Failed | JobState::Cancelled | JobState::Expired => {
            let unknown = || JobError { code: state.as_str().to_owned(), message: String::new() };
            let error = job.error.clone().unwrap_or_else(unknown);
            let message = format!("{} (before; --retry-failed runs it again)", error.message);
            let error = JobError { message, ..error };
            started.tally.fail(Failed { name: planned.name(), state, error });
        }
    }
    Ok(())
}
