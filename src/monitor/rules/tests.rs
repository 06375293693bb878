//! What is done about a job, moment by moment.

mod awake;

use std::sync::Arc;

use super::*;
use crate::job::{Body, Claim, EventName, JobId, JobSpec, JobState, Kind, LeaseProof, Oversight, QueueName, WorkerId};

const TERM: Duration = Duration::from_secs(60);
const EXPECTED: Duration = Duration::from_secs(100);
const TIMEOUT: Duration = Duration::from_secs(300);

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(1_900_000_000_000).plus(Duration::from_secs(seconds))
}

fn rules(grace: u64, skew: u64) -> Rules {
    let (orphan_grace, clock_skew) = (Duration::from_secs(grace), Some(Duration::from_secs(skew)));
    Rules::of(&MonitorConfig { orphan_grace, clock_skew, ..MonitorConfig::default() }, false)
}

/// A job that is expected to take 100 s and may take 300 s, and is to be started within 50 s.
fn job(policy: Option<OrphanPolicy>) -> Job {
    let spec = JobSpec {
        expected_runtime: Some(EXPECTED),
        timeout: Some(TIMEOUT),
        oversight: Oversight { orphan_policy: policy, notify: Vec::new() },
        ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    };
    let id = JobId::new("job").expect("a name");
    let times = (at(0), Some(at(50)));
    Job::submit(id, Arc::new(spec), Body::Empty, times, &Actor::system("submitter"), at(0))
}

fn proof() -> LeaseProof {
    LeaseProof { worker_id: WorkerId::new("w").expect("a name"), fence: crate::job::Fence::new(1), bearer: None }
}

fn running(policy: Option<OrphanPolicy>) -> Job {
    let claim =
        Claim { worker_id: proof().worker_id, holder: None, request_id: None, term: TERM, margin: Duration::ZERO };
    job(policy).claim(&claim, at(0)).expect("claimed")
}

/// The job after its worker has sent heartbeats until `until`, one every 20 s.
fn beating(job: &Job, until: u64) -> Job {
    (20..=until)
        .step_by(20)
        .fold(job.clone(), |job, second| job.heartbeat(&proof(), None, Duration::ZERO, at(second)).expect("held"))
}

/// Returns what is done by a process that was awake all the time.
fn decide(job: &Job, now: Timestamp, rules: &Rules) -> Option<Action> {
    super::decide(job, now, &AwakeTime::whole(now), rules)
}

fn apply(action: Action, job: &Job, rules: &Rules, now: Timestamp) -> Job {
    match action.apply(job, rules, OrphanPolicy::Requeue, 0.0, (now, &AwakeTime::whole(now))) {
        Ok(Change::To(job)) => *job,
        other => panic!("{action:?} changes the job, but: {other:?}"),
    }
}

/// Does everything that is to be done at each second, as a monitor that never sleeps; gives what and when.
fn watched(job: Job, rules: &Rules, seconds: std::ops::RangeInclusive<u64>) -> (Job, Vec<(u64, Action)>) {
    watched_by(&|second| AwakeTime::whole(at(second)), job, rules, seconds)
}

/// Returns the awake time at each second of monitors of which none was awake between the two seconds.
fn awake_without(from: u64, to: u64) -> impl Fn(u64) -> AwakeTime {
    move |second| {
        let mut awake = AwakeTime::whole(at(from));
        awake.go_on(at(to), Duration::ZERO);
        awake.resume();
        awake.go_on(at(second), Duration::from_secs(second - to));
        awake
    }
}

/// Does the same as a monitor that was awake as `awake` says of each second.
fn watched_by(
    awake: &dyn Fn(u64) -> AwakeTime,
    mut job: Job,
    rules: &Rules,
    seconds: std::ops::RangeInclusive<u64>,
) -> (Job, Vec<(u64, Action)>) {
    let mut done = Vec::new();
    for second in seconds {
        let (now, awake) = (at(second), awake(second));
        while let Some(action) = super::decide(&job, now, &awake, rules) {
            job = match action.apply(&job, rules, OrphanPolicy::Requeue, 0.0, (now, &awake)) {
                Ok(Change::To(job)) => *job,
                other => panic!("{action:?} changes the job, but: {other:?}"),
            };
            done.push((second, action));
        }
    }
    (job, done)
}

#[test]
fn nothing_is_done_about_a_job_in_time() {
    assert_eq!(decide(&job(None), at(49), &rules(2, 0)), None);
    assert_eq!(decide(&beating(&running(None), 80), at(99), &rules(2, 0)), None);
}

#[test]
fn a_silent_job_is_flagged_when_its_lease_ends_and_recovered_after_the_grace() {
    let (job, done) = watched(running(None), &rules(2, 0), 0..=62);
    assert_eq!(done, [(60, Action::Flag(Suspicion::LeaseExpired)), (62, Action::Recover)]);
    assert_eq!((job.state.name(), job.attempt.get()), (JobState::Available, 1));
    let told: Vec<_> = job.history.entries()[2..].iter().map(|entry| (entry.event, entry.actor.as_str())).collect();
    assert_eq!(told, [(EventName::Orphaned, "monitor"), (EventName::Released, "monitor")]);
}

#[test]
fn whoever_takes_over_recovers_no_job_before_its_whole_term_has_passed_since_then() {
    let rules = Rules { leads_since: Some(awake_without(85, 200)(200).now()), ..rules(2, 0) };
    let overdue = [(215, Action::MarkOverdue), (230, Action::Flag(Suspicion::Silent))];
    let heard = beating(&running(None), 80);
    // The leader before has led until the second 85.
    let (_, done) = watched_by(&awake_without(85, 200), heard.clone(), &rules, 200..=261);
    assert_eq!(done, overdue, "the last heartbeat is long past, but nobody could hear one");
    let (job, done) = watched_by(&awake_without(85, 200), heard.clone(), &rules, 200..=262);
    assert_eq!(done[..2], overdue);
    assert_eq!((done[2], job.state.name()), ((262, Action::Recover), JobState::Available));

    let beats = heard.heartbeat(&proof(), None, Duration::ZERO, at(220)).expect("held");
    let (_, done) = watched_by(&awake_without(85, 200), beats, &rules, 220..=281);
    assert!(!done.iter().any(|(_, action)| *action == Action::Recover), "{done:?}");
}

#[test]
fn a_lease_that_was_taken_under_this_process_ends_as_it_says() {
    let awake = awake_without(0, 0);
    let rules = Rules { leads_since: Some(awake(0).now()), ..rules(2, 0) };
    assert_eq!(
        watched_by(&awake, running(None), &rules, 0..=62).1,
        watched(running(None), &super::tests::rules(2, 0), 0..=62).1
    );
}

#[test]
fn a_slow_job_is_told_overdue_once_and_left_alone_as_long_as_its_worker_beats() {
    let mut job = beating(&running(None), 80);
    let mut done = Vec::new();
    for second in (100..300).step_by(20) {
        job = job.heartbeat(&proof(), None, Duration::ZERO, at(second)).expect("held");
        let (watched, now_done) = watched(job, &rules(2, 0), second..=second + 19);
        job = watched;
        done.extend(now_done);
    }
    assert_eq!(done, [(100, Action::MarkOverdue)]);
}

#[test]
fn a_job_past_its_expected_runtime_whose_heartbeat_is_stale_is_flagged_before_its_lease_ends() {
    let (job, done) = watched(beating(&running(None), 80), &rules(2, 0), 81..=120);
    assert_eq!(done, [(100, Action::MarkOverdue), (110, Action::Flag(Suspicion::Silent))]);
    let reason = &job.orphan().expect("a flag").reason;
    for evidence in ["worker w", &at(80).to_rfc3339(), &at(140).to_rfc3339(), &at(100).to_rfc3339(), "60000 ms"] {
        assert!(reason.contains(evidence), "{evidence} is missing: {reason}");
    }
    let beats_again = job.heartbeat(&proof(), None, Duration::ZERO, at(121)).expect("held");
    assert_eq!(beats_again.orphan(), None);
    assert_eq!(decide(&beats_again, at(122), &rules(2, 0)), None);
}

#[test]
fn a_heartbeat_is_not_stale_before_half_the_lease_whatever_is_configured() {
    let job = beating(&running(None), 80).mark_overdue(&actor(), EXPECTED, at(100)).expect("overdue");
    let Change::To(job) = job else { panic!("marked") };
    for (stale, flagged_at) in [(None, 110), (Some(1), 110), (Some(45), 125)] {
        let rules = Rules { heartbeat_stale: stale.map(Duration::from_secs), ..rules(2, 0) };
        assert_eq!(decide(&job, at(flagged_at - 1), &rules), None, "{stale:?}");
        assert_eq!(decide(&job, at(flagged_at), &rules), Some(Action::Flag(Suspicion::Silent)), "{stale:?}");
    }
}

#[test]
fn a_job_left_to_a_person_is_not_touched_again() {
    let (job, done) = watched(running(Some(OrphanPolicy::Flag)), &rules(2, 0), 0..=1000);
    assert_eq!(done, [(60, Action::Flag(Suspicion::LeaseExpired)), (62, Action::Recover)]);
    assert!(job.orphan().is_some_and(|orphan| orphan.held));
    assert_eq!(job.state.name(), JobState::Running);
}

#[test]
fn a_job_whose_policy_is_to_fail_is_not_tried_again() {
    let (job, _) = watched(running(Some(OrphanPolicy::Fail)), &rules(2, 0), 0..=62);
    assert_eq!(job.state.name(), JobState::Failed);
}

#[test]
fn an_attempt_that_takes_too_long_is_ended_after_the_grace_though_its_worker_beats() {
    let job = beating(&running(None), 300);
    let overdue = apply(Action::MarkOverdue, &job, &rules(2, 0), at(300));
    assert_eq!(decide(&overdue, at(301), &rules(2, 0)), None);
    assert_eq!(decide(&overdue, at(302), &rules(2, 0)), Some(Action::TimeOut));
    let ended = apply(Action::TimeOut, &overdue, &rules(2, 0), at(302));
    assert_eq!(ended.error.map(|error| error.code).as_deref(), Some("timeout"));
}

#[test]
fn a_job_that_nobody_starts_in_time_expires_and_one_that_waits_for_its_retry_does_not() {
    assert_eq!(decide(&job(None), at(50), &rules(2, 0)), Some(Action::Expire));
    let expired = apply(Action::Expire, &job(None), &rules(2, 0), at(50));
    assert_eq!(expired.state.name(), JobState::Expired);
    let (waiting, _) = watched(running(None), &rules(2, 0), 0..=62);
    assert_eq!(decide(&waiting, at(10_000), &rules(2, 0)), None);
}

#[test]
fn whatever_takes_something_away_waits_for_as_long_as_clocks_may_be_apart() {
    for skew in [0, 5, 30] {
        let rules = rules(2, skew);
        let grace = skew.max(2);
        assert_eq!(decide(&job(None), at(50 + skew).minus(Duration::from_millis(1)), &rules), None);
        let (_, lost) = watched(running(None), &rules, 0..=200);
        assert!(lost.contains(&(60 + grace, Action::Recover)), "{skew}: {lost:?}");
        let beats = beating(&running(None), 300 + grace);
        let beats = apply(Action::MarkOverdue, &beats, &rules, at(300));
        assert_eq!(decide(&beats, at(300 + grace).minus(Duration::from_millis(1)), &rules), None);
        assert_eq!(decide(&beats, at(300 + grace), &rules), Some(Action::TimeOut));
    }
}

#[test]
fn a_scan_by_time_finds_every_job_that_something_is_to_be_done_about() {
    let policies = [None, Some(OrphanPolicy::Flag)];
    let jobs = policies.into_iter().flat_map(|policy| [job(policy), running(policy), beating(&running(policy), 280)]);
    for mut job in jobs {
        for second in 0..1000 {
            while let Some(action) = decide(&job, at(second), &rules(2, 3)) {
                let watch_at = job.watch_at();
                assert!(
                    watch_at.is_some_and(|watch_at| watch_at <= at(second)),
                    "{action:?} at {second}: {watch_at:?}"
                );
                job = apply(action, &job, &rules(2, 3), at(second));
            }
        }
    }
}

#[test]
fn a_clock_that_is_far_off_ends_leases_and_time_limits_only_where_no_other_has_written_them() {
    let config = MonitorConfig { orphan_grace: Duration::ZERO, ..MonitorConfig::default() };
    let limited = beating(&running(None), 400);
    for alone in [true, false] {
        let rules = Rules::of(&config, alone).by_clock(Some(Offset::FAR));
        let flag = Action::Flag(Suspicion::LeaseExpired);
        assert_eq!(decide(&running(None), at(60), &rules), Some(if alone { Action::Recover } else { flag }));
        assert_eq!(decide(&limited, at(401), &rules), Some(if alone { Action::TimeOut } else { Action::MarkOverdue }));
        assert_eq!(decide(&job(None), at(500), &rules), None, "a start deadline is a time of the wall clock");
    }
}
