//! HTTP calls that the members of a group make for the one that leads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use leasehold::executor::{CallError, HttpCall, HttpExecutor, Limits, RetryAfter, TargetUrl};
use leasehold::peers::{ClusterMap, Deputies, PeerSecret, Reached, Signer};
use leasehold::store::Member;

use super::members::{NOWHERE, Process, clock, executor, pair, secret};
use super::server::SOON;
use crate::notify::receiver::Receiver;

/// An executor of member 1 that has the others make its calls as well, of which only the second is there.
fn of_all(leader: &Process, follower: &Process, secret: PeerSecret) -> HttpExecutor {
    let addresses = BTreeMap::from([(1, leader.url("").into()), (2, follower.url("").into()), (3, NOWHERE.into())]);
    let map = ClusterMap { cluster: "test".into(), member: 1, addresses, reached: Reached::default() };
    let member = Arc::clone(&leader.puppet) as Arc<dyn Member>;
    let signer = Signer::new(secret, "test/1", clock());
    let deputies = Deputies::new(member, map, signer, Limits::default()).expect("deputies");
    executor().with_deputy(Arc::new(deputies))
}

fn call(url: &str) -> HttpCall {
    HttpCall {
        method: Method::PUT,
        url: TargetUrl::parse(url).expect("a URL"),
        headers: HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer secret"))]),
        body: Bytes::from_static(b"body"),
        timeout: SOON,
    }
}

/// Returns how many calls members of this process have made for others, of which there are no others in this one.
async fn made(process: &Process) -> u64 {
    let answer = reqwest::get(process.url("/metrics")).await.expect("an answer");
    let text = answer.text().await.expect("a text");
    let line = text.lines().find(|line| line.starts_with("leasehold_member_calls_total "));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn calls_are_made_by_all_members_in_turn_and_by_the_leader_where_another_cannot() {
    let target = Receiver::listening().await;
    target.answer_always(StatusCode::TOO_MANY_REQUESTS);
    target.answer_with(header::RETRY_AFTER, "7");
    target.repeat_what_comes();
    let [leader, follower] = pair(NOWHERE).await;
    let all = of_all(&leader, &follower, secret());
    let before = made(&follower).await;
    for _ in 0..6 {
        let answer = all.call(&call(&target.url())).await.expect("an answer");
        assert_eq!(answer.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(answer.retry_after, Some(RetryAfter::In(Duration::from_secs(7))));
        let said = String::from_utf8_lossy(&answer.body).into_owned();
        assert!(said.starts_with("body") && said.contains("Bearer secret"), "{said}");
    }
    assert_eq!(target.came().len(), 6, "each is made once");
    let by_follower = made(&follower).await - before;
    assert!((2..=3).contains(&by_follower), "of six, the third member being nowhere: {by_follower}");
    // What no member can reach is as where there is one member.
    for _ in 0..3 {
        assert!(matches!(all.call(&call(NOWHERE)).await, Err(CallError::Unreachable(_))));
    }

    // Nor does a member make calls for strangers, or any once it stops.
    let before = made(&follower).await;
    let other = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=".parse().expect("a secret");
    let strangers = of_all(&leader, &follower, other);
    for _ in 0..3 {
        strangers.call(&call(&target.url())).await.expect("made here");
    }
    follower.shutdown.cancel();
    let stopping = of_all(&leader, &follower, secret());
    for _ in 0..3 {
        stopping.call(&call(&target.url())).await.expect("made here");
    }
    assert_eq!((made(&follower).await - before, target.came().len()), (0, 12));
}
