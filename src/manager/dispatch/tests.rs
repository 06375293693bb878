use std::sync::Arc;
use std::time::Duration;

use super::board::MAX_CLAIM_BYTES;
use super::lane::LANE_IDLE;
use super::*;
use crate::clock::ManualClock;
use crate::job::{Actor, Body, BodyId, BodyRef, Conditions, Job, JobSpec, Kind, Offers, Priority, WorkerId};
use crate::manager::request::{ClaimOrder, ClaimRequest};
use crate::store::{Place, Version};

const START: i64 = 1_000_000;

struct Bench {
    clock: Arc<ManualClock>,
    dispatch: Dispatch,
}

fn bench(capacity: usize, poll_interval: Option<Duration>) -> Bench {
    let clock = Arc::new(ManualClock::at(Timestamp::from_millis(START)));
    let config = DispatchConfig { capacity, page: capacity, poll_interval };
    Bench { dispatch: Dispatch::new(config, Arc::clone(&clock) as Arc<dyn Clock>), clock }
}

fn queue(name: &str) -> QueueName {
    QueueName::new(name).expect("a name")
}

/// A waiting job, due `after` milliseconds from the start.
fn job(queue_name: &str, id: &str, priority: i64, after: i64) -> Versioned {
    let spec = JobSpec {
        priority: Priority::new(priority).expect("a priority"),
        ..JobSpec::new(queue(queue_name), Kind::new("k").expect("a name"))
    };
    let run_at = Timestamp::from_millis(START + after);
    let (id, now) = (JobId::new(id).expect("an id"), Timestamp::from_millis(START + after.min(0)));
    let job = Job::submit(id, Arc::new(spec), Body::Empty, (run_at, None), &Actor::system("test"), now);
    Versioned { job: Arc::new(job), version: Version { place: Place::Main, primary_term: 1, seq_no: 1 } }
}

impl Bench {
    /// Makes the queues known as empty, as a search that found nothing does.
    fn know(&self, names: &[&str]) {
        for name in names {
            let queue = queue(name);
            assert_eq!(self.dispatch.stale(std::slice::from_ref(&queue)), [&queue]);
            let lookup = self.dispatch.begin_lookup(&queue).expect("a search is needed");
            self.dispatch.end_lookup(&queue, &lookup, LookupResult { due: Vec::new(), later: Vec::new() }, |_| true);
        }
    }

    fn take(&self, names: &[&str], max_jobs: usize) -> Vec<String> {
        self.take_with(names, max_jobs, &[])
    }

    fn wait(&self, names: &[&str], max_jobs: usize) -> WaitingClaim {
        self.wait_with(names, max_jobs, &[])
    }

    fn take_with(&self, names: &[&str], max_jobs: usize, offered: &[(&str, u64)]) -> Vec<String> {
        self.take_offering(names, max_jobs, offered, &[])
    }

    fn wait_with(&self, names: &[&str], max_jobs: usize, offered: &[(&str, u64)]) -> WaitingClaim {
        self.wait_offering(names, max_jobs, offered, &[])
    }

    fn take_offering(
        &self,
        names: &[&str],
        max_jobs: usize,
        offered: &[(&str, u64)],
        labels: &[(&str, &str)],
    ) -> Vec<String> {
        let (queues, resources, labels) = (queues(names), resources(offered), offers(labels));
        self.dispatch
            .take(&wish(&queues, max_jobs, &resources, &labels))
            .map_or_else(Vec::new, |offer| ids(offer.take()))
    }

    fn wait_offering(
        &self,
        names: &[&str],
        max_jobs: usize,
        offered: &[(&str, u64)],
        labels: &[(&str, &str)],
    ) -> WaitingClaim {
        self.wait_in(ClaimOrder::Dispatch, names, max_jobs, offered, labels)
    }

    fn wait_in(
        &self,
        order: ClaimOrder,
        names: &[&str],
        max_jobs: usize,
        offered: &[(&str, u64)],
        labels: &[(&str, &str)],
    ) -> WaitingClaim {
        let request = ClaimRequest {
            worker_id: WorkerId::system("worker"),
            bearer: None,
            queues: queues(names),
            max_jobs,
            resources: resources(offered),
            labels: offers(labels),
            kinds: Vec::new(),
            wait: Duration::from_secs(60),
            lease: Duration::from_secs(60),
            order,
            request_id: None,
            repeated: false,
        };
        let claimant = Claimant { request: Arc::new(request), call: None };
        self.dispatch.take_or_wait(&claimant).err().expect("nothing to take")
    }

    fn pause(&self, names: &[&str]) {
        self.dispatch.hold_back(queues(names).into_iter().collect());
    }
}

/// A wish in the order of dispatch.
fn wish<'a>(queues: &'a [QueueName], max_jobs: usize, resources: &'a Resources, labels: &'a Offers) -> Wish<'a> {
    Wish { queues, max_jobs, resources, labels, kinds: &[], order: &ClaimOrder::Dispatch }
}

fn queues(names: &[&str]) -> Vec<QueueName> {
    names.iter().map(|name| queue(name)).collect()
}

fn resources(named: &[(&str, u64)]) -> Resources {
    named.iter().map(|(name, amount)| ((*name).to_owned(), *amount)).collect()
}

fn offers(named: &[(&str, &str)]) -> Offers {
    named.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

/// A job that requires this of a worker.
fn requiring(mut job: Versioned, requirement: &str) -> Versioned {
    let requires = vec![requirement.parse().expect("a requirement")];
    let spec = &mut Arc::make_mut(&mut job.job).spec;
    Arc::make_mut(spec).conditions = Conditions { requires, ..Conditions::default() }.stored();
    job
}

/// A due job that needs this much memory.
fn needing(queue_name: &str, id: &str, memory: u64) -> Versioned {
    let mut needing = job(queue_name, id, 0, 0);
    let job = Arc::make_mut(&mut needing.job);
    Arc::make_mut(&mut job.spec).resources = resources(&[("memory", memory)]);
    needing
}

fn ids(candidates: Vec<Versioned>) -> Vec<String> {
    candidates.into_iter().map(|candidate| candidate.job.id.to_string()).collect()
}

async fn offered(waiting: &mut WaitingClaim) -> Vec<String> {
    match waiting.handed().await {
        Some(Handed::Offer(offer)) => ids(offer.take()),
        _ => panic!("no offer"),
    }
}

#[test]
fn jobs_go_out_by_priority_then_time_then_id_across_queues() {
    let bench = bench(100, None);
    bench.know(&["a", "b"]);
    bench.dispatch.add([
        job("a", "late", 0, -1),
        job("a", "early-2", 0, -5),
        job("b", "early-1", 0, -5),
        job("b", "urgent", 9, 0),
        job("a", "idle", -3, -9),
    ]);
    assert_eq!(bench.take(&["a", "b"], 10), ["urgent", "early-1", "early-2", "late", "idle"]);
}

#[test]
fn a_job_that_is_out_is_not_offered_twice_until_it_is_settled() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    assert_eq!(bench.take(&["a"], 1), ["1"]);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    assert!(bench.take(&["a"], 1).is_empty());
    bench.dispatch.settle(&JobId::new("1").expect("an id"), Some(job("a", "1", 0, 0)));
    assert_eq!(bench.take(&["a"], 1), ["1"]);
}

#[test]
fn an_offer_that_is_dropped_gives_its_jobs_back() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add([job("a", "1", 0, 0), job("a", "2", 0, 0)]);
    let (queues, resources) = (queues(&["a"]), Resources::new());
    drop(bench.dispatch.take(&wish(&queues, 2, &resources, &Offers::new())));
    assert_eq!(bench.take(&["a"], 2), ["1", "2"]);
}

#[tokio::test]
async fn those_who_wait_are_served_in_the_order_they_came() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let mut first = bench.wait(&["a"], 1);
    let mut second = bench.wait(&["a"], 2);
    bench.dispatch.add([job("a", "1", 0, 0), job("a", "2", 0, 0), job("a", "3", 0, 0), job("a", "4", 0, 0)]);
    assert_eq!(offered(&mut first).await, ["1"]);
    assert_eq!(offered(&mut second).await, ["2", "3"]);
    assert_eq!(bench.take(&["a"], 9), ["4"]);
    assert_eq!(bench.dispatch.waiting(), 0);
}

#[tokio::test]
async fn a_claim_that_went_away_takes_no_job() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let gone = bench.wait(&["a"], 1);
    let mut there = bench.wait(&["a"], 1);
    drop(gone);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    assert_eq!(offered(&mut there).await, ["1"]);
}

#[tokio::test]
async fn a_claim_that_goes_away_with_an_offer_in_hand_passes_it_on() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let first = bench.wait(&["a"], 1);
    let mut second = bench.wait(&["a"], 1);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    drop(first);
    assert_eq!(offered(&mut second).await, ["1"]);
}

#[tokio::test]
async fn a_job_due_later_goes_out_at_its_moment_and_not_before() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let mut waiting = bench.wait(&["a"], 1);
    bench.dispatch.add([job("a", "1", 0, 500)]);
    assert_eq!(bench.dispatch.plan().wake_at, Timestamp::from_millis(START + 500));
    bench.clock.advance(Duration::from_millis(499));
    bench.dispatch.plan();
    assert_eq!(bench.dispatch.waiting(), 1);
    bench.clock.advance(Duration::from_millis(1));
    bench.dispatch.plan();
    assert_eq!(offered(&mut waiting).await, ["1"]);
}

#[test]
fn a_lane_that_overflows_keeps_the_most_urgent_and_is_looked_up_again_when_it_runs_low() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..10).map(|number| job("a", &format!("{number}"), number, 0)));
    assert_eq!(bench.take(&["a"], 4), ["9", "8", "7", "6"]);
    let a = queue("a");
    assert_eq!(bench.dispatch.stale(std::slice::from_ref(&a)), [&a]);
}

#[test]
fn a_job_that_did_not_fit_is_not_overtaken_by_those_that_come_later() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..6).map(|number| job("a", &format!("{number}"), 0, number - 100)));
    assert_eq!(bench.take(&["a"], 2), ["0", "1"]);
    bench.dispatch.add([job("a", "late", 0, 0), job("a", "urgent", 5, 0)]);
    assert_eq!(bench.take(&["a"], 9), ["urgent", "2", "3"]);
    let a = queue("a");
    assert_eq!(bench.dispatch.stale(std::slice::from_ref(&a)), [&a]);
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    let due = vec![job("a", "4", 0, -96), job("a", "5", 0, -95), job("a", "late", 0, 0)];
    bench.dispatch.end_lookup(&a, &lookup, LookupResult { due, later: Vec::new() }, |_| true);
    assert_eq!(bench.take(&["a"], 9), ["4", "5", "late"]);
}

#[test]
fn on_a_store_of_its_own_an_empty_queue_is_not_searched_for_again() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    assert!(bench.dispatch.stale(&[queue("a")]).is_empty());
    bench.clock.advance(Duration::from_secs(30));
    assert!(bench.dispatch.stale(&[queue("a")]).is_empty());
}

#[test]
fn where_others_write_a_queue_is_searched_for_again_after_the_poll_interval() {
    let bench = bench(4, Some(Duration::from_millis(500)));
    bench.know(&["a"]);
    assert!(bench.dispatch.stale(&[queue("a")]).is_empty());
    bench.clock.advance(Duration::from_millis(500));
    let a = queue("a");
    assert_eq!(bench.dispatch.stale(std::slice::from_ref(&a)), [&a]);
}

#[test]
fn a_search_that_was_cut_off_goes_on_where_it_stopped() {
    let bench = bench(2, Some(Duration::from_millis(500)));
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    let due = vec![job("a", "1", 5, 0), job("a", "2", 4, 0)];
    bench.dispatch.end_lookup(&a, &lookup, LookupResult { due, later: Vec::new() }, |_| true);
    assert_eq!(bench.take(&["a"], 2), ["1", "2"]);
    let next = bench.dispatch.begin_lookup(&a).expect("there is more");
    assert_eq!(next.resume, Some(Sort::Dispatch.key(&job("a", "2", 4, 0).job)));
}

#[test]
fn hits_that_are_known_to_have_moved_on_are_not_offered() {
    let bench = bench(4, Some(Duration::from_millis(500)));
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    let due = vec![job("a", "1", 0, 0), job("a", "2", 0, 0)];
    bench.dispatch.end_lookup(&a, &lookup, LookupResult { due, later: Vec::new() }, |hit| hit.job.id.as_str() != "1");
    assert_eq!(bench.take(&["a"], 9), ["2"]);
}

#[test]
fn a_cancelled_job_is_forgotten() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    let jobs = [job("a", "now", 0, 0), job("a", "later", 0, 50)];
    bench.dispatch.add(jobs.clone());
    bench.dispatch.remove(jobs.iter().map(|added| &*added.job));
    bench.clock.advance(Duration::from_secs(1));
    assert!(bench.take(&["a"], 9).is_empty());
}

#[test]
fn one_claim_takes_no_more_payload_than_fits_an_answer() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let large = |id: &str| {
        let mut large = job("a", id, 0, 0);
        let bytes = u32::try_from(MAX_CLAIM_BYTES / 2).expect("a length");
        let reference = BodyRef { id: BodyId(uuid::Uuid::new_v4()), bytes };
        Arc::make_mut(&mut large.job).payload = Body::Stored(reference);
        large
    };
    bench.dispatch.add([large("1"), large("2"), large("3")]);
    assert_eq!(bench.take(&["a"], 9), ["1", "2"]);
    assert_eq!(bench.take(&["a"], 9), ["3"]);
}

#[test]
fn queues_that_nobody_asks_for_are_forgotten() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    bench.dispatch.add([job("a", "1", 0, 0)]);
    bench.clock.advance(LANE_IDLE);
    bench.dispatch.plan();
    assert!(bench.dispatch.shared.board.lock().lanes.is_empty());
}

#[tokio::test]
async fn a_paused_queues_jobs_are_offered_to_nobody_and_go_out_at_once_when_it_is_resumed() {
    let bench = bench(100, None);
    bench.know(&["a", "b"]);
    bench.pause(&["a"]);
    let mut waiting = bench.wait(&["a"], 2);
    bench.dispatch.add([job("a", "1", 9, 0), job("a", "2", 0, 50), job("b", "3", 0, 0)]);
    assert_eq!(bench.take(&["a", "b"], 9), ["3"]);
    bench.clock.advance(Duration::from_millis(50));
    assert!(bench.dispatch.plan().lookups.is_empty());
    assert_eq!(bench.dispatch.waiting(), 1);
    bench.pause(&[]);
    assert_eq!(offered(&mut waiting).await, ["1", "2"]);
}

#[test]
fn a_paused_queue_that_is_waited_for_is_not_searched_for_until_it_is_resumed() {
    let bench = bench(4, Some(Duration::from_millis(500)));
    bench.pause(&["a"]);
    let _waiting = bench.wait(&["a"], 1);
    let plan = bench.dispatch.plan();
    assert!(plan.lookups.is_empty() && plan.wake_at > Timestamp::from_millis(START));
    assert!(bench.dispatch.stale(&queues(&["a"])).is_empty());
    bench.pause(&["b"]);
    assert_eq!(bench.dispatch.plan().lookups, queues(&["a"]));
}

#[test]
fn a_job_that_needs_more_than_is_offered_does_not_block_those_behind_it() {
    let bench = bench(100, None);
    bench.know(&["a", "b"]);
    bench.dispatch.add([needing("a", "1", 8), needing("a", "2", 4), needing("b", "3", 9), job("b", "4", 0, 0)]);
    assert_eq!(bench.take_with(&["a", "b"], 1, &[("memory", 4)]), ["2"]);
    assert_eq!(bench.take_with(&["a", "b"], 9, &[("disk", 100)]), ["4"]);
    assert_eq!(bench.take(&["a", "b"], 9), ["1", "3"], "who states nothing takes anything");
}

#[test]
fn the_jobs_of_one_claim_fit_into_what_is_offered_together() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    bench.dispatch.add([needing("a", "1", 6), needing("a", "2", 6), needing("a", "3", 4), needing("a", "4", 1)]);
    assert_eq!(bench.take_with(&["a"], 9, &[("memory", 10)]), ["1", "3"]);
    assert_eq!(bench.take_with(&["a"], 9, &[("memory", 10)]), ["2", "4"]);
}

#[tokio::test]
async fn a_job_passes_those_who_wait_without_room_for_it_and_they_keep_their_place() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let mut small = bench.wait_with(&["a"], 1, &[("memory", 4)]);
    let mut small_too = bench.wait_with(&["a"], 1, &[("memory", 4)]);
    let mut large = bench.wait_with(&["a"], 1, &[("memory", 16)]);
    bench.dispatch.add([needing("a", "1", 8)]);
    assert_eq!(offered(&mut large).await, ["1"]);
    bench.dispatch.add([needing("a", "2", 4)]);
    assert_eq!(offered(&mut small).await, ["2"]);
    bench.dispatch.add([needing("a", "3", 9), job("a", "4", 0, 0)]);
    assert_eq!(offered(&mut small_too).await, ["4"]);
}

#[test]
fn a_claim_steps_over_a_bounded_number_of_jobs_that_do_not_fit() {
    let bench = bench(2 * STEPS_PER_CLAIM, None);
    bench.know(&["a"]);
    bench.dispatch.add((0..STEPS_PER_CLAIM).map(|number| needing("a", &format!("large-{number:05}"), 8)));
    bench.dispatch.add([job("a", "small", -1, 0)]);
    assert!(bench.take_with(&["a"], 1, &[("memory", 4)]).is_empty());
    bench.take(&["a"], 1);
    assert_eq!(bench.take_with(&["a"], 1, &[("memory", 4)]), ["small"]);
}

#[test]
fn a_claim_that_went_away_is_no_longer_counted_as_waiting() {
    let bench = bench(100, None);
    bench.know(&["a"]);
    let waiting = bench.wait(&["a"], 1);
    assert_eq!(bench.dispatch.waiting(), 1);
    drop(waiting);
    assert_eq!(bench.dispatch.waiting(), 0);
}

#[test]
fn a_search_that_failed_and_a_write_that_may_or_may_not_be_done_have_the_store_searched_again() {
    let bench = bench(100, None);
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    assert!(bench.dispatch.stale(std::slice::from_ref(&a)).is_empty());
    bench.dispatch.fail_lookup(&a, &lookup);
    assert_eq!(bench.dispatch.begin_lookup(&a).expect("it is made again").later, lookup.later);
    bench.dispatch.fail_lookup(&a, &lookup);
    bench.know(&["a"]);
    bench.dispatch.mark_incomplete(&a);
    bench.know(&["a"]);
    assert!(bench.dispatch.stale(&[a]).is_empty());
}

#[test]
fn where_others_write_later_jobs_are_searched_for_again_the_poll_interval_after_a_failure() {
    let bench = bench(100, Some(Duration::from_millis(500)));
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    bench.dispatch.fail_lookup(&a, &lookup);
    let _waiting = bench.wait(&["a"], 1);
    assert_eq!(bench.dispatch.plan().wake_at, Timestamp::from_millis(START + 500));
    assert!(bench.dispatch.stale(std::slice::from_ref(&a)).is_empty());
    bench.clock.advance(Duration::from_millis(500));
    assert!(bench.dispatch.begin_lookup(&a).expect("a search is needed").later.is_some());
}

#[test]
fn a_search_that_was_cut_off_long_ago_starts_again_with_the_most_urgent_jobs() {
    let bench = bench(2, Some(Duration::from_millis(500)));
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    let due = vec![job("a", "1", 5, 0), job("a", "2", 4, 0)];
    bench.dispatch.end_lookup(&a, &lookup, LookupResult { due, later: Vec::new() }, |_| true);
    bench.clock.advance(RESTART);
    assert_eq!(bench.dispatch.begin_lookup(&a).expect("a search is needed").resume, None);
}

#[test]
fn later_jobs_that_there_was_no_room_for_are_searched_for_when_the_last_known_one_is_due() {
    let bench = bench(2, None);
    let a = queue("a");
    let lookup = bench.dispatch.begin_lookup(&a).expect("a search is needed");
    let later = vec![job("a", "1", 0, 1_000), job("a", "2", 0, 2_000)];
    bench.dispatch.end_lookup(&a, &lookup, LookupResult { due: Vec::new(), later }, |_| true);
    assert!(bench.dispatch.stale(std::slice::from_ref(&a)).is_empty());
    bench.clock.advance(Duration::from_secs(2));
    assert_eq!(bench.dispatch.stale(std::slice::from_ref(&a)), [&a]);
}

mod claims;
mod elsewhere;
mod kinds;
mod overview;
mod queue_order;
mod reserve;
mod searches;
mod starvation;
mod turns;
