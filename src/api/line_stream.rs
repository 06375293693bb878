//! A newline-delimited body of any length, read as it comes. It is charged for the lines that are not written yet.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::Bytes;
use http_body_util::BodyExt;

use super::App;
use super::body::{Pace, account_of, data_of, refuse_compression, room_for};
use super::budget::{Account, Share};
use super::error::ApiError;
use super::extract::{MAX_SINGLE_BYTES, expect_media_type};
use super::pieces::NDJSON;

/// The longest line, in bytes.
pub(crate) const MAX_LINE_BYTES: usize = MAX_SINGLE_BYTES;
/// What a line takes in memory apart from its text, in bytes.
const LINE_BYTES: usize = 96;

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

    /// Returns how many bytes the line is charged with until it is written.
    pub(crate) fn charge(&self) -> usize {
        self.bytes() + LINE_BYTES
    }
}

/// The lines of a body, with no bound on their number.
pub(crate) struct LineStream {
    body: Body,
    pace: Pace,
    /// The beginning of a line.
    begun: Vec<u8>,
    /// Whether the rest of a line that is too long is passed over.
    is_too_long: bool,
    /// What the lines are charged with that were read and are not written yet.
    unwritten: usize,
    /// The call's share of the budget of bytes.
    share: Share,
}

impl FromRequest<App> for LineStream {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &App) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        expect_media_type(&parts, NDJSON)?;
        refuse_compression(&parts)?;
        Self::of(body, account_of(&parts)?)
    }
}

impl LineStream {
    fn of(body: Body, account: &Account) -> Result<Self, ApiError> {
        let (pace, share) = (Pace::new(account.within), account.take(0)?);
        Ok(Self { body, pace, begun: Vec::new(), is_too_long: false, unwritten: 0, share })
    }

    /// Waits for the next bytes of the body, and adds the lines that are complete with them. Returns whether more may
    /// come. Nothing is lost when the future is dropped. The client has time as long as `is_awaited` is false, since
    /// it may wait for what the call is doing.
    ///
    /// # Errors
    /// The body breaks off, brings too little, or is more than the caller may hold. A line that has only begun is not
    /// one.
    pub(crate) async fn read(&mut self, lines: &mut Vec<Line>, is_awaited: bool) -> Result<bool, ApiError> {
        let data = if is_awaited {
            self.pace.next(&mut self.body).await?
        } else {
            let data = data_of(self.body.frame().await)?;
            self.pace.brings(data.as_ref().map_or(0, Bytes::len));
            data
        };
        let Some(data) = data else {
            self.end_line(&[], lines);
            return Ok(false);
        };
        let ends = data.iter().filter(|byte| **byte == b'\n').count();
        self.share.cover(self.held() + data.len() + ends * LINE_BYTES)?;
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            match piece.ends_with(b"\n") {
                true => self.end_line(piece, lines),
                false => self.begin_line(piece)?,
            }
        }
        self.share.keep(self.held());
        Ok(true)
    }

    /// Takes note of that lines with this charge are written.
    pub(crate) fn written(&mut self, charge: usize) {
        self.unwritten -= charge;
        self.share.keep(self.held());
    }

    fn held(&self) -> usize {
        self.begun.capacity() + self.unwritten
    }

    fn begin_line(&mut self, piece: &[u8]) -> Result<(), ApiError> {
        self.is_too_long |= self.begun.len() + piece.len() > MAX_LINE_BYTES;
        if self.is_too_long {
            self.begun = Vec::new();
            return Ok(());
        }
        let room = room_for(&self.begun, piece.len(), MAX_LINE_BYTES);
        self.share.cover(self.unwritten + room)?;
        self.begun.reserve_exact(room - self.begun.len());
        self.begun.extend_from_slice(piece);
        Ok(())
    }

    /// Adds the line that ends with these bytes. They are copied: what is kept of a piece keeps all that was read of
    /// the connection with it.
    fn end_line(&mut self, last: &[u8], lines: &mut Vec<Line>) {
        let is_too_long = std::mem::take(&mut self.is_too_long) || self.begun.len() + last.len() > MAX_LINE_BYTES + 1;
        let begun = std::mem::take(&mut self.begun);
        let line = if is_too_long {
            Line::TooLong
        } else {
            let text = [begun.as_slice(), last].concat();
            if text.trim_ascii().is_empty() {
                return;
            }
            Line::Text(text.into())
        };
        self.unwritten += line.charge();
        lines.push(line);
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use futures::{StreamExt, stream};
    use tokio::time::{Instant, sleep};

    use super::*;
    use crate::api::budget::{Budget, Holder, Sharing};
    use crate::api::error::Code;

    fn account(bytes: usize) -> Account {
        let budget = Budget::new("test", "bytes", bytes, &Sharing::Parts(1));
        Account { budget, holder: Holder::Process, within: Duration::from_secs(10) }
    }

    fn of(frames: Vec<io::Result<Bytes>>) -> LineStream {
        let body = Body::from_stream(stream::iter(frames));
        LineStream::of(body, &account(16 << 20)).unwrap_or_else(|_| panic!("there is room"))
    }

    /// The lines of a body that comes in these pieces, and whether it has an end.
    async fn lines(frames: Vec<io::Result<Bytes>>) -> (Vec<String>, bool) {
        let (mut stream, mut lines) = (of(frames), Vec::new());
        let ended = loop {
            match stream.read(&mut lines, true).await {
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

    #[tokio::test]
    async fn a_stream_is_charged_for_the_lines_that_are_not_written_yet() {
        let account = account(10_000);
        let line = Bytes::from("x".repeat(3_999) + "\n");
        let frames: Vec<io::Result<Bytes>> =
            vec![Ok(Bytes::from("\n\n \n")), Ok(line.clone()), Ok(line.clone()), Ok(line)];
        let body = Body::from_stream(stream::iter(frames));
        let (mut stream, mut lines) = (LineStream::of(body, &account).expect("there is room"), Vec::new());
        stream.read(&mut lines, true).await.expect("there is room");
        assert!(account.take(10_000).is_ok(), "empty lines are nothing");
        for _ in 0..2 {
            stream.read(&mut lines, true).await.expect("there is room");
        }
        assert!(account.take(10_000 - 2 * (4_000 + LINE_BYTES)).is_ok());
        assert!(account.take(10_001 - 2 * (4_000 + LINE_BYTES)).is_err());
        stream.written(lines.remove(0).charge());
        stream.read(&mut lines, true).await.expect("there is room again");
        drop(stream);
        assert!(account.take(10_000).is_ok(), "it was given back");
    }

    #[tokio::test(start_paused = true)]
    async fn only_time_counts_in_which_the_client_is_waited_for() {
        let account = account(1 << 20);
        let frames = stream::iter(0..).then(|_| async {
            sleep(Duration::from_secs(3)).await;
            Ok::<_, io::Error>(Bytes::from_static(b"\n"))
        });
        let (mut lines, begun) = (Vec::new(), Instant::now());
        let mut stream = LineStream::of(Body::from_stream(frames), &account).expect("there is room");
        for _ in 0..100 {
            stream.read(&mut lines, false).await.expect("it waits for the server");
        }
        assert_eq!(begun.elapsed(), Duration::from_secs(300));
        let stalled = loop {
            if let Err(error) = stream.read(&mut lines, true).await {
                break error;
            }
        };
        assert_eq!((stalled.code(), begun.elapsed()), (Code::BodyStalled, Duration::from_secs(310)));
    }
}
