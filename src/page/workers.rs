//! The workers: what each runs and offers, and when it was last heard of.

use askama::Template;
use axum::response::Response;
use http::Uri;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::wire::{Job, Page, WorkerList};

/// How many running jobs are read to be shown beside their workers.
const RUNNING: &str = "1000";

#[derive(Template)]
#[template(path = "workers.html")]
struct Workers {
    frame: Frame,
    list: WorkerList,
    running: Vec<Job>,
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
    let list = asker.get::<WorkerList>("/v1/workers", &[]).await?;
    let parameters = [("state", "running"), ("sort", "started_at"), ("limit", RUNNING)];
    let running: Page<Job> = asker.get("/v1/jobs", &parameters).await?;
    Ok(Workers { frame, list, running: running.items })
}
