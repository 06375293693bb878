//! What the transitions keep, over random sequences and in examples.
//!
//! The random part drives one job with every transition in any order, under clocks that also jump back and proofs that
//! are right, stale, foreign or from the future, and checks each step against what must hold. That a refused request
//! changes nothing needs no check: a transition borrows the job and gives a new one.

use std::time::Duration;

use proptest::prelude::*;

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
    Claim { worker_id: worker(name), request_id: None, term: TERM }
}

fn failure(code: &str) -> Failure {
    let error = JobError { code: code.to_owned(), message: format!("it went wrong: {code}") };
    Failure { error, retryable: true, retry_after: None, chance: 1.0 }
}

fn order(then: Then, expected_fence: Option<Fence>) -> AdminRelease {
    AdminRelease { actor: Actor::system("admin"), reason: "by hand".to_owned(), then, expected_fence }
}

fn recovery(grace_ms: u64) -> Recovery {
    Recovery { grace: Duration::from_millis(grace_ms), policy: OrphanPolicy::Requeue, chance: 1.0 }
}

fn changed(change: Result<Change, Refusal>) -> Job {
    match change {
        Ok(Change::To(job)) => *job,
        other => panic!("expected a change, not {other:?}"),
    }
}

/// A job that `worker` runs since `at(0)`, and its proof.
fn running(max_attempts: u32) -> (Job, LeaseProof) {
    let job = job(max_attempts, None, None).claim(&claim_by("w"), at(0)).expect("claimed");
    let proof = LeaseProof { worker_id: worker("w"), fence: job.fence };
    (job, proof)
}

mod sequences {
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Shown {
        Right,
        StaleBy(u64),
        FromTheFuture,
        Foreign,
    }

    #[derive(Clone, Debug)]
    enum Request {
        Claim { worker: u8, term_ms: u64 },
        Heartbeat(Shown),
        Complete(Shown, u8),
        Fail { shown: Shown, retryable: bool, retry_after_ms: Option<u64>, chance: f64 },
        Release(Shown),
        Cancel,
        AdminRelease(Then, bool),
        FlagOrphan { held: bool },
        MarkOverdue,
        Recover { grace_ms: u64, chance: f64, policy: OrphanPolicy },
        HandOn,
        TimeOut,
        Expire,
        Retry,
    }

    fn shown() -> impl Strategy<Value = Shown> {
        prop_oneof![
            6 => Just(Shown::Right),
            1 => (1_u64..4).prop_map(Shown::StaleBy),
            1 => Just(Shown::FromTheFuture),
            1 => Just(Shown::Foreign),
        ]
    }

    fn then() -> impl Strategy<Value = Then> {
        prop_oneof![Just(Then::Requeue), Just(Then::Fail), Just(Then::Cancel)]
    }

    fn request() -> impl Strategy<Value = Request> {
        prop_oneof![
            8 => (0_u8..3, 1_u64..30_000).prop_map(|(worker, term_ms)| Request::Claim { worker, term_ms }),
            2 => shown().prop_map(Request::Heartbeat),
            2 => (shown(), 0_u8..2).prop_map(|(shown, result)| Request::Complete(shown, result)),
            4 => (shown(), prop::bool::weighted(0.8), prop::option::of(0_u64..20_000), 0.0..=1.0).prop_map(
                |(shown, retryable, retry_after_ms, chance)| Request::Fail { shown, retryable, retry_after_ms, chance }
            ),
            2 => shown().prop_map(Request::Release),
            1 => Just(Request::Cancel),
            1 => (then(), any::<bool>()).prop_map(|(then, looked)| Request::AdminRelease(then, looked)),
            1 => any::<bool>().prop_map(|held| Request::FlagOrphan { held }),
            1 => Just(Request::MarkOverdue),
            2 => (0_u64..20_000, 0.0..=1.0, prop::sample::select(&OrphanPolicy::ALL[..]))
                .prop_map(|(grace_ms, chance, policy)| Request::Recover { grace_ms, chance, policy }),
            1 => Just(Request::HandOn),
            1 => Just(Request::TimeOut),
            1 => Just(Request::Expire),
            2 => Just(Request::Retry),
        ]
    }

    /// The job under test, who claimed it last, and what an administrator allowed beyond the budget.
    struct Run {
        job: Job,
        holder: u8,
        requeued: u32,
    }

    fn name(worker: u8) -> String {
        format!("w{worker}")
    }

    impl Run {
        fn proof(&self, shown: Shown) -> LeaseProof {
            let fence = self.job.fence.get();
            let (worker_id, fence) = match shown {
                Shown::Right => (worker(name(self.holder)), fence),
                Shown::StaleBy(count) => (worker(name(self.holder)), fence.saturating_sub(count)),
                Shown::FromTheFuture => (worker(name(self.holder)), fence + 1),
                Shown::Foreign => (worker(name(self.holder + 1)), fence),
            };
            LeaseProof { worker_id, fence: Fence::new(fence) }
        }

        fn ask(&self, request: &Request, now: Timestamp) -> Result<Change, Refusal> {
            let job = &self.job;
            let system = Actor::system("monitor");
            let written = |job: Job| Change::To(Box::new(job));
            match request {
                Request::Claim { worker: number, term_ms } => {
                    let term = Duration::from_millis(*term_ms);
                    let claim = Claim { worker_id: worker(name(*number)), request_id: None, term };
                    job.claim(&claim, now).map(written)
                }
                Request::Heartbeat(shown) => job.heartbeat(&self.proof(*shown), None, now).map(written),
                Request::Complete(shown, result) => job.complete(&self.proof(*shown), &text(&result.to_string()), now),
                Request::Fail { shown, retryable, retry_after_ms, chance } => {
                    let retry_after = retry_after_ms.map(Duration::from_millis);
                    let failure = Failure { retryable: *retryable, retry_after, chance: *chance, ..failure("exit") };
                    job.fail(&self.proof(*shown), &failure, now)
                }
                Request::Release(shown) => job.release(&self.proof(*shown), "shutting down", now),
                Request::Cancel => job.cancel(&Actor::system("user"), None, now),
                Request::AdminRelease(then, looked) => {
                    job.admin_release(&order(*then, looked.then_some(job.fence)), now).map(written)
                }
                Request::FlagOrphan { held } => job.flag_orphan(&system, "silent", *held, now),
                Request::MarkOverdue => job.mark_overdue(&system, now),
                Request::Recover { grace_ms, chance, policy } => {
                    let grace = Duration::from_millis(*grace_ms);
                    job.recover(&system, &Recovery { grace, policy: *policy, chance: *chance }, now)
                }
                Request::HandOn => {
                    let first: Vec<u32> = job.outbox.iter().take(2).map(|notice| notice.number).collect();
                    Ok(job.notices_handed_on(&first, now).map_or(Change::Already, written))
                }
                Request::TimeOut => job.time_out(&system, 0.5, now).map(written),
                Request::Expire => job.expire(&system, now).map(written),
                Request::Retry => job.retry(&system, None, now).map(written),
            }
        }
    }

    /// The proof that a request shows, for those that show one.
    const fn shown_by(request: &Request) -> Option<Shown> {
        match request {
            Request::Heartbeat(shown) | Request::Complete(shown, _) | Request::Release(shown) => Some(*shown),
            Request::Fail { shown, .. } => Some(*shown),
            _ => None,
        }
    }

    fn holds_always(run: &Run) {
        let job = &run.job;
        assert_eq!(job.lease().is_some(), job.state.name() == JobState::Running, "a lease exactly while running");
        assert_eq!(job.finished_at().is_some(), job.state.name().is_final(), "an end exactly when final");
        assert!(u64::from(job.attempt.get()) <= job.fence.get(), "no attempt without a claim");
        assert!(job.attempt.get() <= job.spec.max_attempts + run.requeued, "no attempt beyond the budget");

        let entries = job.history.entries();
        assert_eq!((entries[0].from, entries[0].to), (None, JobState::Available));
        for (place, pair) in entries.windows(2).enumerate() {
            let folded_between = job.history.folded() > 0 && place == 24;
            assert!(folded_between || pair[1].from == Some(pair[0].to), "a gap in the history at {place}: {pair:?}");
            assert!(pair[0].fence <= pair[1].fence, "the fence went back at {place}");
        }
        let mut numbers = job.outbox.iter().map(|notice| notice.number);
        assert!(numbers.clone().is_sorted() && numbers.all(|number| number as usize <= job.history.len()));
        let last = entries.last().expect("a history is never empty");
        assert_eq!((last.to, last.fence, last.attempt), (job.state.name(), job.fence, job.attempt));
    }

    fn holds_for_a_change(before: &Job, request: &Request, after: &Job, now: Timestamp) {
        let (from, to) = (before.state.name(), after.state.name());
        let claimed = matches!(request, Request::Claim { .. });
        assert_eq!(after.fence.get(), before.fence.get() + u64::from(claimed), "one fence a claim, and none else");
        let may_leave = matches!(request, Request::Retry | Request::HandOn);
        assert!(!from.is_final() || may_leave, "{from} was left by {request:?}");
        assert!(after.updated_at >= before.updated_at && after.updated_at >= now, "the last write went back in time");
        assert_eq!((&after.id, &after.spec, after.created_at), (&before.id, &before.spec, before.created_at));

        // Of what is no change of state a beat and a notice handed on leave no trace.
        let recorded = !matches!(request, Request::Heartbeat(_) | Request::HandOn);
        assert_eq!(after.history.len(), before.history.len() + usize::from(recorded), "{request:?}: {from} → {to}");

        match request {
            Request::Claim { .. } => assert!(before.run_at <= now, "claimed before it was due"),
            Request::Heartbeat(_) => {
                let ends = |job: &Job| job.lease().map(|lease| (lease.expires_at, lease.heartbeat_at));
                assert!(ends(after) >= ends(before), "a heartbeat shortened the lease");
            }
            Request::Fail { retryable, retry_after_ms, chance, .. } if to == JobState::Available => {
                assert!(*retryable && before.attempt.get() < before.spec.max_attempts, "tried again without budget");
                let full = POLICY.backoff(before.attempt.get(), 1.0);
                let wait = after.run_at.since(now);
                let asked = Duration::from_millis(retry_after_ms.unwrap_or(0));
                assert!(wait >= asked && wait <= full.max(asked), "waits {wait:?} with {chance} and {asked:?}");
                assert!(wait >= full.mul_f64(1.0 - POLICY.jitter), "chance took more than its share: {wait:?}");
            }
            Request::Recover { .. } | Request::TimeOut if to == JobState::Available => {
                assert!(before.attempt.get() < before.spec.max_attempts, "tried again without budget");
            }
            Request::Retry => assert_eq!(after.attempt, Attempt::default(), "a retry has a fresh budget"),
            _ => {}
        }
        if let Request::Recover { grace_ms, .. } = request {
            let ended = before.lease().map(|lease| lease.expires_at.plus(Duration::from_millis(*grace_ms)));
            assert!(ended <= Some(now), "taken from a worker within its lease");
        }
    }

    /// What the history gained, the outbox gained, where it is to be told of.
    fn holds_for_the_outbox(before: &Job, after: &Job) {
        let gained = after.history.len() - before.history.len();
        let entry = after.history.entries().last().expect("a history is never empty");
        let told = gained == 1 && EventName::NOTIFIABLE.contains(&entry.event) && entry.event != EventName::Retried;
        let last = after.outbox.last().filter(|notice| notice.number as usize == after.history.len());
        assert_eq!(last.map(|notice| &notice.entry), told.then_some(entry).or(last.map(|notice| &notice.entry)));
        assert_eq!(told, gained == 1 && last.is_some(), "{:?}", entry.event);
    }

    fn holds_for_proofs(run: &Run, request: &Request, answer: &Result<Change, Refusal>, now: Timestamp) {
        let job = &run.job;
        match shown_by(request) {
            Some(Shown::Right) if job.lease().is_some() => {
                assert!(matches!(answer, Ok(Change::To(_))), "the holder was refused at {now}: {answer:?}");
            }
            Some(Shown::StaleBy(_)) if job.fence == Fence::default() => {}
            Some(Shown::StaleBy(_) | Shown::FromTheFuture | Shown::Foreign) => {
                let lost = Refusal::LeaseLost { state: job.state.name(), fence: job.fence };
                assert_eq!(answer, &Err(lost), "{request:?}");
            }
            Some(Shown::Right) | None => {}
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_sequence_of_requests_breaks_a_job(
            max_attempts in 1_u32..4,
            timeout_ms in prop::option::of(1_u64..40_000),
            expires_in_ms in prop::option::of(0_i64..200_000),
            requests in prop::collection::vec((request(), -10_000_i64..20_000), 1..150),
        ) {
            let timeout = timeout_ms.map(Duration::from_millis);
            let job = job(max_attempts, timeout, expires_in_ms.map(at));
            let mut run = Run { job, holder: 0, requeued: 0 };
            let mut clock = 0;
            holds_always(&run);
            for (request, step) in requests {
                clock += step;
                let now = at(clock);
                let answer = run.ask(&request, now);
                holds_for_proofs(&run, &request, &answer, now);
                let Ok(Change::To(mut after)) = answer else { continue };
                after.announce(&run.job, |event| event != EventName::Retried);
                holds_for_the_outbox(&run.job, &after);
                holds_for_a_change(&run.job, &request, &after, now);
                run.job = *after;
                match request {
                    Request::Claim { worker, .. } => run.holder = worker,
                    Request::AdminRelease(Then::Requeue, _) => run.requeued += 1,
                    Request::Retry => run.requeued = 0,
                    _ => {}
                }
                holds_always(&run);
                if matches!(request, Request::Complete(..) | Request::Fail { .. } | Request::Release(_)) {
                    let again = run.ask(&request, now.plus(TERM));
                    prop_assert_eq!(again, Ok(Change::Already), "the same finish again: {:?}", request);
                }
            }
        }
    }
}

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
    let beating = flagged.heartbeat(&proof, Some(progress.clone()), at(80_000)).expect("the holder is heard, late");
    let State::Running(running) = &beating.state else { panic!("runs on: {:?}", beating.state) };
    assert_eq!(running.lease.expires_at, at(140_000));
    assert_eq!((&running.orphan, &running.progress), (&None, &Some(progress.clone())));
    assert_eq!(beating.history, flagged.history);

    let silent_on_progress = beating.heartbeat(&proof, None, at(81_000)).expect("heard");
    let State::Running(running) = &silent_on_progress.state else { panic!("runs on") };
    assert_eq!(running.progress, Some(progress));
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
    let waiting = changed(job.recover(&Actor::system("monitor"), &recovery(0), at(60_000)));
    let taken = waiting.claim(&claim_by("other"), at(90_000)).expect("claimed anew");
    let lost = Refusal::LeaseLost { state: JobState::Running, fence: Fence::new(2) };
    assert_eq!(taken.heartbeat(&old, None, at(90_001)), Err(lost.clone()));
    assert_eq!(taken.complete(&old, &Body::Empty, at(90_001)), Err(lost.clone()));
    assert_eq!(taken.fail(&old, &failure("exit"), at(90_001)), Err(lost.clone()));
    assert_eq!(taken.release(&old, "late", at(90_001)), Err(lost));
    let new = LeaseProof { worker_id: worker("other"), fence: Fence::new(2) };
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
    let beating = held.heartbeat(&proof, None, at(60_001)).expect("heard");
    assert_eq!(beating.running().expect("running").orphan, None);
    assert!(held.watch_at() < Some(at(60_000)), "it is overdue, and that is yet to be said");
    let told = changed(held.mark_overdue(&Actor::system("monitor"), at(60_000)));
    assert_eq!(told.watch_at(), None, "nothing is left to do but a person's decision");
    assert_eq!(beating.watch_at(), Some(at(30_000)));
}

#[test]
fn an_overdue_attempt_is_told_of_once_and_the_next_attempt_anew() {
    let (job, proof) = running(3);
    let monitor = Actor::system("monitor");
    assert_eq!(job.mark_overdue(&monitor, at(29_999)), Err(Refusal::NotYet));
    let overdue = changed(job.mark_overdue(&monitor, at(30_000)));
    assert_eq!(overdue.mark_overdue(&monitor, at(40_000)), Ok(Change::Already));
    let failed = changed(overdue.fail(&proof, &failure("exit"), at(40_000)));
    let again = failed.claim(&claim_by("w"), at(90_000)).expect("claimed");
    assert!(matches!(again.mark_overdue(&monitor, at(120_000)), Ok(Change::To(_))));
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
    let overdue = changed(running.mark_overdue(&Actor::system("monitor"), at(30_000)));
    assert_eq!(overdue.watch_at(), Some(at(30_000)), "half its lease has passed in silence");
    let beating = overdue.heartbeat(&proof, None, at(30_001)).expect("heard");
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
    assert_eq!(failed.notices_handed_on(&[2], at(2)), None);
    assert_eq!(failed.notices_handed_on(&[3], at(2)).expect("it was there").outbox, []);
}

#[test]
fn a_job_is_taken_from_its_worker_only_after_its_lease_and_the_grace() {
    let (job, _) = running(2);
    let (monitor, grace) = (Actor::system("monitor"), recovery(10_000));
    assert_eq!(job.recover(&monitor, &grace, at(69_999)), Err(Refusal::NotYet));
    let recovered = changed(job.recover(&monitor, &grace, at(70_000)));
    assert_eq!(
        (&recovered.state, recovered.attempt, recovered.run_at),
        (&State::Available, Attempt::new(1), at(71_000))
    );
    assert_eq!(recovered.error.map(|error| error.code), Some("lease_expired".to_owned()));
}

#[test]
fn a_lost_job_whose_end_was_asked_for_is_cancelled() {
    let asked = changed(running(2).0.cancel(&Actor::system("user"), None, at(1)));
    let ended = changed(asked.recover(&Actor::system("monitor"), &recovery(0), at(60_000)));
    assert_eq!(ended.state, State::Cancelled { finished_at: at(60_000) });
}

#[test]
fn an_attempt_ends_at_its_time_limit_even_while_its_worker_beats() {
    let limited = job(2, Some(Duration::from_secs(90)), None).claim(&claim_by("w"), at(0)).expect("claimed");
    let proof = LeaseProof { worker_id: worker("w"), fence: limited.fence };
    let beating = limited.heartbeat(&proof, None, at(89_000)).expect("heard");
    let monitor = Actor::system("monitor");
    assert_eq!(beating.time_out(&monitor, 1.0, at(89_999)), Err(Refusal::NotYet));
    let ended = beating.time_out(&monitor, 1.0, at(90_000)).expect("timed out");
    assert_eq!(ended.error.map(|error| error.code), Some("timeout".to_owned()));
    assert_eq!(running(2).0.time_out(&monitor, 1.0, Timestamp::MAX), Err(Refusal::NotYet), "without a limit, never");
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
