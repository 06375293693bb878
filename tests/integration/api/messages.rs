//! Messages of other members, with signed heads and as earlier versions sign them.

use bytes::Bytes;
use leasehold::peers::{Envelope, MESSAGES_PATH, PeerCall, PeerSecret, Signer};
use leasehold::store::{MemberMessage, SIGNED_HEADS};

use super::members::{NOWHERE, Process, clock, pair, secret};
use super::server::problem;

/// Makes a call of a member with a signed head, and returns the answer.
pub(super) async fn signed(process: &Process, path: &str, body: Bytes, secret: &PeerSecret) -> reqwest::Response {
    let receiver = format!("test/{}", process.puppet.number);
    let (address, url) = (process.url(""), process.url(path));
    let call = PeerCall { address: &address, receiver: &receiver, path, body: &body, may_be_earlier: false };
    let send = |headers, body: Bytes| reqwest::Client::new().post(&url).headers(headers).body(body).send();
    Signer::new(secret.clone(), "test/2", clock()).call(&call, send).await.expect("an answer")
}

/// Sends an envelope with a signed head, and returns the answer.
pub(super) async fn tell(process: &Process, envelope: &Envelope, secret: &PeerSecret) -> reqwest::Response {
    signed(process, MESSAGES_PATH, envelope.encode(), secret).await
}

/// Sends an envelope as an earlier version does, and returns the answer.
async fn tell_as_earlier(process: &Process, envelope: &Envelope, secret: &PeerSecret) -> reqwest::Response {
    let body = envelope.encode();
    let headers = secret.sign(&body, clock().now());
    reqwest::Client::new().post(process.url(MESSAGES_PATH)).headers(headers).body(body).send().await.expect("an answer")
}

#[tokio::test]
async fn messages_are_taken_from_the_other_members_of_the_cluster_and_from_nobody_else() {
    let [member, _other] = pair(NOWHERE).await;
    let messages = vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")];
    let good = Envelope { cluster: "test".to_owned(), from: 2, to: 1, messages };
    assert_eq!(tell(&member, &good, &secret()).await.status(), 204);
    let expected: Vec<MemberMessage> = good.clone().into_messages().collect();
    assert_eq!(*member.puppet.received.lock(), expected);
    for (wrong, word) in [
        (Envelope { cluster: "other".to_owned(), ..good.clone() }, "`other`"),
        (Envelope { to: 2, ..good.clone() }, "this is member 1"),
        (Envelope { from: 1, ..good.clone() }, "two processes have the same number"),
    ] {
        let refused = problem(tell(&member, &wrong, &secret()).await).await;
        assert_eq!((refused.status, refused.code.as_str()), (409, "wrong_member"));
        assert!(refused.detail.contains(word), "{}", refused.detail);
    }
    let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret");
    assert_eq!(problem(tell(&member, &good, &other).await).await.code, "unauthorized");
    assert_eq!(member.puppet.received.lock().len(), expected.len());
}

#[tokio::test]
async fn messages_of_an_earlier_version_are_taken_until_all_members_know_signed_heads() {
    let [member, _other] = pair(NOWHERE).await;
    let good = Envelope { cluster: "test".to_owned(), from: 2, to: 1, messages: vec![Bytes::from_static(b"one")] };
    let refused = problem(tell_as_earlier(&member, &good, &secret()).await).await;
    assert_eq!((refused.status, refused.code.as_str()), (401, "unauthorized"));
    member.agrees_on(SIGNED_HEADS - 1);
    assert_eq!(tell_as_earlier(&member, &good, &secret()).await.status(), 204);
    assert_eq!(tell(&member, &good, &secret()).await.status(), 204, "heads are read at any time");
    let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret");
    assert_eq!(tell_as_earlier(&member, &good, &other).await.status(), 401);
    let wrong = Envelope { to: 2, ..good.clone() };
    assert_eq!(problem(tell_as_earlier(&member, &wrong, &secret()).await).await.code, "wrong_member");
    assert_eq!(member.puppet.received.lock().len(), 2);
}
