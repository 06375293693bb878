//! Queues that starve: a claim waits, a job suits it, no limit, line or pause keeps the job back, and yet nothing of
//! the queue is handed out at several looks in a row. That is a mistake of the program, or of a search that lags.
//!
//! A look asks the store, and not what the dispatch has in memory, which is what may be wrong.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, QueueName};
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::query::{Filter, Search, Sort};

/// How many looks in a row have to find a queue in that state.
pub(in crate::manager) const LOOKS: u32 = 3;

/// The most jobs that a search of a look finds, and the most searches for one queue.
const PAGE: usize = 50;
const SEARCHES: usize = 8;

/// What the looks have found, in memory.
#[derive(Default)]
pub(in crate::manager) struct Starving {
    suspects: Mutex<HashMap<QueueName, Suspect>>,
    /// Whether there are any, which each claim asks.
    any: AtomicBool,
}

/// A queue that may starve.
struct Suspect {
    /// The job that could have been handed out.
    job: JobId,
    /// How many looks in a row have found that.
    looks: u32,
}

impl Starving {
    /// Takes note of a job that was handed out.
    pub(in crate::manager) fn handed_out(&self, job: &Job) {
        if !self.any.load(Ordering::Relaxed) {
            return;
        }
        if let Some(suspect) = self.suspects.lock().remove(&job.spec.queue).filter(|suspect| suspect.looks >= LOOKS) {
            info!(queue = %job.spec.queue, job = %suspect.job, "a queue that starved goes on");
        }
    }

    /// Takes note of what a look has found: a job of each of these queues that could be handed out.
    fn note(&self, found: Vec<(QueueName, JobId)>) -> usize {
        let mut suspects = self.suspects.lock();
        let mut before = std::mem::take(&mut *suspects);
        for (queue, job) in found {
            let looks = before.remove(&queue).filter(|suspect| suspect.job == job).map_or(0, |suspect| suspect.looks);
            let looks = looks.saturating_add(1);
            if looks == LOOKS {
                warn!(%queue, %job, "a queue starves: a claim waits that this job suits, and it is not handed out");
            }
            suspects.insert(queue, Suspect { job, looks });
        }
        self.any.store(!suspects.is_empty(), Ordering::Relaxed);
        suspects.values().filter(|suspect| suspect.looks >= LOOKS).count()
    }
}

impl Manager {
    /// Looks for queues that starve, among those of the latest survey in which jobs wait. Returns how many there are.
    pub(super) async fn look_for_starving(&self) -> usize {
        let mut found = Vec::new();
        // No job that waits for a named time is handed out then.
        let surveyed = if self.clock_is_far_off() { Vec::new() } else { self.surveyed_queues().to_vec() };
        for queue in surveyed.iter().filter(|queue| queue.jobs.get(&JobState::Available).is_some_and(|jobs| *jobs > 0))
        {
            // The other queues together have a name that is none.
            let Ok(name) = QueueName::new(&queue.name) else { continue };
            match self.could_be_handed_out(&name).await {
                Ok(job) => found.extend(job.map(|job| (name, job))),
                Err(error) => debug!(%error, queue = %name, "cannot look whether a queue starves"),
            }
        }
        let starving = self.shared.observe.starving.note(found);
        metrics::gauge!("leasehold_queues_starving").set(starving as f64);
        starving
    }

    /// Returns a job of a queue that suits a waiting claim and that nothing keeps back.
    async fn could_be_handed_out(&self, queue: &QueueName) -> Result<Option<JobId>, ManagerError> {
        let is_paused = self.shared.queue_settings.of(queue).paused.is_some();
        let Some(kinds) = self.shared.dispatch.kinds_waited_for(queue).filter(|_| !is_paused) else { return Ok(None) };
        let now = self.shared.clock.now();
        let mut filter = Filter {
            states: vec![JobState::Available],
            held: Some(false),
            queues: vec![queue.clone()],
            kinds,
            run_at_most: Some(now),
            ..Filter::default()
        };
        let mut after = None;
        for _ in 0..SEARCHES {
            let search = Search { filter: filter.clone(), sort: Sort::Dispatch, after: after.take(), limit: PAGE };
            let found = self.shared.store.search(&search).await?;
            for hit in found.iter().filter(|hit| !self.shared.work.known.is_outdated(hit)) {
                if filter.matches(&hit.job) && self.is_kept_by_nothing(&hit.job, &mut filter, now).await? {
                    return Ok(Some(hit.job.id.clone()));
                }
            }
            match found.last().filter(|_| found.len() >= PAGE) {
                Some(last) => after = Some(Sort::Dispatch.key(&last.job)),
                None => break,
            }
        }
        Ok(None)
    }

    /// Returns whether a waiting claim could have this job. Has the filter leave out what keeps it back, otherwise.
    async fn is_kept_by_nothing(&self, job: &Job, filter: &mut Filter, now: Timestamp) -> Result<bool, ManagerError> {
        if job.start_deadline().is_some_and(|deadline| deadline <= now) {
            return Ok(false);
        }
        if !self.shared.dispatch.suits_a_waiting_claim(job) {
            let unmet = job.spec.requires().iter().filter(|one| self.shared.dispatch.is_met_by_none(job, one));
            filter.not_requiring.extend(unmet.cloned());
            return Ok(false);
        }
        if self.first_in_line(job).await?.is_some() {
            filter.not_in_line_of.extend(job.spec.ordering_key().cloned());
            return Ok(false);
        }
        let reached = self.limits_reached(job).await?;
        filter.not_under.extend(reached.iter().map(|reached| reached.limit.clone()));
        Ok(reached.is_empty())
    }
}
