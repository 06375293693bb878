//! Phases, and values that a field cannot have.

use std::time::Duration;

use crate::job::{Attempt, Job, JobState, Phase, State};
use crate::query::kql::Expression;
use crate::query::kql::phase::query_of;

use super::{available, now};

/// A job for each way in which it may be due and may have been tried.
fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for run_at in [now().minus(Duration::from_millis(1)), now(), now().plus(Duration::from_millis(1))] {
        for attempt in [0, 1, 7] {
            jobs.push(Job { state: State::Available, run_at, attempt: Attempt::new(attempt), ..available() });
        }
    }
    jobs
}

#[test]
fn every_job_has_the_one_phase_that_queries_find_it_by() {
    for job in jobs() {
        let is = Phase::of(job.state.name(), job.run_at, job.attempt.get().into(), now());
        assert_eq!(is.state(), JobState::Available);
        for phase in Phase::ALL {
            for text in [format!("phase: {phase}"), query_of(phase).to_owned()] {
                let found = Expression::parse(&text).expect("a query").matches(&job, now());
                assert_eq!(found, phase == is, "{text}: due {}, attempt {:?}", job.run_at, job.attempt);
            }
        }
    }
}

#[test]
fn a_phase_is_queried_as_a_keyword_is() {
    let found = |text: &str| {
        let query = Expression::parse(text).expect("a query");
        jobs().iter().filter(|job| query.matches(job, now())).count()
    };
    assert_eq!(found("phase: scheduled"), 1);
    assert_eq!(found("phase: (scheduled or retrying)"), 3);
    assert_eq!(found("not phase: retrying"), 7);
    assert_eq!((found("phase: *"), found("phase: s*"), found("phase >= \"s\"")), (9, 1, 1));
    assert_eq!((found("phase: runing"), found("not phase: runing"), found("phase: running")), (0, 9, 0));
    assert_eq!(found("state: available and phase: available"), 6);
    assert!(Expression::parse("phase: null").is_err());
    let wrong = Expression::parse("phse: scheduled").expect_err("no such field").to_string();
    assert!(wrong.contains("is `phase` meant?"), "{wrong}");
}

#[test]
fn a_value_that_a_field_cannot_have_is_doubted() {
    let doubts = |text: &str| Expression::parse(text).expect("a query").doubts();
    assert_eq!(doubts("state: runing"), ["no job has the state `runing`; is `running` meant?"]);
    assert_eq!(doubts("not phase: (scheduld or retrying)"), ["no job has the phase `scheduld`; is `scheduled` meant?"]);
    assert_eq!(doubts("history: { to: \"faild\" }"), ["no job has the history.to `faild`; is `failed` meant?"]);
    let doubted = doubts("orphan_policy: nothing");
    assert_eq!(doubted, ["no job has the orphan_policy `nothing`; it is one of requeue, fail, flag"]);
    for fine in
        ["state: running", "state: r*", "state: *", "queue: runing", "runing", "labels.state: runing", "state > a"]
    {
        assert_eq!(doubts(fine), [""; 0], "{fine}");
    }
}
