//! What is kept of a body that a handler reads, so that another member can be asked the same.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use parking_lot::Mutex;

use crate::api::body::room_for;
use crate::api::budget::{Account, AccountPlace, Share};

/// The most bytes that are kept: as a waiting claim has, and all that is about one job.
const KEPT_BYTES: usize = 16 * 1024;

/// A copy of a body, as far as it was read.
#[derive(Clone, Default)]
pub(super) struct Kept {
    copied: Arc<Mutex<Copied>>,
    /// At whose expense the body is kept, once that is known.
    pub(super) account: AccountPlace,
}

#[derive(Default)]
struct Copied {
    bytes: Vec<u8>,
    share: Option<Share>,
    is_too_long: bool,
    is_whole: bool,
}

impl Kept {
    /// Returns this body, of which a copy is kept while it is read.
    pub(super) fn of(&self, body: Body) -> Body {
        self.copied.lock().is_whole = body.is_end_stream();
        Body::new(Copying { body, kept: self.clone() })
    }

    /// Returns the body; `None` unless it was read to its end, and is short.
    pub(super) fn whole(&self) -> Option<Bytes> {
        let mut copied = self.copied.lock();
        let is_there = copied.is_whole && !copied.is_too_long;
        is_there.then(|| std::mem::take(&mut copied.bytes).into())
    }

    fn add(&self, piece: &[u8]) {
        let copied = &mut *self.copied.lock();
        copied.is_too_long = copied.is_too_long || !copied.takes(piece, self.account.get());
        if copied.is_too_long {
            (copied.bytes, copied.share) = (Vec::new(), None);
        }
    }
}

impl Copied {
    /// Adds a piece, unless the body is too long with it or its caller may not hold as much.
    fn takes(&mut self, piece: &[u8], account: Option<&Account>) -> bool {
        let room = room_for(&self.bytes, piece.len(), KEPT_BYTES);
        if room > KEPT_BYTES {
            return false;
        }
        if self.share.is_none() {
            self.share = account.and_then(|account| account.take(0).ok());
        }
        let is_covered = self.share.as_mut().is_some_and(|share| share.cover(room).is_ok());
        if is_covered {
            self.bytes.reserve_exact(room - self.bytes.len());
            self.bytes.extend_from_slice(piece);
        }
        is_covered
    }
}

struct Copying {
    body: Body,
    kept: Kept,
}

impl HttpBody for Copying {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        if let Some(piece) = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()) {
            self.kept.add(piece);
        }
        // Who knows the length does not look for the end.
        self.kept.copied.lock().is_whole = frame.is_none() || self.body.is_end_stream();
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
mod tests {
    use std::time::Duration;

    use futures::stream;
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::api::budget::{Budget, Holder, Sharing};

    fn of_pieces(pieces: &[usize]) -> Body {
        let pieces: Vec<_> = pieces.iter().map(|length| Ok::<_, axum::Error>(Bytes::from(vec![7; *length]))).collect();
        Body::from_stream(stream::iter(pieces))
    }

    fn kept() -> Kept {
        let budget = Budget::new("test", "bytes", 1 << 20, &Sharing::Parts(1));
        let kept = Kept::default();
        kept.account.put(&Account { budget, holder: Holder::Process, within: Duration::ZERO });
        kept
    }

    #[tokio::test]
    async fn a_short_body_that_was_read_to_its_end_is_kept() {
        for (pieces, is_kept) in [
            (&[][..], true),
            (&[3, 4], true),
            (&[KEPT_BYTES], true),
            (&[KEPT_BYTES, 1], false),
            (&[KEPT_BYTES + 1, 1], false),
        ] {
            let (kept, length) = (kept(), pieces.iter().sum::<usize>());
            let read = kept.of(of_pieces(pieces)).collect().await.expect("read").to_bytes();
            assert_eq!(read.len(), length);
            let whole = kept.whole();
            assert_eq!(whole.is_some(), is_kept, "{pieces:?}");
            if let Some(whole) = whole {
                assert_eq!(whole, read);
            }
        }
    }

    #[tokio::test]
    async fn a_body_of_which_a_part_was_read_is_not_kept() {
        let kept = kept();
        let mut body = kept.of(of_pieces(&[3, 4]));
        assert!(kept.whole().is_none());
        body.frame().await.expect("a piece").expect("read");
        assert!(kept.whole().is_none());
        let whole = Kept::default();
        drop(whole.of(Body::empty()));
        assert!(whole.whole().is_some(), "there is nothing to read");
    }
}
