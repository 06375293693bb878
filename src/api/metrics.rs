//! The process's metrics, in Prometheus' text format.
//!
//! [`METRICS`] names every metric. Tests hold the table to the source and to what `/metrics` gives; the alert rules and
//! dashboards of `deploy/` are held to `/metrics` in turn. Counters start at zero with the process, so that a rule over
//! an increase sees the first one. No label has a job's id, nor any other value of which there is no end. The metrics
//! of queues, and of schedules by name, are not recorded, but written anew for each reader (`queue_metrics`,
//! `schedule_metrics`).

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{Label, gauge};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::job::{EventName, OrphanPolicy};
use crate::monitor::Scan;
use crate::scheduler::{Outcome, SHARDS};

/// The bounds of the buckets for the duration of answers, in seconds: from an answer out of memory to a claim's longest
/// wait.
const ANSWERS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0];
/// The bounds of the buckets for how long jobs wait and run, in seconds: from at once to a day.
const JOBS: [f64; 14] =
    [0.001, 0.005, 0.025, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0, 21_600.0, 86_400.0];
/// The bounds of the buckets for sizes of batches.
const SIZES: [f64; 11] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 5000.0];

/// How often recorded values are put in their buckets. Until then they take memory.
pub(crate) const UPKEEP: Duration = Duration::from_secs(5);

/// A metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// What the metric measures, for its help text.
    pub help: &'static str,
    /// The type of the metric.
    pub sort: Sort,
    /// The metric's label, with the values that have a series from the start; `None` for a metric without labels.
    pub label: Option<(&'static str, Values)>,
}

/// Returns the values of a label that have a series from the start.
pub type Values = fn() -> Vec<&'static str>;

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sort {
    /// A number that only rises.
    Counter,
    /// A number that rises and falls.
    Gauge,
    /// The counts of values by size, in buckets with these upper bounds.
    Histogram(&'static [f64]),
}
use Sort::{Counter, Gauge, Histogram};

const fn metric(name: &'static str, sort: Sort, help: &'static str) -> Metric {
    Metric { name, help, sort, label: None }
}

const fn labelled(name: &'static str, sort: Sort, label: (&'static str, Values), help: &'static str) -> Metric {
    Metric { name, help, sort, label: Some(label) }
}

/// The label's values are known only at run time: no series exists from the start.
const IN_USE: Values = Vec::new;
const ENDS: Values = || vec!["available", "completed", "failed", "cancelled"];
const EVENTS: Values = || {
    let counted =
        EventName::ALL.into_iter().filter(|event| !matches!(event, EventName::Submitted | EventName::Claimed));
    counted.map(EventName::as_str).collect()
};
const CONTENDED: Values = || vec!["claim", "update", "queue", "subscription", "setting"];
const POLICIES: Values = || OrphanPolicy::ALL.map(OrphanPolicy::as_str).to_vec();
const SCANS: Values = || Scan::ALL.map(Scan::as_str).to_vec();

const DIRECTIONS: Values = || vec!["sent", "received"];

/// What may become of a trigger that is performed.
const PERFORMED: Values = || {
    use Outcome::{Consumed, Failed, Fired, Late, Missed, Skipped};
    [Fired, Late, Consumed, Failed, Missed, Skipped].map(Outcome::as_str).to_vec()
};

/// What may become of a trigger of a backfill.
const BACKFILLED: Values = || {
    use Outcome::{Consumed, Failed, Fired, Skipped};
    [Fired, Consumed, Failed, Skipped].map(Outcome::as_str).to_vec()
};

/// Every metric.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    metric("leasehold_build_info", Gauge, "1; its label says which version this is"),

    labelled("leasehold_http_requests_total", Counter, ("route", IN_USE),
        "Requests answered, by route, method and status"),
    labelled("leasehold_http_request_duration_seconds", Histogram(&ANSWERS), ("route", IN_USE),
        "Time to the head of the answer, with what the call itself waited for"),
    metric("leasehold_http_connections", Gauge, "Open connections"),
    metric("leasehold_http_connections_refused_total", Counter, "Connections for which there was no place"),
    metric("leasehold_http_unknown_tokens_total", Counter, "Calls that showed a token that is not known"),
    labelled("leasehold_denied_calls_total", Counter,
        ("code", || vec!["unauthorized", "forbidden", "foreign_lease", "foreign_origin"]),
        "Calls, and items of calls, that were denied, by the code of the refusal; the log names the tokens"),
    labelled("leasehold_budget_held", Gauge, ("budget", IN_USE),
        "What callers hold of each budget: bytes of request bodies, or calls or connections without a token"),
    labelled("leasehold_budget_refused_total", Counter, ("budget", IN_USE),
        "Times that a budget had no more for a caller: a token by its name, or `address`; beyond 64 names, `other`"),

    metric("leasehold_event_streams", Gauge, "Open streams of events"),
    metric("leasehold_event_gaps_total", Counter, "Times that a stream of events had to leave some out"),

    labelled("leasehold_jobs", Gauge, ("queue", IN_USE),
        "Jobs in the store by queue and state, as last counted; queues beyond the hundred with the most waiting and \
         running jobs are counted together as ` others`"),
    labelled("leasehold_queue_oldest_waiting_seconds", Gauge, ("queue", IN_USE),
        "For how long the longest-waiting due job of a queue could have been claimed, as last measured"),
    labelled("leasehold_queue_workers", Gauge, ("queue", IN_USE),
        "Workers of a queue that have called this server within the last two minutes"),
    metric("leasehold_jobs_counted_timestamp_seconds", Gauge, "When the jobs were last counted"),
    metric("leasehold_claims_waiting", Gauge, "Claims that wait for a job"),
    metric("leasehold_queues_starving", Gauge,
        "Queues of which nothing was handed out in three looks, though a claim waits that a job suits and nothing \
         keeps back"),
    labelled("leasehold_jobs_held_long", Gauge, ("by", || vec!["hold", "pause", "limit"]),
        "Jobs that have been held for longer than `--held-bound`, by what holds them"),

    metric("leasehold_submissions_total", Counter, "Jobs submitted; one that was submitted before does not count"),
    metric("leasehold_claims_total", Counter, "Claims granted"),
    metric("leasehold_claims_undelivered_total", Counter,
        "Jobs given back because their worker was gone before the answer to its claim"),
    metric("leasehold_claims_with_submission_total", Counter,
        "Jobs that were written as claimed with their submission, since a worker waited"),
    metric("leasehold_claims_redelivered_total", Counter,
        "Jobs given again to a worker that lost the answer to its claim"),
    labelled("leasehold_conflicts_total", Counter, ("operation", CONTENDED),
        "Writes of a job, or of a record of the kind named, that lost a race: another write came first"),
    labelled("leasehold_mismatches_total", Counter, ("reason", || vec!["stale_hit", "fence"]),
        "What spoke of a job as it no longer is: search hits older than what is known, and calls under another fence \
         than the job's"),
    metric("leasehold_heartbeats_total", Counter, "Signs of life that came in"),
    metric("leasehold_recalls_total", Counter,
        "Attempts of which a worker that waited was told that they have to end early"),
    metric("leasehold_leases_lost_total", Counter, "Workers refused because their lease was no longer the job's"),
    labelled("leasehold_attempts_ended_total", Counter, ("state", ENDS),
        "Attempts that ended, by what became of the job"),
    metric("leasehold_retries_total", Counter, "Jobs put back for another attempt after a failure, or on request"),
    labelled("leasehold_transitions_total", Counter, ("event", EVENTS),
        "What happened to jobs after their submission, but for claims"),
    labelled("leasehold_bulk_changes_total", Counter, ("action", IN_USE),
        "Jobs and schedules gone through by administrators' orders over many, by order and outcome"),
    metric("leasehold_claim_wait_seconds", Histogram(&ANSWERS), "For how long claims waited that got a job"),
    metric("leasehold_claim_drift_seconds", Histogram(&JOBS), "How long after they were due jobs were claimed"),
    labelled("leasehold_run_seconds", Histogram(&JOBS), ("state", ENDS),
        "How long attempts took, by what became of the job"),

    metric("leasehold_monitor_gone", Gauge,
        "1 while this process runs no monitor and sees that no other one acts on the store"),
    metric("leasehold_archive_months_unread", Gauge,
        "Months of the archive that cannot be read, since their index is closed or a part of it is not there"),
    metric("leasehold_monitor_leader", Gauge, "1 while this process's monitor leads; of all processes one does"),
    metric("leasehold_orphans_flagged_total", Counter, "Running jobs that were flagged as orphans"),
    labelled("leasehold_recoveries_total", Counter, ("policy", POLICIES),
        "Jobs taken from workers whose lease was over, by the rule that was followed"),
    metric("leasehold_overdue_total", Counter, "Attempts found to run for longer than expected"),
    metric("leasehold_timeouts_total", Counter, "Attempts ended at their time limit"),
    metric("leasehold_moved_up_total", Counter,
        "Waiting jobs that a clock had written that was ahead, and that were let run when they were meant to"),
    metric("leasehold_expired_total", Counter, "Jobs expired that nobody had claimed before their start deadline"),
    metric("leasehold_retention_removed_total", Counter, "Ended jobs removed at the end of their retention"),
    metric("leasehold_output_bytes_total", Counter, "Bytes of output that workers sent"),
    metric("leasehold_archive_moved_total", Counter, "Ended jobs moved from the live index to the archive"),
    metric("leasehold_archive_tombstones_cleared_total", Counter,
        "Traces of moved and removed jobs taken out of the live index"),
    metric("leasehold_archive_stale_copies_total", Counter,
        "Copies removed from the archive that an interrupted move or a retry had left there"),
    metric("leasehold_archive_left_bodies_total", Counter,
        "Payloads and results removed to which no job had referred for a day"),
    metric("leasehold_archive_left_total", Counter,
        "Times that an ended job could not be moved and was left for later"),
    labelled("leasehold_scan_duration_seconds", Histogram(&ANSWERS), ("scan", SCANS),
        "How long the monitor's scans took"),
    labelled("leasehold_scan_last_success_timestamp_seconds", Gauge, ("scan", SCANS),
        "When a scan of this process's monitor last succeeded; 0 before that"),
    labelled("leasehold_scan_lag_seconds", Gauge, ("scan", SCANS),
        "For how long the job has been due that the latest scan had no time for; 0 when it was through"),
    metric("leasehold_audit_entries_total", Counter, "Entries written to the audit"),
    metric("leasehold_audit_refused_total", Counter, "Entries of the audit that Elasticsearch refused"),

    metric("leasehold_notifications_delivered_total", Counter, "Notifications that their receiver took"),
    metric("leasehold_notifications_failed_attempts_total", Counter,
        "Deliveries of notifications that failed and are tried again"),
    metric("leasehold_notifications_dead_total", Counter, "Notifications given up"),
    metric("leasehold_subscriptions_switched_off_total", Counter,
        "Subscriptions switched off since their receiver is gone"),

    metric("leasehold_triggers_loaded_total", Counter, "Triggers that this process has made for schedules"),
    metric("leasehold_triggers_missed_total", Counter,
        "Due times of schedules for which no trigger was made, since their margin of error was over"),
    labelled("leasehold_loader_lag_seconds", Gauge, ("shard", || SHARDS.iter().map(String::as_str).collect()),
        "For how long the schedule had been due that waited longest for this process's loader when it last looked, by \
         shard; 0 for the shards of others"),
    metric("leasehold_loaders", Gauge,
        "Processes that load schedules, this one included, as far as it knows; 0 where it loads none"),
    labelled("leasehold_triggers_performed_total", Counter, ("outcome", PERFORMED),
        "Triggers that this process has dealt with, by outcome: fired, late, consumed, failed, missed or skipped"),
    labelled("leasehold_triggers_backfilled_total", Counter, ("outcome", BACKFILLED),
        "Triggers of backfills that this process has dealt with, by outcome: fired, consumed, failed or skipped"),
    metric("leasehold_foreign_ids_total", Counter,
        "Jobs of others that had the id of a trigger, of its job, of a backfill or of a delivery, which was made under \
         the next id"),
    metric("leasehold_triggers_redriven_total", Counter,
        "Calls of schedules that were not answered, or driven back with 408, 425, 429 or a status from 500 on"),
    metric("leasehold_trigger_lateness_seconds", Histogram(&ANSWERS),
        "How long after its due time the action of a trigger began"),

    labelled("leasehold_schedule_trouble", Gauge, ("schedule", IN_USE),
        "1 for a schedule that has missed due times, is failing or was paused by the system, as `kind` says, of at \
         most 100 that this process knows of; none once that is over"),

    metric("leasehold_managers", Gauge, "Managers that run on this store, this one included, as far as it knows"),
    labelled("leasehold_hints_total", Counter, ("outcome", || vec!["sent", "received", "failed", "dropped"]),
        "Jobs that managers told each other of: sent by this one, received by it, failed to be told, or dropped since \
         there were too many or the other manager does not answer"),

    labelled("leasehold_member_messages_total", Counter,
        ("outcome", || vec!["sent", "failed", "dropped", "refused"]),
        "Messages between the members of the group, by outcome: sent to others by this one, failed to be sent, or \
         dropped since too much waited, and of those that came refused for the same reason"),
    metric("leasehold_member_calls_total", Counter,
        "HTTP calls of schedules and notifications that this member has made for the leader"),
    metric("leasehold_member_term", Gauge, "The term of its group that this member knows of"),
    metric("leasehold_member_leads", Gauge, "1 while this member leads its group"),
    metric("leasehold_member_applied", Gauge, "The number of the last entry of the log that this member has applied"),
    metric("leasehold_member_committed", Gauge,
        "The number of the last entry of the log that this member knows most members to have"),
    metric("leasehold_member_lag_entries", Gauge,
        "Entries of the log that this member knows to be agreed on and has not applied yet"),
    metric("leasehold_member_leader_changes_total", Counter, "Times that this member has got another leader"),
    metric("leasehold_member_output_uncopied_cells", Gauge,
        "Parts of the output of jobs, of 8 KiB at most, of which no other member has a copy yet"),
    metric("leasehold_member_apply_seconds", Histogram(&ANSWERS),
        "Time to apply entries that were agreed on at a time"),
    metric("leasehold_member_entries_since_flush", Gauge,
        "Entries of the log that were applied since the state was last written to the database"),
    labelled("leasehold_member_snapshot_seconds", Histogram(&JOBS), ("direction", DIRECTIONS),
        "Time to bring a member the whole state that lags too far behind, sent to it or received"),
    labelled("leasehold_member_snapshot_bytes_total", Counter, ("direction", DIRECTIONS),
        "Bytes of such states, sent or received"),
    labelled("leasehold_member_clock_ahead_seconds", Gauge, ("member", IN_USE),
        "How far the clock of each member is ahead of this member's, at the middle of what a round trip leaves open"),
    metric("leasehold_member_clocks_off", Gauge,
        "Members whose clocks are certainly off from those of most members, as this one sees it; /v1/cluster names \
         them"),
    metric("leasehold_member_clocks_apart", Gauge,
        "Members whose clocks are certainly too far from this member's, while no majority says which is wrong"),
    metric("leasehold_member_unequal", Gauge,
        "Members whose states differ, as far as this one knows"),
    labelled("leasehold_member_comparisons_total", Counter, ("outcome", || vec!["equal", "different", "unknown"]),
        "Comparisons of this member's state with that of its leader, once a minute where something was written"),
    labelled("leasehold_member_rebuilds_total", Counter, ("outcome", || vec!["begun", "done", "given_up"]),
        "Rebuilds of this member by itself, since its state alone differed from that of all others"),
    metric("leasehold_clock_offset_seconds", Gauge,
        "How far this machine's clock was ahead of the store's when they were last compared"),
    labelled("leasehold_clock_steps_total", Counter, ("direction", || vec!["forward", "back"]),
        "Times that this machine's clock was set by more than a second, and that was followed"),
    metric("leasehold_clock_off", Gauge,
        "1 while this machine's clock is further from the store's than clocks may differ; its monitor ends no job"),

    labelled("leasehold_store_operations_total", Counter, ("operation", IN_USE),
        "Operations of the store, by operation and outcome: ok, conflict, refused or unknown"),
    labelled("leasehold_store_operation_duration_seconds", Histogram(&ANSWERS), ("operation", IN_USE),
        "How long the store took"),
    metric("leasehold_store_stopped", Gauge,
        "1 once the store takes no more writes until this process is started again; /v1/health says why"),
    metric("leasehold_store_oldest_write_seconds", Gauge,
        "How long ago the oldest write was accepted by the embedded store that is not answered yet"),
    metric("leasehold_store_hangs", Gauge,
        "1 while the embedded store hangs: a write is not answered, or a member does not go on; /readyz says which"),
    metric("leasehold_store_out_of_order", Gauge,
        "1 while a part of the store is in a state that only an operator can change; /v1/health says which"),
    metric("leasehold_store_bulk_items", Histogram(&SIZES), "How many writes travelled together"),
    metric("leasehold_store_sync_duration_seconds", Histogram(&ANSWERS),
        "How long the embedded store took to make a batch durable"),
    metric("leasehold_store_flush_duration_seconds", Histogram(&ANSWERS),
        "How long the embedded store took to write to its database what its log alone had"),
    metric("leasehold_store_unreadable_at_rest", Gauge,
        "1 from when documents of the embedded store cannot be read at rest, or counted, until all of them can"),
    labelled("leasehold_store_scrubs_total", Counter, ("outcome", || vec!["read", "unreadable", "counted"]),
        "Times that all documents of the embedded store were read at rest, not all could be, or all were counted"),
    metric("leasehold_store_node_failures_total", Counter, "Requests that failed at one node of the store"),
    metric("leasehold_store_copies_failed_total", Counter, "Acknowledged writes that not every replica took"),
    metric("leasehold_store_unreadable_total", Counter,
        "Times that a document was passed over, which a later version or somebody by hand wrote in another form"),
    metric("leasehold_store_bodies_left_total", Counter,
        "Payloads and results that could not be removed and that no job refers to"),
];

/// Records what a manager finds when its metrics are read: how many claims wait, whether its clock is off, and whether
/// the store is out of order and has stopped.
pub(super) fn record_manager(waiting: usize, clock_is_off: bool, (is_out_of_order, has_stopped): (bool, bool)) {
    gauge!("leasehold_claims_waiting").set(waiting as f64);
    gauge!("leasehold_clock_off").set(flag(clock_is_off));
    gauge!("leasehold_store_out_of_order").set(flag(is_out_of_order));
    gauge!("leasehold_store_stopped").set(flag(has_stopped));
}

/// Returns the value of a gauge that is raised or not.
pub(super) const fn flag(is_raised: bool) -> f64 {
    if is_raised { 1.0 } else { 0.0 }
}

/// Starts to record the process's metrics and returns the handle to read them. A process has one recorder: another call
/// returns the same handle.
///
/// # Errors
/// Another recorder is installed already.
pub fn install() -> Result<PrometheusHandle, String> {
    static INSTALLED: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();
    INSTALLED.get_or_init(|| start().map_err(|error| format!("cannot record metrics: {error}"))).clone()
}

fn start() -> Result<PrometheusHandle, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS {
        if let Histogram(bounds) = metric.sort {
            builder = builder.set_buckets_for_metric(Matcher::Full(metric.name.to_owned()), bounds)?;
        }
    }
    let handle = builder.install_recorder()?;
    METRICS.iter().for_each(begin);
    metrics::gauge!("leasehold_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
    Ok(handle)
}

/// Describes a metric, and starts its series at zero.
fn begin(metric: &Metric) {
    let Metric { name, help, sort, label } = *metric;
    match sort {
        Counter => metrics::describe_counter!(name, help),
        Gauge => metrics::describe_gauge!(name, help),
        Histogram(_) => metrics::describe_histogram!(name, help),
    }
    let series: Vec<Vec<Label>> = match label {
        None if name == "leasehold_build_info" => Vec::new(),
        None => vec![Vec::new()],
        Some((label, values)) => {
            values().into_iter().map(|value| vec![Label::from_static_parts(label, value)]).collect()
        }
    };
    for labels in series {
        match sort {
            Counter => metrics::counter!(name, labels).increment(0),
            Gauge => drop(metrics::gauge!(name, labels)),
            Histogram(_) => drop(metrics::histogram!(name, labels)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Emitted by this file itself.
    const BUILD_INFO: &str = "leasehold_build_info";

    /// Calls `read` with the text of every source file below a folder, except for this one, whose table would be
    /// compared with itself.
    fn sources(folder: &Path, read: &mut impl FnMut(&str)) {
        for entry in std::fs::read_dir(folder).expect("a folder of the source") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                sources(&path, read);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("api/metrics.rs") {
                read(&std::fs::read_to_string(&path).expect("a source file"));
            }
        }
    }

    /// Returns the names of metrics that the source emits.
    fn emitted() -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut |text| {
            for part in text.split("\"leasehold_").skip(1) {
                let name = part.split('"').next().unwrap_or_default();
                if !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                    names.insert(format!("leasehold_{name}"));
                }
            }
        });
        names
    }

    #[test]
    fn the_metrics_that_are_emitted_are_those_in_the_table() {
        let listed = METRICS.iter().map(|metric| metric.name.to_owned()).filter(|name| name != BUILD_INFO);
        assert_eq!(emitted(), listed.collect());
    }
}
