//! One job is driven with every transition in any order, under clocks that also jump back and proofs that are right,
//! stale, foreign or from the future, and each step is checked against what must hold. That a refused request changes
//! nothing needs no check: a transition borrows the job and gives a new one.

use proptest::prelude::*;
use proptest::test_runner::RngSeed;

use super::*;
use crate::clock::{FAR_AHEAD, LONGEST_STEP};
use crate::job::notice::{MAX_NOTICES, Notice};

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
        LeaseProof { worker_id, fence: Fence::new(fence), bearer: None }
    }

    fn ask(&self, request: &Request, now: Timestamp) -> Result<Change, Refusal> {
        let job = &self.job;
        let system = Actor::system("monitor");
        let written = |job: Job| Change::To(Box::new(job));
        match request {
            Request::Claim { worker: number, term_ms } => {
                let term = Duration::from_millis(*term_ms);
                let claim = Claim {
                    worker_id: worker(name(*number)),
                    holder: None,
                    request_id: None,
                    term,
                    margin: Duration::ZERO,
                };
                job.claim(&claim, now).map(written)
            }
            Request::Heartbeat(shown) => job.heartbeat(&self.proof(*shown), None, Duration::ZERO, now).map(written),
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
            Request::MarkOverdue => job.mark_overdue(&system, ran(job, now), now),
            Request::Recover { grace_ms, chance, policy } => {
                let grace = Duration::from_millis(*grace_ms);
                recover(job, &Recovery { over_for: None, grace, policy: *policy, chance: *chance }, now)
            }
            Request::HandOn => {
                let first: Vec<u32> = job.outbox.iter().take(2).map(|notice| notice.number).collect();
                Ok(job.notices_handed_on(&first, now).map_or(Change::Already, written))
            }
            Request::TimeOut => job.time_out(&system, ran(job, now), 0.5, now).map(written),
            Request::Expire => job.expire(&system, now).map(written),
            Request::Retry => job.retry(&system, None, now).map(written),
        }
    }
}

/// Returns the kind of proof that a request shows, if it shows one.
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
    // A job that is far ahead was written by a clock that was wrong.
    let is_ahead = before.updated_at > now.plus(FAR_AHEAD);
    let is_later = after.updated_at >= before.updated_at || is_ahead;
    assert!(is_later && after.updated_at >= now, "the last write went back in time");
    assert_eq!((&after.id, &after.spec, after.created_at), (&before.id, &before.spec, before.created_at));

    // A heartbeat and the handing on of notices are no transitions, so the history does not show them.
    let recorded = !matches!(request, Request::Heartbeat(_) | Request::HandOn);
    assert_eq!(after.history.len(), before.history.len() + usize::from(recorded), "{request:?}: {from} → {to}");

    match request {
        Request::Claim { .. } => {
            let was_due = is_ahead && before.run_at <= before.updated_at;
            assert!(before.run_at <= now || was_due, "claimed before it was due");
        }
        Request::Heartbeat(_) => {
            let ends = |job: &Job| job.lease().map(|lease| (lease.expires_at, lease.heartbeat_at));
            // Unless its times are to come.
            match before.lease().is_some_and(|lease| lease.heartbeat_at > now.plus(LONGEST_STEP)) {
                true => assert_eq!(after.lease().map(|lease| lease.heartbeat_at), Some(now)),
                false => assert!(ends(after) >= ends(before), "a heartbeat shortened the lease"),
            }
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

/// Checks that the outbox gained a notice of the history's new entry exactly if its event is to be notified of, and
/// that besides only those left it that were handed on or that it has no room for.
fn holds_for_the_outbox(before: &Job, request: &Request, after: &Job) {
    let gained = after.history.len() - before.history.len();
    let entry = after.history.entries().last().expect("a history is never empty");
    let told = gained == 1 && EventName::NOTIFIABLE.contains(&entry.event) && entry.event != EventName::Retried;
    let number = u32::try_from(after.history.len()).expect("a short history");
    let mut expected = before.outbox.clone();
    expected.extend(told.then(|| Notice { number, entry: entry.clone() }));
    let leave = match request {
        Request::HandOn => expected.len().min(2),
        _ => expected.len().saturating_sub(MAX_NOTICES),
    };
    assert_eq!(after.outbox, expected.split_off(leave), "{request:?}");
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

/// Returns a new seed, unless the environment names one, and prints it, so that a failure says how to repeat it.
fn seed() -> u64 {
    const VARIABLE: &str = "LEASEHOLD_TEST_SEED";
    let named = std::env::var(VARIABLE).ok().map(|seed| seed.parse().expect("the seed is a number"));
    let seed = named.unwrap_or_else(rand::random);
    println!("{VARIABLE}={seed} makes up the same again");
    seed
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 1_000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(seed()),
        ..ProptestConfig::default()
    })]

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
            holds_for_the_outbox(&run.job, &request, &after);
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
