//! Connections that break, stall or speak otherwise than expected, and how the server ends.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client as Http2Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::api::Limits;
use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::client::JobQuery;
use leasehold::job::Actor;
use leasehold::wire::{ClaimAnswer, ClaimJobs, Job, JobState, SubmitJob};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::server::{SOON, Server, Setup, claim, eventually};
use crate::servers::ports;

/// A request as it is written to the connection.
fn written(method: &str, path: &str, body: &str) -> String {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn waiting_claim(queue: &str) -> String {
    let claim = ClaimJobs { wait_ms: Some(60_000), ..claim(queue) };
    written("POST", "/v1/claims", &serde_json::to_string(&claim).expect("json"))
}

/// Everything the server says until it closes the connection.
async fn rest(stream: &mut TcpStream) -> String {
    let mut text = Vec::new();
    // A connection that is reset has said all that it will.
    drop(timeout(SOON, stream.read_to_end(&mut text)).await.expect("the server closes the connection"));
    String::from_utf8_lossy(&text).into_owned()
}

fn short(limits: Limits) -> Setup {
    Setup { limits, ..Setup::default() }
}

#[tokio::test]
async fn a_worker_that_goes_away_while_it_waits_takes_no_job() {
    let server = Server::start().await;
    let mut worker = TcpStream::connect(server.address()).await.expect("connected");
    worker.write_all(waiting_claim("q").as_bytes()).await.expect("sent");
    eventually("the claim waits", || server.manager.waiting_claims() == 1).await;
    drop(worker);
    eventually("the claim is gone", || server.manager.waiting_claims() == 0).await;

    let client = server.client();
    let job = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let job = client.job(&job.id).await.expect("the job");
    assert_eq!((job.state, job.fence), (JobState::Available, 0), "nobody took it");
    assert_eq!(server.claimed("q").await.fence, 1);
}

#[tokio::test]
async fn a_worker_that_waits_gets_the_job_once_it_comes() {
    let server = Server::start().await;
    let client = server.client();
    let (waiter, claim) = (client.clone(), ClaimJobs { wait_ms: Some(60_000), ..claim("q") });
    let waiting = tokio::spawn(async move { waiter.claim(&claim).await });
    eventually("the claim waits", || server.manager.waiting_claims() == 1).await;
    let job = client.submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let jobs = timeout(SOON, waiting).await.expect("in time").expect("no panic").expect("an answer").jobs;
    assert_eq!(jobs.iter().map(|job| &job.id).collect::<Vec<_>>(), [&job.id]);
}

#[tokio::test]
async fn a_body_that_stalls_is_given_up() {
    let server =
        Server::start_with(short(Limits { body_within: Duration::from_millis(50), ..Limits::default() })).await;
    let mut stream = TcpStream::connect(server.address()).await.expect("connected");
    let request = written("POST", "/v1/jobs", r#"{"queue": "q", "kind": "k"}"#);
    stream.write_all(&request.as_bytes()[..request.len() - 5]).await.expect("sent");
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 408 ") && answer.contains("\"code\":\"body_stalled\""), "{answer}");
    server.goes_on().await;
}

#[tokio::test]
async fn a_head_that_stalls_is_given_up_however_little_of_it_came() {
    let server = Server::start_with(short(Limits { head_within: Duration::from_secs(1), ..Limits::default() })).await;
    let begun = ["", "P", "PRI * HTTP/2.0\r\n", "GET /livez HT", "GET /livez HTTP/1.1\r\nhost: localhost\r\n"];
    let given_up = begun.map(async |begun| {
        let mut stream = TcpStream::connect(server.address()).await.expect("connected");
        stream.write_all(begun.as_bytes()).await.expect("sent");
        let answer = rest(&mut stream).await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 408 "), "{begun:?} gave {answer:?}");
    });
    futures::future::join_all(given_up).await;
    server.goes_on().await;
}

#[tokio::test]
async fn what_is_no_http_is_refused() {
    let server = Server::start().await;
    for nonsense in ["\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address()).await.expect("connected");
        stream.write_all(nonsense.as_bytes()).await.expect("sent");
        assert!(rest(&mut stream).await.starts_with("HTTP/1.1 400 "), "{nonsense:?}");
        server.goes_on().await;
    }
}

#[tokio::test]
async fn headers_without_end_are_refused() {
    let server = Server::start().await;
    let long = reqwest::Client::new().get(server.url("/livez")).header("x-long", "x".repeat(40_000));
    let refused = super::server::problem(long.send().await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (431, "headers_too_large"));

    let mut stream = TcpStream::connect(server.address()).await.expect("connected");
    let endless = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-long: {}", "x".repeat(200_000));
    // The server may have answered and closed before all of it is sent.
    drop(stream.write_all(endless.as_bytes()).await);
    let answer = rest(&mut stream).await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    server.goes_on().await;
}

#[tokio::test]
async fn more_bodies_than_the_server_can_hold_are_refused_and_room_comes_back() {
    let server = Server::start_with(short(Limits { body_bytes: 64 * 1024, ..Limits::default() })).await;
    let client = server.client();
    let payload = |bytes: usize| Some(super::server::json(&format!("\"{}\"", "x".repeat(bytes))));
    let long = SubmitJob { payload: payload(100_000), ..SubmitJob::new("q", "k") };
    let refused = client.submit(&long).await.expect_err("refused");
    assert_eq!((refused.status(), refused.code()), (Some(503), Some("overloaded")));
    for _ in 0..10 {
        let short = SubmitJob { payload: payload(20_000), ..SubmitJob::new("q", "k") };
        client.submit(&short).await.expect("there is room again");
    }
}

/// A server that anybody but one may only probe, with the tokens of a worker and an operator.
async fn crowded() -> (Server, TcpStream) {
    crowded_within(Limits::default().read_within).await
}

/// Such a server, whose clients have this long to read.
async fn crowded_within(read_within: Duration) -> (Server, TcpStream) {
    let token = |name: &'static str, roles: &[Role]| Token {
        name: Actor::system(name),
        roles: roles.iter().copied().collect(),
        sha256: token_hash(name),
        may_edit_others: false,
    };
    let tokens = vec![token("worker", &[Role::Work, Role::Read]), token("operator", &[Role::Admin])];
    let access = Access::new(tokens).expect("tokens");
    let limits = Limits { connections: 1, read_within, ..Limits::default() };
    let server = Server::start_with(Setup { access, limits, ..Setup::default() }).await;
    let mut first = TcpStream::connect(server.address()).await.expect("connected");
    let claim = waiting_claim("q").replace("host:", "authorization: Bearer worker\r\nhost:");
    first.write_all(claim.as_bytes()).await.expect("sent");
    eventually("the claim waits", || server.manager.waiting_claims() == 1).await;
    (server, first)
}

#[tokio::test]
async fn a_connection_more_than_are_allowed_is_refused_but_for_operators_and_probes() {
    let (server, first) = crowded().await;
    let as_worker = || server.client_with(Some("worker"));
    let refused = as_worker().claim(&claim("q")).await.expect_err("refused");
    assert_eq!((refused.status(), refused.code()), (Some(503), Some("overloaded")));
    assert_eq!(as_worker().ready().await.expect("a probe is answered").status, "ok");
    let as_operator = || server.client_with(Some("operator"));
    as_operator().jobs(&JobQuery::default()).await.expect("an operator is answered");
    let waiting = as_operator().claim(&ClaimJobs { wait_ms: Some(60_000), ..claim("q") }).await.expect_err("refused");
    assert_eq!(waiting.code(), Some("overloaded"), "nobody keeps a place of the reserve");
    drop(first);
    eventually("the place is free", || server.manager.waiting_claims() == 0).await;
    let deadline = std::time::Instant::now() + SOON;
    while as_worker().claim(&claim("q")).await.is_err() {
        assert!(std::time::Instant::now() < deadline, "the place is not given back");
    }
}

#[tokio::test]
async fn a_connection_beyond_the_reserve_is_refused_before_it_says_anything() {
    let (server, _first) = crowded().await;
    // More than there are places in the reserve, all at once.
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(server.address()).await.expect("connected"));
    }
    let mut text = [0; 512];
    let last = silent.last_mut().expect("a connection");
    let read = timeout(SOON, last.read(&mut text)).await.expect("in time").expect("an answer");
    let refused = String::from_utf8_lossy(&text[..read]).into_owned();
    assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("\"code\":\"overloaded\""), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    // One that has a place of the reserve hears nothing, until it loses it.
    assert!(!silent[0].try_read(&mut text).is_ok_and(|read| read > 0), "there is a reserve");
    // It is not held for long by those who say nothing.
    let http = reqwest::Client::new();
    let deadline = std::time::Instant::now() + 2 * SOON;
    while !http.get(server.url("/livez")).send().await.is_ok_and(|answer| answer.status() == 200) {
        assert!(std::time::Instant::now() < deadline, "the reserve is not given back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A call over HTTP/2 on a connection of its own, whose pings are answered, and the end of that connection.
async fn over_http_2(server: &Server, path: &str) -> (http::StatusCode, impl Future<Output = ()>) {
    let stream = TcpStream::connect(server.address()).await.expect("connected");
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (mut calls, connection) = connected.expect("HTTP/2 is spoken");
    let connection = tokio::spawn(connection);
    let request = http::Request::get(server.url(path)).body(Full::<bytes::Bytes>::default()).expect("a request");
    let answer = calls.send_request(request).await.expect("an answer");
    let status = answer.status();
    answer.into_body().collect().await.expect("a whole answer");
    let ended = async move {
        drop(timeout(SOON, connection).await.expect("the server ends the connection"));
        drop(calls);
    };
    (status, ended)
}

#[tokio::test]
async fn a_client_that_only_answers_pings_loses_its_place() {
    let limits = Limits { head_within: Duration::from_secs(2), ..Limits::default() };
    let server = Server::start_with(short(limits)).await;
    let (status, ended) = over_http_2(&server, "/livez").await;
    assert_eq!(status, 200);
    ended.await;
}

#[tokio::test]
async fn a_client_without_a_right_to_anything_loses_its_place_at_once() {
    let (server, first) = crowded().await;
    drop(first);
    eventually("the place is free", || server.manager.waiting_claims() == 0).await;
    let (status, ended) = over_http_2(&server, "/v1/jobs").await;
    assert_eq!(status, 401);
    ended.await;
    let mut stream = TcpStream::connect(server.address()).await.expect("connected");
    stream.write_all(written("GET", "/v1/jobs", "").as_bytes()).await.expect("sent");
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 401 ") && answer.contains("connection: close\r\n"), "{answer}");
}

#[tokio::test]
async fn a_client_that_reads_nothing_loses_its_place() {
    const CALLS: usize = 40;
    let (server, first) = crowded_within(Duration::from_millis(300)).await;
    let payload = Some(super::server::json(&format!("\"{}\"", "x".repeat(900_000))));
    let job = SubmitJob { payload, ..SubmitJob::new("other", "k") };
    let job = server.client_with(Some("operator")).submit(&job).await.expect("submitted");
    drop(first);
    let request = written("GET", &format!("/v1/jobs/{}", job.id), "");
    let request = request.replace("host:", "authorization: Bearer worker\r\nhost:");
    let deadline = std::time::Instant::now() + SOON;
    // It is answered as soon as it has the only place.
    let mut stream = loop {
        let mut stream = TcpStream::connect(server.address()).await.expect("connected");
        stream.write_all(request.repeat(CALLS).as_bytes()).await.expect("sent");
        let mut start = [0; 12];
        if stream.peek(&mut start).await.is_ok() && start == *b"HTTP/1.1 200" {
            break stream;
        }
        assert!(std::time::Instant::now() < deadline, "it gets no place");
    };
    let as_worker = || server.client_with(Some("worker"));
    // The server's patience begins when neither side's buffers take more.
    while as_worker().claim(&claim("q")).await.is_err() {
        assert!(std::time::Instant::now() < deadline + SOON, "it has its place still");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let answers = rest(&mut stream).await.len();
    assert!(answers > 0 && answers < CALLS * 900_000, "{answers} bytes");
}

#[tokio::test]
async fn http_2_without_tls_is_understood_and_a_call_given_up_takes_no_job() {
    let server = Server::start().await;
    let http2 = Http2Client::builder(TokioExecutor::new()).http2_only(true).build_http::<Full<bytes::Bytes>>();
    let request = |path: &str, body: String| {
        let request = http::Request::post(server.url(path)).header("content-type", "application/json");
        request.body(Full::from(body)).expect("a request")
    };
    let submitted =
        http2.request(request("/v1/jobs", r#"{"queue": "q", "kind": "k"}"#.to_owned())).await.expect("answer");
    assert_eq!((submitted.status().as_u16(), submitted.version()), (201, http::Version::HTTP_2));
    let submitted: Job =
        serde_json::from_slice(&submitted.into_body().collect().await.expect("a body").to_bytes()).expect("a job");

    let body = serde_json::to_string(&claim("q")).expect("json");
    let claimed = http2.request(request("/v1/claims", body)).await.expect("an answer").into_body();
    let claimed: ClaimAnswer =
        serde_json::from_slice(&claimed.collect().await.expect("a body").to_bytes()).expect("jobs");
    assert_eq!(claimed.jobs[0].id, submitted.id);

    let body = serde_json::to_string(&ClaimJobs { wait_ms: Some(60_000), ..claim("q") }).expect("json");
    let waiting = tokio::spawn(http2.request(request("/v1/claims", body)));
    eventually("the claim waits", || server.manager.waiting_claims() == 1).await;
    waiting.abort();
    eventually("the claim is gone", || server.manager.waiting_claims() == 0).await;
}

#[tokio::test]
async fn a_server_told_to_end_answers_who_waits_and_accepts_nobody_else() {
    // At a port that nobody else is given when the server has ended.
    let address = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let server = Server::start_at(Setup::default(), address).await;
    let client = server.client();
    let (waiter, wish) = (client.clone(), ClaimJobs { wait_ms: Some(60_000), ..claim("q") });
    let waiting = tokio::spawn(async move { waiter.claim(&wish).await });
    eventually("the claim waits", || server.manager.waiting_claims() == 1).await;
    server.shut_down();
    let answer = timeout(SOON, waiting).await.expect("in time").expect("no panic").expect("an answer");
    assert_eq!(answer.jobs, []);
    server.ended().await;
    ports::closed(address).await;
}

#[tokio::test]
async fn a_server_told_to_end_cuts_off_what_does_not() {
    let limits = Limits { drain_within: Duration::from_millis(50), ..Limits::default() };
    let server = Server::start_with(short(limits)).await;
    let job = server.client().submit(&SubmitJob::new("q", "k")).await.expect("submitted");
    let mut waiter = TcpStream::connect(server.address()).await.expect("connected");
    let request = written("GET", &format!("/v1/jobs/{}?wait_ms=60000", job.id), "");
    waiter.write_all(request.as_bytes()).await.expect("sent");
    let mut stalled = TcpStream::connect(server.address()).await.expect("connected");
    stalled.write_all(b"GET /livez HTTP/1.1\r\n").await.expect("sent");
    server.shut_down();
    server.ended().await;
    assert_eq!(rest(&mut waiter).await, "");
}

#[tokio::test]
async fn a_request_for_two_hosts_is_refused() {
    let server = Server::start().await;
    let mut stream = TcpStream::connect(server.address()).await.expect("connected");
    let request = "GET /livez HTTP/1.1\r\nhost: localhost\r\nhost: elsewhere\r\nconnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.expect("sent");
    let answer = rest(&mut stream).await;
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("malformed_request"), "{answer}");
}
