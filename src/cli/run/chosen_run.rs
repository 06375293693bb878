//! Which run a start is about: the last one, or a new one.

use indicatif::HumanCount;
use serde::Serialize;

use super::options::RunArgs;
use super::place::{OwnJob, Place, RunRecord};
use super::source::Planned;
use super::start::{self, Opened};
use crate::cli::failure::Failure;
use crate::cli::look::date;
use crate::cli::output::{complain, print_json};
use crate::clock::{Clock as _, SystemClock, Timestamp};

/// The variable with the id of the job of Leasehold's own that this process runs in. It is another one with each
/// trigger of a schedule and each run, and the same with each attempt.
const JOB_VARIABLE: &str = "LEASEHOLD_JOB_ID";
/// The variable with the fence of the attempt, which grows with each.
const FENCE_VARIABLE: &str = "LEASEHOLD_FENCE";

/// Returns the job of Leasehold's own that this process runs in.
pub(super) fn own_job() -> Option<OwnJob> {
    let id = std::env::var(JOB_VARIABLE).ok().filter(|id| !id.is_empty())?;
    let fence = std::env::var(FENCE_VARIABLE).ok().and_then(|fence| fence.parse().ok()).unwrap_or(0);
    Some(OwnJob { id, fence })
}

/// How a start stands to the last run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// It is outside of any job, or in the attempt of a job that has worked on the run already: a second command of it.
    Plain,
    /// It is in a later attempt of the job that the run belongs to.
    LaterAttempt,
    /// It is in another job.
    OtherJob,
}

fn relation(own: Option<&OwnJob>, last: &RunRecord) -> Relation {
    match own {
        None => Relation::Plain,
        Some(own) if last.job.as_ref() != Some(&own.id) => Relation::OtherJob,
        Some(own) => match last.fence {
            Some(fence) if own.fence > fence => Relation::LaterAttempt,
            Some(fence) if own.fence == fence => Relation::Plain,
            _ => Relation::OtherJob,
        },
    }
}

/// The run that was chosen, with its store open.
pub(super) struct ChosenRun {
    pub(super) opened: Opened,
    /// Whether it is one that a former start has begun.
    pub(super) goes_on: bool,
    /// Whether its failed jobs are run again.
    pub(super) retry_failed: bool,
}

/// Opens the last run, or begins a new one if that is over for this start.
pub(super) async fn choose(args: &RunArgs, place: &mut Place, planned: &[Planned]) -> Result<ChosenRun, Failure> {
    let own = own_job();
    let relation = relation(own.as_ref(), place.last());
    let is_same_job = relation == Relation::LaterAttempt;
    let is_over = args.fresh || (relation == Relation::OtherJob && !args.resume);
    if !place.is_new() && !is_over {
        let is_asked_for = args.resume || args.retry_failed || is_same_job;
        if is_asked_for || place.last().ended_at.is_none() {
            let opened = start::open(&place.folder()).await?;
            let listed = in_run(planned, place.last().number);
            let has_ended = match listed {
                Ok(listed) => place.last().ended_at.is_some() || opened.has_ended(&listed),
                Err(failure) => {
                    opened.manager.shutdown().await;
                    return Err(failure);
                }
            };
            if is_asked_for || !has_ended {
                // Another attempt of a job whose run has ended could do nothing else.
                let retry_failed = args.retry_failed || (is_same_job && has_ended && !args.resume);
                let noted = place.go_on(own.as_ref().filter(|_| is_same_job));
                if noted.is_err() {
                    opened.manager.shutdown().await;
                }
                return noted.map(|()| ChosenRun { goes_on: !opened.former.is_empty(), opened, retry_failed });
            }
            // The former start was killed before it could note that.
            opened.manager.shutdown().await;
            place.note_end()?;
        }
    }
    if !place.is_new() {
        place.begin(own.as_ref(), usize::try_from(args.keep_runs).unwrap_or(usize::MAX))?;
    }
    let opened = start::open(&place.folder()).await?;
    Ok(ChosenRun { opened, goes_on: false, retry_failed: false })
}

/// Returns the jobs of the list as they are in a run.
pub(super) fn in_run(planned: &[Planned], run: u64) -> Result<Vec<Planned>, Failure> {
    planned.iter().map(|job| job.clone().in_run(run)).collect()
}

/// The beginning of a start for programs.
#[derive(Serialize)]
struct RunLine {
    r#type: &'static str,
    run: u64,
    begun_at: Timestamp,
    goes_on: bool,
    jobs: usize,
    done_before: usize,
}

impl ChosenRun {
    /// Says which run it is, before anything else is said of it.
    pub(super) fn say(&self, place: &Place, planned: &[Planned], as_json: bool) -> Result<(), Failure> {
        let (last, done) = (place.last(), self.opened.done(planned, self.retry_failed));
        if self.goes_on {
            let (at, done, jobs) = (time_of_day(last.begun_at), grouped(done), grouped(planned.len()));
            complain(&format!("going on with the run of {at}: {done} of {jobs} done before"));
        }
        if as_json {
            let (run, begun_at, jobs) = (last.number, last.begun_at, planned.len());
            let goes_on = self.goes_on;
            return print_json(&RunLine { r#type: "run", run, begun_at, goes_on, jobs, done_before: done });
        }
        Ok(())
    }
}

/// Returns the hour and minute of a time, and the day before it unless that is today.
fn time_of_day(at: Timestamp) -> String {
    let (at, now) = (date(at), date(SystemClock::default().now()));
    let (Some((day, time)), Some((today, _))) = (at.split_once('T'), now.split_once('T')) else { return at };
    let minute = time.get(..5).unwrap_or(time);
    if day == today { minute.to_owned() } else { format!("{day} {minute}") }
}

/// Returns a number with commas between thousands.
fn grouped(number: usize) -> String {
    HumanCount(number as u64).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas_between_thousands() {
        assert_eq!([0, 999, 1_600, 2_000_000].map(grouped), ["0", "999", "1,600", "2,000,000"]);
    }

    #[test]
    fn a_run_of_another_day_is_named_with_it() {
        let now = SystemClock::default().now();
        assert_eq!(time_of_day(now).len(), 5);
        assert_eq!(time_of_day(Timestamp::from_millis(0)), "1970-01-01 00:00");
    }
}
