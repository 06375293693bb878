//! Answers that go on: they end when their caller may not call any more.
//!
//! A call is looked at when it begins. What it is answered with may last for hours, as a stream of events does, while
//! somebody signs out or a token is removed: so who calls is looked at again from time to time.

use std::io;
use std::sync::Arc;

use axum::body::{Body, HttpBody};
use axum::response::Response;
use futures::{StreamExt, stream};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderValue};
use tokio::time::sleep;

use super::access::{Guard, KnownCaller};

/// The media type of streams that end wherever they are: their clients come again.
const EVENTS: &[u8] = b"text/event-stream";

/// When the right to an answer lapses: when its caller is not known any more, or has lost a role.
#[derive(Debug)]
pub(super) struct Lapse(KnownCaller);

impl Lapse {
    /// Returns when the right of a call with these headers lapses; `None` where nobody needs one, or it has none.
    pub(super) fn of(guard: &Guard, headers: &HeaderMap) -> Option<Self> {
        guard.caller(headers).map(Self)
    }

    /// Returns an answer that ends when the right to it lapses. One that is whole already stays as it is.
    pub(super) fn ends(self, response: Response, guard: &Arc<Guard>) -> Response {
        if response.body().size_hint().exact().is_some() {
            return response;
        }
        let media_type = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        let is_events = media_type.is_some_and(|media_type| media_type.starts_with(EVENTS));
        let guard = Arc::clone(guard);
        let lapsed = Box::pin(async move { self.comes(&guard).await });
        response.map(|body| {
            let begun = (body.into_data_stream(), lapsed);
            Body::from_stream(stream::try_unfold(begun, move |(mut body, mut lapsed)| async move {
                tokio::select! {
                    biased;
                    () = &mut lapsed => match is_events {
                        true => Ok(None),
                        // Half an answer must not look like a whole one.
                        false => Err(axum::Error::new(io::Error::other("its caller may not call any more"))),
                    },
                    data = body.next() => Ok(data.transpose()?.map(|data| (data, (body, lapsed)))),
                }
            }))
        })
    }

    /// Waits until the right lapses.
    async fn comes(&self, guard: &Guard) {
        loop {
            sleep(guard.looks_again_after).await;
            if !guard.still_has(&self.0).await {
                return;
            }
        }
    }
}
