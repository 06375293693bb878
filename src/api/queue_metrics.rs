//! The metrics of queues. A recorded series lasts as long as its process, but queues come and go: what is known of them
//! is written anew each time, and a queue that is gone has no series any more.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use metrics_exporter_prometheus::formatting::{sanitize_label_value, write_help_line, write_type_line};

use super::metrics::METRICS;
use crate::clock::Timestamp;
use crate::job::QueueName;
use crate::manager::SurveyedQueue;

const JOBS: &str = "leasehold_jobs";
const OLDEST_WAITING: &str = "leasehold_queue_oldest_waiting_seconds";
const WORKERS: &str = "leasehold_queue_workers";

/// Returns the metrics of queues whose jobs were counted at `at`, and of those that workers take from.
pub(super) fn of_queues(queues: &[SurveyedQueue], at: Timestamp, workers: &BTreeMap<QueueName, u64>) -> String {
    let [mut jobs, mut waiting, mut taking] = [JOBS, OLDEST_WAITING, WORKERS].map(head_of);
    for SurveyedQueue { name, jobs: counts, oldest_waiting_since } in queues {
        let queue = sanitize_label_value(name);
        for (state, count) in counts {
            let state = state.as_str();
            let _ = writeln!(jobs, "{JOBS}{{queue=\"{queue}\",state=\"{state}\"}} {count}");
        }
        let seconds = oldest_waiting_since.map_or(0.0, |oldest| at.since(oldest).as_secs_f64());
        let _ = writeln!(waiting, "{OLDEST_WAITING}{{queue=\"{queue}\"}} {seconds}");
    }
    for (name, count) in workers {
        let queue = sanitize_label_value(name.as_str());
        let _ = writeln!(taking, "{WORKERS}{{queue=\"{queue}\"}} {count}");
    }
    jobs + &waiting + &taking
}

/// Returns the lines that stand before the series of a gauge.
pub(super) fn head_of(name: &str) -> String {
    let mut head = String::new();
    if let Some(metric) = METRICS.iter().find(|metric| metric.name == name) {
        write_help_line(&mut head, name, None, None, metric.help);
    }
    write_type_line(&mut head, name, None, None, "gauge");
    head
}
