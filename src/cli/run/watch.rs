//! Observes a run's jobs until they end, and stops the worker after the last one.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;

use super::source::Planned;
use crate::cli::duration;
use crate::cli::meter::Meter;
use crate::cli::output::shorten;
use crate::job::{JobError, JobId, JobState};
use crate::manager::Outcome;
use crate::worker::{AttemptEnd, ClaimedJob, FinishAnswer, Observer, Stop, StopHandle};

/// How many of the slowest jobs are kept.
const SLOWEST: usize = 5;
/// How many failures are kept; the rest is counted.
const KEPT_FAILURES: usize = 1000;
/// How many characters of a command are shown.
pub(super) const LABEL_CHARACTERS: usize = 60;
/// How many characters of a failure are shown while others run.
const MESSAGE_CHARACTERS: usize = 200;

/// A job's name for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct Name {
    #[serde(rename = "line")]
    pub(super) number: usize,
    #[serde(rename = "command")]
    pub(super) label: String,
    pub(super) id: JobId,
}

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
    /// The jobs that have not ended.
    left: Mutex<HashMap<JobId, Name>>,
    tally: Mutex<Tally>,
    meter: Meter,
    stop: StopHandle,
}

impl Watch {
    /// Observes jobs until all of `left` have ended.
    pub(super) fn start<'a>(left: impl IntoIterator<Item = &'a Planned>, tally: Tally, stop: StopHandle) -> Arc<Self> {
        let left: HashMap<JobId, Name> = left.into_iter().map(|planned| (planned.id.clone(), name(planned))).collect();
        let meter = Meter::start(left.len() as u64);
        Arc::new(Self { left: Mutex::new(left), tally: Mutex::new(tally), meter, stop })
    }

    /// Returns the jobs that have not ended.
    pub(super) fn left(&self) -> Vec<JobId> {
        self.left.lock().keys().cloned().collect()
    }

    /// Removes the bar and returns the result.
    pub(super) fn end(&self) -> Tally {
        self.meter.end();
        std::mem::take(&mut *self.tally.lock())
    }

    /// Notes that a job has ended without being completed.
    pub(super) fn failed(&self, id: &JobId, state: JobState, error: JobError) {
        let Some(name) = self.take(id) else { return };
        let said = shorten(&error.message, MESSAGE_CHARACTERS);
        self.meter.print_line(&format!("{}: {}: {said}", describe(&name), error.code));
        self.tally.lock().fail(Failed { name, state, error });
        self.meter.advance(false);
        self.stop_after_the_last();
    }

    fn completed(&self, id: &JobId, took: Duration) {
        let Some(name) = self.take(id) else { return };
        self.tally.lock().complete(took, name);
        self.meter.advance(true);
        self.stop_after_the_last();
    }

    fn take(&self, id: &JobId) -> Option<Name> {
        self.left.lock().remove(id)
    }

    fn stop_after_the_last(&self) {
        if self.left.lock().is_empty() {
            self.stop.request(Stop::Drain);
        }
    }
}

impl Observer for Watch {
    fn started(&self, _job: &ClaimedJob) {}

    fn ended(&self, job: &ClaimedJob, end: &AttemptEnd) {
        match (&end.answer, &end.outcome) {
            (FinishAnswer::Accepted { state: Some(JobState::Completed) }, _) => self.completed(&job.id, end.took),
            (FinishAnswer::Accepted { state: Some(state) }, Some(Outcome::Failed { error, .. })) => {
                if state.is_final() {
                    self.failed(&job.id, *state, error.clone());
                } else if let Some(name) = self.left.lock().get(&job.id) {
                    let said = shorten(&error.message, MESSAGE_CHARACTERS);
                    let number = job.attempt;
                    let which = describe(name);
                    self.meter.print_line(&format!(
                        "{which}: attempt {number}: {}: {said}; it will be tried again",
                        error.code
                    ));
                }
            }
            (FinishAnswer::Accepted { .. }, _) => {}
            (FinishAnswer::Lost, _) => self.meter.print_line(&format!("job {}: the lease was lost", job.id)),
            (FinishAnswer::Again(why) | FinishAnswer::Refused(why), _) => {
                let took = duration::show(end.took);
                self.meter.print_line(&format!("job {}: its end after {took} could not be recorded: {why}", job.id));
            }
        }
    }
}

/// Returns the name of a planned job.
pub(super) fn name(planned: &Planned) -> Name {
    Name { number: planned.number, label: shorten(&planned.label, LABEL_CHARACTERS), id: planned.id.clone() }
}

fn describe(name: &Name) -> String {
    format!("#{} {}", name.number, name.label)
}
