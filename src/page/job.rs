//! One job on one page: what happened to it, what it wrote, why it does not run, and what can be done.

use askama::Template;
use axum::extract::{Path, Query};
use axum::response::Response;
use http::{StatusCode, Uri};
use serde::Deserialize;
use serde_json::Value;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::jobs::{phase, took};
use super::shown;
use super::timeline::{Span, spans};
use crate::clock::Timestamp;
use crate::job::shell::{ShownCommand, leasehold};
use crate::job::{EventName, JobState, Json};
use crate::store::output::left_out;
use crate::wire::{AttemptOutput, Explanation, Job, OutputStream};

/// The longest payload or result that stands on the page at once, in bytes; of a longer one its beginning does.
const SHOWN_BYTES: usize = 64 * 1024;

/// What is wanted of a job's page.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    /// The fence of the attempt whose output is shown; that of the latest one where it is not said.
    fence: Option<u64>,
}

/// An attempt of the job that the history has.
struct Attempt {
    number: u64,
    fence: u64,
    worker: String,
    at: Timestamp,
}

/// A payload or a result.
struct Body {
    name: &'static str,
    text: String,
    bytes: usize,
}

#[derive(Template)]
#[template(path = "job.html")]
struct JobPage {
    frame: Frame,
    job: Job,
    explanation: Option<Explanation>,
    spans: Vec<Span>,
    attempts: Vec<Attempt>,
    output: Option<AttemptOutput>,
    bodies: Vec<Body>,
    /// The job's path in the API.
    path: String,
}

impl JobPage {
    fn is_live(&self) -> bool {
        matches!(self.job.state, JobState::Available | JobState::Running)
    }

    /// Returns the command that shows the same.
    fn describe(&self) -> ShownCommand {
        leasehold("describe").operand(&self.job.id)
    }

    /// Returns the text of a stream, with a line where bytes are left out.
    fn text_of(&self, stream: &OutputStream) -> String {
        let (mut text, mut at) = (String::new(), 0);
        for part in &stream.parts {
            let bytes = part.bytes();
            if part.offset > at {
                text.push_str(&left_out(part.offset - at));
            }
            at = part.offset + bytes.len() as u64;
            text.push_str(&String::from_utf8_lossy(&bytes));
        }
        if stream.bytes > at {
            text.push_str(&left_out(stream.bytes - at));
        }
        text
    }
}

pub(super) async fn page(asker: Asker, Path(id): Path<String>, Query(wanted): Query<Wanted>, uri: Uri) -> Response {
    frame::answer(job(&asker, &id, &wanted).await, &uri)
}

async fn job(asker: &Asker, id: &str, wanted: &Wanted) -> Result<JobPage, Refused> {
    let path = shown::path("/v1/jobs", id);
    let mut frame = Frame::of(asker, "/jobs", id).await?;
    let fence = wanted.fence.map(|fence| fence.to_string());
    let of_fence: Vec<(&str, &str)> = fence.iter().map(|fence| ("fence", fence.as_str())).collect();
    let (explain_path, output_path) = (format!("{path}/explain"), format!("{path}/output"));
    let (job, explanation, output) = tokio::join!(
        asker.get::<Job>(&path, &[]),
        asker.get::<Explanation>(&explain_path, &[]),
        asker.get::<AttemptOutput>(&output_path, &of_fence),
    );
    let job = job?;
    frame.title = format!("{} {}", job.kind, shown::short(&job.id));
    // Either may fail where the job does not, and the page is worth reading all the same.
    let explanation = explanation.ok();
    let output = match output {
        Err(refused) if refused.status == StatusCode::UNAUTHORIZED => return Err(refused),
        output => output.ok().filter(|output| output.fence > 0),
    };
    let attempts = job.history.iter().filter(|entry| entry.event == EventName::Claimed).map(|entry| Attempt {
        number: entry.attempt.get().into(),
        fence: entry.fence.get(),
        worker: entry.worker_id.as_ref().map_or_else(|| entry.actor.to_string(), ToString::to_string),
        at: entry.at,
    });
    let bodies = [("payload", &job.payload), ("result", &job.result)];
    let bodies = bodies.into_iter().filter_map(|(name, body)| Some(body_of(name, body.as_json()?))).collect();
    let attempts = attempts.collect();
    Ok(JobPage { spans: spans(&job.history, frame.now), frame, job, explanation, attempts, output, bodies, path })
}

/// Returns a body as it is shown: indented where it is short enough.
fn body_of(name: &'static str, json: &Json) -> Body {
    let text = json.as_str();
    let indented = (text.len() <= SHOWN_BYTES).then(|| {
        let value: Value = serde_json::from_str(text).ok()?;
        serde_json::to_string_pretty(&value).ok()
    });
    let shown = indented.flatten().unwrap_or_else(|| text[..text.floor_char_boundary(SHOWN_BYTES)].to_owned());
    Body { name, text: shown, bytes: text.len() }
}
