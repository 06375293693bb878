//! The results of a measurement.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use crate::cli::failure::Failure;
use crate::cli::output::{facts_table, print, print_json, table};

/// The longest latency that the histogram distinguishes, in microseconds.
const LONGEST: u64 = 600_000_000;
/// How many significant digits of a latency are kept.
const DIGITS: u8 = 3;

/// The quantiles that are shown.
const QUANTILES: [(&str, f64); 4] = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("max", 1.0)];

/// The latencies of one kind of call.
pub(super) struct Latencies {
    name: &'static str,
    histogram: Histogram<u64>,
}

impl Latencies {
    /// Creates an empty histogram.
    pub(super) fn new(name: &'static str) -> Result<Self, Failure> {
        let histogram = Histogram::new_with_bounds(1, LONGEST, DIGITS).map_err(Failure::failed)?;
        Ok(Self { name, histogram })
    }

    /// Returns the name of the call.
    pub(super) const fn name(&self) -> &'static str {
        self.name
    }

    /// Adds a latency.
    pub(super) fn record(&mut self, latency: Duration) {
        self.histogram.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(LONGEST).max(1));
    }

    /// Returns how many latencies there are.
    pub(super) fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the latency at a quantile, in microseconds.
    pub(super) fn micros(&self, quantile: f64) -> u64 {
        self.histogram.value_at_quantile(quantile)
    }

    /// Formats the latency at a quantile, in milliseconds.
    pub(super) fn millis(&self, quantile: f64) -> String {
        format!("{:.2}", self.micros(quantile) as f64 / 1000.0)
    }

    /// Returns the percentiles as JSON, in microseconds.
    pub(super) fn as_json(&self) -> Value {
        let percentile = |(name, quantile)| (format!("{name}_us"), json!(self.micros(quantile)));
        Value::Object(QUANTILES.into_iter().map(percentile).collect())
    }
}

/// The result of a measurement.
pub(super) struct Report {
    pub(super) scenario: &'static str,
    pub(super) server: String,
    /// How many jobs were submitted.
    pub(super) jobs: u64,
    /// How many completions the server accepted.
    pub(super) completions: u64,
    /// How many claims gave a job that another claim had given before.
    pub(super) claimed_twice: u64,
    /// The time from the first submission to the last completion.
    pub(super) wall: Duration,
    pub(super) latencies: Vec<Latencies>,
}

impl Report {
    /// Lists what went wrong, by the driver's own count and by the server's.
    pub(super) fn faults(&self, counted: u64) -> Vec<String> {
        let mut faults = Vec::new();
        if self.completions != self.jobs {
            faults.push(format!("{} jobs were submitted and {} completed", self.jobs, self.completions));
        }
        if counted != self.jobs {
            faults.push(format!("the server counts {counted} completed jobs, not {}", self.jobs));
        }
        if self.claimed_twice > 0 {
            faults.push(format!("{} jobs were handed out twice", self.claimed_twice));
        }
        faults
    }

    /// Prints the report.
    pub(super) fn print(&self, counted: u64, as_json: bool) -> Result<(), Failure> {
        let rate = self.completions as f64 / self.wall.as_secs_f64().max(0.001);
        if as_json {
            return self.print_json(counted, rate);
        }
        let facts = [
            ("scenario", self.scenario.to_owned()),
            ("server", self.server.clone()),
            ("jobs", self.jobs.to_string()),
            ("completed", self.completions.to_string()),
            ("time", format!("{:.2} s", self.wall.as_secs_f64())),
            ("jobs a second", format!("{rate:.0}")),
        ];
        print(&facts_table("bench", facts))?;
        let row = |latencies: &Latencies| {
            let percentiles = QUANTILES.map(|(_, quantile)| latencies.millis(quantile));
            [latencies.name.to_owned()].into_iter().chain(percentiles).collect()
        };
        print(&table(&["latency (ms)", "p50", "p90", "p99", "max"], self.latencies.iter().map(row)))
    }

    fn print_json(&self, counted: u64, rate: f64) -> Result<(), Failure> {
        let latencies: Map<String, Value> =
            self.latencies.iter().map(|latencies| (latencies.name.replace(' ', "_"), latencies.as_json())).collect();
        print_json(&json!({
            "scenario": self.scenario, "server": self.server, "jobs": self.jobs, "completed": self.completions,
            "server_counts_completed": counted, "handed_out_twice": self.claimed_twice,
            "wall_s": self.wall.as_secs_f64(), "jobs_per_second": rate, "latencies": latencies,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_or_repeated_job_is_a_fault() {
        let report = |completions, claimed_twice| Report {
            scenario: "lives",
            server: String::new(),
            jobs: 10,
            completions,
            claimed_twice,
            wall: Duration::from_secs(1),
            latencies: Vec::new(),
        };
        assert!(report(10, 0).faults(10).is_empty());
        assert_eq!(report(9, 0).faults(10).len(), 1);
        assert_eq!(report(10, 1).faults(9).len(), 2);
    }
}
