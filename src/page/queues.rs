//! The queues and the limits: how much waits, who paused what, how many jobs run at once.

use askama::Template;
use axum::response::Response;
use http::Uri;

use super::ask::{Asker, Refused};
use super::frame::{self, Frame};
use super::shown;
use crate::job::{JobState, LimitName};
use crate::manager::LimitState;
use crate::wire::{Page, Queue};

#[derive(Template)]
#[template(path = "queues.html")]
struct Queues {
    frame: Frame,
    queues: Vec<Queue>,
    limits: Vec<LimitState>,
}

/// Returns the path of a limit in the API.
fn path(limit: &LimitName) -> String {
    shown::path(&format!("/v1/limits/{}", limit.scope), limit.of.as_str())
}

pub(super) async fn page(asker: Asker, uri: Uri) -> Response {
    frame::answer(queues(&asker).await, &uri)
}

async fn queues(asker: &Asker) -> Result<Queues, Refused> {
    let frame = Frame::of(asker, "/queues", "Queues").await?;
    let queues = asker.get::<Page<Queue>>("/v1/queues", &[]).await?;
    let limits = asker.get::<Page<LimitState>>("/v1/limits", &[]).await?;
    Ok(Queues { frame, queues: queues.items, limits: limits.items })
}
