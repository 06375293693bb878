//! The delivery of claimed jobs through a follower.
//!
//! A claim is delivered when its client's own connection takes the answer ([`super::super::delivery`]). Where a
//! follower is between the two, the leader sends the answer, holds what it has claimed, and does not end the body until
//! the follower says that the client has it ([`Deliveries`]). The follower passes the answer on and says so with the
//! last byte ([`Passing`]). When the client goes before that, the follower ends its call; and then, as when the
//! follower itself is gone, the connection to the leader breaks, which gives the jobs back.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::BoxError;
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use http_body::{Body as _, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Sleep, sleep, timeout};
use uuid::Uuid;

use crate::api::delivery::Parcel;
use crate::peers::{ClusterMap, DELIVERIES_PATH, PeerCall, Signer, may_be_earlier};
use crate::store::Member;

/// What an answer has claimed jobs under, and its length in bytes: `{id} {bytes}`.
const DELIVERY: HeaderName = HeaderName::from_static("leasehold-delivery");
/// How long jobs are held for a follower that says nothing: longer than its client may take to read.
const HELD_FOR: Duration = Duration::from_secs(40);
/// How often the leader is told that an answer was taken, and how long it may take to hear of it.
const TRIES: usize = 3;
const TOLD_WITHIN: Duration = Duration::from_secs(2);

/// What the leader holds for clients of followers.
#[derive(Clone, Default)]
pub(super) struct Deliveries(Arc<Mutex<HashMap<Uuid, Pending>>>);

struct Pending {
    parcel: Parcel,
    /// Ends the body of the answer.
    taken: oneshot::Sender<()>,
}

impl Deliveries {
    /// Holds what an answer has claimed, if it has, until the follower says that its client has it.
    pub(super) fn hold(&self, mut answer: Response) -> Response {
        let Some(parcel) = answer.extensions_mut().remove::<Parcel>() else { return answer };
        let (id, (taken, wait)) = (Uuid::new_v4(), oneshot::channel());
        let Some(bytes) = answer.body().size_hint().exact() else { return answer };
        let Ok(value) = HeaderValue::try_from(format!("{id} {bytes}")) else { return answer };
        parcel.hold();
        self.0.lock().insert(id, Pending { parcel, taken });
        let headers = answer.headers_mut();
        headers.insert(DELIVERY, value);
        // The body ends later than with its last byte.
        headers.remove(CONTENT_LENGTH);
        let (deliveries, until) = (self.clone(), Box::pin(sleep(HELD_FOR)));
        answer.map(|body| Body::new(Held { id, deliveries, body, wait, until }))
    }

    /// Takes note of that a client has its answer, by the text of its id. Returns whether its jobs were still held.
    pub(super) fn taken(&self, id: &[u8]) -> bool {
        let Ok(id) = Uuid::try_parse_ascii(id) else { return false };
        let Some(Pending { parcel, taken }) = self.0.lock().remove(&id) else { return false };
        let is_held = parcel.delivered();
        // The answer may have broken off in this moment.
        let _broken_off = taken.send(()).is_err();
        is_held
    }
}

/// The body of an answer that ends once its jobs are delivered. Dropped before that, it gives them back.
struct Held {
    id: Uuid,
    deliveries: Deliveries,
    body: Body,
    wait: oneshot::Receiver<()>,
    until: Pin<Box<Sleep>>,
}

impl http_body::Body for Held {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(None) => {}
            other => return other.map_err(Into::into),
        }
        if self.wait.poll_unpin(context).is_ready() {
            return Poll::Ready(None);
        }
        let late = || Some(Err("nobody says that the answer was taken".into()));
        self.until.poll_unpin(context).map(|()| late())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.deliveries.0.lock().remove(&self.id);
    }
}

/// What an answer of the leader says that it holds.
pub(super) struct Announced {
    id: Uuid,
    bytes: u64,
}

impl Announced {
    /// Reads it from the headers of an answer, and takes it away.
    pub(super) fn of(headers: &mut HeaderMap) -> Option<Self> {
        let value = headers.remove(DELIVERY)?;
        let (id, bytes) = value.to_str().ok()?.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, bytes: bytes.parse().ok()? })
    }

    /// Returns the body of this answer for the client. The leader, whose number and address this is, learns when the
    /// client has it.
    pub(super) fn pass(self, answer: reqwest::Response, said: Arc<Said>, (leader, address): (u64, &str)) -> Body {
        let told = Told { id: self.id, said, leader, address: address.to_owned() };
        Body::new(Passing { left: self.bytes, passed: Some((answer.bytes_stream().boxed(), told)) })
    }
}

/// The body of an answer as it is passed on. Dropped before the client has it, it breaks the call to the leader.
struct Passing {
    /// How many bytes are left.
    left: u64,
    /// What comes of the leader; `None` once the client has it.
    passed: Option<(Parts, Told)>,
}

type Parts = futures::stream::BoxStream<'static, reqwest::Result<Bytes>>;

impl http_body::Body for Passing {
    type Data = Bytes;
    type Error = BoxError;

    /// Called by the client's connection once it can write.
    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some((parts, _)) = &mut self.passed else { return Poll::Ready(None) };
        let part = match std::task::ready!(parts.poll_next_unpin(context)) {
            Some(Ok(part)) => part,
            Some(Err(error)) => return Poll::Ready(Some(Err(error.into()))),
            None => return Poll::Ready(Some(Err("the answer of the leader is cut short".into()))),
        };
        self.left = self.left.saturating_sub(part.len() as u64);
        if self.left == 0
            && let Some((parts, told)) = self.passed.take()
        {
            tokio::spawn(told.tell(parts));
        }
        Poll::Ready(Some(Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.passed.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}

/// How leaders learn that clients have their answers.
pub(super) struct Said {
    http: reqwest::Client,
    signer: Signer,
    member: Arc<dyn Member>,
    map: ClusterMap,
}

impl Said {
    pub(super) fn new(http: reqwest::Client, signer: Signer, member: Arc<dyn Member>, map: ClusterMap) -> Self {
        Self { http, signer, member, map }
    }

    async fn say(&self, id: Uuid, leader: u64, address: &str) -> reqwest::Result<StatusCode> {
        let url = format!("{address}{DELIVERIES_PATH}");
        let send = |headers: HeaderMap, body: Bytes| {
            self.http.post(&url).headers(headers).body(body).timeout(TOLD_WITHIN).send()
        };
        let call = PeerCall {
            address,
            receiver: &self.map.name(leader),
            path: DELIVERIES_PATH,
            body: &Bytes::from(id.to_string()),
            may_be_earlier: may_be_earlier(&*self.member, leader),
        };
        Ok(self.signer.call(&call, send).await?.status())
    }
}

/// The word to a leader that a client has its answer.
struct Told {
    id: Uuid,
    said: Arc<Said>,
    leader: u64,
    address: String,
}

impl Told {
    /// Tells the leader, which ends the answer then. Until it has heard of it, the answer is kept: without it the
    /// leader would give the jobs back.
    async fn tell(self, mut parts: Parts) {
        let Self { id, said, leader, address } = self;
        for _ in 0..TRIES {
            match said.say(id, leader, &address).await {
                Ok(status) if status.is_success() => {
                    // Read to its end, its connection serves other calls.
                    let end = async { while parts.next().await.is_some_and(|part| part.is_ok()) {} };
                    return drop(timeout(TOLD_WITHIN, end).await);
                }
                // What is refused for its head may be taken later: the leader may have another opening by then.
                Ok(StatusCode::UNAUTHORIZED) => tracing::debug!("the leader does not trust that a claim was taken"),
                Ok(status) => return tracing::debug!(%status, "a claim was given back"),
                Err(error) => tracing::debug!(%error, "the leader was not told that a claim was taken"),
            }
        }
    }
}
