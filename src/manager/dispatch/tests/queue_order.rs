//! Claims that go by their queues: the first named first, or in turns by weight.

use std::collections::HashMap;

use super::*;
use crate::job::Owner;

fn weighted(weights: &[(&str, u32)]) -> ClaimOrder {
    ClaimOrder::Weighted(Arc::new(weights.iter().map(|(name, weight)| (queue(name), *weight)).collect()))
}

/// So many jobs of a queue that are due at the same time.
fn many(queue_name: &str, count: usize) -> Vec<Versioned> {
    let one = |number: usize| job(queue_name, &format!("{queue_name}-{number:04}"), 0, -1);
    (0..count).map(one).collect()
}

impl Bench {
    fn take_in(&self, order: &ClaimOrder, names: &[&str], max_jobs: usize, offered: &[(&str, u64)]) -> Vec<String> {
        let (queues, resources, labels) = (queues(names), resources(offered), Offers::new());
        let wish = Wish { order, ..wish(&queues, max_jobs, &resources, &labels) };
        self.dispatch.take(&wish).map_or_else(Vec::new, |offer| ids(offer.take()))
    }
}

fn count(taken: &[String], queue_name: &str) -> usize {
    taken.iter().filter(|id| id.starts_with(&format!("{queue_name}-"))).count()
}

fn known() -> Bench {
    let bench = bench(2_000, None);
    bench.know(&["a", "b", "c"]);
    bench
}

#[test]
fn a_strict_claim_takes_nothing_from_a_queue_while_one_before_it_has_something_that_suits() {
    let bench = known();
    bench.dispatch.add([job("a", "a-low", -5, 0), job("b", "b-urgent", 9, -9), job("c", "c", 9, -99)]);
    bench.dispatch.add([needing("a", "a-large", 8)]);
    let strict = ClaimOrder::Strict;
    assert_eq!(bench.take_in(&strict, &["c", "a", "b"], 1, &[]), ["c"]);
    assert_eq!(bench.take_in(&strict, &["c", "a", "b"], 9, &[("memory", 4)]), ["a-low", "b-urgent"]);
    bench.dispatch.add([job("b", "b-next", 9, 0)]);
    assert_eq!(bench.take_in(&strict, &["c", "a", "b"], 2, &[]), ["a-large", "b-next"]);
}

#[test]
fn queues_that_are_held_back_are_passed_over() {
    for order in [ClaimOrder::Strict, weighted(&[("a", 9), ("b", 1)])] {
        let bench = known();
        bench.pause(&["a"]);
        bench.dispatch.add(many("a", 3).into_iter().chain(many("b", 2)));
        assert_eq!(bench.take_in(&order, &["a", "b"], 9, &[]), ["b-0000", "b-0001"]);
    }
}

#[test]
fn within_one_claim_and_over_many_the_weights_hold_whatever_the_priorities_are() {
    for max_jobs in [1, 7, 400] {
        let bench = known();
        let urgent = (0..900).map(|number| job("b", &format!("b-{number:04}"), 50, -1));
        bench.dispatch.add(many("a", 900).into_iter().chain(urgent));
        let order = weighted(&[("a", 3), ("b", 1)]);
        let mut taken = Vec::new();
        while taken.len() < 400 {
            taken.extend(bench.take_in(&order, &["a", "b"], max_jobs.min(400 - taken.len()), &[]));
        }
        assert_eq!((count(&taken, "a"), count(&taken, "b")), (300, 100), "{max_jobs} at a time");
    }
}

#[test]
fn a_queue_with_nothing_that_suits_saves_up_no_turns() {
    let bench = known();
    let order = weighted(&[("a", 1), ("b", 1)]);
    bench.dispatch.add(many("a", 600).into_iter().chain((0..9).map(|number| needing("b", &format!("l{number}"), 8))));
    let small: &[(&str, u64)] = &[("memory", 4)];
    assert_eq!(count(&bench.take_in(&order, &["a", "b"], 500, small), "a"), 500);
    bench.dispatch.add(many("b", 100));
    let taken = bench.take_in(&order, &["a", "b"], 20, small);
    assert_eq!((count(&taken, "a"), count(&taken, "b")), (10, 10), "{taken:?}");
}

#[test]
fn the_owners_of_a_fair_queue_take_turns_within_the_turns_of_the_queue() {
    let bench = known();
    let rule = Rule { order: Order::BY_OWNER, ..Rule::default() };
    bench.dispatch.go_by(HashMap::from([(queue("b"), rule)]));
    bench.know(&["b"]);
    let owned = |owner: &'static str| {
        (0..50).map(move |number| {
            let mut owned = job("b", &format!("b-{owner}{number:02}"), 0, if owner == "x" { -9 } else { -1 });
            let spec = &mut Arc::make_mut(&mut owned.job).spec;
            Arc::make_mut(spec).owner = Some(Owner::new(owner).expect("a name"));
            owned
        })
    };
    bench.dispatch.add(many("a", 50).into_iter().chain(owned("x")).chain(owned("y")));
    for offered in [&[][..], &[("memory", 4)]] {
        let taken = bench.take_in(&weighted(&[("a", 1), ("b", 1)]), &["a", "b"], 20, offered);
        assert_eq!((count(&taken, "a"), count(&taken, "b")), (10, 10), "{taken:?}");
        assert_eq!(taken.iter().filter(|id| id.starts_with("b-x")).count(), 5, "{taken:?}");
    }
}

#[tokio::test]
async fn a_claim_that_waits_is_handed_jobs_by_its_order_of_queues() {
    let bench = known();
    let mut strict = bench.wait_in(ClaimOrder::Strict, &["b", "a"], 3, &[], &[]);
    bench.dispatch.add([job("a", "a-0", 9, 0), job("b", "b-0", 0, 0), job("a", "a-1", 9, 0), job("b", "b-1", 0, 0)]);
    assert_eq!(offered(&mut strict).await, ["b-0", "b-1", "a-0"]);
    assert_eq!(bench.take(&["a"], 9), ["a-1"]);
    let mut turns = bench.wait_in(weighted(&[("a", 1), ("b", 3)]), &["a", "b"], 8, &[], &[]);
    bench.dispatch.add(many("a", 20).into_iter().chain(many("b", 20)));
    assert_eq!(count(&offered(&mut turns).await, "b"), 6);
}

#[tokio::test]
async fn new_jobs_of_several_queues_are_reserved_only_where_no_claim_goes_by_its_queues() {
    let new = [job("a", "a-0", 9, 0), job("b", "b-0", 0, 0)];
    let reserve = |bench: &Bench, jobs: &[Versioned]| {
        let reserved = bench.dispatch.reserve(jobs.iter().map(|new| &new.job).enumerate());
        reserved.iter().map(|reservation| reservation.jobs().to_vec()).collect::<Vec<_>>()
    };
    for (order, both, first) in
        [(ClaimOrder::Dispatch, vec![vec![0]], vec![vec![0]]), (ClaimOrder::Strict, vec![], vec![vec![0]])]
    {
        let bench = known();
        let _waiting = bench.wait_in(order, &["b", "a"], 1, &[], &[]);
        assert_eq!(reserve(&bench, &new), both);
        assert_eq!(reserve(&bench, &new[..1]), first, "of one queue there is nothing to choose");
    }
}

#[tokio::test]
async fn a_new_job_that_is_handed_over_is_a_turn_of_its_queue() {
    let bench = known();
    let order = weighted(&[("a", 1), ("b", 1)]);
    let new = many("a", 4);
    let waiting = bench.wait_in(order.clone(), &["a", "b"], 9, &[], &[]);
    let reserved = bench.dispatch.reserve(new.iter().map(|new| &new.job).enumerate());
    assert_eq!(reserved.len(), 1);
    reserved.into_iter().for_each(|reservation| reservation.hand(Ok(Claimed::none())));
    drop(waiting);
    bench.dispatch.add(many("a", 20).into_iter().chain(many("b", 20)));
    let taken = bench.take_in(&order, &["a", "b"], 5, &[]);
    assert_eq!(count(&taken, "b"), 3, "{taken:?}");
}
