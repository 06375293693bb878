//! What happened lately, to which job, by whom and why: from the histories of the jobs that were written last.

use askama::Template;
use axum::response::Response;
use http::Uri;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::wire::{HistoryEntry, Job, Page};

/// How many jobs are read, and how many transitions are shown.
const JOBS: &str = "100";
const SHOWN: usize = 200;

/// A transition of a job.
struct Event {
    job: String,
    kind: String,
    queue: String,
    entry: HistoryEntry,
}

#[derive(Template)]
#[template(path = "events.html")]
struct Events {
    frame: Frame,
    events: Vec<Event>,
}

pub(super) async fn page(asker: Asker, uri: Uri) -> Response {
    frame::answer(events(&asker).await, &uri)
}

async fn events(asker: &Asker) -> Result<Events, Refused> {
    let frame = Frame::of(asker, "/events", "Events").await?;
    let jobs: Page<Job> = asker.get("/v1/jobs", &[("sort", "-updated_at"), ("limit", JOBS)]).await?;
    Ok(Events { frame, events: latest(&jobs) })
}

/// Returns the latest transitions of these jobs, the last one first. Where there are more jobs, what is older than the
/// last write of the job that was written longest ago is left out: others may have happened in between to jobs that
/// were not read.
fn latest(jobs: &Page<Job>) -> Vec<Event> {
    let has_more = jobs.next_cursor.is_some();
    let since = jobs.items.iter().map(|job| job.updated_at).min().filter(|_| has_more);
    let of = |job: &Job| {
        let (id, kind, queue) = (job.id.to_string(), job.kind.to_string(), job.queue.to_string());
        let entries = job.history.iter().filter(|entry| Some(entry.at) >= since).cloned();
        let event = move |entry| Event { job: id.clone(), kind: kind.clone(), queue: queue.clone(), entry };
        entries.map(event).collect::<Vec<_>>()
    };
    let mut events: Vec<Event> = jobs.items.iter().flat_map(of).collect();
    // A sort that keeps the order of equals, turned round: of one millisecond, the later transition comes first.
    events.sort_by_key(|event| event.entry.at);
    events.reverse();
    events.truncate(SHOWN);
    events
}
