//! What there is to tell of a run, and what of it could not be told.

use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::capture::Ran;
use super::source::Name;
use crate::job::{JobError, JobState};

/// What the thread tells of.
pub(super) enum Event {
    /// A job has ended.
    Ended(Box<EndedJob>),
    /// An attempt has ended whose output is kept and not shown.
    Kept(Ran),
    /// This line is said.
    Line(String),
    /// Nothing more comes: what waits is shown, and what is missing returned.
    End(oneshot::Sender<Lost>),
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
    /// The first ones.
    pub(super) first: Vec<LostOutput>,
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
