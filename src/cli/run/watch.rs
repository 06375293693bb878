//! Observes a run's jobs until they end, and stops the worker after the last one. It waits for no reader: what there
//! is to say goes to `teller`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde::Serialize;

use super::capture::Ran;
use super::event::{EndedJob, Event, Lost};
use super::halt::Halt;
use super::screen::Screen;
use super::source::{Name, Planned};
use super::teller::{MESSAGE_CHARACTERS, Teller, Telling, describe};
use crate::cli::duration;
use crate::cli::output::shorten;
use crate::job::{JobError, JobId, JobState};
use crate::manager::Outcome;
use crate::worker::{AttemptEnd, ClaimedJob, FinishAnswer, HandlerError, Observer, Stop, StopHandle};

/// How many of the slowest jobs are kept.
const SLOWEST: usize = 5;
/// How many failures are kept; the rest is counted.
const KEPT_FAILURES: usize = 1000;

/// A job that was not completed.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Failed {
    #[serde(flatten)]
    pub(super) name: Name,
    pub(super) state: JobState,
    pub(super) error: JobError,
}

/// The result of a run so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) failures: Vec<Failed>,
    slowest: BinaryHeap<Reverse<(Duration, Name)>>,
}

impl Tally {
    /// Returns the slowest jobs, slowest first.
    pub(super) fn slowest(&self) -> Vec<(Duration, Name)> {
        let mut slowest: Vec<_> = self.slowest.iter().map(|Reverse(entry)| entry.clone()).collect();
        slowest.sort_by(|a, b| b.cmp(a));
        slowest
    }

    /// Counts a job that will not be completed.
    pub(super) fn fail(&mut self, failed: Failed) {
        self.failed += 1;
        if self.failures.len() < KEPT_FAILURES {
            self.failures.push(failed);
        }
    }

    fn complete(&mut self, took: Duration, name: Name) {
        self.completed += 1;
        self.slowest.push(Reverse((took, name)));
        if self.slowest.len() > SLOWEST {
            self.slowest.pop();
        }
    }
}

/// Observes the run's jobs.
pub(super) struct Watch {
    planned: Arc<[Planned]>,
    /// The jobs that have not ended, by their places in the list.
    left: Mutex<HashMap<JobId, usize>>,
    /// How many jobs there were to run.
    total: u64,
    tally: Mutex<Tally>,
    /// How many jobs had failed before, which do not count for `--halt`.
    failed_before: u64,
    screen: Arc<Screen>,
    teller: Teller,
    halt: Halt,
    halted: AtomicBool,
    /// How many jobs were completed and have failed, counted when their commands end.
    foreseen: Mutex<(u64, u64)>,
    stop: StopHandle,
}

/// How a job ended.
struct End<'a> {
    state: JobState,
    error: Option<JobError>,
    /// Its last attempt and how long that took, unless none was begun.
    ran: Option<(&'a ClaimedJob, Duration)>,
}

impl Watch {
    /// Observes the jobs of `left` until all of them have ended.
    pub(super) fn start(
        planned: Arc<[Planned]>,
        left: &HashSet<JobId>,
        tally: Tally,
        telling: Telling,
        stop: StopHandle,
    ) -> Arc<Self> {
        let left: HashMap<JobId, usize> = planned
            .iter()
            .enumerate()
            .filter(|(_, planned)| left.contains(&planned.id))
            .map(|(index, planned)| (planned.id.clone(), index))
            .collect();
        let (screen, halt) = (telling.screen.clone(), telling.halt);
        let teller = Teller::start(planned.clone(), telling);
        Arc::new(Self {
            planned,
            total: left.len() as u64,
            left: Mutex::new(left),
            failed_before: tally.failed,
            tally: Mutex::new(tally),
            screen,
            teller,
            halt,
            halted: AtomicBool::new(false),
            foreseen: Mutex::default(),
            stop,
        })
    }

    /// Returns the jobs that have not ended.
    pub(super) fn left(&self) -> Vec<JobId> {
        self.left.lock().keys().cloned().collect()
    }

    /// Returns whether the run was ended early by what its jobs came to.
    pub(super) fn is_halted(&self) -> bool {
        self.halted.load(Ordering::Relaxed)
    }

    /// Shows what is left to show, removes the bar and returns the result, with what is missing of the output.
    /// Once `at_once` is over no reader is waited for much longer.
    pub(super) async fn end(&self, at_once: impl Future<Output = ()>) -> (Tally, Lost) {
        let lost = self.teller.end(at_once).await;
        // Who waits for a reader has the bar.
        if !lost.is_cut_short {
            self.screen.end();
        }
        (std::mem::take(&mut *self.tally.lock()), lost)
    }

    /// Notes that a job has ended without an attempt.
    pub(super) fn not_run(&self, id: &JobId, state: JobState, error: JobError) {
        self.job_ended(id, End { state, error: Some(error), ran: None });
    }

    /// Notes that an attempt's command has ended, before that is recorded. The call that records it claims the next
    /// job, so a run that is to halt must claim nothing from here on.
    pub(super) fn command_ended(&self, job: &ClaimedJob, failure: Option<&HandlerError>) {
        let index = self.left.lock().get(&job.id).copied();
        let attempts = index.map_or(1, |index| self.planned[index].job.spec.max_attempts);
        let mut foreseen = self.foreseen.lock();
        match failure {
            None => foreseen.0 += 1,
            Some(failure) if failure.retryable && job.attempt < attempts => return,
            Some(_) => foreseen.1 += 1,
        }
        if self.halt.reached(foreseen.0, foreseen.1, self.total).is_some() {
            self.stop.request(Stop::Drain);
        }
    }

    fn job_ended(&self, id: &JobId, end: End<'_>) {
        let Some(index) = self.left.lock().remove(id) else { return };
        let planned = &self.planned[index];
        let (state, well) = (end.state, end.state == JobState::Completed);
        let ran = end.ran.map(|(job, took)| (Ran::of(job), took));
        self.screen.update(|progress| progress.end(ran.as_ref().map(|(_, took)| *took), well));
        self.teller.tell(Event::Ended(Box::new(EndedJob { index, state, error: end.error.clone(), ran })));
        self.count(planned.name(), end);
        self.stop_early_or_after_the_last();
    }

    fn count(&self, name: Name, end: End<'_>) {
        let mut tally = self.tally.lock();
        match end.error {
            Some(error) => tally.fail(Failed { name, state: end.state, error }),
            None => tally.complete(end.ran.map(|(_, took)| took).unwrap_or_default(), name),
        }
    }

    fn stop_early_or_after_the_last(&self) {
        if self.left.lock().is_empty() {
            return self.stop.request(Stop::Drain);
        }
        let (completed, failed) = {
            let tally = self.tally.lock();
            (tally.completed, tally.failed - self.failed_before)
        };
        if let Some(stop) = self.halt.reached(completed, failed, self.total) {
            if !self.halted.swap(true, Ordering::Relaxed) {
                self.screen.update(|progress| progress.stopping = true);
                let what = if stop == Stop::Now { "ending the running jobs" } else { "waiting for the running jobs" };
                self.screen.say(&format!("leasehold: {completed} completed, {failed} failed: {what} (--halt)"));
            }
            self.stop.request(stop);
        }
    }

    /// Tells of an attempt that did not end its job.
    fn say(&self, job: &ClaimedJob, what: &str) {
        let index = self.left.lock().get(&job.id).copied();
        let which = index.map_or_else(|| format!("job {}", job.id), |index| describe(&self.planned[index].name()));
        self.screen.say(&format!("{which}: {what}"));
    }
}

impl Observer for Watch {
    fn started(&self, job: &ClaimedJob) {
        if let Some(index) = self.left.lock().get(&job.id).copied() {
            self.screen.update(|progress| progress.start(self.planned[index].name(), Instant::now()));
        }
    }

    fn ended(&self, job: &ClaimedJob, end: &AttemptEnd) {
        if let Some(index) = self.left.lock().get(&job.id).copied() {
            self.screen.update(|progress| progress.leave(&self.planned[index].name()));
        }
        let ran = Some((job, end.took));
        let is_last = matches!(&end.answer, FinishAnswer::Accepted { state: Some(state) } if state.is_final());
        if !is_last {
            self.teller.tell(Event::Kept(Ran::of(job)));
        }
        match (&end.answer, &end.outcome) {
            (FinishAnswer::Accepted { state: Some(state @ JobState::Completed) }, _) => {
                self.job_ended(&job.id, End { state: *state, error: None, ran });
            }
            (FinishAnswer::Accepted { state: Some(state) }, Some(Outcome::Failed { error, .. })) => {
                if state.is_final() {
                    self.job_ended(&job.id, End { state: *state, error: Some(error.clone()), ran });
                } else {
                    let said = shorten(&error.message, MESSAGE_CHARACTERS);
                    self.say(job, &format!("attempt {}: {}: {said}; it will be tried again", job.attempt, error.code));
                }
            }
            (FinishAnswer::Accepted { .. }, _) => {}
            (FinishAnswer::Lost, _) => self.say(job, "the lease was lost"),
            (FinishAnswer::Again(why) | FinishAnswer::Refused(why), _) => {
                self.say(job, &format!("its end after {} could not be recorded: {why}", duration::show(end.took)));
            }
        }
    }
}
