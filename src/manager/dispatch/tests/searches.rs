//! When the store is searched for a queue's jobs, from where on, and what a lane keeps of what was found.

use futures::FutureExt;

use super::*;

const INTERVAL: Duration = Duration::from_millis(500);

/// The time so many milliseconds from the start.
fn at(after: i64) -> Timestamp {
    Timestamp::from_millis(START + after)
}

/// A dispatch whose searches return fewer jobs than a lane keeps.
fn bench_with_pages(capacity: usize, page: usize, poll_interval: Option<Duration>) -> Bench {
    let clock = Arc::new(ManualClock::at(at(0)));
    let config = DispatchConfig { capacity, page, poll_interval };
    Bench { dispatch: Dispatch::new(config, Arc::clone(&clock) as Arc<dyn Clock>), clock }
}

/// Jobs of equal priority, each named after the milliseconds from the start at which it is due.
fn due_at<const COUNT: usize>(times: [i64; COUNT]) -> [Versioned; COUNT] {
    times.map(|after| job("a", &format!("at{after}"), 0, after))
}

impl Bench {
    /// Returns whether a claim searches the store before it is answered with no jobs.
    fn is_stale(&self) -> bool {
        !self.dispatch.stale(&queues(&["a"])).is_empty()
    }

    /// Makes a search that finds these jobs, and returns what it searched for.
    fn search(&self, due: &[Versioned], later: &[Versioned]) -> Lookup {
        let lookup = self.dispatch.begin_lookup(&queue("a")).expect("a search is needed");
        let found = LookupResult { due: due.to_vec(), later: later.to_vec() };
        self.dispatch.end_lookup(&queue("a"), &lookup, found, |_| true);
        lookup
    }

    fn plan_of_nothing(&self) {
        assert!(self.dispatch.plan().lookups.is_empty());
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(Duration::from_millis(millis));
    }

    /// Returns whether the background loop was woken since this was last called.
    fn was_woken(&self) -> bool {
        self.dispatch.sooner().now_or_never().is_some()
    }
}

#[test]
fn a_claim_waits_for_the_first_search_of_a_queue_but_not_after_it_has_failed() {
    let bench = bench(4, Some(INTERVAL));
    let a = queues(&["a"]);
    assert!(!bench.dispatch.were_searched(&a) && bench.is_stale());
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("a search is needed");
    assert!(!bench.dispatch.were_searched(&a) && !bench.is_stale());
    assert_eq!(bench.dispatch.first_searched_for(&a), [&queue("a")]);
    bench.dispatch.fail_lookup(&queue("a"), &lookup);
    assert!(bench.dispatch.were_searched(&a));
    assert!(bench.dispatch.plan().lookups.is_empty());
    bench.advance(500);
    assert_eq!(bench.dispatch.plan().lookups, a);
    let _again = bench.dispatch.begin_lookup(&queue("a")).expect("a search is needed");
    assert!(bench.dispatch.were_searched(&a) && bench.dispatch.first_searched_for(&a).is_empty());
}

#[test]
fn a_search_that_began_before_the_candidates_were_dropped_is_not_the_first_since() {
    let bench = bench(4, None);
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("a search is needed");
    let order = Order { turns: None, shortest_first: true };
    bench.dispatch.go_by([(queue("a"), Rule { order, ..Rule::default() })].into());
    bench.dispatch.end_lookup(&queue("a"), &lookup, LookupResult::default(), |_| true);
    assert!(!bench.dispatch.were_searched(&queues(&["a"])));
    bench.search(&[], &[]);
    assert!(bench.dispatch.were_searched(&queues(&["a"])));
}

#[test]
fn a_waiting_claim_is_given_nothing_before_the_first_search_of_its_queue_has_ended() {
    let bench = bench(4, Some(INTERVAL));
    bench.pause(&["a"]);
    let mut waiting = bench.wait(&["a"], 1);
    bench.dispatch.add([job("a", "new", 0, 0)]);
    bench.pause(&[]);
    assert!(waiting.handed().now_or_never().is_none());
    let new = job("a", "newer", 9, 0);
    assert!(bench.dispatch.reserve([(0, &new.job)]).is_empty());
    assert_eq!(bench.dispatch.plan().lookups, queues(&["a"]));
    bench.search(&[job("a", "older", 5, 0)], &[]);
    let Some(Some(Handed::Offer(offer))) = waiting.handed().now_or_never() else { panic!("no offer") };
    assert_eq!(ids(offer.take()), ["older"]);
}

#[test]
fn what_was_submitted_before_the_first_search_does_not_go_before_what_that_search_did_not_come_to() {
    let bench = bench_with_pages(8, 2, Some(INTERVAL));
    bench.dispatch.add([job("a", "urgent", 9, 0), job("a", "new", 0, 0)]);
    bench.search(&[job("a", "1", 5, -9), job("a", "2", 5, -8)], &[]);
    assert_eq!(bench.take(&["a"], 8), ["urgent", "1", "2"]);
    bench.search(&[job("a", "3", 5, -7), job("a", "new", 0, 0)], &[]);
    assert_eq!(bench.take(&["a"], 8), ["3", "new"]);
}

#[test]
fn a_job_is_offered_in_the_latest_version_that_was_added() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    bench.dispatch.add([2, 3, 1].map(|seq_no| {
        let mut written = job("a", "1", 0, 0);
        written.version.seq_no = seq_no;
        written
    }));
    let (queues, resources) = (queues(&["a"]), Resources::new());
    let offer = bench.dispatch.take(&wish(&queues, 9, &resources, &Offers::new()));
    let taken: Vec<u64> = offer.expect("an offer").take().iter().map(|taken| taken.version.seq_no).collect();
    assert_eq!(taken, [3]);
}

#[test]
fn later_jobs_that_do_not_fit_are_searched_for_from_the_first_that_was_dropped() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    let jobs = due_at([100, 200, 300, 400, 500, 600]);
    bench.dispatch.add(jobs.clone());
    bench.advance(450);
    assert_eq!(bench.take(&["a"], 9), ["at100", "at200", "at300", "at400"]);
    assert!(bench.is_stale());
    assert_eq!(bench.search(&[], &jobs[4..]).later.map(|(after, _)| after), Some(at(499)));
    bench.advance(150);
    assert_eq!(bench.take(&["a"], 9), ["at500", "at600"]);
}

#[test]
fn a_later_job_beyond_the_horizon_is_left_to_the_store() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    bench.dispatch.add(due_at([120_000, 120_001]));
    bench.advance(60_001);
    assert_eq!(bench.search(&[], &[]).later, Some((at(120_000), at(240_000))));
    bench.advance(60_000);
    assert_eq!(bench.take(&["a"], 9), ["at120000"]);
}

#[test]
fn no_new_job_overtakes_those_that_a_lane_dropped_however_often_it_overflowed() {
    let bench = bench(2, None);
    bench.know(&["a"]);
    bench.dispatch.add(due_at([-100, -90, -80]));
    assert_eq!(bench.take(&["a"], 9), ["at-100", "at-90"]);
    // The last of these is dropped as well, and has been due longer than the first that was.
    bench.dispatch.add(due_at([-99, -97, -95]));
    assert_eq!(bench.take(&["a"], 9), ["at-99", "at-97"]);
    bench.dispatch.add(due_at([-92]));
    assert!(bench.take(&["a"], 9).is_empty());
    bench.search(&due_at([-95, -92]), &[]);
    assert_eq!(bench.take(&["a"], 9), ["at-95", "at-92"]);
}

#[test]
fn no_new_job_overtakes_those_behind_a_full_page_of_a_search() {
    let bench = bench_with_pages(8, 2, None);
    bench.search(&due_at([-100, -90]), &[]);
    bench.dispatch.add(due_at([-70]));
    assert_eq!(bench.take(&["a"], 9), ["at-100", "at-90"]);
    assert!(bench.is_stale());
    bench.search(&due_at([-80]), &[]);
    bench.dispatch.add(due_at([-70]));
    assert_eq!(bench.take(&["a"], 9), ["at-80", "at-70"]);
    assert!(!bench.is_stale(), "a page that is not full is the last one");
}

#[test]
fn the_last_job_before_those_that_a_lane_dropped_can_be_given_back() {
    let bench = bench(2, None);
    bench.know(&["a"]);
    bench.dispatch.add(due_at([-100, -90, -80]));
    let (queues, resources) = (queues(&["a"]), Resources::new());
    drop(bench.dispatch.take(&wish(&queues, 2, &resources, &Offers::new())));
    assert_eq!(bench.take(&["a"], 9), ["at-100", "at-90"]);
}

#[test]
fn an_incomplete_lane_is_searched_for_once_less_than_a_quarter_of_it_is_left() {
    let bench = bench(8, None);
    bench.know(&["a"]);
    bench.dispatch.add(due_at([1, 2, 3, 4, 5, 6, 7, 8, 9].map(|number| number - 100)));
    bench.take(&["a"], 6);
    assert!(!bench.is_stale());
    bench.take(&["a"], 1);
    assert!(bench.is_stale());
}

#[test]
fn where_others_write_a_lane_with_jobs_enough_is_searched_for_every_two_seconds() {
    let bench = bench(8, Some(INTERVAL));
    bench.know(&["a"]);
    bench.dispatch.add(due_at([-1, -2, -3]));
    bench.advance(1_999);
    assert!(!bench.is_stale());
    bench.advance(1);
    bench.search(&[], &[]);
    bench.take(&["a"], 9);
    bench.advance(499);
    assert!(!bench.is_stale(), "an empty one is searched for after the poll interval");
    bench.advance(2);
    assert!(bench.is_stale());
}

#[test]
fn where_others_write_no_lane_with_jobs_enough_is_searched_for_more_often_than_the_interval_says() {
    let bench = bench(8, Some(Duration::from_secs(5)));
    bench.know(&["a"]);
    bench.dispatch.add(due_at([-1, -2, -3]));
    bench.advance(4_999);
    assert!(!bench.is_stale());
    bench.advance(1);
    assert!(bench.is_stale());
}

#[test]
fn in_a_store_of_its_own_a_search_that_was_cut_off_starts_with_the_most_urgent_again() {
    let bench = bench(2, None);
    bench.search(&due_at([-2, -1]), &[]);
    bench.take(&["a"], 2);
    assert_eq!(bench.search(&[], &[]).resume, None, "the jobs that were taken are found no more");
}

#[test]
fn where_others_write_a_search_that_starts_again_goes_on_where_it_had_come_to_after_what_is_new() {
    let bench = bench_with_pages(8, 2, Some(INTERVAL));
    let goes_on_at = |found: &[Versioned], at: i64| {
        let [last] = due_at([at]);
        assert_eq!(bench.search(found, &[]).resume, Some(Sort::Dispatch.key(&last.job)));
    };
    let starts_again = |found: &[Versioned]| {
        bench.advance(2_000);
        assert_eq!(bench.search(found, &[]).resume, None);
    };
    bench.search(&due_at([-100, -90]), &[]);
    assert_eq!(bench.take(&["a"], 9), ["at-100", "at-90"]);
    bench.search(&due_at([-80, -70]), &[]);
    assert_eq!(bench.take(&["a"], 1), ["at-80"]);
    // These are out.
    starts_again(&due_at([-100, -90]));
    goes_on_at(&due_at([-60, -50]), -70);
    assert_eq!(bench.take(&["a"], 2), ["at-70", "at-60"]);
    // The last of these is in the lane.
    starts_again(&due_at([-60, -50]));
    goes_on_at(&due_at([-40, -30]), -50);
    assert_eq!(bench.take(&["a"], 9), ["at-50", "at-40", "at-30"]);
    starts_again(&due_at([-99, -98]));
    assert_eq!(bench.take(&["a"], 9), ["at-99", "at-98"]);
    goes_on_at(&due_at([-97, -90]), -98);
    assert_eq!(bench.take(&["a"], 9), ["at-97"]);
    goes_on_at(&[], -30);
    assert!(!bench.is_stale(), "that was all");
}

#[test]
fn where_others_write_a_search_that_was_cut_off_goes_on_before_a_claim_has_to_wait() {
    let bench = bench_with_pages(8, 2, Some(INTERVAL));
    assert!(bench.is_stale());
    bench.search(&due_at([-100, -90]), &[]);
    bench.plan_of_nothing();
    bench.take(&["a"], 1);
    assert!(bench.was_woken());
    assert_eq!(bench.dispatch.plan().lookups, queues(&["a"]));
    bench.pause(&["a"]);
    bench.plan_of_nothing();
    bench.pause(&[]);
    bench.search(&due_at([-80]), &[]);
    bench.was_woken();
    bench.take(&["a"], 2);
    assert!(!bench.was_woken());
    bench.plan_of_nothing();
}

#[test]
fn later_jobs_behind_a_full_page_are_searched_for_from_its_last_one() {
    let bench = bench_with_pages(8, 2, None);
    assert_eq!(bench.search(&[], &due_at([10_000, 20_000])).later, Some((at(0), at(120_000))));
    assert!(bench.is_stale());
    // The last one again, since others may be due at its moment.
    assert_eq!(bench.search(&[], &due_at([20_000, 30_000])).later, Some((at(19_999), at(139_999))));
    assert_eq!(bench.search(&[], &due_at([30_000])).later, Some((at(29_999), at(149_999))));
    assert!(!bench.is_stale());
}

#[test]
fn a_moment_at_which_more_later_jobs_are_due_than_a_page_holds_is_left_behind() {
    let bench = bench_with_pages(8, 1, None);
    bench.search(&[], &due_at([1]));
    assert_eq!(bench.search(&[], &[]).later.map(|(after, _)| after), Some(at(1)));
}

#[test]
fn where_others_write_a_search_that_failed_is_made_again_from_the_start_after_the_poll_interval() {
    let bench = bench(2, Some(INTERVAL));
    bench.search(&due_at([-2, -1]), &[]);
    bench.take(&["a"], 2);
    let lookup = bench.dispatch.begin_lookup(&queue("a")).expect("a search is needed");
    bench.dispatch.fail_lookup(&queue("a"), &lookup);
    assert!(!bench.is_stale());
    bench.advance(500);
    assert_eq!(bench.search(&[], &[]).resume, None);
}

#[test]
fn later_jobs_are_searched_for_a_minute_ahead_unless_the_lane_has_no_room() {
    let bench = bench(4, None);
    bench.know(&["a"]);
    let _waiting = bench.wait(&["a"], 1);
    assert_eq!(bench.dispatch.plan().wake_at, at(60_001));
    bench.dispatch.add(due_at([119_000, 119_001]));
    bench.advance(60_000);
    assert!(!bench.is_stale());
    bench.advance(1);
    assert_eq!(bench.dispatch.plan().lookups, queues(&["a"]));
    bench.dispatch.add(due_at([119_002]));
    // Meanwhile the loop has nothing to do before the first of them is due.
    for _ in 0..2 {
        let plan = bench.dispatch.plan();
        assert_eq!((plan.lookups, plan.wake_at), (Vec::new(), at(119_000)));
        bench.advance(1);
    }
    bench.advance(59_997);
    assert!(!bench.is_stale());
    bench.advance(1);
    assert!(bench.is_stale(), "what becomes due from now on may be missing");
}

#[test]
fn where_others_write_the_background_loop_searches_for_a_queue_after_the_poll_interval() {
    let bench = bench(8, Some(INTERVAL));
    bench.know(&["a"]);
    let _waiting = bench.wait(&["a"], 1);
    let plan = bench.dispatch.plan();
    assert_eq!((plan.lookups, plan.wake_at), (Vec::new(), at(500)));
    bench.advance(500);
    assert_eq!(bench.dispatch.plan().lookups, queues(&["a"]));
}

#[test]
fn the_background_loop_is_woken_for_what_it_did_not_plan_for_and_for_nothing_else() {
    let bench = bench(8, None);
    bench.know(&["a", "b"]);
    bench.dispatch.plan();
    assert!(!bench.was_woken());
    let _waiting = bench.wait(&["a"], 1);
    assert!(bench.was_woken(), "later jobs are searched for while a claim waits");
    bench.dispatch.add(due_at([5_000]));
    assert!(bench.was_woken());
    bench.dispatch.add(due_at([5_000, 6_000]));
    assert!(!bench.was_woken(), "that is planned for");
    bench.dispatch.add([job("b", "1", 0, 10)]);
    assert!(!bench.was_woken(), "nobody waits for it");
    bench.pause(&["a"]);
    bench.dispatch.mark_incomplete(&queue("a"));
    assert!(!bench.was_woken(), "a paused queue is not searched for");
    bench.pause(&[]);
    assert!(bench.was_woken());
}

#[test]
fn a_queue_is_kept_while_claims_wait_for_it_and_for_a_time_after_the_last_claim() {
    let bench = bench(8, None);
    bench.know(&["a", "b"]);
    let mut waiting = bench.wait(&["a"], 1);
    bench.clock.advance(LANE_IDLE - MOMENT);
    bench.dispatch.plan();
    assert_eq!(bench.dispatch.shared.board.lock().lanes.len(), 2);
    bench.clock.advance(MOMENT);
    bench.dispatch.plan();
    assert_eq!(bench.dispatch.shared.board.lock().lanes.len(), 1);
    bench.dispatch.add(due_at([0]));
    let Some(Some(Handed::Offer(offer))) = waiting.handed().now_or_never() else { panic!("no offer") };
    assert_eq!(ids(offer.take()), ["at0"]);
}

#[test]
fn jobs_of_a_queue_that_nobody_has_asked_for_are_kept_only_where_searches_lag() {
    let [lags, own] = [Some(Duration::from_millis(500)), None].map(|interval| bench(4, interval));
    for bench in [&lags, &own] {
        bench.dispatch.add([job("a", "1", 0, 0)]);
        bench.know(&["a"]);
    }
    assert_eq!(lags.take(&["a"], 1), ["1"]);
    assert!(own.take(&["a"], 1).is_empty());
}
