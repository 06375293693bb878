//! What one claim is given, and what is kept for the first claim of a queue.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::*;
use crate::clock::AwakeClock;
use crate::job::{Change, Claim, LeaseProof};

/// A due job whose payload has this many bytes.
pub(super) fn of_bytes(id: &str, priority: i64, bytes: usize) -> Versioned {
    let mut large = job("a", id, priority, 0);
    let bytes = u32::try_from(bytes).expect("a length");
    Arc::make_mut(&mut large.job).payload = Body::Stored(BodyRef { id: BodyId(uuid::Uuid::new_v4()), bytes });
    large
}

#[test]
fn a_claim_that_states_resources_takes_the_most_urgent_of_all_its_queues_and_none_of_a_paused_one() {
    for names in [["a", "b", "c"], ["c", "b", "a"]] {
        let bench = bench(100, None);
        bench.know(&names);
        bench.pause(&["c"]);
        bench.dispatch.add([("a", 5), ("b", 9), ("c", 7)].map(|(name, priority)| job(name, name, priority, 0)));
        assert_eq!(bench.take_with(&names, 1, &[("memory", 4)]), ["b"]);
        assert_eq!(bench.take_with(&names, 9, &[("memory", 4)]), ["a"]);
    }
}

#[test]
fn what_one_claim_steps_over_is_not_stepped_over_by_those_that_are_served_with_it() {
    let bench = bench(2 * STEPS_PER_CLAIM, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..10).map(|number| needing("a", &format!("large-{number}"), 8)));
    let (queues, small, any) = (queues(&["a"]), resources(&[("memory", 4)]), Resources::new());
    let take = |mut steps: usize, resources: &Resources| {
        let labels = Offers::new();
        let wish = wish(&queues, 9, resources, &labels);
        let mut board = bench.dispatch.shared.board.lock();
        (board.take(&wish, Timestamp::from_millis(START), &mut steps).len(), steps)
    };
    for granted in [100, STEPS_PER_CLAIM, STEPS_PER_SERVING] {
        assert_eq!(take(granted, &small), (0, granted - 10));
    }
    assert_eq!(take(4, &any), (9, 4), "who takes any job steps over none");
}

#[test]
fn a_claim_is_given_only_jobs_whose_requirements_its_labels_meet() {
    let fpga = |id: &str, priority| requiring(job("a", id, priority, 0), "hw = fpga");
    let jobs = || [fpga("1", 9), job("a", "2", 5, 0), requiring(job("a", "3", 4, 0), "!hw"), fpga("4", 3)];
    let known = || {
        let bench = bench(100, None);
        bench.know(&["a"]);
        bench.dispatch.add(jobs());
        bench
    };
    let bench = known();
    assert_eq!(bench.take(&["a"], 9), ["2", "3"], "who offers nothing is given what requires nothing");
    assert_eq!(bench.take_offering(&["a"], 9, &[], &[("hw", "gpu")]), Vec::<String>::new());
    assert_eq!(bench.take_offering(&["a"], 9, &[], &[("hw", "fpga")]), ["1", "4"]);
    let bench = known();
    assert_eq!(bench.take_offering(&["a"], 9, &[("memory", 4)], &[("hw", "fpga")]), ["1", "2", "4"]);
    assert_eq!(bench.take_offering(&["a"], 9, &[("memory", 4)], &[]), ["3"]);
}

#[test]
fn a_worker_has_to_offer_both_the_labels_and_the_resources() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add([requiring(needing("a", "1", 8), "hw = fpga")]);
    assert!(bench.take_offering(&["a"], 9, &[("memory", 9)], &[("hw", "gpu")]).is_empty());
    assert!(bench.take_offering(&["a"], 9, &[("memory", 7)], &[("hw", "fpga")]).is_empty());
    assert_eq!(bench.take_offering(&["a"], 9, &[("memory", 9)], &[("hw", "fpga")]), ["1"]);
}

#[test]
fn a_claim_that_states_nothing_counts_the_candidates_that_require_a_label_as_stepped_over() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..10).map(|number| requiring(job("a", &format!("fpga-{number}"), 1, 0), "hw = fpga")));
    bench.dispatch.add((0..10).map(|number| job("a", &format!("any-{number}"), 0, 0)));
    let (queues, resources, labels) = (queues(&["a"]), Resources::new(), Offers::new());
    let take = |mut steps: usize| {
        let wish = wish(&queues, 4, &resources, &labels);
        let mut board = bench.dispatch.shared.board.lock();
        (board.take(&wish, Timestamp::from_millis(START), &mut steps).len(), steps)
    };
    assert_eq!(take(5), (0, 0), "it goes no further than it may");
    assert_eq!(take(100), (4, 90));
    assert_eq!(take(100), (4, 90));
}

#[tokio::test]
async fn waiting_claims_are_skipped_together_only_if_they_offer_the_same_labels() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let _in_vain =
        [bench.wait(&["a"], 1), bench.wait(&["a"], 1), bench.wait_offering(&["a"], 1, &[], &[("hw", "gpu")])];
    let mut fpga = bench.wait_offering(&["a"], 1, &[], &[("hw", "fpga")]);
    bench.dispatch.add([requiring(job("a", "1", 0, 0), "hw = fpga")]);
    assert_eq!(offered(&mut fpga).await, ["1"]);
    assert_eq!(bench.dispatch.waiting(), 3);
}

#[tokio::test]
async fn later_jobs_overtake_one_that_waits_for_the_worker_that_offers_its_label() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let mut waiting = bench.wait(&["a"], 1);
    bench.dispatch.add([requiring(job("a", "first", 9, 0), "hw = fpga"), job("a", "second", 0, 0)]);
    assert_eq!(offered(&mut waiting).await, ["second"]);
    assert_eq!(bench.take_offering(&["a"], 1, &[], &[("hw", "fpga")]), ["first"]);
}

#[test]
fn a_job_that_is_larger_than_an_answer_is_taken_alone() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add([of_bytes("1", 1, MAX_CLAIM_BYTES + 1), job("a", "2", 0, 0)]);
    assert_eq!(bench.take(&["a"], 9), ["1"]);
    assert_eq!(bench.take(&["a"], 9), ["2"]);
}

#[test]
fn where_searches_lag_some_jobs_are_kept_for_queues_that_no_claim_has_named_yet() {
    let bench = bench(1_000, Some(Duration::from_secs(1)));
    bench.dispatch.add((0..201).map(|number| job("a", &format!("{number:03}"), 0, 0)));
    // They go before nothing that a search finds. Now that the queue is known, it is given its whole room.
    assert!(bench.take(&["a"], 999).is_empty());
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("the rest is searched for");
    let due = (0..300).map(|number| job("a", &format!("more-{number}"), 0, 0)).collect();
    bench.dispatch.end_lookup(&queue("a"), &lookup, LookupResult { due, later: Vec::new() }, |_| true);
    assert_eq!(bench.take(&["a"], 999).len(), 500);
    bench.dispatch.add((1..=1_000).map(|number| job(&format!("q{number}"), "1", 0, 0)));
    bench.know(&["q999", "q1000"]);
    assert_eq!((bench.take(&["q999"], 1).len(), bench.take(&["q1000"], 1).len()), (1, 0), "there are 1,000 lanes");
}

#[test]
fn queues_count_as_claimed_from_while_claims_wait_and_for_a_time_after() {
    let bench = bench(100, Some(Duration::from_secs(1)));
    bench.know(&["a"]);
    bench.dispatch.add([job("nobody-claims-from", "1", 0, 0)]);
    let within = Duration::from_secs(30);
    bench.clock.advance(within);
    assert_eq!(bench.dispatch.claimed_within(within), queues(&["a"]));
    bench.clock.advance(Duration::from_millis(1));
    assert!(bench.dispatch.claimed_within(within).is_empty());
    let _waiting = bench.wait(&["a"], 1);
    bench.clock.advance(2 * within);
    assert_eq!(bench.dispatch.claimed_within(within), queues(&["a"]));
}

#[test]
fn a_job_that_waits_for_its_next_attempt_waits_for_awake_time() {
    let (wall, passed, start) =
        (Arc::new(ManualClock::at(Timestamp::from_millis(START))), Arc::new(AtomicU64::new(0)), Instant::now());
    let monotonic = {
        let passed = Arc::clone(&passed);
        move || start + Duration::from_millis(passed.load(Ordering::SeqCst))
    };
    let clock = Arc::new(AwakeClock::timed_by(Arc::clone(&wall) as Arc<dyn Clock>, Arc::new(monotonic)));
    let config = DispatchConfig { capacity: 10, page: 10, poll_interval: None };
    let dispatch = Dispatch::new(config, Arc::clone(&clock) as Arc<dyn Clock>);
    let bench = Bench { dispatch, clock: Arc::clone(&wall) };
    let pass = |wall_millis: u64, millis: u64| {
        wall.advance(Duration::from_millis(wall_millis));
        passed.fetch_add(millis, Ordering::SeqCst);
        clock.tick();
    };
    bench.know(&["q"]);
    bench.dispatch.add([failed("retried", 60_000), job("q", "scheduled", 50, 60_000)]);
    (0..100).for_each(|_| pass(100, 100));
    assert_eq!(bench.take(&["q"], 2), [""; 0]);
    // The clock is set forward, or the machine sleeps.
    pass(240_000, 100);
    assert_eq!(bench.take(&["q"], 2), ["scheduled"], "a time of the wall clock has come");
    (0..480).for_each(|_| pass(100, 100));
    assert_eq!(bench.take(&["q"], 2), [""; 0]);
    (0..20).for_each(|_| pass(100, 100));
    assert_eq!(bench.take(&["q"], 2), ["retried"]);
}

/// A job that has failed at the start, and waits for so many milliseconds.
fn failed(id: &str, wait: u64) -> Versioned {
    let Versioned { job, version } = job("q", id, 50, 0);
    let worker_id = WorkerId::new("w").expect("a name");
    let claim =
        Claim { worker_id, holder: None, request_id: None, term: Duration::from_secs(1), margin: Duration::ZERO };
    let now = Timestamp::from_millis(START);
    let claimed = job.claim(&claim, now).expect("claimed");
    let proof = LeaseProof { worker_id: claim.worker_id, fence: claimed.fence, bearer: None };
    let released = claimed.postpone(&proof, "later", Duration::from_millis(wait), now).expect("released");
    let Change::To(job) = released else { panic!("it is changed") };
    Versioned { job: Arc::new(*job), version }
}
