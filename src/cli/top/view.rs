//! The server's last answer.

use crate::cli::duration;
use crate::clock::Timestamp;
use crate::wire::{Job, Queue, WorkerList};

/// What is shown of the server.
#[derive(Debug)]
pub(super) struct View {
    pub(super) at: Timestamp,
    pub(super) queues: Vec<Queue>,
    pub(super) jobs: Vec<Job>,
    pub(super) workers: WorkerList,
}

/// Returns how long the lease of a job still runs.
pub(super) fn lease_left(job: &Job, now: Timestamp) -> String {
    match &job.lease {
        None => String::new(),
        Some(lease) if lease.expires_at > now => duration::show(lease.expires_at.since(now)),
        Some(_) => "over".to_owned(),
    }
}

/// Returns how far the work on a job is, as its worker says.
pub(super) fn progress(job: &Job) -> String {
    let Some(progress) = &job.progress else { return String::new() };
    let percent = progress.percent.map(|percent| format!("{percent:.0} %"));
    percent.into_iter().chain(progress.message.clone()).collect::<Vec<_>>().join(" ")
}
