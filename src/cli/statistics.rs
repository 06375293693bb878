//! Statistics of queues and workers, short enough for a table.

use crate::clock::Timestamp;
use crate::wire::Queue;

/// Formats how long ago something was; empty when it never was.
pub(super) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map(|since| super::duration::show(now.since(since))).unwrap_or_default()
}

/// Formats the ended jobs per minute, over each window of the server.
pub(super) fn per_minute(queue: &Queue) -> String {
    let rates: Vec<String> = queue.throughput.iter().map(|ended| format!("{:.1}", ended.per_minute)).collect();
    rates.join(" ")
}

/// Formats the share of jobs that failed over the server's longest window.
pub(super) fn failing(queue: &Queue) -> String {
    let rate = queue.throughput.last().and_then(|ended| ended.failure_rate);
    rate.map(|rate| format!("{:.0} %", rate * 100.0)).unwrap_or_default()
}
