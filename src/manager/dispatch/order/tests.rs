use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::job::JobId;

type Owner = usize;

/// Owners with lines of jobs, each with the time that it is expected to run, of whom one after the other is handed out
/// as an order says.
struct Queue {
    order: Order,
    weights: Vec<u32>,
    times: VirtualTimes<Owner>,
    lines: BTreeMap<Owner, (u64, BTreeMap<Place, Option<Duration>>)>,
}

impl Queue {
    fn new(order: Order, weights: &[u32]) -> Self {
        Self { order, weights: weights.to_vec(), times: VirtualTimes::default(), lines: BTreeMap::new() }
    }

    fn add(&mut self, owner: Owner, key: SortKey) {
        self.add_expected(owner, 0, None, key);
    }

    fn add_expected(&mut self, owner: Owner, run_at: i64, expected: Option<Duration>, key: SortKey) {
        let times = &mut self.times;
        let line = self.lines.entry(owner).or_insert_with(|| (times.begin(&owner), BTreeMap::new()));
        line.1.insert(self.order.place(0, Timestamp::from_millis(run_at), expected, key), expected);
    }

    fn next(&mut self) -> Option<(Owner, SortKey)> {
        let turn = |(start, places): &(u64, BTreeMap<Place, Option<Duration>>)| {
            Some(self.order.turn(*start, places.first_key_value()?.0.clone()))
        };
        let owner = *self.lines.iter().min_by_key(|(_, line)| turn(line))?.0;
        let (start, places) = self.lines.get_mut(&owner)?;
        let (place, expected) = places.pop_first()?;
        *start = self.times.hand_out(*start, self.order.cost(expected), self.weights[owner]);
        if places.is_empty() {
            self.times.rest(owner, *start);
            self.lines.remove(&owner);
        }
        Some((owner, place.key))
    }
}

fn key(run_at: i64, number: usize) -> SortKey {
    SortKey::new((0, run_at), JobId::new(format!("job-{number:06}")).expect("an id"))
}

#[test]
fn ten_jobs_of_one_owner_are_handed_out_with_the_next_of_another_who_has_many() {
    let mut queue = Queue::new(Order::BY_OWNER, &[1, 1]);
    (0..1_000).for_each(|number| queue.add(0, key(0, number)));
    for _ in 0..500 {
        assert_eq!(queue.next().map(|(owner, _)| owner), Some(0));
    }
    (0..10).for_each(|number| queue.add(1, key(9, 2_000 + number)));
    let next: Vec<Owner> = (0..21).filter_map(|_| queue.next()).map(|(owner, _)| owner).collect();
    assert_eq!(next.iter().filter(|owner| **owner == 1).count(), 10, "{next:?}");
}

#[test]
fn who_had_no_jobs_has_saved_up_no_turns() {
    let mut queue = Queue::new(Order::BY_OWNER, &[1, 1]);
    (0..100).for_each(|number| queue.add(0, key(0, number)));
    (0..50).for_each(|_| assert!(queue.next().is_some()));
    (0..50).for_each(|number| queue.add(1, key(9, 1_000 + number)));
    let next: Vec<Owner> = (0..20).filter_map(|_| queue.next()).map(|(owner, _)| owner).collect();
    assert!((9..=11).contains(&next.iter().filter(|owner| **owner == 1).count()), "{next:?}");
}

#[test]
fn who_comes_and_goes_gets_no_more_than_who_stays() {
    let mut queue = Queue::new(Order::BY_OWNER, &[1, 1]);
    (0..1_000).for_each(|number| queue.add(0, key(9, number)));
    let mut handed_out = [0, 0];
    for number in 0..400 {
        // The second owner has one job at a time, which is older than all of the first.
        if !queue.lines.contains_key(&1) {
            queue.add(1, key(0, 5_000 + number));
        }
        handed_out[queue.next().expect("a job").0] += 1;
    }
    assert!(handed_out[0] >= 198, "{handed_out:?}");
}

const BY_RUNTIME: Order = Order { turns: Some(Unit::Runtime), shortest_first: false };
const SHORTEST_FIRST: Order = Order { turns: None, shortest_first: true };

#[test]
fn where_a_turn_is_the_expected_runtime_owners_get_time_and_not_starts() {
    let mut queue = Queue::new(BY_RUNTIME, &[1, 1]);
    for number in 0..2_000 {
        queue.add_expected(0, 0, Some(Duration::from_secs(600)), key(0, number));
        queue.add_expected(1, 0, Some(Duration::from_secs(20)), key(0, 5_000 + number));
    }
    let next: Vec<Owner> = (0..310).filter_map(|_| queue.next()).map(|(owner, _)| owner).collect();
    assert_eq!(next.iter().filter(|owner| **owner == 0).count(), 10, "as long as 300 of the others'");
}

#[test]
fn a_job_that_says_nothing_counts_as_a_minute_and_none_as_less_than_a_second() {
    assert_eq!(BY_RUNTIME.cost(None), BY_RUNTIME.cost(Some(Duration::from_secs(60))));
    assert_eq!(BY_RUNTIME.cost(Some(Duration::from_millis(1))), BY_RUNTIME.cost(Some(Duration::from_secs(1))));
    assert_eq!(Order::BY_OWNER.cost(Some(Duration::from_secs(9))), Order::BY_OWNER.cost(None));
}

#[test]
fn shorter_jobs_go_first_until_a_long_one_has_waited_four_times_as_long() {
    let mut queue = Queue::new(SHORTEST_FIRST, &[1]);
    let seconds = Duration::from_secs;
    queue.add_expected(0, 0, Some(seconds(100)), key(0, 1));
    queue.add_expected(0, 300_000, Some(seconds(20)), key(300_000, 2));
    queue.add_expected(0, 321_000, Some(seconds(20)), key(321_000, 3));
    let next: Vec<SortKey> = std::iter::from_fn(|| queue.next()).map(|(_, key)| key).collect();
    assert_eq!(next, [key(300_000, 2), key(0, 1), key(321_000, 3)]);
}

#[test]
fn a_higher_priority_goes_first_however_long_it_runs() {
    let place = |priority, expected| {
        SHORTEST_FIRST.place(priority, Timestamp::from_millis(0), Some(Duration::from_secs(expected)), key(0, 1))
    };
    assert!(place(1, 100_000) < place(0, 1));
    assert!(place(0, 1) < place(0, 2));
}

proptest! {
    #[test]
    fn no_job_is_overtaken_by_one_that_becomes_due_after_its_rank(
        jobs in prop::collection::vec((0..50_000_i64, 0..8_000_u64, 0..3_usize), 1..150),
    ) {
        let mut queue = Queue::new(SHORTEST_FIRST, &[1]);
        let (mut now, mut waiting): (i64, Vec<(i64, i64, SortKey)>) = (0, Vec::new());
        let put_off = |expected: Duration| i64::try_from(millis(expected.min(LONGEST) * PUT_OFF)).expect("a time");
        for (number, (after, expected, handed_out)) in jobs.into_iter().enumerate() {
            // One becomes due after the other, and then some are handed out.
            now += after;
            let expected = Duration::from_secs(expected);
            queue.add_expected(0, now, Some(expected), key(now, number));
            waiting.push((now, now + put_off(expected), key(now, number)));
            for _ in 0..handed_out {
                let Some((_, next)) = queue.next() else { break };
                let at = waiting.iter().position(|(_, _, key)| *key == next).expect("it waits");
                let (due, ..) = waiting.remove(at);
                let overtaken = waiting.iter().filter(|(before, rank, _)| *before < due && *rank <= due);
                prop_assert_eq!(overtaken.count(), 0);
            }
        }
    }

    #[test]
    fn no_owner_gets_less_than_its_share_less_a_constant(
        weights in prop::collection::vec(1..=20_u32, 2..6),
        steps in prop::collection::vec((0..6_usize, 0..4_usize, 0..5_i64), 50..200),
    ) {
        let mut queue = Queue::new(Order::BY_OWNER, &weights);
        let mut number = 0;
        // The owner that always has jobs, how many of them were handed out, and of all.
        for always in 0..weights.len() {
            let (mut own, mut all) = (0_u64, 0_u64);
            (0..200).for_each(|_| {
                number += 1;
                queue.add(always, key(3, number));
            });
            for (owner, jobs, run_at) in &steps {
                let owner = owner % weights.len();
                for _ in 0..jobs * 2 {
                    number += 1;
                    queue.add(owner, key(*run_at, number));
                }
                let Some((next, _)) = queue.next() else { break };
                all += 1;
                own += u64::from(next == always);
                let sum = weights.iter().sum::<u32>();
                let share = all as f64 * f64::from(weights[always]) / f64::from(sum);
                // Each owner may be ahead by one job at the beginning and at the end.
                let constant = 2.0 * weights.len() as f64 + 2.0;
                prop_assert!(own as f64 >= share - constant, "{own} of {all}, weights {weights:?}");
            }
        }
    }

    #[test]
    fn by_default_jobs_go_in_the_order_of_dispatch(
        jobs in prop::collection::vec((0..4_usize, 0..50_i64), 1..100),
    ) {
        let mut queue = Queue::new(Order::default(), &[1, 2, 3, 4]);
        let mut expected = Vec::new();
        for (number, (owner, run_at)) in jobs.into_iter().enumerate() {
            queue.add(owner, key(run_at, number));
            expected.push(key(run_at, number));
        }
        expected.sort();
        let handed_out: Vec<SortKey> = std::iter::from_fn(|| queue.next()).map(|(_, key)| key).collect();
        prop_assert_eq!(handed_out, expected);
    }
}
