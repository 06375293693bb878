//! Tokens that are not known, shown many times.

use futures::future::join_all;
use leasehold::api::Limits;
use reqwest::header::{AUTHORIZATION, COOKIE, ORIGIN};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};
use tokio::task::JoinSet;

use super::access::of_each_role;
use super::server::{Server, Setup};

const FORM: &str = "application/x-www-form-urlencoded";

/// A client that calls from this address, and keeps no connection.
fn from(address: &str) -> Client {
    let client = Client::builder().redirect(Policy::none()).pool_max_idle_per_host(0);
    client.local_address(Some(address.parse().expect("an address"))).build().expect("a client")
}

/// The ways to show a token or a session, each with the status of the refusal.
fn ways(server: &Server, http: &Client, token: &str) -> [(RequestBuilder, u16); 4] {
    let session = format!("{:064x}", rand::random::<u128>());
    let sign_in = http.post(server.url("/sign-in")).header("content-type", FORM).header(ORIGIN, server.url(""));
    [
        (http.post(server.url("/v1/jobs")).bearer_auth(token), 401),
        (http.get(server.url("/v1/nowhere")).header(AUTHORIZATION, format!("Basic {token}")), 404),
        (http.get(server.url("/jobs")).header(COOKIE, format!("leasehold-session={session}")), 303),
        (sign_in.body(format!("token={token}")), 401),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn who_shows_wrong_tokens_waits_for_refusals_and_nobody_else_does() {
    let limits = Limits { trusted_proxies: vec!["127.0.0.3".parse().expect("a proxy")], ..Limits::default() };
    let server = Server::start_with(Setup { access: of_each_role(), limits, ..Setup::default() }).await;
    let (here, proxy) = (from("127.0.0.1"), from("127.0.0.3"));
    let of_one = |request: RequestBuilder| request.header("x-forwarded-for", "127.0.0.1");
    for round in 0..25 {
        let wrong = ways(&server, &here, &format!("wrong-{round}")).map(|(request, status)| async move {
            assert_eq!(request.send().await.expect("an answer").status(), status);
        });
        join_all(wrong).await;
        // One that the proxy passes on is of the same address.
        let passed = of_one(proxy.get(server.url("/v1/me")).bearer_auth("wrong")).send().await.expect("an answer");
        assert_eq!(passed.status(), 401);
    }
    let mut waiting = JoinSet::new();
    for (request, _) in (0..8).flat_map(|_| ways(&server, &here, "wrong")).filter(|(_, status)| *status != 404) {
        waiting.spawn(request.send());
    }
    let passed = of_one(proxy.get(server.url("/v1/me")).bearer_auth("wrong"));
    waiting.spawn(passed.send());
    let first = waiting.join_next().await.expect("one of many").expect("it does not panic").expect("an answer");
    assert!([401, 303].contains(&first.status().as_u16()));
    for client in [&here, &proxy] {
        let good = client.get(server.url("/v1/me")).bearer_auth("secret-read").send().await.expect("an answer");
        assert_eq!(good.status(), 200, "who shows a good one is answered while others wait");
    }
    let elsewhere = from("127.0.0.2").get(server.url("/v1/me")).bearer_auth("wrong").send().await.expect("an answer");
    assert_eq!(elsewhere.status(), 401);
    let passed = proxy.get(server.url("/v1/me")).header("x-forwarded-for", "203.0.113.9").bearer_auth("wrong");
    assert_eq!(passed.send().await.expect("an answer").status(), 401);
    let answered = std::iter::from_fn(|| waiting.try_join_next()).count();
    assert!(answered < 24, "the last of them waits for ten seconds");
}
