//! Whose turn it is among the queues of claims that take from theirs by weight. Pure: no job, no clock, no I/O.
//!
//! The turns are those of [`super::order`], with a queue in the place of an owner. Claims that name the same queues
//! with the same weights share them, so that the weights hold over many workers that take a job at a time, whichever of
//! them asks. A queue that has nothing for a claim is at rest: it begins with the others again, and saves up no turns.

use std::collections::HashMap;
use std::sync::Arc;

use super::lane::LANE_IDLE;
use super::order::{DEFAULT_WEIGHT, VirtualTimes, cost_of_one};
use crate::clock::Timestamp;
use crate::job::QueueName;
use crate::manager::request::QueueWeights;

/// The most sets of queues whose turns are remembered; of more, those that were used last.
const MOST_SETS: usize = 1_000;

/// The turns of queues, by the weights of claims.
#[derive(Default)]
pub(super) struct QueueTurns {
    sets: HashMap<Arc<QueueWeights>, Set>,
}

/// The turns of the queues of claims that have the same weights.
struct Set {
    times: VirtualTimes<QueueName>,
    used_at: Timestamp,
}

impl QueueTurns {
    /// Returns the virtual time at which the next job of a queue begins: the least is next.
    pub(super) fn start(&self, weights: &Arc<QueueWeights>, queue: &QueueName) -> u64 {
        self.sets.get(weights).map_or(0, |set| set.times.at_rest_or_now(queue))
    }

    /// Records that a job of a queue is handed out.
    pub(super) fn hand_out(&mut self, weights: &Arc<QueueWeights>, queue: &QueueName, now: Timestamp) {
        if self.sets.len() >= MOST_SETS && !self.sets.contains_key(weights) {
            let oldest = self.sets.iter().min_by_key(|(_, set)| set.used_at).map(|(weights, _)| Arc::clone(weights));
            oldest.and_then(|oldest| self.sets.remove(&oldest));
        }
        let first = || Set { times: VirtualTimes::default(), used_at: now };
        let set = self.sets.entry(Arc::clone(weights)).or_insert_with(first);
        set.used_at = now;
        let start = set.times.begin(queue);
        let weight = weights.get(queue).copied().unwrap_or(DEFAULT_WEIGHT);
        let end = set.times.hand_out(start, cost_of_one(), weight);
        set.times.rest(queue.clone(), end);
    }

    /// Forgets the turns of queues that no claim has used for a while.
    pub(super) fn forget_idle(&mut self, now: Timestamp) {
        self.sets.retain(|_, set| now.since(set.used_at) < LANE_IDLE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(name: &str) -> QueueName {
        QueueName::new(name).expect("a name")
    }

    fn weights(named: &[(&str, u32)]) -> Arc<QueueWeights> {
        Arc::new(named.iter().map(|(name, weight)| (queue(name), *weight)).collect())
    }

    /// Hands out so many jobs of those of these queues that have any, and returns how many each gave.
    fn rounds(turns: &mut QueueTurns, weights: &Arc<QueueWeights>, names: &[&str], count: usize) -> Vec<usize> {
        let mut given = vec![0; names.len()];
        for _ in 0..count {
            let next = (0..names.len()).min_by_key(|index| turns.start(weights, &queue(names[*index])));
            let next = next.expect("a queue");
            turns.hand_out(weights, &queue(names[next]), Timestamp::from_millis(1));
            given[next] += 1;
        }
        given
    }

    #[test]
    fn queues_give_jobs_by_their_weights_and_one_that_had_none_saves_up_no_turns() {
        let (mut turns, weights) = (QueueTurns::default(), weights(&[("a", 3), ("b", 1)]));
        assert_eq!(rounds(&mut turns, &weights, &["a", "b"], 400), [300, 100]);
        assert_eq!(rounds(&mut turns, &weights, &["b"], 1_000), [1_000]);
        let after = rounds(&mut turns, &weights, &["a", "b"], 400);
        assert!((299..=301).contains(&after[0]), "{after:?}");
    }

    #[test]
    fn other_weights_have_turns_of_their_own_and_what_is_not_used_is_forgotten() {
        let (mut turns, one) = (QueueTurns::default(), weights(&[("a", 1), ("b", 1)]));
        assert_eq!(rounds(&mut turns, &one, &["a"], 5), [5]);
        assert!(turns.start(&one, &queue("a")) > turns.start(&one, &queue("b")));
        let other = weights(&[("a", 1), ("b", 2)]);
        assert_eq!(turns.start(&other, &queue("a")), turns.start(&other, &queue("b")));
        let at = |seconds: i64| Timestamp::from_millis(1 + 1_000 * seconds);
        for number in 0..2 * MOST_SETS {
            let number = i64::try_from(number).expect("a number");
            turns.hand_out(&weights(&[(&format!("q{number}"), 1)]), &queue("a"), at(number));
        }
        assert_eq!(turns.sets.len(), MOST_SETS);
        assert!(!turns.sets.contains_key(&one), "it was used longest ago");
        turns.forget_idle(at(i64::try_from(2 * MOST_SETS).expect("a number")));
        assert!(turns.sets.len() < 301, "{}", turns.sets.len());
    }
}
