//! Answers of any length that are made while they are taken: piece by piece, in constant memory.
//!
//! A task of its own makes pieces ahead of the client, up to a number of them. An answer that cannot be brought to its
//! end breaks its connection off: one that ends as it should is whole.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http::header::CONTENT_TYPE;
use http::{HeaderName, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::error::ApiError;

/// The longest time for which a client may read nothing.
const STALLED_AFTER: Duration = Duration::from_secs(60);
/// Tells proxies not to buffer the answer.
const UNBUFFERED: HeaderName = HeaderName::from_static("x-accel-buffering");
/// The media type of an answer with an item per line.
pub(crate) const NDJSON: &str = "application/x-ndjson";

/// What makes the pieces of an answer.
pub(crate) trait Source: Send + 'static {
    /// The name of the answer in the log, such as "an export".
    const NAME: &'static str;

    /// Returns the next piece; `None` after the last.
    fn next(&mut self) -> impl Future<Output = Result<Option<Bytes>, ApiError>> + Send;
}

/// Answers with what a source makes, up to so many pieces ahead of the client. `keep` is dropped when it has ended.
pub(crate) fn answer(
    source: impl Source,
    media_type: &'static str,
    ahead: usize,
    keep: impl Send + 'static,
) -> Response {
    let (pieces, taken) = mpsc::channel(ahead);
    tokio::spawn(async move {
        hand_over(source, pieces).await;
        drop(keep);
    });
    let body = stream::try_unfold(taken, |mut taken| async move {
        match taken.recv().await {
            Some(Piece::Bytes(bytes)) => Ok(Some((bytes, taken))),
            Some(Piece::End) => Ok(None),
            // The stream must not end cleanly: half an answer must not look like a whole one.
            None => Err(io::Error::other("the answer was broken off")),
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(UNBUFFERED, HeaderValue::from_static("no"));
    response
}

enum Piece {
    Bytes(Bytes),
    End,
}

/// Sends pieces until the last one, until a failure, or until the client is gone.
async fn hand_over<S: Source>(mut source: S, pieces: mpsc::Sender<Piece>) {
    // Bounded by the source: each turn sends a part of what it has.
    loop {
        let piece = match source.next().await {
            Ok(Some(bytes)) => Piece::Bytes(bytes),
            Ok(None) => Piece::End,
            Err(error) => {
                let cause = error.cause().unwrap_or_else(|| error.detail());
                warn!(code = error.code().as_str(), cause, "{} was broken off", S::NAME);
                return;
            }
        };
        let is_last = matches!(piece, Piece::End);
        match timeout(STALLED_AFTER, pieces.send(piece)).await {
            Ok(Ok(())) if is_last => return,
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                debug!("a client left {}", S::NAME);
                return;
            }
            Err(_) => {
                warn!(seconds = STALLED_AFTER.as_secs(), "{} was broken off: its client took nothing", S::NAME);
                return;
            }
        }
    }
}
