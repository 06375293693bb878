//! Signing in at the web page: sessions that every server over a store accepts, and what ends them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use leasehold::api::Limits;
use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::clock::{ManualClock, Timestamp};
use leasehold::job::Actor;
use leasehold::store::{RecordKind, Store};
use leasehold::wire::SubmitJob;
use reqwest::header::{AUTHORIZATION, COOKIE, ORIGIN, SET_COOKIE};
use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Response};
use serde_json::Value;
use tokio::time::timeout;

use super::server::{SOON, Server, Setup};
use crate::engines::{self, Engine};

const TOKEN: &str = "the-token-of-an-operator-0123456789";

fn token(name: &str, token: &str) -> Token {
    let name = Actor::new(name).expect("a name");
    Token { name, roles: BTreeSet::from([Role::Admin]), sha256: token_hash(token), may_edit_others: false }
}

fn access() -> Access {
    Access::new(vec![token("ops", TOKEN)]).expect("tokens")
}

fn http() -> Client {
    Client::builder().redirect(Policy::none()).build().expect("a client")
}

/// Two servers over one store, which accept the same tokens; the access of the second one.
struct Pair {
    engine: Box<dyn Engine>,
    clock: Arc<ManualClock>,
    servers: [Server; 2],
    access: Access,
}

impl Pair {
    async fn on(engine: Box<dyn Engine>) -> Self {
        let clock = Arc::new(ManualClock::at(Timestamp::from_millis(1_900_000_000_000)));
        let both = [access(), access()];
        let start = |access: &Access| {
            let setup = Setup {
                access: access.clone(),
                clock: Arc::clone(&clock) as _,
                store: Some(engine.store()),
                is_audited: true,
                limits: Limits { looks_again_after: Duration::from_millis(50), ..Limits::default() },
                ..Setup::default()
            };
            Server::start_with(setup)
        };
        let servers = [start(&both[0]).await, start(&both[1]).await];
        let [_, access] = both;
        Self { engine, clock, servers, access }
    }

    async fn end(self) {
        for server in self.servers {
            server.shut_down();
            server.ended().await;
        }
        self.engine.give_back();
    }
}

async fn sign_in_with(server: &Server, token: &str, cookie: Option<&str>) -> Response {
    let form = http().post(server.url("/sign-in")).header("content-type", "application/x-www-form-urlencoded");
    let form = cookie.into_iter().fold(form, |form, cookie| form.header(COOKIE, cookie));
    form.header(ORIGIN, server.url("")).body(format!("token={token}")).send().await.expect("an answer")
}

/// Signs in, and returns the cookie as a browser sends it.
async fn sign_in(server: &Server) -> String {
    cookie_of(&sign_in_with(server, TOKEN, None).await)
}

fn cookie_of(answer: &Response) -> String {
    assert_eq!(answer.status(), 303);
    let cookie = answer.headers()[SET_COOKIE].to_str().expect("text");
    cookie.split(';').next().expect("a pair").to_owned()
}

async fn status(request: RequestBuilder) -> u16 {
    request.send().await.expect("an answer").status().as_u16()
}

async fn sign_out(server: &Server, cookie: &str) -> Response {
    let sign_out = http().post(server.url("/sign-out")).header(COOKIE, cookie).header(ORIGIN, server.url(""));
    sign_out.send().await.expect("an answer")
}

/// Whether a server takes a cookie for that of somebody who is signed in, by its page and by its API.
async fn accepts(server: &Server, cookie: &str) -> bool {
    let page = status(http().get(server.url("/jobs")).header(COOKIE, cookie)).await;
    let api = status(http().get(server.url("/v1/me")).header(COOKIE, cookie)).await;
    assert!([(200, 200), (303, 401), (200, 401)].contains(&(page, api)), "{page}, {api}");
    api == 200
}

async fn is_refused_soon(server: &Server, cookie: &str) {
    let deadline = Instant::now() + SOON;
    while accepts(server, cookie).await {
        assert!(Instant::now() < deadline, "the session still counts");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the audit has this many sign-ins and sign-outs by the token, and asserts that it has no more.
async fn has_audited(server: &Server, expected: [usize; 2]) {
    let deadline = Instant::now() + SOON;
    loop {
        let audit = http().get(server.url("/v1/audit?event=signed_in,signed_out&actor=ops")).bearer_auth(TOKEN);
        let audit: Value = audit.send().await.expect("an answer").json().await.expect("JSON");
        let items = audit["items"].as_array().expect("a list");
        let count = |event: &str| items.iter().filter(|item| item["event"] == event).count();
        let found = ["signed_in", "signed_out"].map(count);
        if found == expected {
            return;
        }
        assert!(found <= expected && Instant::now() < deadline, "{found:?}, not {expected:?}: {audit}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What the store has of sessions, and of everything else that records of their kind are for.
async fn records(store: &dyn Store) -> String {
    engines::refresh(store).await;
    let records = store.records(RecordKind::Setting).await.expect("listed");
    records.iter().map(|record| format!("{} {}\n", record.key, record.body.as_str())).collect()
}

async fn a_session_counts_at_every_server_until_it_ends(pair: Pair) {
    let [first, second] = &pair.servers;
    let [cookie, other] = [sign_in(first).await, sign_in(first).await];
    let (_, key) = cookie.split_once('=').expect("a pair");
    assert!(key.len() == 64 && cookie != other, "{cookie}");
    for server in [second, first] {
        assert!(accepts(server, &cookie).await && accepts(server, &other).await);
    }
    let kept = records(&*pair.engine.store()).await;
    for secret in [TOKEN, key, &token_hash(TOKEN)] {
        assert!(kept.contains("session.") && !kept.contains(secret), "{kept}");
    }

    let signed_out = sign_out(second, &cookie).await;
    assert_eq!(signed_out.status(), 303);
    let forgotten = signed_out.headers().get_all(SET_COOKIE).iter().map(|cookie| cookie.to_str().expect("text"));
    let forgotten: Vec<&str> = forgotten.filter(|cookie| cookie.contains("Max-Age=0")).collect();
    assert_eq!(forgotten.len(), 2, "the session, and the token that an earlier version kept: {forgotten:?}");
    assert!(!accepts(second, &cookie).await, "at once where somebody has signed out");
    is_refused_soon(first, &cookie).await;
    assert!(accepts(first, &other).await && accepts(second, &other).await, "the other one is left alone");
    assert_eq!(sign_out(first, &cookie).await.status(), 303, "there is nothing left to end");

    // Signing in once more ends the session that the browser had.
    let next = cookie_of(&sign_in_with(second, TOKEN, Some(&other)).await);
    assert!(accepts(second, &next).await && !accepts(second, &other).await);
    has_audited(first, [3, 2]).await;

    pair.clock.advance(Duration::from_secs(3_600));
    for server in [first, second] {
        is_refused_soon(server, &next).await;
    }
    pair.end().await;
}

async fn a_token_that_is_removed_or_replaced_takes_its_sessions_with_it(pair: Pair) {
    let [first, second] = &pair.servers;
    let cookie = sign_in(first).await;
    assert!(accepts(second, &cookie).await);
    pair.access.renew(vec![token("ops", "another-token-of-the-same-name-012345")]).expect("renewed");
    assert!(!accepts(second, &cookie).await, "by the same name another token is another one");
    pair.access.renew(vec![token("other", TOKEN)]).expect("renewed");
    assert!(!accepts(second, &cookie).await, "and so is the same one by another name");
    assert!(accepts(first, &cookie).await, "where the token still counts");
    pair.access.renew(vec![token("ops", TOKEN)]).expect("renewed");
    assert!(accepts(second, &cookie).await);
    pair.end().await;
}

async fn nobody_without_a_token_has_anything_written(pair: Pair) {
    let [server, _] = &pair.servers;
    let session = sign_in(server).await;
    let before = records(&*pair.engine.store()).await;
    assert_eq!(sign_in_with(server, "wrong", None).await.status(), 401);
    let odd = ["0".repeat(64), "f".repeat(63), "x".to_owned(), format!("{}%00", "0".repeat(61))];
    for key in odd {
        let cookie = format!("leasehold-session={key}");
        assert!(!accepts(server, &cookie).await, "{key}");
        assert_eq!(sign_out(server, &cookie).await.status(), 303);
    }
    for shown in
        [None, Some("Bearer wrong".to_owned()), Some(session.replace("leasehold-session=", "Leasehold-Session "))]
    {
        let begin = http().post(server.url("/page/session"));
        let begin = shown.iter().fold(begin, |begin, shown| begin.header(AUTHORIZATION, shown));
        assert_eq!(status(begin).await, 401, "a session begins by a token alone: {shown:?}");
    }
    let end = http().delete(server.url("/page/session")).bearer_auth(TOKEN);
    assert_eq!(status(end).await, 401, "a token has no session to end");
    assert_eq!(records(&*pair.engine.store()).await, before);
    has_audited(server, [1, 0]).await;
    // The cookie of an earlier version holds a token, which counts in `Authorization` alone now.
    assert!(!accepts(server, &format!("leasehold-token={TOKEN}")).await);
    pair.end().await;
}

/// Reads a stream until it has this text; returns whether it has ended before.
async fn ends_before(stream: &mut Response, text: &str) -> bool {
    let mut read = String::new();
    let reading = async {
        while !read.contains(text) {
            match stream.chunk().await.expect("it ends as it should") {
                Some(chunk) => read.push_str(&String::from_utf8_lossy(&chunk)),
                None => return true,
            }
        }
        false
    };
    timeout(SOON, reading).await.expect("it ends, or has the text")
}

async fn a_stream_ends_when_somebody_signs_out_or_the_token_is_removed(pair: Pair) {
    let [first, second] = &pair.servers;
    let [cookie, other] = [sign_in(first).await, sign_in(first).await];
    let open = async |path: &str, cookie: &str| {
        http().get(second.url(path)).header(COOKIE, cookie).send().await.expect("an answer")
    };
    let mut ended = [open("/v1/events", &cookie).await, open("/live", &cookie).await];
    let [mut kept, mut page] = [open("/v1/events", &other).await, open("/live", &other).await];
    let mut by_token = http().get(second.url("/v1/events")).bearer_auth(TOKEN).send().await.expect("an answer");
    for (stream, first) in ended.iter_mut().zip(["live", "tick"]) {
        assert!(!ends_before(stream, first).await);
    }
    assert_eq!(sign_out(first, &cookie).await.status(), 303);
    for stream in &mut ended {
        assert!(ends_before(stream, "never").await, "it ends with the session, wherever that was ended");
    }
    second.client_with(Some(TOKEN)).submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    for stream in [&mut kept, &mut by_token] {
        assert!(!ends_before(stream, "event: submitted").await, "that of another session goes on");
    }
    pair.access.renew(vec![token("other", TOKEN)]).expect("renewed");
    for stream in [&mut kept, &mut page, &mut by_token] {
        assert!(ends_before(stream, "never").await, "all end with the token");
    }
    pair.end().await;
}

crate::engines::on_both_engines! { |engine| super::Pair::on(engine).await;
    a_session_counts_at_every_server_until_it_ends,
    a_token_that_is_removed_or_replaced_takes_its_sessions_with_it,
    nobody_without_a_token_has_anything_written,
    a_stream_ends_when_somebody_signs_out_or_the_token_is_removed,
}
