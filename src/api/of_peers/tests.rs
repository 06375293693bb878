//! Whose budget a call takes from, and how long one without a head is read.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use tokio::time::sleep;

use super::*;
use crate::clock::SystemClock;
use crate::peers::{PeerAnswer, PeerCall, PeerSecret, Signer};

const ROUTE: PeerRoute = PeerRoute { path: "/cluster/messages", max_bytes: 64 * 1024, budget: 100 * 1024 };

fn secret() -> PeerSecret {
    "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=".parse().expect("a secret")
}

fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::default())
}

fn peers() -> OfPeers {
    OfPeers::new(Arc::new(Gate::new(secret(), None)), clock(), Duration::from_secs(30), &[ROUTE])
}

/// An answer that has what was read with it.
struct Answered(StatusCode, HeaderMap, Result<Read, ApiError>);

impl PeerAnswer for Answered {
    fn status(&self) -> StatusCode {
        self.0
    }
    fn headers(&self) -> &HeaderMap {
        &self.1
    }
}

fn request(headers: HeaderMap, body: Body) -> Request {
    let mut request = Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.headers_mut() = headers;
    request
}

/// Has a sender of this name make a call with a body of so many bytes.
async fn call(peers: &OfPeers, signer: &Signer, bytes: usize) -> Result<Read, ApiError> {
    let body = Bytes::from(vec![b'x'; bytes]);
    let call = PeerCall { address: "a", receiver: "b", path: ROUTE.path, body: &body, may_be_earlier: false };
    let send = |headers: HeaderMap, body: Bytes| async move {
        let read = peers.read(request(headers, Body::from(body)), &ROUTE, || 0).await;
        let refused = read.as_ref().err().cloned();
        let answer = peers.answer(refused.map_or_else(|| Ok(Response::default()), Err));
        Ok::<_, Infallible>(Answered(answer.status(), answer.headers().clone(), read))
    };
    let Ok(answer) = signer.call(&call, send).await;
    answer.2
}

#[tokio::test]
async fn a_sender_takes_from_its_own_budget_and_from_nobody_elses() {
    let peers = peers();
    let [one, other] = ["one", "other"].map(|name| Signer::new(secret(), name, clock()));
    let held = call(&peers, &one, 60_000).await.expect("there is room");
    let again = one.another();
    assert_eq!(call(&peers, &again, 60_000).await.err().expect("it is full").code(), Code::Overloaded);
    assert!(call(&peers, &other, 60_000).await.is_ok());
    drop(held);
    assert!(call(&peers, &again, 60_000).await.is_ok());
    assert_eq!(call(&peers, &one, 70_000).await.err().expect("too long").code(), Code::BodyTooLarge);
    for number in 0..100 {
        assert!(call(&peers, &Signer::new(secret(), &number.to_string(), clock()), 1).await.is_ok());
    }
    assert!(peers.budgets.lock().len() < 4, "only those in use are kept");
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_head_has_little_time_and_its_own_budget() {
    let peers = peers();
    let signed = |length: usize| {
        let mut headers = secret().sign(&vec![b'x'; length], clock().now());
        headers.insert(CONTENT_LENGTH, length.into());
        headers
    };
    let whole = |length: usize| request(signed(length), Body::from(vec![b'x'; length]));
    assert!(peers.read(whole(1000), &ROUTE, || usize::MAX).await.is_ok());
    let refused = |read: Result<Read, ApiError>| read.err().expect("refused").code();
    assert_eq!(refused(peers.read(whole(1000), &ROUTE, || 0).await), Code::Unauthorized);
    assert_eq!(refused(peers.read(whole(1000), &ROUTE, || 999).await), Code::BodyTooLarge);

    // Others without a head have taken all of its budget with bodies that do not end.
    let piece = Bytes::from(vec![b'x'; ROUTE.max_bytes - 1]);
    let first = stream::iter([Ok::<_, Infallible>(piece)])
        .chain(stream::once(ready(())).filter_map(|()| std::future::pending()));
    let open = peers.read(request(signed(ROUTE.max_bytes), Body::from_stream(first)), &ROUTE, || usize::MAX);
    let meanwhile = async {
        sleep(Duration::from_millis(100)).await;
        assert_eq!(refused(peers.read(whole(2000), &ROUTE, || usize::MAX).await), Code::Overloaded);
        let signer = Signer::new(secret(), "one", clock());
        assert!(call(&peers, &signer, 60_000).await.is_ok(), "a head is not kept out");
    };
    let begun = Instant::now();
    let (open, ()) = tokio::join!(open, meanwhile);
    assert_eq!(refused(open), Code::BodyStalled);
    assert!(begun.elapsed() < Duration::from_secs(3));
    assert!(peers.read(whole(2000), &ROUTE, || usize::MAX).await.is_ok(), "it was given back");
}
