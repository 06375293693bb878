//! Queues that starve: a claim waits, a job suits it, no limit, line or pause keeps the job back, and yet nothing of
//! the queue is handed out at several looks in a row. That is a mistake of the program, or of a search that lags.
//!
//! A look asks the store, and not what the dispatch has in memory, which is what may be wrong. It is one of few
//! searches, whatever the number of queues: where it does not come to all, the next ones go on with the others.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::{debug, info, warn};

use crate::clock::Timestamp;
use crate::job::{Job, JobId, JobState, QueueName};
use crate::manager::Manager;
use crate::manager::request::ManagerError;
use crate::query::{Filter, Search, Sort};

/// How many looks in a row at a queue have to find it in that state.
pub(in crate::manager) const LOOKS: u32 = 3;

/// The most jobs that a search of a look finds, and the most searches for one queue.
const PAGE: usize = 50;
const SEARCHES: usize = 8;
/// The most searches of a look for queues that may starve, and for all others; neither is below [`SEARCHES`].
const AT_SUSPECTS: usize = 10;
const AT_OTHERS: usize = 10;

/// Of so many looks, one counts the jobs that are held for long.
const LOOKS_PER_COUNT: u64 = 4;

/// What the looks have found, in memory.
#[derive(Default)]
pub(in crate::manager) struct Starving {
    suspects: Mutex<HashMap<QueueName, Suspect>>,
    /// Whether there are any, which each claim asks.
    any: AtomicBool,
    /// The queues after which a look goes on: of those that may starve, and of the others.
    turns: Mutex<[Option<QueueName>; 2]>,
}

/// A queue that may starve.
struct Suspect {
    /// The job that could have been handed out.
    job: JobId,
    /// How many looks in a row have found that.
    looks: u32,
}

/// What a look at a queue has found.
enum Found {
    /// This job could be handed out.
    Job(JobId),
    /// No job could be.
    None,
    /// It was not looked for to the end.
    Unknown,
}

/// The searches that a look has left, and whether it has had to do without.
struct Searches {
    left: usize,
    were_enough: bool,
}

impl Searches {
    fn take(&mut self) -> bool {
        self.were_enough &= self.left > 0;
        self.left = self.left.saturating_sub(1);
        self.were_enough
    }
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

    /// Divides queues into those that may starve and the others, each from where the last look has ended on.
    fn in_turn(&self, queues: Vec<QueueName>) -> [Vec<QueueName>; 2] {
        let suspects = self.suspects.lock();
        let (may_starve, others): (Vec<_>, Vec<_>) = queues.into_iter().partition(|queue| suspects.contains_key(queue));
        let turns = self.turns.lock();
        let [of_suspects, of_others] = &*turns;
        let from = |mut queues: Vec<QueueName>, after: &Option<QueueName>| {
            queues.sort_unstable();
            let first = after.as_ref().map_or(0, |after| queues.partition_point(|queue| queue <= after));
            queues.rotate_left(first);
            queues
        };
        [from(may_starve, of_suspects), from(others, of_others)]
    }

    /// Takes note of what a look has found of queues. What is known of the others that may starve is left.
    fn note(&self, found: Vec<(QueueName, Found)>) -> usize {
        let mut suspects = self.suspects.lock();
        let mut before = std::mem::take(&mut *suspects);
        for (queue, found) in found {
            let suspect = before.remove(&queue);
            let job = match found {
                Found::Job(job) => job,
                Found::None => continue,
                Found::Unknown => {
                    suspects.extend(suspect.map(|suspect| (queue, suspect)));
                    continue;
                }
            };
            let looks = suspect.filter(|suspect| suspect.job == job).map_or(0, |suspect| suspect.looks);
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
    /// Looks periodically, until the manager ends, for queues that starve and, less often, for jobs that are held for
    /// longer than `held_bound`. What it costs puts off no survey.
    pub(in crate::manager) async fn keep_looked_at(&self, every: Duration, held_bound: Duration) {
        for look in 0_u64.. {
            if look.is_multiple_of(LOOKS_PER_COUNT) {
                self.look_for_held_long(held_bound).await;
            }
            tokio::select! {
                () = tokio::time::sleep(every) => {}
                () = self.shared.stopping.cancelled() => return,
            }
            self.look_for_starving().await;
        }
    }

    /// Looks for queues that starve, among those of the latest survey in which jobs wait. Returns how many there are.
    pub(super) async fn look_for_starving(&self) -> usize {
        // No job that waits for a named time is handed out then.
        let surveyed = if self.clock_is_far_off() { Vec::new() } else { self.surveyed_queues().to_vec() };
        let waits = surveyed.iter().filter(|queue| queue.jobs.get(&JobState::Available).is_some_and(|jobs| *jobs > 0));
        // The other queues together have a name that is none.
        let queues = waits.filter_map(|queue| QueueName::new(&queue.name).ok()).collect();
        let mut found = Vec::new();
        let starving = &self.shared.observe.starving;
        for (group, (queues, most)) in starving.in_turn(queues).into_iter().zip([AT_SUSPECTS, AT_OTHERS]).enumerate() {
            let mut searches = Searches { left: most, were_enough: true };
            for queue in queues {
                let left = searches.left;
                let of_it = self.could_be_handed_out(&queue, &mut searches).await.unwrap_or_else(|error| {
                    debug!(%error, %queue, "cannot look whether a queue starves");
                    Found::Unknown
                });
                if searches.were_enough && searches.left < left {
                    starving.turns.lock()[group] = Some(queue.clone());
                }
                found.push((queue, of_it));
            }
        }
        let starving = starving.note(found);
        metrics::gauge!("leasehold_queues_starving").set(starving as f64);
        starving
    }

    /// Looks for a job of a queue that suits a waiting claim and that nothing keeps back.
    async fn could_be_handed_out(&self, queue: &QueueName, searches: &mut Searches) -> Result<Found, ManagerError> {
        let is_paused = self.shared.queue_settings.of(queue).paused.is_some();
        let Some(kinds) = self.shared.dispatch.kinds_waited_for(queue).filter(|_| !is_paused) else {
            return Ok(Found::None);
        };
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
            if !searches.take() {
                return Ok(Found::Unknown);
            }
            let search = Search { filter: filter.clone(), sort: Sort::Dispatch, after: after.take(), limit: PAGE };
            let found = self.shared.store.search(&search).await?;
            let current = found.iter().filter(|hit| !self.shared.work.known.is_outdated(hit));
            let jobs: Vec<&Job> = current.map(|hit| &*hit.job).collect();
            if let Some(job) = self.kept_by_nothing(jobs, &mut filter, now).await? {
                return Ok(Found::Job(job));
            }
            match found.last().filter(|_| found.len() >= PAGE) {
                Some(last) => after = Some(Sort::Dispatch.key(&last.job)),
                None => break,
            }
        }
        Ok(Found::None)
    }

    /// Returns the first of these jobs that a waiting claim could have. Has the filter leave out what keeps the others
    /// back. It reads the store five times at most, however many jobs there are.
    async fn kept_by_nothing(
        &self,
        mut jobs: Vec<&Job>,
        filter: &mut Filter,
        now: Timestamp,
    ) -> Result<Option<JobId>, ManagerError> {
        let dispatch = &self.shared.dispatch;
        jobs.retain(|job| {
            if !filter.matches(job) || job.start_deadline().is_some_and(|deadline| deadline <= now) {
                return false;
            }
            let suits = dispatch.suits_a_waiting_claim(job);
            if !suits {
                let unmet = job.spec.requires().iter().filter(|one| dispatch.is_met_by_none(job, one));
                filter.not_requiring.extend(unmet.cloned());
            }
            suits
        });
        let mut first = Vec::new();
        for (job, before) in jobs.iter().zip(self.first_in_lines(&jobs).await?) {
            match before {
                None => first.push(*job),
                Some(_) => filter.not_in_line_of.extend(job.spec.ordering_key().cloned()),
            }
        }
        for (job, reached) in first.iter().zip(self.limits_reached(&first).await?) {
            if reached.is_empty() {
                return Ok(Some(job.id.clone()));
            }
            filter.not_under.extend(reached.into_iter().map(|reached| reached.limit));
        }
        Ok(None)
    }
}
