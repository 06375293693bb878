//! The workers: what each runs and offers, and when it was last heard of.

use std::cmp::Reverse;
use std::time::Duration;

use askama::Template;
use axum::response::Response;
use http::Uri;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::manager::Worker;
use crate::wire::{Job, Page, WorkerList};

/// How many running jobs are read to be shown beside their workers.
const RUNNING: &str = "1000";
/// A worker that neither runs nor waits and was not heard of for so long is shown among those that are gone.
const GONE_AFTER: Duration = Duration::from_secs(120);

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers {
    frame: Frame,
    /// Whether there are more running jobs than were read.
    truncated: bool,
    /// The number of other servers that did not say which workers call them.
    servers_unasked: u64,
    running: Vec<Job>,
    /// Those that are there, by name, and those that are gone, the last of them first.
    groups: [Vec<Worker>; 2],
}

impl Workers {
    /// Returns the jobs that a worker runs, oldest first.
    fn jobs_of(&self, worker: &str) -> Vec<&Job> {
        let is_its = |job: &&Job| job.lease.as_ref().is_some_and(|lease| lease.worker_id == worker);
        self.running.iter().filter(is_its).collect()
    }
}

pub(super) async fn page(asker: Asker, uri: Uri) -> Response {
    frame::answer(workers(&asker).await, &uri)
}

async fn workers(asker: &Asker) -> Result<Workers, Refused> {
    let frame = Frame::of(asker, "/workers", "Workers").await?;
    let WorkerList { items, truncated, servers_unasked, .. } = asker.get("/v1/workers", &[]).await?;
    let parameters = [("state", "running"), ("sort", "started_at"), ("limit", RUNNING)];
    let running: Page<Job> = asker.get("/v1/jobs", &parameters).await?;
    let is_there = |worker: &Worker| {
        worker.running > 0 || worker.waiting || worker.last_seen_at.is_some_and(|at| frame.now.since(at) <= GONE_AFTER)
    };
    let (there, mut gone): (Vec<Worker>, Vec<Worker>) = items.into_iter().partition(is_there);
    gone.sort_by_key(|worker| Reverse(worker.last_seen_at));
    Ok(Workers { frame, truncated, servers_unasked, running: running.items, groups: [there, gone] })
}
