//! The choice of the node for a request: pure, with the time passed in.

use std::time::{Duration, Instant};

/// How long a node is left alone after its first failure; doubles with every further one.
const FIRST_REST: Duration = Duration::from_secs(1);
/// The longest time that a node is left alone.
const LONGEST_REST: Duration = Duration::from_secs(30);
/// How long a node is left alone by other requests while one request tries whether it is back.
const PROBE: Duration = Duration::from_secs(2);

/// The failure in a row at which a node counts as failed in the log. A connection that a network resets now and then is
/// no state of the node, and is counted only.
const NOTED: u32 = 2;

/// The health of one node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Health {
    failures: u32,
    resting_until: Option<Instant>,
}

impl Health {
    /// Returns whether the node is thought to answer.
    pub(super) fn is_live(&self) -> bool {
        self.failures == 0
    }

    /// Records an answer. Returns whether this is worth a line in the log.
    pub(super) fn answered(&mut self) -> bool {
        let was_noted = self.failures >= NOTED;
        *self = Self::default();
        was_noted
    }

    /// Records a failure: the node rests, longer each time. Returns whether this is worth a line in the log.
    pub(super) fn failed(&mut self, now: Instant) -> bool {
        let rest = FIRST_REST.saturating_mul(1 << self.failures.min(16)).min(LONGEST_REST);
        self.failures = self.failures.saturating_add(1);
        self.resting_until = Some(now + rest);
        self.failures == NOTED
    }
}

/// Returns the index of the node for the next request, where `turn` counts requests. Live nodes take turns. A node that
/// has rested is tried by one request, while the others keep to live nodes. With no live node, the one whose rest ends
/// first is picked.
pub(super) fn pick(nodes: &mut [Health], turn: usize, now: Instant) -> usize {
    let rested = nodes.iter().position(|node| node.resting_until.is_some_and(|until| until <= now));
    if let Some(index) = rested {
        nodes[index].resting_until = Some(now + PROBE);
        return index;
    }
    let live = nodes.iter().filter(|node| node.is_live()).count();
    if live > 0 {
        let wanted = turn % live;
        let mut indices = (0..nodes.len()).filter(|index| nodes[*index].is_live());
        return indices.nth(wanted).unwrap_or(0);
    }
    (0..nodes.len()).min_by_key(|index| nodes[*index].resting_until).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picks(nodes: &mut [Health], now: Instant) -> Vec<usize> {
        (0..6).map(|turn| pick(nodes, turn, now)).collect()
    }

    #[test]
    fn live_nodes_take_turns() {
        assert_eq!(picks(&mut [Health::default(); 3], Instant::now()), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_failed_node_is_left_out_until_it_has_rested_and_then_tried_once() {
        let mut nodes = [Health::default(); 3];
        let start = Instant::now();
        nodes[1].failed(start);
        assert_eq!(picks(&mut nodes, start), [0, 2, 0, 2, 0, 2]);

        let rested = start + FIRST_REST;
        assert_eq!(picks(&mut nodes, rested), [1, 2, 0, 2, 0, 2]);
        nodes[1].answered();
        assert_eq!(picks(&mut nodes, rested), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_reset_now_and_then_is_not_logged_and_a_failure_is_logged_once_with_its_end() {
        let (mut node, now) = (Health::default(), Instant::now());
        for _ in 0..3 {
            assert!(!node.failed(now) && !node.answered());
        }
        assert_eq!([(); 4].map(|()| node.failed(now)), [false, true, false, false]);
        assert_eq!([(); 2].map(|()| node.answered()), [true, false]);
    }

    #[test]
    fn a_node_rests_longer_after_each_failure_but_not_for_ever() {
        let mut node = Health::default();
        let now = Instant::now();
        let rests: Vec<u64> = (0..7)
            .map(|_| {
                node.failed(now);
                node.resting_until.expect("a resting node").duration_since(now).as_secs()
            })
            .collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn with_no_live_node_the_one_that_has_rested_most_is_tried() {
        let mut nodes = [Health::default(); 2];
        let now = Instant::now();
        nodes[0].failed(now);
        nodes[0].failed(now);
        nodes[1].failed(now);
        assert_eq!(picks(&mut nodes, now), [1; 6]);
    }
}
