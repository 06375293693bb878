//! The process's metrics, in Prometheus' text format.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// The bounds of the buckets for durations, in seconds: from an answer out of memory to a claim's longest wait.
const SECONDS: [f64; 14] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0];
/// The bounds of the buckets for sizes of batches.
const SIZES: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 500.0, 1000.0, 5000.0];

/// How often what was measured is put in its buckets. Until then it takes memory.
pub(crate) const UPKEEP: Duration = Duration::from_secs(5);

/// Starts to record the process's metrics and gives where to read them. There is one recorder in a process: another
/// call gives the same.
///
/// # Errors
/// When a recorder of another kind is at work.
pub fn install() -> Result<PrometheusHandle, String> {
    static INSTALLED: OnceLock<Result<PrometheusHandle, String>> = OnceLock::new();
    INSTALLED.get_or_init(|| start().map_err(|error| format!("cannot record metrics: {error}"))).clone()
}

fn start() -> Result<PrometheusHandle, BuildError> {
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &SECONDS)?
        .set_buckets_for_metric(Matcher::Suffix("_size".to_owned()), &SIZES)?
        .install_recorder()?;
    metrics::describe_counter!("leasehold_http_requests_total", "Requests answered, by route, method and status");
    metrics::describe_histogram!(
        "leasehold_http_request_duration_seconds",
        "Time to the head of the answer, with what the call itself waited for"
    );
    metrics::describe_gauge!("leasehold_http_connections", "Open connections");
    metrics::describe_gauge!("leasehold_event_streams", "Open streams of events");
    metrics::describe_counter!("leasehold_event_gaps_total", "Times that a stream of events had to leave some out");
    Ok(handle)
}
