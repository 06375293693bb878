//! The invariants of the transitions: in examples here, and over random sequences.

use std::time::Duration;

use super::*;
use crate::job::{BodyId, BodyRef, EventName, JobSpec, Json, Kind, OrphanPolicy, QueueName, Recovery, RetryPolicy};

const START: i64 = 1_900_000_000_000;
const TERM: Duration = Duration::from_secs(60);
const POLICY: RetryPolicy =
    RetryPolicy { base: Duration::from_secs(1), factor: 2.0, max: Duration::from_secs(5), jitter: 0.5 };

fn at(millis: i64) -> Timestamp {
    Timestamp::from_millis(START + millis)
}

fn worker(name: impl AsRef<str>) -> WorkerId {
    WorkerId::new(name).expect("a name")
}

fn text(json: &str) -> Body {
    Body::Inline(Json::parse(json.to_owned()).expect("JSON"))
}

fn job(max_attempts: u32, timeout: Option<Duration>, expires_at: Option<Timestamp>) -> Job {
    let spec = JobSpec {
        expected_runtime: Some(Duration::from_secs(30)),
        timeout,
        max_attempts,
        retry: POLICY,
        ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    };
    let id = JobId::new("job").expect("a name");
    Job::submit(id, Arc::new(spec), Body::Empty, (at(0), expires_at), &Actor::system("submitter"), at(0))
}

fn claim_by(name: &str) -> Claim {
    Claim { worker_id: worker(name), holder: None, request_id: None, term: TERM, margin: Duration::ZERO }
}

fn failure(code: &str) -> Failure {
    let error = JobError { code: code.to_owned(), message: format!("it went wrong: {code}") };
    Failure { error, retryable: true, retry_after: None, chance: 1.0 }
}

fn order(then: Then, expected_fence: Option<Fence>) -> AdminRelease {
    AdminRelease { actor: Actor::system("admin"), reason: "by hand".to_owned(), then, expected_fence }
}

fn recovery(grace_ms: u64) -> Recovery {
    let grace = Duration::from_millis(grace_ms);
    Recovery { over_for: None, grace, policy: OrphanPolicy::Requeue, chance: 1.0 }
}

/// Recovers the job of a process that was awake all the time.
fn recover(job: &Job, recovery: &Recovery, now: Timestamp) -> Result<Change, Refusal> {
    let ended = job.lease().map(|lease| lease.expires_at).filter(|end| *end <= now);
    let over_for = ended.map(|end| now.since(end));
    job.recover(&Actor::system("monitor"), &Recovery { over_for, ..recovery.clone() }, now)
}

/// Returns how long the attempt has run, in a process that was awake all the time.
fn ran(job: &Job, now: Timestamp) -> Duration {
    job.lease().map(|lease| now.since(lease.acquired_at)).unwrap_or_default()
}

fn changed(change: Result<Change, Refusal>) -> Job {
    match change {
        Ok(Change::To(job)) => *job,
        other => panic!("expected a change, not {other:?}"),
    }
}

/// Returns a job that `worker` runs since `at(0)`, and its proof.
fn running(max_attempts: u32) -> (Job, LeaseProof) {
    let job = job(max_attempts, None, None).claim(&claim_by("w"), at(0)).expect("claimed");
    let proof = LeaseProof { worker_id: worker("w"), fence: job.fence, bearer: None };
    (job, proof)
}

mod sequences;

#[test]
fn a_claim_gives_a_lease_for_its_term_under_the_next_fence() {
    let claimed = job(3, None, None).claim(&claim_by("w"), at(5)).expect("claimed");
    let lease = claimed.lease().expect("a running job has a lease");
    assert_eq!((lease.acquired_at, lease.heartbeat_at, lease.expires_at), (at(5), at(5), at(60_005)));
    assert_eq!((claimed.fence, claimed.attempt, claimed.started_at), (Fence::new(1), Attempt::new(1), Some(at(5))));
}

#[test]
fn a_job_is_not_claimed_twice_nor_before_it_is_due_nor_from_its_start_deadline_on() {
    let (taken, _) = running(3);
    assert_eq!(taken.claim(&claim_by("other"), at(1)), Err(Refusal::NotAvailable(JobState::Running)));
    assert_eq!(job(3, None, None).claim(&claim_by("w"), at(-1)), Err(Refusal::NotDue(at(0))));
    let deadline = job(3, None, Some(at(10)));
    assert!(deadline.claim(&claim_by("w"), at(9)).is_ok());
    assert_eq!(deadline.claim(&claim_by("w"), at(10)), Err(Refusal::StartDeadlinePassed(at(10))));
}

#[test]
fn a_heartbeat_prolongs_the_lease_takes_the_orphans_flag_off_and_is_no_transition() {
    let (job, proof) = running(3);
    let flagged = changed(job.flag_orphan(&Actor::system("monitor"), "silent", false, at(70_000)));
    let progress = Progress { percent: Some(40.0), message: None };
    let beating = flagged
        .heartbeat(&proof, Some(progress.clone()), Duration::ZERO, at(80_000))
        .expect("the holder is heard, late");
    let State::Running(running) = &beating.state else { panic!("runs on: {:?}", beating.state) };
    assert_eq!(running.lease.expires_at, at(140_000));
    assert_eq!((&running.orphan, &running.progress), (&None, &Some(progress.clone())));
    assert_eq!(beating.history, flagged.history);

    let silent_on_progress = beating.heartbeat(&proof, None, Duration::ZERO, at(81_000)).expect("heard");
    let State::Running(running) = &silent_on_progress.state else { panic!("runs on") };
    assert_eq!(running.progress, Some(progress));
}

#[test]
fn a_lease_lasts_as_much_longer_as_the_clock_of_its_writer_may_be_behind() {
    let margin = Duration::from_secs(2);
    let claimed = job(3, None, None).claim(&Claim { margin, ..claim_by("w") }, at(0)).expect("claimed");
    assert_eq!(claimed.lease().map(|lease| (lease.expires_at, lease.term)), Some((at(62_000), TERM)));
    let proof = LeaseProof { worker_id: worker("w"), fence: claimed.fence, bearer: None };
    let beating = claimed.heartbeat(&proof, None, margin, at(10_000)).expect("heard");
    assert_eq!(beating.lease().map(|lease| (lease.expires_at, lease.term)), Some((at(72_000), TERM)));
}

#[test]
fn a_claim_that_is_delivered_again_has_another_lease_whatever_the_clock_says() {
    let named = |name: &str| RequestId::new(name).expect("a name");
    let claim = Claim { request_id: Some(named("call")), ..claim_by("w") };
    let claimed = job(3, None, None).claim(&claim, at(10)).expect("claimed");
    for now in [0, 10, 11, 50_000] {
        let again = claimed
            .deliver_again(&worker("w").into(), Some(&named("call")), Duration::ZERO, at(now))
            .expect("the same claim");
        let (first, second) = (claimed.lease().expect("a lease"), again.lease().expect("a lease"));
        assert!(second.heartbeat_at > first.heartbeat_at && second.expires_at > first.expires_at, "{second:?}");
        assert_eq!((again.fence, again.attempt, &again.history), (claimed.fence, claimed.attempt, &claimed.history));
    }
    let lost = Refusal::LeaseLost { state: JobState::Running, fence: Fence::new(1) };
    for (who, name) in [("other", Some(named("call"))), ("w", Some(named("next"))), ("w", None)] {
        assert_eq!(
            claimed.deliver_again(&worker(who).into(), name.as_ref(), Duration::ZERO, at(20)),
            Err(lost.clone())
        );
    }
}

#[test]
fn a_worker_whose_lease_has_expired_still_finishes_when_nobody_took_the_job() {
    let (job, proof) = running(3);
    let done = changed(job.complete(&proof, &text("1"), at(3_600_000)));
    assert_eq!(done.state, State::Completed { finished_at: at(3_600_000), result: text("1") });
}

#[test]
fn a_worker_whose_job_was_given_to_another_is_refused_and_the_other_is_heard() {
    let (job, old) = running(3);
    let waiting = changed(recover(&job, &recovery(0), at(60_000)));
    let taken = waiting.claim(&claim_by("other"), at(90_000)).expect("claimed anew");
    let lost = Refusal::LeaseLost { state: JobState::Running, fence: Fence::new(2) };
    assert_eq!(taken.heartbeat(&old, None, Duration::ZERO, at(90_001)), Err(lost.clone()));
    assert_eq!(taken.complete(&old, &Body::Empty, at(90_001)), Err(lost.clone()));
    assert_eq!(taken.fail(&old, &failure("exit"), at(90_001)), Err(lost.clone()));
    assert_eq!(taken.release(&old, "late", at(90_001)), Err(lost));
    let new = LeaseProof { worker_id: worker("other"), fence: Fence::new(2), bearer: None };
    assert!(taken.complete(&new, &Body::Empty, at(90_001)).is_ok());
}

#[test]
fn a_completion_again_changes_nothing_and_one_with_another_result_is_refused() {
    let (job, proof) = running(3);
    let done = changed(job.complete(&proof, &text("1"), at(1)));
    assert_eq!(done.complete(&proof, &text("1"), at(2)), Ok(Change::Already));
    let lost = Refusal::LeaseLost { state: JobState::Completed, fence: Fence::new(1) };
    assert_eq!(done.complete(&proof, &text("2"), at(2)), Err(lost.clone()));
    assert_eq!(done.complete(&proof, &Body::Empty, at(2)), Err(lost.clone()));
    assert_eq!(done.fail(&proof, &failure("exit"), at(2)), Err(lost.clone()));
    assert_eq!(done.release(&proof, "late", at(2)), Err(lost));
}

#[test]
fn a_result_that_is_kept_apart_is_the_same_when_its_length_is() {
    let kept = |bytes| Body::Stored(BodyRef { id: BodyId(uuid::Uuid::new_v4()), bytes });
    let (job, proof) = running(3);
    let done = changed(job.complete(&proof, &kept(70_000), at(1)));
    assert_eq!(done.complete(&proof, &kept(70_000), at(2)), Ok(Change::Already));
    let lost = Refusal::LeaseLost { state: JobState::Completed, fence: Fence::new(1) };
    assert_eq!(done.complete(&proof, &kept(70_001), at(2)), Err(lost));
}

#[test]
fn a_failed_attempt_waits_its_backoff_and_the_last_one_is_the_end() {
    let (job, proof) = running(2);
    let waiting = changed(job.fail(&proof, &failure("exit"), at(100)));
    assert_eq!((&waiting.state, waiting.run_at), (&State::Available, at(1_100)));
    assert_eq!(waiting.error.as_ref().map(|error| error.code.as_str()), Some("exit"));

    let second = waiting.claim(&claim_by("w"), at(1_100)).expect("claimed");
    let proof = LeaseProof { fence: second.fence, ..proof };
    let failed = changed(second.fail(&proof, &failure("exit"), at(1_200)));
    assert_eq!(failed.state, State::Failed { finished_at: at(1_200) });
}

#[test]
fn a_failure_that_no_attempt_could_mend_is_final_at_once() {
    let (job, proof) = running(9);
    let hopeless = Failure { retryable: false, ..failure("bad_input") };
    assert_eq!(changed(job.fail(&proof, &hopeless, at(1))).state, State::Failed { finished_at: at(1) });
}

#[test]
fn a_failure_that_names_a_longer_wait_than_the_backoff_gets_it() {
    let (job, proof) = running(3);
    let busy = Failure { retry_after: Some(Duration::from_secs(90)), ..failure("busy") };
    assert_eq!(changed(job.fail(&proof, &busy, at(0))).run_at, at(90_000));
    let short = Failure { retry_after: Some(Duration::from_millis(1)), ..failure("busy") };
    assert_eq!(changed(job.fail(&proof, &short, at(0))).run_at, at(1_000));
}

#[test]
fn a_failure_again_changes_nothing_and_another_one_is_refused() {
    let (job, proof) = running(3);
    let waiting = changed(job.fail(&proof, &failure("exit"), at(1)));
    assert_eq!(waiting.fail(&proof, &failure("exit"), at(2)), Ok(Change::Already));
    let lost = Refusal::LeaseLost { state: JobState::Available, fence: Fence::new(1) };
    assert_eq!(waiting.fail(&proof, &failure("disk"), at(2)), Err(lost.clone()));
    let mut told_otherwise = failure("exit");
    told_otherwise.error.message = "with another status".to_owned();
    assert_eq!(waiting.fail(&proof, &told_otherwise, at(2)), Err(lost.clone()));
    assert_eq!(waiting.release(&proof, "late", at(2)), Err(lost));
}

#[test]
fn a_release_gives_the_attempt_back_and_keeps_the_fence() {
    let (job, proof) = running(3);
    let released = changed(job.release(&proof, "shutting down", at(1)));
    assert_eq!((released.attempt, released.fence, released.run_at), (Attempt::new(0), Fence::new(1), at(0)));
    assert_eq!(released.release(&proof, "shutting down", at(2)), Ok(Change::Already));
    let lost = Refusal::LeaseLost { state: JobState::Available, fence: Fence::new(1) };
    assert_eq!(released.fail(&proof, &failure("exit"), at(2)), Err(lost));
}

#[test]
fn a_waiting_job_is_cancelled_at_once_and_a_running_one_when_its_worker_ends() {
    let user = Actor::system("user");
    let cancelled = changed(job(3, None, None).cancel(&user, None, at(1)));
    assert_eq!(cancelled.state, State::Cancelled { finished_at: at(1) });
    assert_eq!(cancelled.cancel(&user, None, at(2)), Ok(Change::Already));

    let (job, proof) = running(3);
    let asked = changed(job.cancel(&user, Some("not needed".to_owned()), at(1)));
    assert_eq!(asked.state.name(), JobState::Running);
    assert_eq!(asked.cancel(&user, None, at(2)), Ok(Change::Already));
    for ended in [asked.fail(&proof, &failure("stopped"), at(3)), asked.release(&proof, "stopped", at(3))] {
        let ended = changed(ended);
        assert_eq!(ended.state, State::Cancelled { finished_at: at(3) });
        assert_eq!(ended.fail(&proof, &failure("stopped"), at(4)), Ok(Change::Already));
        assert_eq!(ended.release(&proof, "stopped", at(4)), Ok(Change::Already));
    }
}

#[test]
fn a_cancellation_that_was_acknowledged_holds_whoever_ends_the_attempt() {
    let limited = job(3, Some(TERM), None).claim(&claim_by("w"), at(0)).expect("claimed");
    let proof = LeaseProof { worker_id: worker("w"), fence: limited.fence, bearer: None };
    let asked = changed(limited.cancel(&Actor::system("user"), None, at(1)));
    let (monitor, end) = (Actor::system("monitor"), at(60_000));
    let recovered = |policy| changed(recover(&asked, &Recovery { policy, ..recovery(0) }, end));
    let mut ends = vec![
        ("a failure", changed(asked.fail(&proof, &failure("exit"), end))),
        ("a final failure", changed(asked.fail(&proof, &Failure { retryable: false, ..failure("exit") }, end))),
        ("a release", changed(asked.release(&proof, "shutting down", end))),
        ("an administrator", asked.admin_release(&order(Then::Requeue, None), end).expect("released")),
        ("a time limit", asked.time_out(&monitor, ran(&asked, end), 1.0, end).expect("timed out")),
    ];
    ends.extend(OrphanPolicy::ALL.map(|policy| (policy.as_str(), recovered(policy))));
    for (by, ended) in ends {
        assert_eq!(ended.state, State::Cancelled { finished_at: end }, "{by}");
        let last = ended.history.entries().last().expect("recorded");
        assert_eq!((last.from, last.event), (Some(JobState::Running), EventName::Cancelled), "{by}");
    }
}

#[test]
fn a_job_waits_from_when_it_was_due_and_runs_from_its_claim() {
    let id = JobId::new("job").expect("a name");
    let spec = Arc::clone(&job(3, None, None).spec);
    let later = Job::submit(id, spec, Body::Empty, (at(1_000), None), &Actor::system("submitter"), at(0));
    assert_eq!((later.wait(), later.run_time()), (None, None), "nobody has taken it");
    let first = later.claim(&claim_by("w"), at(1_250)).expect("claimed");
    assert_eq!((first.wait(), first.run_time()), (Some(Duration::from_millis(250)), None));

    let proof = LeaseProof { worker_id: worker("w"), fence: first.fence, bearer: None };
    let again = changed(first.fail(&proof, &failure("exit"), at(2_000)));
    assert_eq!((again.run_at, again.wait()), (at(3_000), None), "the next attempt is not due yet");
    let second = again.claim(&claim_by("w"), at(3_600)).expect("claimed");
    assert_eq!(second.wait(), Some(Duration::from_millis(600)));
    let proof = LeaseProof { fence: second.fence, ..proof };
    let done = changed(second.complete(&proof, &Body::Empty, at(4_000)));
    assert_eq!((done.wait(), done.run_time()), (Some(Duration::from_millis(600)), Some(Duration::from_millis(400))));

    let called_off = changed(again.cancel(&Actor::system("user"), None, at(2_500)));
    assert_eq!((called_off.wait(), called_off.run_time()), (None, None), "it ended while it waited");
}

#[test]
fn work_that_was_done_before_the_cancel_request_arrived_is_kept() {
    let (job, proof) = running(3);
    let asked = changed(job.cancel(&Actor::system("user"), None, at(1)));
    let done = changed(asked.complete(&proof, &text("1"), at(2)));
    assert_eq!(done.result(), &text("1"));
    let refused = done.cancel(&Actor::system("user"), None, at(3));
    assert_eq!(refused, Err(Refusal::AlreadyFinal(JobState::Completed)));
}

#[test]
fn an_administrator_ends_the_lease_looked_at_and_no_newer_one() {
    let (job, _) = running(3);
    let looked_at = Some(Fence::new(1));
    for (then, state) in [
        (Then::Requeue, State::Available),
        (Then::Fail, State::Failed { finished_at: at(1) }),
        (Then::Cancel, State::Cancelled { finished_at: at(1) }),
    ] {
        let released = job.admin_release(&order(then, looked_at), at(1)).expect("released");
        assert_eq!(released.state, state);
        let last = released.history.entries().last().expect("recorded");
        assert_eq!((last.actor.as_str(), last.reason.as_deref()), ("admin", Some("by hand")));
    }
    let newer = order(Then::Requeue, Some(Fence::default()));
    assert_eq!(job.admin_release(&newer, at(1)), Err(Refusal::FenceMoved(Fence::new(1))));
    let waiting = super::tests::job(3, None, None);
    let refused = waiting.admin_release(&order(Then::Fail, None), at(1));
    assert_eq!(refused, Err(Refusal::NotRunning(JobState::Available)));
}

#[test]
fn the_first_flag_of_a_silent_job_stays() {
    let (job, _) = running(3);
    let monitor = Actor::system("monitor");
    let flagged = changed(job.flag_orphan(&monitor, "silent", false, at(1)));
    assert_eq!(flagged.flag_orphan(&monitor, "still silent", false, at(2)), Ok(Change::Already));
    let held = changed(flagged.flag_orphan(&monitor, "for a person", true, at(3)));
    let orphan = held.running().expect("running").orphan.clone().expect("flagged");
    assert_eq!((orphan.flagged_at, orphan.reason.as_str(), orphan.held), (at(1), "for a person", true));
    assert_eq!(held.flag_orphan(&monitor, "again", true, at(4)), Ok(Change::Already));
    let events: Vec<EventName> = held.history.entries().iter().map(|entry| entry.event).collect();
    assert_eq!(events, [EventName::Submitted, EventName::Claimed, EventName::Orphaned, EventName::Orphaned]);
}

#[test]
fn a_sign_of_life_takes_the_flag_off_and_a_held_job_is_looked_at_again() {
    let (job, proof) = running(3);
    let held = changed(job.flag_orphan(&Actor::system("monitor"), "silent", true, at(60_000)));
    let beating = held.heartbeat(&proof, None, Duration::ZERO, at(60_001)).expect("heard");
    assert_eq!(beating.running().expect("running").orphan, None);
    assert!(held.watch_at() < Some(at(60_000)), "it is overdue, and that is yet to be said");
    let told = changed(held.mark_overdue(&Actor::system("monitor"), ran(&held, at(60_000)), at(60_000)));
    assert_eq!(told.watch_at(), None, "nothing is left to do but a person's decision");
    assert_eq!(beating.watch_at(), Some(at(30_000)));
}

#[test]
fn an_overdue_attempt_is_told_of_once_and_the_next_attempt_anew() {
    let (job, proof) = running(3);
    let monitor = Actor::system("monitor");
    assert_eq!(job.mark_overdue(&monitor, ran(&job, at(29_999)), at(29_999)), Err(Refusal::NotYet));
    let overdue = changed(job.mark_overdue(&monitor, ran(&job, at(30_000)), at(30_000)));
    assert_eq!(overdue.mark_overdue(&monitor, ran(&overdue, at(40_000)), at(40_000)), Ok(Change::Already));
    let failed = changed(overdue.fail(&proof, &failure("exit"), at(40_000)));
    let again = failed.claim(&claim_by("w"), at(90_000)).expect("claimed");
    assert!(matches!(again.mark_overdue(&monitor, ran(&again, at(120_000)), at(120_000)), Ok(Change::To(_))));
}

#[test]
fn a_job_is_looked_at_no_later_than_anything_can_be_done_with_it() {
    let waiting = job(3, None, Some(at(500)));
    assert_eq!(waiting.watch_at(), Some(at(500)));
    assert_eq!(job(3, None, None).watch_at(), None, "nothing but a claim moves it");
    let limited = job(3, Some(Duration::from_secs(20)), None).claim(&claim_by("w"), at(0)).expect("claimed");
    assert_eq!(limited.watch_at(), Some(at(20_000)));
    let (running, proof) = running(3);
    assert_eq!(running.watch_at(), Some(at(30_000)), "when it becomes overdue");
    let overdue = changed(running.mark_overdue(&Actor::system("monitor"), ran(&running, at(30_000)), at(30_000)));
    assert_eq!(overdue.watch_at(), Some(at(30_000)), "half its lease has passed in silence");
    let beating = overdue.heartbeat(&proof, None, Duration::ZERO, at(30_001)).expect("heard");
    assert_eq!(beating.watch_at(), Some(at(60_001)));
    let mut told = changed(beating.complete(&proof, &Body::Empty, at(31_000)));
    assert_eq!((told.watch_at(), told.is_settled()), (None, true));
    told.announce(&beating, |_| true);
    assert_eq!((told.watch_at(), told.is_settled()), (Some(at(31_000)), false), "somebody is yet to be told");
}

#[test]
fn only_what_somebody_wants_to_hear_of_is_put_into_the_outbox() {
    let (running, proof) = running(3);
    let mut failed = changed(running.fail(&proof, &failure("exit"), at(1)));
    failed.announce(&running, |_| false);
    assert_eq!(failed.outbox, []);
    failed.announce(&running, |event| event == EventName::Retried);
    let numbers: Vec<(u32, EventName)> =
        failed.outbox.iter().map(|notice| (notice.number, notice.entry.event)).collect();
    assert_eq!(numbers, [(3, EventName::Retried)]);
    let again = failed.claim(&claim_by("w"), at(9_000)).expect("claimed");
    let proof = LeaseProof { fence: again.fence, ..proof };
    let mut twice = changed(again.fail(&proof, &failure("exit"), at(9_001)));
    twice.outbox.clear();
    twice.announce(&running, |event| event == EventName::Retried);
    let numbers: Vec<u32> = twice.outbox.iter().map(|notice| notice.number).collect();
    assert_eq!(numbers, [3, 5], "a notice has its entry's number, also when several are new");
    assert_eq!(failed.notices_handed_on(&[2], at(2)), None);
    assert_eq!(failed.notices_handed_on(&[3], at(2)).expect("it was there").outbox, []);
}

#[test]
fn a_job_is_taken_from_its_worker_only_after_its_lease_and_the_grace() {
    let (job, _) = running(2);
    let grace = recovery(10_000);
    assert_eq!(recover(&job, &grace, at(69_999)), Err(Refusal::NotYet));
    let recovered = changed(recover(&job, &grace, at(70_000)));
    assert_eq!(
        (&recovered.state, recovered.attempt, recovered.run_at),
        (&State::Available, Attempt::new(1), at(71_000))
    );
    assert_eq!(recovered.error.map(|error| error.code), Some("lease_expired".to_owned()));
}

#[test]
fn a_lost_job_whose_end_was_asked_for_is_cancelled() {
    let asked = changed(running(2).0.cancel(&Actor::system("user"), None, at(1)));
    let ended = changed(recover(&asked, &recovery(0), at(60_000)));
    assert_eq!(ended.state, State::Cancelled { finished_at: at(60_000) });
}

#[test]
fn an_attempt_ends_at_its_time_limit_even_while_its_worker_beats() {
    let limited = job(2, Some(Duration::from_secs(90)), None).claim(&claim_by("w"), at(0)).expect("claimed");
    let proof = LeaseProof { worker_id: worker("w"), fence: limited.fence, bearer: None };
    let beating = limited.heartbeat(&proof, None, Duration::ZERO, at(89_000)).expect("heard");
    let monitor = Actor::system("monitor");
    assert_eq!(beating.time_out(&monitor, ran(&beating, at(89_999)), 1.0, at(89_999)), Err(Refusal::NotYet));
    let ended = beating.time_out(&monitor, ran(&beating, at(90_000)), 1.0, at(90_000)).expect("timed out");
    assert_eq!(ended.error.map(|error| error.code), Some("timeout".to_owned()));
    assert_eq!(
        running(2).0.time_out(&monitor, Duration::MAX, 1.0, at(90_000)),
        Err(Refusal::NotYet),
        "without a limit, never"
    );
}

#[test]
fn a_job_expires_from_its_start_deadline_on_and_never_without_one() {
    let monitor = Actor::system("monitor");
    let deadline = job(3, None, Some(at(10)));
    assert_eq!(deadline.expire(&monitor, at(9)), Err(Refusal::NotYet));
    let expired = deadline.expire(&monitor, at(10)).expect("expired");
    assert_eq!(expired.state, State::Expired { finished_at: at(10) });
    assert_eq!(job(3, None, None).expire(&monitor, Timestamp::MAX), Err(Refusal::NotYet));
    assert_eq!(running(3).0.expire(&monitor, at(10)), Err(Refusal::NotAvailable(JobState::Running)));
}

#[test]
fn a_retry_starts_a_failed_job_again_with_a_fresh_budget_and_its_fence_counts_on() {
    let (job, proof) = running(1);
    let failed = changed(job.fail(&proof, &failure("exit"), at(1)));
    let again = failed.retry(&Actor::system("user"), Some("mended".to_owned()), at(50)).expect("retried");
    assert_eq!((&again.state, again.run_at, again.expires_at), (&State::Available, at(50), None));
    assert_eq!((again.attempt, again.error.clone()), (Attempt::default(), None));
    let claimed = again.claim(&claim_by("w"), at(50)).expect("claimed");
    assert_eq!((claimed.fence, claimed.attempt), (Fence::new(2), Attempt::new(1)));
}

#[test]
fn a_job_that_waits_runs_or_is_completed_is_not_retried() {
    let user = Actor::system("user");
    let (running, proof) = running(1);
    let completed = changed(running.complete(&proof, &Body::Empty, at(1)));
    for job in [job(1, None, None), running, completed] {
        assert_eq!(job.retry(&user, None, at(2)), Err(Refusal::NotRetryable(job.state.name())));
    }
}
