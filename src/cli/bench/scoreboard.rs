//! The record of a measurement's jobs, from their submission to their completion.

use std::time::Duration;

use tokio::time::Instant;

use super::calls::ClaimedJob;
use super::report::{Latencies, Report};
use crate::cli::failure::Failure;

/// The jobs of a measurement by their numbers, and the latencies of the calls about them. The clients and workers, all
/// on one thread, share it.
pub(super) struct Scoreboard {
    /// When each job was sent, or was due to be sent.
    pub(super) sent_at: Vec<Option<Instant>>,
    claimed: Vec<bool>,
    claimed_twice: u64,
    /// How many completions the server has accepted.
    pub(super) completions: u64,
    ended_at: Instant,
    /// The latencies of submissions.
    pub(super) submit: Latencies,
    submit_to_claim: Latencies,
    complete: Latencies,
}

impl Scoreboard {
    /// Creates an empty scoreboard; submissions and completions get these names in the report.
    pub(super) fn new(
        sent_at: Vec<Option<Instant>>,
        submit: &'static str,
        complete: &'static str,
    ) -> Result<Self, Failure> {
        Ok(Self {
            claimed: vec![false; sent_at.len()],
            sent_at,
            claimed_twice: 0,
            completions: 0,
            ended_at: Instant::now(),
            submit: Latencies::new(submit)?,
            submit_to_claim: Latencies::new("submit to claim")?,
            complete: Latencies::new(complete)?,
        })
    }

    /// Notes that a worker got a job.
    pub(super) fn note_claim(&mut self, job: &ClaimedJob<'_>, at: Instant) -> Result<(), Failure> {
        let number = job.payload.n as usize;
        let sent_at = self.sent_at.get(number).copied().flatten();
        let unknown = || Failure::Failed(format!("job {} was handed out and never submitted", job.id));
        let sent_at = sent_at.ok_or_else(unknown)?;
        self.submit_to_claim.record(at.duration_since(sent_at));
        self.claimed_twice += u64::from(std::mem::replace(&mut self.claimed[number], true));
        Ok(())
    }

    /// Notes that a call completed so many jobs.
    pub(super) fn note_completions(&mut self, jobs: u64, took: Duration) {
        self.complete.record(took);
        self.completions += jobs;
        self.ended_at = Instant::now();
    }

    /// Returns the report of a measurement that began at this moment.
    pub(super) fn report(self, scenario: &'static str, server: String, begun: Instant) -> Report {
        Report {
            scenario,
            server,
            jobs: self.sent_at.len() as u64,
            completions: self.completions,
            claimed_twice: self.claimed_twice,
            wall: self.ended_at.saturating_duration_since(begun),
            latencies: vec![self.submit, self.submit_to_claim, self.complete],
        }
    }
}
