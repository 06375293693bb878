//! Figures about queues and workers, short enough for a table.

use crate::clock::Timestamp;
use crate::wire::Queue;

/// How long ago something was; nothing for what never was.
pub(super) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    since.map(|since| super::duration::show(now.since(since))).unwrap_or_default()
}

/// Ended jobs a minute, over each time the server tells of.
pub(super) fn per_minute(queue: &Queue) -> String {
    let rates: Vec<String> = queue.throughput.iter().map(|ended| format!("{:.1}", ended.per_minute)).collect();
    rates.join(" ")
}

/// The share of jobs that failed over the longest time that the server tells of.
pub(super) fn failing(queue: &Queue) -> String {
    let rate = queue.throughput.last().and_then(|ended| ended.failure_rate);
    rate.map(|rate| format!("{:.0} %", rate * 100.0)).unwrap_or_default()
}
