//! A row of the result: what was measured with one number of managers.

use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;

use crate::cli::bench::report::Report;
use crate::cli::bench::target::{Target, counter};
use crate::cli::failure::Failure;

/// How many parts of a second `/proc` counts processor time in, on every machine that Linux runs on today.
const TICKS: f64 = 100.0;
/// Where `/proc/PID/stat` has the processor time in user mode, and after it that in the kernel, counted from the field
/// after the name, which may hold spaces.
const USER_TIME: usize = 11;

/// By what the jobs of a row were claimed and completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Protocol {
    /// By workers of managers.
    Leasehold,
    /// By the textbook protocol.
    Textbook,
    /// By writes alone, as fast as Elasticsearch takes them.
    Ceiling,
}

/// What was measured over a cluster with one number of managers, or with another protocol.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) protocol: Protocol,
    pub(super) elasticsearch_nodes: u64,
    /// `None` for a protocol that has none.
    pub(super) managers: Option<u16>,
    pub(super) workers: u16,
    /// How many jobs the queue was filled with.
    pub(super) jobs: u64,
    pub(super) completed: u64,
    pub(super) seconds: f64,
    pub(super) jobs_per_second: f64,
    /// How many attempts to claim a job failed because another one was faster, for each that succeeded.
    pub(super) conflicts_per_claim: f64,
    /// The processor time of all managers together for each job; of the workers, where there are no managers. `None`
    /// where the system does not say.
    pub(super) processor_us_per_job: Option<f64>,
    /// The time from submission to claim under the steady load.
    pub(super) wait_p50_ms: f64,
    pub(super) wait_p99_ms: f64,
    /// How many jobs were submitted and not completed, or completed and not shown as such.
    pub(super) lost: u64,
    /// How many jobs were handed out twice.
    pub(super) handed_out_twice: u64,
}

impl Row {
    /// Returns a row without the measurements of waiting and of processor time.
    pub(super) fn of(protocol: Protocol, report: &Report, counted: u64) -> Self {
        let seconds = report.wall.as_secs_f64();
        Self {
            protocol,
            elasticsearch_nodes: 0,
            managers: None,
            workers: 0,
            jobs: report.jobs,
            completed: report.completions,
            seconds,
            jobs_per_second: report.completions as f64 / seconds.max(0.001),
            conflicts_per_claim: 0.0,
            processor_us_per_job: None,
            wait_p50_ms: 0.0,
            wait_p99_ms: 0.0,
            lost: report.jobs.saturating_sub(report.completions.min(counted)),
            handed_out_twice: report.claimed_twice,
        }
    }

    /// Adds what was measured under the steady load.
    pub(super) fn add_steady(&mut self, report: &Report, counted: u64) {
        if let Some(wait) = report.latencies.iter().find(|latencies| latencies.name() == "submit to claim") {
            self.wait_p50_ms = wait.micros(0.5) as f64 / 1000.0;
            self.wait_p99_ms = wait.micros(0.99) as f64 / 1000.0;
        }
        self.lost += report.jobs.saturating_sub(report.completions.min(counted));
        self.handed_out_twice += report.claimed_twice;
    }
}

/// What the managers have done so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    claims: f64,
    conflicts: f64,
    processor: Option<f64>,
}

impl Counters {
    /// Reads the counters of all managers.
    pub(super) async fn read(managers: &[Target]) -> Result<Self, Failure> {
        let mut sum = Self { processor: Some(0.0), ..Self::default() };
        for manager in managers {
            let metrics = manager.client.metrics().await?;
            sum.claims += counter(&metrics, "leasehold_claims_total");
            sum.conflicts += counter(&metrics, "leasehold_conflicts_total{operation=\"claim\"}");
            let processor = manager.process().and_then(processor_seconds);
            sum.processor = sum.processor.zip(processor).map(|(sum, own)| sum + own);
        }
        Ok(sum)
    }

    /// Adds to a row what was done since.
    pub(super) fn note(self, before: Self, row: &mut Row) {
        row.conflicts_per_claim = (self.conflicts - before.conflicts) / (self.claims - before.claims).max(1.0);
        let processor = self.processor.zip(before.processor).map(|(now, before)| now - before);
        row.processor_us_per_job = processor.map(|seconds| seconds * 1e6 / row.completed.max(1) as f64);
    }
}

/// Returns the processor time of a process so far.
fn processor_seconds(process: u32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(USER_TIME);
    let mut ticks = || fields.next()?.parse::<f64>().ok();
    Some((ticks()? + ticks()?) / TICKS)
}

/// Returns the processor time of this process so far.
pub(super) fn own_processor_seconds() -> Option<f64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).ok()?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_time_of_a_process_is_what_the_system_says_about_it() {
        let by_proc = processor_seconds(std::process::id()).expect("a system with /proc");
        let by_usage = own_processor_seconds().expect("a usage");
        assert!(by_proc <= by_usage + 1.0 / TICKS, "{by_proc} {by_usage}");
    }
}
