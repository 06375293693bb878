//! The bodies of requests: each is read under a limit of its route, at the expense of its caller, and for as long as
//! enough of it comes. What is held of a body is charged by what it takes in memory: pieces are copied out of the
//! connection's buffer into one that grows, and nothing is copied again when the body is whole.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use super::budget::{Account, Share};
use super::error::{ApiError, Code};

/// The most bytes of a body that lie in the connection's buffers before anybody reads it: the window of a call over
/// HTTP/2.
pub(super) const UNREAD_BYTES: usize = 256 * 1024;
/// How much a body has to bring in each [`Account::within`].
pub(super) const LEAST_BYTES: usize = 16 * 1024;
/// The longest body of a call of the web page: a form.
const MAX_FORM_BYTES: usize = 16 * 1024;

/// A body that was read, and its share of the budget.
pub(super) struct Read {
    pub(super) bytes: Bytes,
    _share: Option<Share>,
}

/// The bytes of a body that have come.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    /// The most bytes that there will be.
    most: usize,
    share: Share,
}

impl Buffer {
    /// Makes one for at most so many bytes, with what may be held already.
    pub(super) fn new(share: Share, most: usize) -> Self {
        Self { bytes: Vec::new(), most, share }
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Adds a piece, unless its caller may not hold as much.
    pub(super) fn add(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        let room = room_for(&self.bytes, piece.len(), self.most);
        self.share.cover(room)?;
        self.bytes.reserve_exact(room - self.bytes.len());
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    pub(super) fn into_read(self) -> Read {
        Read { bytes: self.bytes.into(), _share: Some(self.share) }
    }
}

/// Returns the capacity of a buffer once it has room for more: it doubles, but not beyond the most that there will be.
pub(super) fn room_for(bytes: &Vec<u8>, more: usize, most: usize) -> usize {
    let needed = bytes.len() + more;
    if needed <= bytes.capacity() { bytes.capacity() } else { (2 * bytes.capacity()).min(most).max(needed) }
}

/// Waits for a body, as long as it brings [`LEAST_BYTES`] in each so long. Only time counts in which the client is
/// waited for.
pub(super) struct Pace {
    within: Duration,
    waited: Duration,
    brought: usize,
}

impl Pace {
    pub(super) fn new(within: Duration) -> Self {
        Self { within, waited: Duration::ZERO, brought: 0 }
    }

    /// Waits for the next bytes; `None` after the last.
    ///
    /// # Errors
    /// The body breaks off, or brings too little.
    pub(super) async fn next(&mut self, body: &mut Body) -> Result<Option<Bytes>, ApiError> {
        let begun = Instant::now();
        let frame = timeout(self.within.saturating_sub(self.waited), body.frame()).await;
        self.waited += begun.elapsed();
        let data = data_of(frame.map_err(|_| self.stalled())?)?;
        self.brings(data.as_ref().map_or(0, Bytes::len));
        Ok(data)
    }

    /// Takes note of bytes for which nobody has waited.
    pub(super) fn brings(&mut self, bytes: usize) {
        self.brought += bytes;
        if self.brought >= LEAST_BYTES {
            (self.brought, self.waited) = (0, Duration::ZERO);
        }
    }

    fn stalled(&self) -> ApiError {
        let (bytes, seconds) = (LEAST_BYTES / 1024, self.within.as_secs_f64());
        ApiError::new(Code::BodyStalled, format!("the body has brought less than {bytes} KiB within {seconds} s"))
    }
}

/// Returns the bytes of a frame; `None` after the last. Trailers have none.
pub(super) fn data_of(frame: Option<Result<Frame<Bytes>, axum::Error>>) -> Result<Option<Bytes>, ApiError> {
    let frame = frame.transpose();
    let frame =
        frame.map_err(|error| ApiError::new(Code::MalformedRequest, format!("the body cannot be read: {error}")))?;
    Ok(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// Returns how long a body is, if its head says so.
pub(super) fn announced(parts: &Parts) -> Option<usize> {
    parts.headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Returns at whose expense a body is read.
pub(super) fn account_of(parts: &Parts) -> Result<&Account, ApiError> {
    let account = parts.extensions.get::<Account>();
    account.ok_or_else(|| ApiError::new(Code::Internal, "the body is at nobody's expense"))
}

/// Reads a body of at most `max_bytes`, at the expense of its caller.
pub(super) async fn read(parts: &Parts, mut body: Body, max_bytes: usize) -> Result<Read, ApiError> {
    refuse_compression(parts)?;
    let too_large = || ApiError::new(Code::BodyTooLarge, format!("the body must have at most {max_bytes} bytes"));
    let announced = announced(parts);
    if announced.is_some_and(|length| length > max_bytes) {
        return Err(too_large());
    }
    if body.is_end_stream() {
        return Ok(Read { bytes: Bytes::new(), _share: None });
    }
    let account = account_of(parts)?;
    let mut buffer = Buffer::new(account.take(0)?, announced.unwrap_or(max_bytes));
    let mut pace = Pace::new(account.within);
    // Bounded by `max_bytes` and the pace.
    while let Some(data) = pace.next(&mut body).await? {
        if buffer.len() + data.len() > max_bytes {
            return Err(too_large());
        }
        buffer.add(&data)?;
    }
    Ok(buffer.into_read())
}

/// Reads the body of a call of the web page before the call is served: a short form.
pub(super) async fn read_form(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    match read(&parts, body, MAX_FORM_BYTES).await {
        Ok(Read { bytes, _share }) => next.run(Request::from_parts(parts, Body::from(bytes))).await,
        Err(refused) => refused.into_response(),
    }
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

/// A body with the charge for what the connection may hold of it, which falls with what is left of it.
pub(super) struct Unread {
    body: Body,
    share: Share,
}

impl Unread {
    /// Charges an account for a body that nobody reads yet.
    pub(super) fn of(body: Body, account: &Account) -> Result<Self, ApiError> {
        let share = account.take(unread_bytes(&body))?;
        Ok(Self { body, share })
    }
}

/// Returns how many bytes of a body the connection may hold.
fn unread_bytes(body: &Body) -> usize {
    if body.is_end_stream() {
        return 0;
    }
    let left = body.size_hint().upper().and_then(|left| usize::try_from(left).ok());
    left.map_or(UNREAD_BYTES, |left| left.min(UNREAD_BYTES))
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let left = if frame.is_some() { unread_bytes(&self.body) } else { 0 };
        self.share.keep(left);
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
