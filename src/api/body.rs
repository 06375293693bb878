//! The bodies of requests: each is read under a limit of its route, within a time, and against a budget of bytes for
//! all requests together, so that no number of clients makes the server hold more than it has.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::budget::{BodyBudget, Share};
use super::error::{ApiError, Code};

/// A body that was read, and its share of the budget.
pub(super) struct Read {
    pub(super) bytes: Bytes,
    _share: Share,
}

impl Read {
    pub(super) fn new(bytes: Bytes, share: Share) -> Self {
        Self { bytes, _share: share }
    }
}

/// The pieces of a body that have come.
#[derive(Default)]
pub(super) struct Pieces {
    /// Most bodies come in one piece, which is then not copied.
    only: Bytes,
    joined: BytesMut,
}

impl Pieces {
    pub(super) fn len(&self) -> usize {
        self.only.len() + self.joined.len()
    }

    pub(super) fn add(&mut self, piece: Bytes) {
        if self.len() == 0 {
            self.only = piece;
            return;
        }
        // What is kept of a piece keeps all that was read of the connection with it.
        self.joined.extend_from_slice(&std::mem::take(&mut self.only));
        self.joined.extend_from_slice(&piece);
    }

    pub(super) fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() { self.only } else { self.joined.freeze() }
    }
}

/// Reads a body of at most `max_bytes`, from this budget and within this time.
pub(super) async fn read_within(
    parts: &Parts,
    mut body: Body,
    max_bytes: usize,
    (budget, within): (&BodyBudget, Duration),
) -> Result<Read, ApiError> {
    refuse_compression(parts)?;
    let too_large = || ApiError::new(Code::BodyTooLarge, format!("the body must have at most {max_bytes} bytes"));
    let announced = parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    if announced.is_some_and(|length| length > max_bytes) {
        return Err(too_large());
    }
    let deadline = Instant::now() + within;
    let (mut pieces, mut share) = (Pieces::default(), budget.take(0)?);
    // Bounded by `max_bytes` and the deadline.
    loop {
        let frame = timeout_at(deadline, body.frame()).await.map_err(|_| {
            let seconds = within.as_secs();
            ApiError::new(Code::BodyStalled, format!("the body did not arrive within {seconds} s"))
        })?;
        let Some(frame) = frame else { break };
        let frame = frame
            .map_err(|error| ApiError::new(Code::MalformedRequest, format!("the body cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = pieces.len() + data.len();
        if length > max_bytes {
            return Err(too_large());
        }
        share.cover(length)?;
        pieces.add(data);
    }
    Ok(Read::new(pieces.into_bytes(), share))
}

/// Refuses a body that is compressed: it is read as it comes.
pub(super) fn refuse_compression(parts: &Parts) -> Result<(), ApiError> {
    let codings = parts.headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("unreadable"));
    match codings.flat_map(|value| value.split(',')).map(str::trim).find(|coding| !is_identity(coding)) {
        None => Ok(()),
        Some(coding) => {
            let detail = format!("the body must be sent without content encoding, not `{coding}`");
            Err(ApiError::new(Code::UnsupportedMediaType, detail))
        }
    }
}

fn is_identity(coding: &str) -> bool {
    coding.is_empty() || coding.eq_ignore_ascii_case("identity")
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::stream;
    use http::Request;

    use super::*;

    #[tokio::test]
    async fn a_body_is_charged_by_its_bytes_in_however_many_pieces_they_come() {
        let (parts, ()) = Request::new(()).into_parts();
        let budget = BodyBudget::new(8 * 1024);
        let read = |pieces: usize| {
            let pieces = (0..pieces).map(|_| Ok::<_, io::Error>(Bytes::from_static(b"x")));
            read_within(&parts, Body::from_stream(stream::iter(pieces)), usize::MAX, (&budget, Duration::from_secs(60)))
        };
        let held = read(8_000).await.expect("there is room");
        assert_eq!(held.bytes.len(), 8_000);
        assert_eq!(read(1).await.err().expect("it is full").code(), Code::Overloaded);
        drop(held);
        assert!(read(8 * 1024).await.is_ok());
        assert_eq!(read(8 * 1024 + 1).await.err().expect("too long").code(), Code::Overloaded);
        assert!(read(8 * 1024).await.is_ok(), "it was given back");
    }
}
