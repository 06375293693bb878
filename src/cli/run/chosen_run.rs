//! Which run a start is about: the last one, or a new one.

use serde::Serialize;

use super::options::RunArgs;
use super::place::Place;
use super::source::Planned;
use super::start::{self, Opened};
use crate::cli::failure::Failure;
use crate::cli::look::date;
use crate::cli::output::{complain, print_json};
use crate::clock::{Clock as _, SystemClock, Timestamp};

/// The variable with the id of the job of Leasehold's own that this process runs in. It is another one with each
/// trigger of a schedule and each run, and the same with each attempt.
const JOB_VARIABLE: &str = "LEASEHOLD_JOB_ID";

/// Returns the job of Leasehold's own that this process runs in.
pub(super) fn own_job() -> Option<String> {
    std::env::var(JOB_VARIABLE).ok().filter(|id| !id.is_empty())
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
pub(super) async fn choose(args: &RunArgs, place: &mut Place) -> Result<ChosenRun, Failure> {
    let own = own_job();
    let is_same_job = own.is_some() && own == place.last().job;
    let is_of_other_job = own.is_some() && !is_same_job;
    let is_over = args.fresh || (is_of_other_job && !args.resume);
    if !place.is_new() && !is_over {
        let is_asked_for = args.resume || args.retry_failed || is_same_job;
        if is_asked_for || place.last().ended_at.is_none() {
            let opened = start::open(&place.folder()).await?;
            let has_ended = place.last().ended_at.is_some() || opened.has_ended();
            if is_asked_for || !has_ended {
                // Another attempt of a job whose run has ended could do nothing else.
                let retry_failed = args.retry_failed || (is_same_job && has_ended && !args.resume);
                let noted = place.note(false);
                if noted.is_err() {
                    opened.manager.shutdown().await;
                }
                return noted.map(|()| ChosenRun { goes_on: !opened.former.is_empty(), opened, retry_failed });
            }
            // The former start was killed before it could note that.
            opened.manager.shutdown().await;
            place.note(true)?;
        }
    }
    if !place.is_new() {
        place.begin(own.as_deref(), usize::try_from(args.keep_runs).unwrap_or(usize::MAX))?;
    }
    let opened = start::open(&place.folder()).await?;
    Ok(ChosenRun { opened, goes_on: false, retry_failed: false })
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
        let (last, done) = (place.last(), self.opened.done(planned));
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
    let digits = number.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
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
