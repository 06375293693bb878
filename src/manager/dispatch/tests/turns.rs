//! Queues whose owners take turns: who is next, and which owners are searched for.

use std::collections::BTreeMap;

use super::super::order::Unit;
use super::super::order::{Group, Order};
use super::super::taking_turns::FoundByOwner;
use super::super::turns::{Rule, Weights};
use super::*;
use crate::job::Owner;

fn owner(name: &str) -> Owner {
    Owner::new(name).expect("a name")
}

/// A due job of an owner; one of nobody where the owner is empty.
fn of(owned_by: &str, id: &str, priority: i64, after: i64) -> Versioned {
    let mut owned = job("a", id, priority, after - 1_000);
    let spec = &mut Arc::make_mut(&mut owned.job).spec;
    Arc::make_mut(spec).owner = (!owned_by.is_empty()).then(|| owner(owned_by));
    owned
}

fn many(owned_by: &str, numbers: std::ops::Range<usize>) -> Vec<Versioned> {
    numbers.map(|number| of(owned_by, &format!("{owned_by}-{number:06}"), 0, 0)).collect()
}

fn fair(bench: &Bench, weights: &[(&str, u32)]) {
    let weights: Weights = weights.iter().map(|(name, weight)| (owner(name), *weight)).collect();
    let rule = Rule { order: Order::BY_OWNER, weights: Arc::new(weights) };
    bench.dispatch.go_by([(queue("a"), rule)].into());
}

fn count(taken: &[String], owned_by: &str) -> usize {
    taken.iter().filter(|id| id.starts_with(&format!("{owned_by}-"))).count()
}

/// The jobs of a store.
#[derive(Default)]
struct Jobs(BTreeMap<SortKey, Versioned>);

impl Jobs {
    fn of(jobs: impl IntoIterator<Item = Versioned>) -> Self {
        Self(jobs.into_iter().map(|job| (Sort::Dispatch.key(&job.job), job)).collect())
    }

    /// Searches for what the queue needs, if it needs anything. Returns the owners that were searched for one by one.
    fn look(&self, bench: &Bench) -> Option<Vec<Group>> {
        let a = queue("a");
        let lookup = bench.dispatch.begin_lookup(&a)?;
        let mut counts: BTreeMap<Group, usize> = BTreeMap::new();
        self.0.values().for_each(|job| *counts.entry(job.job.spec.owner.clone()).or_default() += 1);
        let waiting: Vec<(Group, usize)> = counts.into_iter().collect();
        let Some(searches) = bench.dispatch.begin_look_by_owner(&a, &lookup, &waiting) else {
            let due = self.0.values().take(lookup.limit).cloned().collect();
            bench.dispatch.end_lookup(&a, &lookup, LookupResult { due, later: Vec::new() }, |_| true);
            return Some(Vec::new());
        };
        let mut found = FoundByOwner { waiting, ends: Vec::new(), due: Vec::new() };
        for search in &searches {
            let is_after = |job: &&Versioned| {
                job.job.spec.owner == search.owner && Some(Sort::Dispatch.key(&job.job)) > search.after
            };
            let hits: Vec<Versioned> = self.0.values().filter(is_after).take(search.limit).cloned().collect();
            found.ends.push((search.owner.clone(), search.end_of(&hits)));
            found.due.extend(hits);
        }
        bench.dispatch.end_look_by_owner(&a, &lookup, found, Vec::new(), |_| true);
        Some(searches.into_iter().map(|search| search.owner).collect())
    }

    /// Claims as a worker does, and takes what it is given out of the store.
    fn claim(&mut self, bench: &Bench, max_jobs: usize) -> Vec<String> {
        while !bench.dispatch.stale(&queues(&["a"])).is_empty() && self.look(bench).is_some() {}
        let taken = bench.take(&["a"], max_jobs);
        self.0.retain(|key, _| !taken.iter().any(|id| key.id().as_str() == id));
        taken.iter().for_each(|id| bench.dispatch.settle(&JobId::new(id).expect("an id"), None));
        taken
    }
}

#[test]
fn ten_jobs_behind_many_of_another_owner_are_among_the_next_two_rounds() {
    let bench = bench(100, None);
    fair(&bench, &[]);
    let mut jobs = Jobs::of(many("a", 0..5_000).into_iter().chain(many("b", 0..10)));
    let rounds: Vec<String> = (0..2).flat_map(|_| jobs.claim(&bench, 10)).collect();
    assert_eq!((count(&rounds, "a"), count(&rounds, "b")), (10, 10));
    for _ in 0..400 {
        assert_eq!(count(&jobs.claim(&bench, 10), "a"), 10, "the others follow");
    }
}

#[test]
fn without_fairness_jobs_go_in_the_order_of_dispatch_and_no_owner_is_counted() {
    let bench = bench(100, None);
    let mut jobs = Jobs::of(many("a", 0..500).into_iter().chain(many("b", 0..10)));
    assert!(!bench.dispatch.begin_lookup(&queue("a")).expect("a search").is_fair);
    bench.dispatch.mark_incomplete(&queue("a"));
    for first in (0..500).step_by(10) {
        let expected: Vec<String> = (first..first + 10).map(|number| format!("a-{number:06}")).collect();
        assert_eq!(jobs.claim(&bench, 10), expected);
    }
    assert_eq!(count(&jobs.claim(&bench, 10), "b"), 10);
}

#[test]
fn jobs_that_are_submitted_here_after_a_flood_take_turns_at_once() {
    let bench = bench(100, None);
    fair(&bench, &[]);
    bench.know(&["a"]);
    bench.dispatch.add(many("a", 0..1_000));
    bench.dispatch.add(many("b", 0..10));
    bench.dispatch.add(many("", 0..1).into_iter().chain([of("", "nobody", 0, 0)]));
    let taken = bench.take(&["a"], 22);
    assert_eq!((count(&taken, "b"), taken.iter().any(|id| id == "nobody")), (10, true), "{taken:?}");
}

#[test]
fn weights_decide_how_many_jobs_an_owner_gets() {
    let bench = bench(200, None);
    fair(&bench, &[("a", 3)]);
    let mut jobs = Jobs::of(many("a", 0..2_000).into_iter().chain(many("b", 0..2_000)));
    let taken: Vec<String> = (0..100).flat_map(|_| jobs.claim(&bench, 10)).collect();
    assert!((748..=752).contains(&count(&taken, "a")), "{}", count(&taken, "a"));
    fair(&bench, &[]);
    let taken: Vec<String> = (0..50).flat_map(|_| jobs.claim(&bench, 10)).collect();
    assert!((248..=252).contains(&count(&taken, "a")), "{}", count(&taken, "a"));
}

#[test]
fn a_more_urgent_job_goes_first_whoever_owns_it() {
    let bench = bench(100, None);
    fair(&bench, &[]);
    bench.know(&["a"]);
    bench.dispatch.add(many("b", 0..3));
    bench.dispatch.add([of("a", "urgent-1", 5, 0), of("a", "urgent-2", 5, 0), of("a", "low", -1, 0)]);
    assert_eq!(bench.take(&["a"], 9), ["urgent-1", "urgent-2", "b-000000", "b-000001", "b-000002", "low"]);
}

#[test]
fn within_an_owner_jobs_go_in_the_order_of_dispatch_and_each_once() {
    let bench = bench(40, None);
    fair(&bench, &[("c", 2)]);
    let all = || many("a", 0..300).into_iter().chain(many("b", 0..7)).chain(many("c", 0..100));
    let mut jobs = Jobs::of(all());
    let mut taken = Vec::new();
    while !jobs.0.is_empty() {
        let some = jobs.claim(&bench, 7);
        assert!(!some.is_empty(), "{} are left", jobs.0.len());
        taken.extend(some);
    }
    for owned_by in ["a", "b", "c"] {
        let of_owner: Vec<&String> = taken.iter().filter(|id| id.starts_with(owned_by)).collect();
        assert!(of_owner.is_sorted(), "{of_owner:?}");
    }
    assert_eq!(taken.len(), all().count());
}

#[test]
fn of_more_owners_than_have_room_each_gets_its_turn() {
    for (each, are_submitted_here) in [(3, false), (3, true), (1, true)] {
        let bench = bench(40, None);
        fair(&bench, &[]);
        let all = || (0..300).flat_map(|number| many(&format!("owner{number:03}"), 0..each));
        if are_submitted_here {
            bench.know(&["a"]);
            bench.dispatch.add(all());
        }
        let mut jobs = Jobs::of(all());
        let mut taken = 0;
        while !jobs.0.is_empty() {
            let some = jobs.claim(&bench, 10);
            assert!(!some.is_empty(), "{} are left", jobs.0.len());
            taken += some.len();
            assert!(bench.dispatch.shared.board.lock().lane(&queue("a")).due.len() <= 40, "the lane is bounded");
        }
        assert_eq!(taken, 300 * each);
    }
}

#[test]
fn a_look_that_failed_is_made_again_and_nothing_is_missed() {
    let bench = bench(40, None);
    fair(&bench, &[]);
    let mut jobs = Jobs::of(many("a", 0..200).into_iter().chain(many("b", 0..200)));
    for _ in 0..3 {
        assert_eq!(jobs.claim(&bench, 10).len(), 10);
    }
    let a = queue("a");
    bench.dispatch.mark_incomplete(&a);
    let lookup = bench.dispatch.begin_lookup(&a).expect("some may be missing");
    let waiting = [(Some(owner("a")), 185), (Some(owner("b")), 185)];
    bench.dispatch.begin_look_by_owner(&a, &lookup, &waiting).expect("by owner");
    bench.dispatch.fail_lookup(&a, &lookup);
    let mut taken = 30;
    while !jobs.0.is_empty() {
        let some = jobs.claim(&bench, 10).len();
        assert!(some > 0, "{taken} were taken");
        taken += some;
    }
    assert_eq!(taken, 400);
}

#[test]
fn a_claim_that_some_candidates_do_not_suit_steps_over_them_in_turn() {
    let bench = bench(100, None);
    fair(&bench, &[]);
    bench.know(&["a"]);
    let large = |mut job: Versioned| {
        Arc::make_mut(&mut Arc::make_mut(&mut job.job).spec).resources = resources(&[("memory", 8)]);
        job
    };
    bench.dispatch.add(many("a", 0..3).into_iter().map(large).chain(many("a", 3..6)).chain(many("b", 0..2)));
    let expected = ["b-000000", "a-000003", "b-000001", "a-000004", "a-000005"];
    let mut taken = bench.take_with(&["a"], 9, &[("memory", 4)]);
    assert_eq!(taken.len(), 5);
    taken.sort();
    let mut sorted = expected.to_vec();
    sorted.sort_unstable();
    assert_eq!(taken, sorted);
    assert_eq!(count(&bench.take_with(&["a"], 9, &[("memory", 64)]), "a"), 3);
}

#[test]
fn where_searches_lag_the_owners_are_counted_again_after_a_second() {
    let bench = bench(100, Some(Duration::from_millis(500)));
    fair(&bench, &[]);
    let mut jobs = Jobs::of(many("a", 0..1_000));
    assert_eq!(count(&jobs.claim(&bench, 10), "a"), 10);
    // Another manager takes jobs of a second owner.
    many("b", 0..10).into_iter().for_each(|job| drop(jobs.0.insert(Sort::Dispatch.key(&job.job), job)));
    bench.clock.advance(Duration::from_secs(1));
    let taken = jobs.claim(&bench, 20);
    assert_eq!(count(&taken, "b"), 10, "{taken:?}");
}

#[test]
fn when_fairness_ends_jobs_go_in_the_order_of_dispatch_again() {
    let bench = bench(100, None);
    fair(&bench, &[]);
    let mut jobs = Jobs::of(many("a", 0..500).into_iter().chain(many("b", 0..500)));
    assert_eq!(count(&jobs.claim(&bench, 10), "b"), 5);
    bench.dispatch.go_by(std::collections::HashMap::new());
    assert_eq!(count(&(0..20).flat_map(|_| jobs.claim(&bench, 10)).collect::<Vec<_>>(), "a"), 200);
}

/// A job that is expected to run for so many seconds.
fn expecting(mut job: Versioned, seconds: u64) -> Versioned {
    let spec = &mut Arc::make_mut(&mut job.job).spec;
    Arc::make_mut(spec).expected_runtime = Some(Duration::from_secs(seconds));
    job
}

fn go_by(bench: &Bench, order: Order) {
    bench.dispatch.go_by([(queue("a"), Rule { order, ..Rule::default() })].into());
}

const SHORTEST_FIRST: Order = Order { turns: None, shortest_first: true };

#[test]
fn where_shorter_jobs_go_first_owners_do_not_matter_and_what_does_not_suit_is_stepped_over() {
    let bench = bench(100, None);
    go_by(&bench, SHORTEST_FIRST);
    bench.know(&["a"]);
    let large = |id: &str, seconds| expecting(needing("a", id, 8), seconds);
    bench.dispatch.add([expecting(of("x", "long", 0, 0), 600), expecting(of("y", "short", 0, 0), 5)]);
    bench.dispatch.add([large("large-short", 1), expecting(of("x", "low", -1, 0), 1), of("", "usual", 0, 0)]);
    let small: &[(&str, u64)] = &[("memory", 4)];
    assert_eq!(bench.take_with(&["a"], 4, small), ["short", "usual", "long", "low"]);
    assert_eq!(bench.take(&["a"], 9), ["large-short"]);
}

#[test]
fn a_lane_that_runs_over_has_the_shortest_of_those_that_were_due_first_and_misses_none() {
    let bench = bench(40, None);
    go_by(&bench, SHORTEST_FIRST);
    // The shorter a job is, the later it was due.
    let one = |number: usize| {
        let due = i64::try_from(number).expect("a number");
        expecting(of("a", &format!("a-{number:06}"), 0, due - 500), 400 - number as u64)
    };
    let mut jobs = Jobs::of((0..200).map(one));
    let first = jobs.claim(&bench, 10);
    let expected: Vec<String> = (30..40).rev().map(|number| format!("a-{number:06}")).collect();
    assert_eq!(first, expected, "it knows forty of them");
    let mut taken = 10;
    while !jobs.0.is_empty() {
        let some = jobs.claim(&bench, 7).len();
        assert!(some > 0, "{taken} were taken");
        assert!(bench.dispatch.shared.board.lock().lane(&queue("a")).due.len() <= 40, "the lane is bounded");
        taken += some;
    }
    assert_eq!(taken, 200);
}

#[test]
fn each_owners_shorter_jobs_go_first_where_owners_take_turns_for_time() {
    let bench = bench(40, None);
    go_by(&bench, Order { turns: Some(Unit::Runtime), shortest_first: true });
    let of_a = (0..300).map(|number| expecting(of("a", &format!("a-{number:06}"), 0, 0), 60));
    let of_b = (0..300).map(|number| expecting(of("b", &format!("b-{number:06}"), 0, 0), 10 + number % 3));
    let mut jobs = Jobs::of(of_a.chain(of_b));
    let mut taken: Vec<String> = (0..14).flat_map(|_| jobs.claim(&bench, 10)).collect();
    assert!((22..=24).contains(&count(&taken, "a")), "{}", count(&taken, "a"));
    while !jobs.0.is_empty() {
        let some = jobs.claim(&bench, 10);
        assert!(!some.is_empty(), "{} are left", jobs.0.len());
        taken.extend(some);
    }
    assert_eq!(taken.len(), 600);
}

#[tokio::test]
async fn of_new_jobs_the_shortest_goes_to_the_claim_that_waits() {
    let bench = bench(100, None);
    go_by(&bench, SHORTEST_FIRST);
    bench.know(&["a"]);
    let mut waiting = bench.wait(&["a"], 1);
    let new = [expecting(of("x", "a-long", 0, 0), 600), expecting(of("x", "b-short", 0, 0), 5)];
    assert!(bench.dispatch.reserve(new.iter().map(|new| &new.job).enumerate()).is_empty());
    bench.dispatch.add(new.clone());
    assert_eq!(offered(&mut waiting).await, ["b-short"]);
    assert_eq!(bench.take(&["a"], 1), ["a-long"]);
    let _waiting = bench.wait(&["a"], 1);
    assert_eq!(bench.dispatch.reserve([(0, &new[0].job)]).len(), 1, "one alone is created as claimed");
}
