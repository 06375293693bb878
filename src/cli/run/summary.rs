//! The summary at the end of a run.

use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::event::Lost;
use super::watch::Tally;
use crate::cli::duration;
use crate::cli::failure::Failure;
use crate::cli::output::{complain, facts_table, print_json, table};

/// How many failures are printed at most; `--json` prints up to 1,000.
const MAX_SHOWN: usize = 20;
/// How many lines of each failure are printed.
const SHOWN_LINES: usize = 5;

/// The result of a run.
pub(super) struct Summary<'a> {
    pub(super) data_dir: &'a Path,
    /// The number of the run.
    pub(super) run: u64,
    pub(super) jobs: usize,
    /// How many jobs had been completed by a former start.
    pub(super) before: u64,
    /// How many jobs have not ended.
    pub(super) left: usize,
    /// How many jobs were cancelled because their lines are gone.
    pub(super) removed: usize,
    /// Whether `--halt` has ended the run.
    pub(super) halted: bool,
    pub(super) tally: Tally,
    pub(super) lost: Lost,
    pub(super) wall: Duration,
}

impl Summary<'_> {
    /// Prints the summary: for people to standard error, since standard output is that of the jobs.
    pub(super) fn print(&self, as_json: bool) -> Result<(), Failure> {
        if as_json {
            return self.print_for_programs();
        }
        self.print_for_people();
        Ok(())
    }

    fn rate(&self) -> f64 {
        self.tally.completed as f64 / self.wall.as_secs_f64().max(0.001)
    }

    fn print_for_programs(&self) -> Result<(), Failure> {
        let slowest: Vec<_> = self.tally.slowest().into_iter().map(|(took, name)| {
            json!({"line": name.number, "id": name.id, "command": name.label, "took_ms": took.as_millis() as u64})
        }).collect();
        print_json(&json!({
            "type": "summary", "halted": self.halted, "data_dir": self.data_dir, "run": self.run, "jobs": self.jobs,
            "completed": self.tally.completed,
            "completed_before": self.before, "failed": self.tally.failed, "left": self.left,
            "cancelled": self.removed, "wall_ms": self.wall.as_millis() as u64, "jobs_per_second": self.rate(),
            "slowest": slowest, "failures": self.tally.failures,
            "lost_bytes": self.lost.bytes, "lost": self.lost.first,
        }))
    }

    fn print_for_people(&self) {
        let mut counts = vec![("jobs", self.jobs.to_string()), ("completed", self.tally.completed.to_string())];
        counts.push(("completed before", self.before.to_string()));
        counts.push(("failed", self.tally.failed.to_string()));
        if self.lost.streams > 0 {
            let (bytes, streams) = (self.lost.bytes, self.lost.streams);
            counts.push(("output lost", format!("{bytes} bytes of {streams} outputs")));
        }
        counts.push(("left to do", self.left.to_string()));
        counts.push(("cancelled, line removed", self.removed.to_string()));
        counts.retain(|(name, count)| ["jobs", "completed", "failed"].contains(name) || count != "0");
        counts.push(("time", duration::show(self.wall)));
        counts.push(("jobs a second", format!("{:.1}", self.rate())));
        complain(&facts_table("run", counts));

        let slowest = self.tally.slowest();
        if slowest.len() > 1 {
            let row = |(took, name): &(Duration, super::source::Name)| {
                vec![name.number.to_string(), duration::show(*took), name.label.clone()]
            };
            complain("");
            complain(&table(&["#", "took", "slowest"], slowest.iter().map(row)));
        }
        if !self.tally.failures.is_empty() {
            let row = |failed: &super::watch::Failed| {
                let lines: Vec<&str> = failed.error.message.lines().collect();
                let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
                let command = failed.name.label.clone();
                vec![failed.name.number.to_string(), command, failed.error.code.clone(), last]
            };
            complain("");
            complain(&table(
                &["#", "failed", "how", "last words"],
                self.tally.failures.iter().take(MAX_SHOWN).map(row),
            ));
            let left_out = self.tally.failed.saturating_sub(MAX_SHOWN as u64);
            if left_out > 0 {
                complain(&format!("\u{2026} and {left_out} more"));
            }
        }
    }
}
