use std::collections::BTreeMap;

use super::*;
use crate::job::{
    Actor, Body, Claim, Conditions, Failure, Fence, JobError, JobId, JobSpec, Kind, LeaseProof, LimitName, Ordered,
    OrderingKey, Owner, Priority, QueueName, RetryPolicy, WorkerId,
};
use crate::manager::admin::queue_settings::{Fairness, Pause};
use crate::manager::limits::{SlotHolder, Urgent, Why};
use crate::store::Head;

/// 2030-01-01T00:00:00Z.
const START: i64 = 1_893_456_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_millis(START + seconds * 1000)
}

fn spec() -> JobSpec {
    JobSpec {
        expected_runtime: Some(Duration::from_secs(30)),
        max_attempts: 2,
        retry: RetryPolicy { base: Duration::from_secs(90), jitter: 0.0, ..RetryPolicy::default() },
        ..JobSpec::new(QueueName::new("q").expect("a name"), Kind::new("k").expect("a name"))
    }
}

fn submitted(spec: JobSpec, run_at: i64, expires_at: Option<i64>) -> Job {
    let id = JobId::new("j").expect("an id");
    Job::submit(id, Arc::new(spec), Body::Empty, (at(run_at), expires_at.map(at)), &Actor::system("ann"), at(0))
}

fn running(now: i64) -> Job {
    let worker_id = WorkerId::new("w").expect("a name");
    let claim =
        Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(60), margin: Duration::ZERO };
    submitted(spec(), 0, None).claim(&claim, at(now)).expect("claimed")
}

fn proof(job: &Job) -> LeaseProof {
    LeaseProof { worker_id: job.lease().expect("a lease").worker_id.clone(), fence: job.fence, bearer: None }
}

fn failed(job: &Job, now: i64) -> Job {
    let error = JobError { code: "exit".to_owned(), message: "exit status 1".to_owned() };
    let failure = Failure { error, retryable: true, retry_after: None, chance: 0.5 };
    match job.fail(&proof(job), &failure, at(now)).expect("failed") {
        crate::job::Change::To(job) => *job,
        crate::job::Change::Already => panic!("nothing changed"),
    }
}

#[test]
fn what_waits_for_a_named_time_says_that_the_clock_is_far_off() {
    let named = Facts { is_far_off: true, ..facts(submitted(spec(), 10, None), 20) };
    let explanation = explain(&named);
    assert!(!explanation.runnable);
    assert_eq!(explanation.reasons[0].code, "clock_far_off");
    let at_once = Facts { is_far_off: true, ..facts(submitted(spec(), 0, None), 20) };
    assert!(explain(&at_once).runnable, "it waits for no time");
}

/// A worker waits that has room for anything.
fn facts(job: Job, now: i64) -> Facts {
    let claimants = Claimants {
        last_at: Some(at(now)),
        lately: 1,
        of_kind: 1,
        able: 1,
        with_room: 1,
        waiting: 1,
        ..Claimants::default()
    };
    let settings = QueueSettings::default();
    Facts {
        job: Arc::new(job),
        now: at(now),
        is_far_off: false,
        listening_since: at(-100),
        settings,
        claimants,
        first_in_line: None,
        limits: Vec::new(),
        ahead: 0,
        ahead_of_owner: None,
    }
}

fn needing(memory: u64) -> Job {
    submitted(JobSpec { resources: [("memory_mib".to_owned(), memory)].into(), ..spec() }, 0, None)
}

fn said(facts: &Facts) -> Vec<String> {
    explain(facts).reasons.into_iter().map(|reason| reason.message).collect()
}

fn codes(facts: &Facts) -> Vec<String> {
    explain(facts).reasons.into_iter().map(|reason| reason.code).collect()
}

#[test]
fn a_job_that_nothing_holds_back_is_next() {
    let facts = facts(submitted(spec(), 0, None), 5);
    assert!(explain(&facts).runnable);
    assert_eq!(said(&facts), ["Nothing holds it back: a worker waits for jobs of the queue `q`, and it is next."]);
}

#[test]
fn a_job_that_is_not_due_says_when_it_is() {
    let facts = facts(submitted(spec(), 3_900, None), 0);
    assert!(!explain(&facts).runnable);
    assert_eq!(said(&facts), ["It is not due until 2030-01-01T01:05:00.000Z, in 1 h 5 min."]);
}

#[test]
fn a_job_between_two_attempts_says_how_the_last_one_failed() {
    let facts = facts(failed(&running(0), 10), 40);
    let expected = "Its attempt 1 of 2 failed (exit: exit status 1); the next one is due at \
                    2030-01-01T00:01:40.000Z, in 1 min.";
    assert_eq!(said(&facts), [expected]);
}

#[test]
fn a_paused_queue_is_named_with_who_since_when_and_why() {
    let pause = Pause { since: at(2), by: Actor::system("ann"), reason: Some("the printer burns".to_owned()) };
    let settings = QueueSettings { paused: Some(pause), ..QueueSettings::default() };
    let facts = Facts { settings, ..facts(submitted(spec(), 0, None), 5) };
    assert!(!explain(&facts).runnable);
    let expected = "The queue `q` is paused by ann since 2030-01-01T00:00:02.000Z: the printer burns.";
    assert_eq!(said(&facts), [expected]);
}

#[test]
fn a_limit_without_a_slot_is_named_with_the_jobs_that_run() {
    let running = |count: u64| -> Vec<SlotHolder> {
        let holder = |number| SlotHolder {
            job_id: JobId::new(format!("j{number}")).expect("an id"),
            fence: Fence::new(1),
            max_concurrent: None,
            priority: Priority::default(),
        };
        (1..=count).map(holder).collect()
    };
    let limit: LimitName = "key:db".parse().expect("a limit");
    let reached = |most: u32| Reached { limit: limit.clone(), why: Why::Full(most, running(most.into())) };
    let facts = |most| Facts { limits: vec![reached(most)], ..facts(submitted(spec(), 0, None), 5) };
    assert!(!explain(&facts(2)).runnable);
    assert_eq!(said(&facts(2))[0], "The limit `key:db` lets 2 run at once, and so many do: j1, j2.");
    let many = &said(&facts(12))[0];
    assert!(many.ends_with("and so many do: j1, j2, j3, j4, j5, j6, j7, j8, j9, j10 and 2 more."), "{many}");
    let reason = explain(&facts(1)).reasons.remove(0);
    let evidence = json!({ "limit": "key:db", "max_concurrent": 1, "running": 1, "jobs": ["j1"] });
    assert_eq!((reason.code.as_str(), Value::Object(reason.evidence)), ("limit_reached", evidence));
}

#[test]
fn a_job_that_comes_after_another_one_in_a_line_names_it_and_the_key() {
    let ordering = Some(Ordered { key: OrderingKey::new("account-7").expect("a key"), seq: 2, first: 2 });
    let conditions = Conditions { ordering, ..Conditions::default() }.stored();
    let job = submitted(JobSpec { conditions, ..spec() }, 0, None);
    let first = |state| Some(Head { job: JobId::new("j1").expect("an id"), seq: 1, state });
    let facts = |state| Facts { first_in_line: first(state), ..facts(job.clone(), 5) };
    for (state, what) in [(JobState::Running, "runs"), (JobState::Available, "waits")] {
        assert!(!explain(&facts(state)).runnable);
        let expected = format!(
            "The jobs of the ordering key `account-7` run one after another, and j1, which {what}, comes before it."
        );
        assert_eq!(said(&facts(state)), [expected]);
    }
    let reason = explain(&facts(JobState::Running)).reasons.remove(0);
    let evidence = json!({ "ordering_key": "account-7", "job": "j1", "job_state": "running" });
    assert_eq!((reason.code.as_str(), Value::Object(reason.evidence)), ("behind_in_line", evidence));
}

#[test]
fn where_shorter_jobs_go_first_those_ahead_are_said_to() {
    let settings = QueueSettings { order: JobOrder::Shortest, ..QueueSettings::default() };
    let facts = Facts { settings, ahead: 3, ..facts(submitted(spec(), 0, None), 5) };
    let expected = "3 due jobs go before it in the queue `q`, where shorter jobs go first.";
    assert!(said(&facts).iter().any(|said| said == expected), "{:?}", said(&facts));
}

#[test]
fn places_that_are_kept_free_for_urgent_work_are_named() {
    let urgent = Urgent { places: 2, min_priority: Priority::new(50).expect("a priority") };
    let limit: LimitName = "queue:q".parse().expect("a limit");
    let running = vec![SlotHolder {
        job_id: JobId::new("j1").expect("an id"),
        fence: Fence::new(1),
        max_concurrent: None,
        priority: Priority::default(),
    }];
    let limits = vec![Reached { limit, why: Why::KeptFree(1, urgent, running) }];
    let facts = Facts { limits, ..facts(submitted(spec(), 0, None), 5) };
    assert_eq!(
        said(&facts)[0],
        "The limit `queue:q` lets 1 run at once below the priority 50, and so many do; 2 places are kept free for \
         urgent work."
    );
    let reason = explain(&facts).reasons.remove(0);
    let evidence = json!({
        "limit": "queue:q", "urgent": {"places": 2, "min_priority": 50}, "max_others": 1, "running": 1, "jobs": ["j1"],
    });
    assert_eq!((reason.code.as_str(), Value::Object(reason.evidence)), ("kept_free_for_urgent", evidence));
}

#[test]
fn a_queue_that_nobody_asks_for_is_told_from_one_that_nobody_asks_for_any_more() {
    let never = Facts { claimants: Claimants::default(), ..facts(submitted(spec(), 0, None), 5) };
    let expected = "No worker has tried to claim jobs of the queue `q` here since this server started, \
                    2029-12-31T23:58:20.000Z.";
    assert_eq!(said(&never), [expected]);
    let claimants = Claimants { last_at: Some(at(5)), ..Claimants::default() };
    let lately = Facts { claimants, ..facts(submitted(spec(), 0, None), 3_605) };
    let expected = "No worker has tried to claim jobs of the queue `q` here since 2030-01-01T00:00:05.000Z, 1 h ago.";
    assert_eq!(said(&lately), [expected]);
}

#[test]
fn a_job_that_is_too_large_for_every_worker_says_what_the_largest_offers() {
    let most_offered = [("memory_mib".to_owned(), 2048)].into();
    let claimants =
        Claimants { last_at: Some(at(5)), lately: 3, of_kind: 3, able: 3, most_offered, ..Claimants::default() };
    let facts = Facts { claimants, ..facts(needing(4096), 5) };
    let expected = "It needs more than any worker that claims jobs of the queue `q` offers: 4096 of memory_mib, \
                    where the most that any offers is 2048.";
    assert_eq!(said(&facts), [expected]);
}

#[test]
fn a_job_of_a_kind_that_no_worker_takes_says_so() {
    let claimants = Claimants { last_at: Some(at(5)), lately: 3, ..Claimants::default() };
    let facts = Facts { claimants, ..facts(submitted(spec(), 0, None), 5) };
    let kind = &spec().kind;
    assert_eq!(
        said(&facts),
        [format!("No worker that claims jobs of the queue `q` takes those of the kind `{kind}`.")]
    );
    let reason = explain(&facts).reasons.remove(0);
    let evidence = json!({ "queue": "q", "kind": kind, "workers": 3 });
    assert_eq!((reason.code.as_str(), Value::Object(reason.evidence)), ("kind_not_taken", evidence));
}

#[test]
fn a_job_says_which_of_its_requirements_no_worker_meets() {
    let texts = ["hw = fpga", "os in (linux, darwin)", "!gpu"];
    let requires = texts.map(|text| text.parse().expect("a requirement")).to_vec();
    let conditions = Conditions { requires: requires.clone(), ..Conditions::default() }.stored();
    let job = submitted(JobSpec { conditions, resources: [("gpus".to_owned(), 2)].into(), ..spec() }, 0, None);
    let of = |claimants| Facts { claimants, ..facts(job.clone(), 5) };
    let none = Claimants { last_at: Some(at(5)), lately: 3, of_kind: 3, ..Claimants::default() };
    let unmet = of(Claimants { unmet: requires[..2].to_vec(), ..none.clone() });
    let expected = "No worker that claims jobs of the queue `q` offers hw = fpga; os in (linux, darwin).";
    assert_eq!(said(&unmet), [expected]);
    let reason = explain(&unmet).reasons.remove(0);
    let evidence = json!({ "requires": texts, "not_met": texts[..2], "workers": 3 });
    assert_eq!((reason.code.as_str(), Value::Object(reason.evidence)), ("requirements_not_met", evidence));
    let expected = "No worker that claims jobs of the queue `q` offers all that it requires: hw = fpga; \
                    os in (linux, darwin); !gpu.";
    assert_eq!(said(&of(none.clone())), [expected]);
    let expected = "It needs more than any worker that claims jobs of the queue `q` and meets its requirements offers: \
                    2 of gpus, where the most that any offers is 0.";
    assert_eq!(said(&of(Claimants { able: 1, ..none })), [expected]);
}

#[test]
fn a_job_whose_workers_have_their_hands_full_says_so_and_how_many_go_before_it() {
    let claimants =
        Claimants { last_at: Some(at(5)), lately: 2, of_kind: 2, able: 2, with_room: 2, ..Claimants::default() };
    let busy = Facts { claimants, ahead: 12, ..facts(submitted(spec(), 0, None), 5) };
    assert!(explain(&busy).runnable);
    let expected = [
        "None of the workers that take jobs of the queue `q` waits for one now; 2 claimed lately.",
        "12 due jobs go before it in the queue `q`.",
    ];
    assert_eq!(said(&busy), expected);
    let many = explain(&Facts { ahead: MAX_AHEAD, ..busy }).reasons.pop().expect("a reason");
    assert_eq!(many.message, "At least 1000 due jobs go before it in the queue `q`.");
    assert_eq!((&many.evidence["ahead"], &many.evidence["at_least"]), (&json!(1000), &json!(true)));
}

#[test]
fn a_start_deadline_is_told_before_it_passes_and_after() {
    let job = submitted(spec(), 0, Some(60));
    let before = facts(job.clone(), 15);
    assert!(explain(&before).runnable);
    assert_eq!(said(&before)[1], "It expires unless it is started by 2030-01-01T00:01:00.000Z, in 45 s.");
    let after = facts(job, 60);
    assert!(!explain(&after).runnable);
    assert_eq!(codes(&after), ["start_deadline_passed"]);
}

#[test]
fn a_running_job_says_who_runs_it_and_that_all_is_well_or_not() {
    let well = facts(running(0), 5);
    let expected = "The worker w runs it since 2030-01-01T00:00:00.000Z, attempt 1 of 2; its last sign of life was 5 s \
                    ago, at 2030-01-01T00:00:00.000Z.";
    assert_eq!(said(&well), [expected]);
    assert!(!explain(&well).runnable);
    let late = facts(running(0), 90);
    assert_eq!(codes(&late), ["running", "lease_expired", "overdue"]);
    assert_eq!(said(&late)[2], "It was expected to end by 2030-01-01T00:00:30.000Z, 1 min ago.");
}

#[test]
fn a_running_job_that_is_to_stop_says_since_when() {
    let asked = match running(0).cancel(&Actor::system("ann"), None, at(3)).expect("asked") {
        crate::job::Change::To(job) => *job,
        crate::job::Change::Already => panic!("nothing changed"),
    };
    let expected = "Its worker is asked to stop since 2030-01-01T00:00:03.000Z, 2 s ago.";
    assert_eq!(said(&facts(asked, 5))[1], expected);
}

#[test]
fn a_job_that_has_ended_says_when_and_why() {
    let first = failed(&running(0), 10);
    let worker_id = WorkerId::new("w").expect("a name");
    let claim =
        Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(60), margin: Duration::ZERO };
    let given_up = failed(&first.claim(&claim, at(200)).expect("claimed"), 210);
    let expected = "It failed at 2030-01-01T00:03:30.000Z by w at attempt 2 of 2 (exit: exit status 1).";
    assert_eq!(said(&facts(given_up, 300)), [expected]);
    let cancelled = match submitted(spec(), 0, None).cancel(&Actor::system("ann"), Some("not needed".to_owned()), at(4))
    {
        Ok(crate::job::Change::To(job)) => *job,
        other => panic!("not cancelled: {other:?}"),
    };
    assert_eq!(said(&facts(cancelled, 5)), ["It was cancelled at 2030-01-01T00:00:04.000Z by ann: not needed."]);
}

#[test]
fn durations_are_told_in_their_two_largest_units() {
    for (millis, words) in
        [(7, "7 ms"), (1_999, "1 s"), (61_000, "1 min 1 s"), (7_200_000, "2 h"), (90_000_000, "1 d 1 h")]
    {
        assert_eq!(in_words(Duration::from_millis(millis)), words);
    }
}

#[test]
fn in_a_queue_whose_owners_take_turns_only_the_owners_own_jobs_go_before_it() {
    let of_team = JobSpec { owner: Some(Owner::new("team-a").expect("a name")), ..spec() };
    let weights = BTreeMap::from([(Owner::new("team-a").expect("a name"), 3)]);
    let settings = QueueSettings { fairness: Fairness::Owner, weights, ..QueueSettings::default() };
    let ahead =
        Facts { settings, ahead: 700, ahead_of_owner: Some(2), ..facts(submitted(of_team.clone(), 0, None), 5) };
    let turns = explain(&ahead).reasons.pop().expect("a reason");
    assert_eq!(
        (turns.code.as_str(), turns.message.as_str()),
        (
            "fair_share",
            "2 due jobs of `team-a` go before it in the queue `q`, whose owners take turns: others' go in between."
        )
    );
    assert_eq!((&turns.evidence["ahead_of_owner"], &turns.evidence["weight"]), (&json!(2), &json!(3)));
    let nobodys = Facts { job: Arc::new(submitted(spec(), 0, None)), ahead_of_owner: Some(0), ..ahead };
    let turns = explain(&nobodys).reasons.pop().expect("a reason");
    assert!(turns.message.starts_with("No due job without an owner goes before it"), "{}", turns.message);
    assert_eq!(turns.evidence["weight"], json!(1));
}
