//! The time by the clocks of the server's nodes.

use std::collections::BTreeMap;

use serde::Deserialize;
use tokio::time::Instant;

use super::nodes::{Nodes, Request};
use crate::clock::Timestamp;
use crate::store::StoreError;

/// The statistics of nodes that cost least. A node that hangs is left out.
const TIMES: &str = "_nodes/stats/process?filter_path=nodes.*.timestamp&timeout=2s";

#[derive(Deserialize)]
struct Stats {
    #[serde(default)]
    nodes: BTreeMap<String, Node>,
}

#[derive(Deserialize)]
struct Node {
    timestamp: i64,
}

/// Returns the time by the nodes' clocks: the median, so that one node with a wrong clock misleads nobody.
pub(super) async fn read(nodes: &Nodes, deadline: Instant) -> Result<Timestamp, StoreError> {
    let body = nodes.try_call(&Request::get(TIMES.to_owned()), deadline).await?.body()?;
    median(&body).ok_or_else(|| StoreError::Unavailable("its nodes do not say what time it is".to_owned()))
}

fn median(body: &[u8]) -> Option<Timestamp> {
    let stats: Stats = serde_json::from_slice(body).ok()?;
    let mut times: Vec<i64> = stats.nodes.values().map(|node| node.timestamp).collect();
    times.sort_unstable();
    // Of an even number the earlier one of the middle, so that every process takes the same.
    let middle = times.len().checked_sub(1)? / 2;
    times.get(middle).copied().map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn median_of(times: &[i64]) -> Option<i64> {
        let node = |(number, timestamp)| (format!("node-{number}"), serde_json::json!({ "timestamp": timestamp }));
        let nodes: serde_json::Map<_, _> = times.iter().enumerate().map(node).collect();
        median(serde_json::json!({ "nodes": nodes }).to_string().as_bytes()).map(Timestamp::as_millis)
    }

    #[test]
    fn the_store_has_the_time_of_most_nodes() {
        assert_eq!(median_of(&[1_000]), Some(1_000));
        assert_eq!(median_of(&[9_000_000, 1_001, 1_000]), Some(1_001));
        assert_eq!(median_of(&[2_000, 1_000]), Some(1_000));
        assert_eq!(median_of(&[]), None);
        assert_eq!(median(b"{}"), None);
    }
}
