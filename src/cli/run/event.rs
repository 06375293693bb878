//! What there is to tell of a run, and what of it could not be shown.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::capture::{Loss, Ran};
use super::source::Name;
use crate::job::{JobError, JobState};

/// How many losses are said and kept; the rest is counted.
const MAX_LOSSES: usize = 20;

/// What the thread tells of.
pub(super) enum Event {
    /// A job has ended.
    Ended(Box<EndedJob>),
    /// An attempt has ended whose output is kept and not shown.
    Kept(Ran),
    /// A former start has ended this job, by its place in the list, and was killed before it had passed on the output.
    Left(usize, Ran),
    /// This line is said.
    Line(String),
    /// Nothing more comes: what waits is shown.
    End(oneshot::Sender<()>),
}

/// A job that has ended.
pub(super) struct EndedJob {
    /// Its place in the list.
    pub(super) index: usize,
    pub(super) state: JobState,
    pub(super) error: Option<JobError>,
    /// Its last attempt and how long that took, unless none was begun.
    pub(super) ran: Option<(Ran, Duration)>,
}

/// What is missing of the output of jobs.
#[derive(Debug, Default)]
pub(super) struct Lost {
    /// How many streams of jobs it is missing of.
    pub(super) streams: u64,
    pub(super) bytes: u64,
    /// The first of these streams, in the order in which they were found.
    pub(super) first: Vec<LostOutput>,
    /// Whether no more was shown because a reader stands still.
    pub(super) is_cut_short: bool,
}

impl Lost {
    /// Counts what is missing of a stream. Returns whether it is among the first ones.
    pub(super) fn add(&mut self, name: Name, loss: Loss) -> bool {
        self.streams += 1;
        self.bytes += loss.bytes;
        let is_first = self.first.len() < MAX_LOSSES;
        if is_first {
            let Loss { stream, bytes, error } = loss;
            self.first.push(LostOutput { name, stream: stream.as_str(), bytes, error });
        }
        is_first
    }

    /// Returns whether anything is missing.
    pub(super) const fn is_any(&self) -> bool {
        self.streams > 0 || self.is_cut_short
    }
}

/// What is missing of a stream of a job.
#[derive(Debug, Serialize)]
pub(super) struct LostOutput {
    #[serde(flatten)]
    pub(super) name: Name,
    pub(super) stream: &'static str,
    pub(super) bytes: u64,
    pub(super) error: String,
}
