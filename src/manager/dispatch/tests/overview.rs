//! Overviews: one search for all queues that claims wait for.

use super::*;

const POLL: Duration = Duration::from_millis(500);
/// The time between two overviews.
const APART: Duration = Duration::from_secs(1);

fn shared() -> Bench {
    bench(100, Some(POLL))
}

impl Bench {
    /// Begins the overview that is due, and ends it with due jobs in these queues. Returns which queues it is about.
    fn overview(&self, with_due: &[&str]) -> Vec<QueueName> {
        let overview = self.dispatch.plan().overview.expect("an overview is due");
        self.dispatch.end_overview(&overview, &queues(with_due).into_iter().collect());
        let mut about = overview.queues;
        about.sort();
        about
    }

    /// Returns which queues are searched one by one, and whether an overview is due.
    fn planned(&self) -> (Vec<QueueName>, bool) {
        let plan = self.dispatch.plan();
        let mut lookups = plan.lookups;
        lookups.sort();
        (lookups, plan.overview.is_some())
    }

    fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }
}

#[tokio::test]
async fn queues_with_nothing_due_are_searched_together_and_no_longer_one_by_one() {
    let bench = shared();
    bench.know(&["a", "b", "c"]);
    let _waiting = [bench.wait(&["a", "b"], 1), bench.wait(&["c"], 1)];
    assert_eq!(bench.overview(&[]), queues(&["a", "b", "c"]));
    for _ in 0..40 {
        bench.pass(POLL);
        assert_eq!(bench.planned(), (Vec::new(), false), "a poll would be due");
        bench.pass(POLL);
        assert_eq!(bench.overview(&[]).len(), 3);
    }
}

#[tokio::test]
async fn a_queue_with_due_jobs_is_searched_by_itself_and_the_others_are_not() {
    let bench = shared();
    bench.know(&["a", "b"]);
    let _waiting = bench.wait(&["a", "b"], 1);
    bench.overview(&[]);
    bench.pass(APART);
    assert_eq!(bench.overview(&["b"]), queues(&["a", "b"]));
    assert_eq!(bench.planned().0, queues(&["b"]));
    let lookup = bench.dispatch.begin_lookup(&queue("b")).expect("a search is due");
    bench.dispatch.end_lookup(&queue("b"), &lookup, LookupResult::default(), |_| true);
    // While things come from elsewhere, overviews are as close as searches of a queue are.
    bench.pass(POLL);
    assert_eq!(bench.overview(&[]), queues(&["a"]), "a queue that is searched by itself is left out");
}

#[tokio::test]
async fn where_no_overview_succeeds_queues_are_searched_one_by_one_again() {
    let bench = shared();
    bench.know(&["a"]);
    let _waiting = bench.wait(&["a"], 1);
    bench.overview(&[]);
    bench.pass(Duration::from_secs(9));
    assert_eq!(bench.planned(), (Vec::new(), true), "it was begun, and fails");
    bench.pass(Duration::from_secs(1));
    assert_eq!(bench.planned().0, queues(&["a"]));
}

#[tokio::test]
async fn a_claim_that_waits_goes_by_the_last_overview_and_one_that_does_not_by_a_search() {
    let bench = shared();
    bench.know(&["a"]);
    let waiting = bench.wait(&["a"], 1);
    bench.overview(&[]);
    drop(waiting);
    bench.pass(Duration::from_millis(900));
    let a = queue("a");
    assert!(bench.dispatch.to_be_searched(std::slice::from_ref(&a), true).is_empty());
    assert_eq!(bench.dispatch.stale(std::slice::from_ref(&a)), [&a]);
    // When it waits, the next overview is made at once when it is due.
    bench.pass(Duration::from_millis(100));
    bench.dispatch.plan();
    let _waiting = bench.wait(&["a"], 1);
    bench.dispatch.sooner().await;
    assert_eq!(bench.overview(&[]), queues(&["a"]));
}

#[tokio::test]
async fn a_queue_that_is_known_in_part_or_was_never_searched_is_in_no_overview() {
    let bench = shared();
    bench.know(&["a", "b"]);
    let _waiting = bench.wait(&["a", "b", "c"], 1);
    bench.overview(&[]);
    bench.dispatch.mark_incomplete(&queue("a"));
    bench.pass(APART);
    let plan = bench.dispatch.plan();
    assert_eq!(plan.overview.expect("of the other").queues, queues(&["b"]));
    let mut searched = plan.lookups;
    searched.sort();
    assert_eq!(searched, queues(&["a", "c"]));
}

#[tokio::test]
async fn after_the_clock_was_set_back_queues_are_looked_over_as_before() {
    let bench = shared();
    bench.know(&["a"]);
    let _waiting = bench.wait(&["a"], 1);
    let begun = bench.dispatch.plan().overview.expect("an overview is due");
    bench.clock.turn_back(Duration::from_secs(3_600));
    bench.dispatch.end_overview(&begun, &std::collections::HashSet::new());
    assert_eq!(bench.planned(), (queues(&["a"]), true), "what was shown at a time that is to come says nothing");
}

#[tokio::test]
async fn of_the_systems_own_queues_overviews_are_rarer_where_all_others_take_their_jobs() {
    let name = "leasehold.x";
    let member = |name: &str, workers: u32| {
        let workers: std::collections::BTreeMap<_, _> = [(queue("leasehold.x"), workers)].into();
        let name = crate::job::RecordName::new(name).expect("a name");
        Member { name, settled: workers.clone(), workers, kinds: KindsByQueue::new() }
    };
    for (theirs, apart) in [(1, 8 * POLL), (0, 2 * POLL)] {
        let bench = shared();
        bench.dispatch.share(Members::new(member("this", 1), vec![member("that", theirs)]));
        bench.know(&[name]);
        let _waiting = bench.wait(&[name], 1);
        bench.overview(&[]);
        bench.pass(apart - Duration::from_millis(1));
        assert!(!bench.planned().1, "{theirs}");
        bench.pass(Duration::from_millis(1));
        assert!(bench.planned().1, "{theirs}");
    }
}
