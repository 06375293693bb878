//! A newline-delimited body of any length, read as it comes.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::App;
use super::body::refuse_compression;
use super::budget::Share;
use super::error::{ApiError, Code};
use super::extract::{MAX_SINGLE_BYTES, expect_media_type};
use super::pieces::NDJSON;

/// The longest line, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = MAX_SINGLE_BYTES;
/// The most bytes that a call is given of the budget: those of the lines that it reads, stores and answers at once.
const SHARE_BYTES: usize = 16 * 1024 * 1024;

/// A line of a body. Lines with nothing but white space are skipped.
pub(crate) enum Line {
    /// The text of the line.
    Text(Bytes),
    /// The line has more than [`MAX_LINE_BYTES`].
    TooLong,
}

impl Line {
    /// Returns how many bytes the line keeps.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::TooLong => 0,
        }
    }
}

/// The lines of a body, with no bound on their number.
pub(crate) struct LineStream {
    body: Body,
    /// How long the client may send nothing.
    silent_within: Duration,
    /// The beginning of a line.
    begun: BytesMut,
    /// Whether the rest of a line that is too long is passed over.
    is_too_long: bool,
    /// The call's share of the budget of bytes.
    _share: Share,
}

impl FromRequest<App> for LineStream {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        expect_media_type(&parts, NDJSON)?;
        refuse_compression(&parts)?;
        let announced =
            parts.headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
        let share = app.budget.take(announced.map_or(SHARE_BYTES, |announced| announced.min(SHARE_BYTES)))?;
        Ok(Self::of(body, app.limits.body_within, share))
    }
}

impl LineStream {
    fn of(body: Body, silent_within: Duration, share: Share) -> Self {
        Self { body, silent_within, begun: BytesMut::new(), is_too_long: false, _share: share }
    }

    /// Waits for the next bytes of the body, and adds the lines that are complete with them. Returns whether more may
    /// come. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// The body breaks off, or nothing comes for too long. A line that has only begun is not one.
    pub(crate) async fn read(&mut self, lines: &mut Vec<Line>) -> Result<bool, ApiError> {
        let frame = timeout(self.silent_within, self.body.frame()).await.map_err(|_| {
            let seconds = self.silent_within.as_secs();
            ApiError::new(Code::BodyStalled, format!("nothing of the body arrived for {seconds} s"))
        })?;
        let Some(frame) = frame else {
            self.end_line(Bytes::new(), lines);
            return Ok(false);
        };
        let frame = frame
            .map_err(|error| ApiError::new(Code::MalformedRequest, format!("the body cannot be read: {error}")))?;
        let Ok(mut data) = frame.into_data() else { return Ok(true) };
        while let Some(end) = data.iter().position(|byte| *byte == b'\n') {
            let rest = data.split_off(end + 1);
            self.end_line(std::mem::replace(&mut data, rest), lines);
        }
        self.is_too_long |= self.begun.len() + data.len() > MAX_LINE_BYTES;
        if self.is_too_long {
            self.begun = BytesMut::new();
        } else {
            self.begun.extend_from_slice(&data);
        }
        Ok(true)
    }

    /// Adds the line that ends with these bytes.
    fn end_line(&mut self, last: Bytes, lines: &mut Vec<Line>) {
        let is_too_long = std::mem::take(&mut self.is_too_long) || self.begun.len() + last.len() > MAX_LINE_BYTES + 1;
        let begun = std::mem::take(&mut self.begun);
        if is_too_long {
            lines.push(Line::TooLong);
            return;
        }
        // Most lines come in one piece, which is then not copied.
        let line = if begun.is_empty() { last } else { [begun.as_ref(), last.as_ref()].concat().into() };
        if !line.trim_ascii().is_empty() {
            lines.push(Line::Text(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures::stream;

    use super::*;
    use crate::api::budget::BodyBudget;

    fn of(frames: Vec<io::Result<Bytes>>) -> LineStream {
        let share = BodyBudget::new(1 << 20).take(1).unwrap_or_else(|_| panic!("there is room"));
        LineStream::of(Body::from_stream(stream::iter(frames)), Duration::from_secs(5), share)
    }

    /// The lines of a body that comes in these pieces, and whether it has an end.
    async fn lines(frames: Vec<io::Result<Bytes>>) -> (Vec<String>, bool) {
        let (mut stream, mut lines) = (of(frames), Vec::new());
        let ended = loop {
            match stream.read(&mut lines).await {
                Ok(true) => {}
                Ok(false) => break true,
                Err(_) => break false,
            }
        };
        let text = |line: Line| match line {
            Line::Text(text) => String::from_utf8_lossy(text.trim_ascii()).into_owned(),
            Line::TooLong => "(too long)".to_owned(),
        };
        (lines.into_iter().map(text).collect(), ended)
    }

    fn frames(texts: &[&str]) -> Vec<io::Result<Bytes>> {
        texts.iter().map(|text| Ok(Bytes::copy_from_slice(text.as_bytes()))).collect()
    }

    #[tokio::test]
    async fn lines_are_the_same_however_the_body_comes() {
        let text = "one\r\n\n  \ntwo\nthree";
        let expected = (vec!["one".to_owned(), "two".to_owned(), "three".to_owned()], true);
        for first in 0..text.len() {
            for second in first..text.len() {
                let parts = [&text[..first], &text[first..second], &text[second..]];
                assert_eq!(lines(frames(&parts)).await, expected, "{parts:?}");
            }
        }
        assert_eq!(lines(frames(&["", "\n"])).await, (Vec::new(), true));
    }

    #[tokio::test]
    async fn a_line_that_has_only_begun_when_the_body_breaks_off_is_none() {
        let mut broken = frames(&["one\ntw", "o\nthree"]);
        broken.push(Err(io::Error::other("gone")));
        assert_eq!(lines(broken).await, (vec!["one".to_owned(), "two".to_owned()], false));
    }

    #[tokio::test]
    async fn a_line_that_is_too_long_is_passed_over_and_not_kept() {
        let piece = "x".repeat(MAX_LINE_BYTES / 4);
        let most = [piece.as_str(), &piece, &piece, &piece, "\nlast\n"];
        let (found, ended) = lines(frames(&most)).await;
        assert_eq!((found[0].len(), found[1].as_str(), ended), (MAX_LINE_BYTES, "last", true));
        let more = ["first\n", &piece, &piece, &piece, &piece, "x", &piece, "\nlast"];
        assert_eq!(lines(frames(&more)).await.0, ["first", "(too long)", "last"]);
        assert_eq!(lines(frames(&[&piece, &piece, &piece, &piece, "x"])).await.0, ["(too long)"]);
    }
}
