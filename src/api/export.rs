//! Exports: any number of jobs, one a line, in constant memory.
//!
//! A task of its own reads page after page and hands pieces over as the client takes them. Few of them read at once,
//! and one whose client takes nothing keeps no other from reading; for long, it loses its place. An export that cannot
//! be brought to its end breaks its connection off: an answer that ends as it should is whole.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tracing::{debug, warn};

use super::call::{Answer, Call, Read};
use super::error::{ApiError, Code};
use super::extract::Query;
use super::lists::{FILTER, FilterParams, filter, parse};
use super::trim::Fields;
use crate::job::Body as JobBody;
use crate::manager::Manager;
use crate::query::{Search, Sort};
use crate::store::Versioned;
use crate::wire::job::JobAnswer;
use crate::wire::selected::SelectedJob;

/// The number of jobs that are read together.
const PAGE: usize = 200;
/// The most bytes of separately stored bodies that are read together, unless one job has more.
const BODY_BYTES: u64 = 1 << 20;
/// The longest time for which a client may read nothing.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Tells proxies not to buffer the answer.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");
const NDJSON: &str = "application/x-ndjson";

/// Exports all matching jobs, one per line, each as `GET /v1/jobs/{id}` returns it.
///
/// The filter and the order are the same as for a list. Every job that exists when the export begins, is not removed
/// and matches the filter until it is read comes exactly once, as it is when its page is read; jobs submitted meanwhile
/// are left out. This holds for the default order and for any order by a field that does not change meanwhile. An
/// export that fails midway breaks its connection off: one that ends regularly is complete.
#[utoipa::path(get, path = "/v1/jobs/export", tag = "jobs",
    params(
        FilterParams,
        ("sort" = Option<String>, Query, example = "-created_at", description = "The order, as for a list"),
        ("fields" = Option<Vec<String>>, Query, max_items = 100, example = json!(["id", "labels.team"]),
            description = "Selects only these fields of each job, with dots for nested ones"),
    ),
    responses(
        (status = 200, description = "The jobs, one per line", body = Vec<SelectedJob>,
            content_type = "application/x-ndjson"),
        (status = 503, description = "`overloaded`: the server runs as many exports as it can"),
    ))]
pub(crate) async fn export(call: Call<Read>, query: Query) -> Answer {
    query.only(&[&FILTER[..], &["sort", "fields"]].concat())?;
    let sort = query.one("sort")?.map(|text| parse::<Sort>("sort", text)).transpose()?.unwrap_or_default();
    let search = Search { filter: filter(&call.app, &query)?, sort, after: None, limit: PAGE };
    let fields = Fields::of(&query)?;
    let place = call.app.exports.clone().try_acquire_owned();
    let place =
        place.map_err(|_| ApiError::new(Code::Overloaded, "as many exports as the server takes are under way"))?;
    call.app.manager.refresh(&search.filter).await?;
    let (manager, readers) = (call.app.manager.clone(), Arc::clone(&call.app.export_readers));
    let mut export = Export { manager, readers, search, fields, page: Vec::new().into_iter(), done: false };
    // The first page is read before the answer begins, so that a refusal still has a status.
    export.turn().await?;
    Ok(answer(export, place))
}

fn answer(export: Export, place: OwnedSemaphorePermit) -> Response {
    let (pieces, taken) = mpsc::channel(1);
    tokio::spawn(hand_over(export, pieces, place));
    let body = stream::try_unfold(taken, |mut taken| async move {
        match taken.recv().await {
            Some(Piece::Lines(lines)) => Ok(Some((lines, taken))),
            Some(Piece::End) => Ok(None),
            // The stream must not end cleanly: half an export must not look like a whole one.
            None => Err(io::Error::other("the export was broken off")),
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = StatusCode::OK;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(NDJSON));
    response.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
    response
}

enum Piece {
    Lines(Bytes),
    End,
}

/// Sends pieces until the last one, until a failure, or until the client is gone.
async fn hand_over(mut export: Export, pieces: mpsc::Sender<Piece>, _place: OwnedSemaphorePermit) {
    // Bounded by the number of jobs: each turn sends some of them.
    loop {
        let piece = match export.next().await {
            Ok(Some(lines)) => Piece::Lines(lines),
            Ok(None) => Piece::End,
            Err(error) => {
                let cause = error.cause().unwrap_or_else(|| error.detail());
                warn!(code = error.code().as_str(), cause, "an export was broken off");
                return;
            }
        };
        let is_last = matches!(piece, Piece::End);
        match timeout(STALLED_AFTER, pieces.send(piece)).await {
            Ok(Ok(())) if is_last => return,
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                debug!("a client left its export");
                return;
            }
            Err(_) => {
                warn!(seconds = STALLED_AFTER.as_secs(), "an export was broken off: its client took nothing");
                return;
            }
        }
    }
}

/// An export that is running.
struct Export {
    manager: Manager,
    /// One permit for each export that may read from the store.
    readers: Arc<Semaphore>,
    search: Search,
    fields: Fields,
    /// The jobs of the page that are not sent yet.
    page: std::vec::IntoIter<Versioned>,
    /// Whether the page is the last one.
    done: bool,
}

impl Export {
    /// Returns the next lines; `None` after the last.
    async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        let readers = Arc::clone(&self.readers);
        // The semaphore is never closed.
        let _turn = readers.acquire().await;
        if self.page.as_slice().is_empty() && !self.done {
            self.turn().await?;
        }
        let some = self.some();
        if some.is_empty() {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for view in self.manager.view(some).await? {
            self.fields.write(&JobAnswer::from(&view), &mut lines)?;
            lines.push(b'\n');
        }
        Ok(Some(Bytes::from(lines)))
    }

    /// Reads the next page.
    async fn turn(&mut self) -> Result<(), ApiError> {
        let page = self.manager.search(&self.search).await?;
        self.done = page.len() < self.search.limit;
        self.search.after = page.last().map(|last| self.search.sort.key(&last.job));
        self.page = page.into_iter();
        Ok(())
    }

    /// Takes the next jobs of the page whose bodies can be read together.
    fn some(&mut self) -> Vec<Versioned> {
        let mut bytes = 0;
        let fits = |found: &&Versioned| {
            let before = bytes;
            bytes += apart(found);
            before == 0 || bytes <= BODY_BYTES
        };
        let count = self.page.as_slice().iter().take_while(fits).count();
        self.page.by_ref().take(count).collect()
    }
}

/// Returns the length in bytes of the bodies that are stored apart from a job.
fn apart(found: &Versioned) -> u64 {
    let bodies = [&found.job.payload, found.job.result()];
    bodies
        .into_iter()
        .map(|body| if let JobBody::Stored(reference) = body { u64::from(reference.bytes) } else { 0 })
        .sum()
}
