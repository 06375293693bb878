//! Signing in at the members of a cluster.

use std::time::{Duration, Instant};

use reqwest::header::{COOKIE, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, StatusCode};
use serde_json::Value;

use super::members::{Trio, others};
use crate::program::DEADLINE;

const TOKEN: &str = "the-token-of-an-operator-0123456789";

#[tokio::test(flavor = "multi_thread")]
async fn who_signs_in_at_a_follower_is_signed_in_at_every_member_until_another_one_ends_it() {
    let trio = Trio::with_token(TOKEN);
    let leader = trio.leader(&[0, 1, 2]).await;
    let [one, another] = others(leader)[..] else { panic!("two follow") };
    let http = Client::builder().redirect(Policy::none()).build().expect("a client");
    let sign_in = http.post(format!("{}/sign-in", trio.url(one))).header(ORIGIN, trio.url(one));
    let sign_in = sign_in.header("content-type", "application/x-www-form-urlencoded").body(format!("token={TOKEN}"));
    let signed_in = sign_in.send().await.expect("an answer");
    assert_eq!(signed_in.status(), StatusCode::SEE_OTHER, "{}", trio.log(one));
    let cookie = signed_in.headers()[SET_COOKIE].to_str().expect("text").split(';').next().expect("it").to_owned();
    let get = async |member: usize, path: &str| {
        let page = http.get(format!("{}{path}", trio.url(member))).header(COOKIE, &cookie);
        page.send().await.expect("an answer").status()
    };
    // At once, although what the leader has written comes to the others a moment later.
    for (member, path) in [(another, "/"), (one, "/health"), (leader, "/jobs"), (another, "/v1/cluster")] {
        assert_eq!(get(member, path).await, StatusCode::OK, "{path} of member {}", member + 1);
    }
    let sign_out = http.post(format!("{}/sign-out", trio.url(another))).header(ORIGIN, trio.url(another));
    let signed_out = sign_out.header(COOKIE, &cookie).send().await.expect("an answer");
    assert_eq!(signed_out.status(), StatusCode::SEE_OTHER);
    let audit = http.get(format!("{}/v1/audit?event=signed_in,signed_out", trio.url(one))).bearer_auth(TOKEN);
    let audit: Value = audit.send().await.expect("an answer").json().await.expect("JSON");
    let of = |index: usize| (audit["items"][index]["event"].as_str(), audit["items"][index]["actor"].as_str());
    assert_eq!([of(0), of(1)], [(Some("signed_out"), Some("ops")), (Some("signed_in"), Some("ops"))], "{audit}");
    for member in 0..3 {
        assert_eq!(get(member, "/jobs").await, StatusCode::SEE_OTHER, "the leader, whom all ask, has ended it");
        let deadline = Instant::now() + DEADLINE;
        while get(member, "/v1/cluster").await != StatusCode::UNAUTHORIZED {
            assert!(Instant::now() < deadline, "the session still counts at member {}", member + 1);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
