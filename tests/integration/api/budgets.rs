//! What callers may hold at once: whatever some send and do not end, the others are served.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{join_all, ready};
use futures::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use leasehold::api::Limits;
use leasehold::api::access::{Access, Role, Token, token_hash};
use leasehold::job::Actor;
use leasehold::wire::{CompleteJob, HeartbeatJob, SubmitJob};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{interval, timeout};

use super::server::{SOON, Server, Setup, WORKER, claim, json, problem};

const FORM: &str = "application/x-www-form-urlencoded";
/// The address of most clients, and that of another one.
const HERE: &str = "127.0.0.1";
const ELSEWHERE: &str = "127.0.0.2";

/// A server with these limits, and tokens of these names and roles; the token is its name.
async fn guarded(tokens: &[(&'static str, &[Role])], limits: Limits) -> Server {
    let token = |(name, roles): &(&'static str, &[Role])| Token {
        name: Actor::system(name),
        roles: roles.iter().copied().collect(),
        sha256: token_hash(name),
        may_edit_others: false,
    };
    let access = Access::new(tokens.iter().map(token).collect()).expect("tokens");
    Server::start_with(Setup { access, limits, ..Setup::default() }).await
}

/// Submits a job, claims it, prolongs its lease and completes it with a result of so many bytes.
async fn life(server: &Server, submitter: &str, worker: &str, result: usize) {
    let (submitter, worker) = (server.client_with(Some(submitter)), server.client_with(Some(worker)));
    let id = submitter.submit(&SubmitJob::new("q", "k")).await.expect("submitted").id;
    let job = worker.claim(&claim("q")).await.expect("an answer").jobs.remove(0);
    assert_eq!(job.id, id);
    let (worker_id, fence) = (WORKER.to_owned(), job.fence);
    let beat = HeartbeatJob { worker_id: worker_id.clone(), fence, progress: None };
    worker.heartbeat(&id, &beat).await.expect("prolonged");
    let result = Some(json(&format!("\"{}\"", "x".repeat(result))));
    let done = CompleteJob { worker_id, fence, result, next: None };
    worker.complete(&id, &done).await.expect("completed");
}

/// The value of a series of the server's metrics, or 0.
async fn counter(server: &Server, token: &str, series: &str) -> f64 {
    let text = server.client_with(Some(token)).metrics().await.expect("metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or(0.0)
}

/// A client that calls from this address.
fn from(address: &str) -> reqwest::Client {
    let address: IpAddr = address.parse().expect("an address");
    let client = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none());
    client.local_address(address).build().expect("a client")
}

/// The answer to somebody who signs in with this token from an address.
async fn sign_in(server: &Server, address: &str, token: &str) -> reqwest::Response {
    let call = from(address).post(server.url("/sign-in")).header("content-type", FORM);
    let call = call.header("origin", server.url("")).body(format!("token={token}&back=%2Fjobs"));
    call.send().await.expect("an answer")
}

/// A body that begins with these bytes and then brings nothing more.
fn unending(begins: Vec<u8>) -> reqwest::Body {
    let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from(begins))]);
    reqwest::Body::wrap_stream(first.chain(stream::pending()))
}

#[tokio::test]
async fn nobody_has_all_streams_of_events_or_all_exports() {
    let limits = Limits { event_streams: 4, exports: 4, ..Limits::default() };
    let server = guarded(&[("hoarder", &[Role::Read]), ("other", &[Role::Read, Role::Submit])], limits).await;
    let payload = || Some(json(&format!("\"{}\"", "x".repeat(900_000))));
    for _ in 0..30 {
        let job = SubmitJob { payload: payload(), ..SubmitJob::new("q", "k") };
        server.client_with(Some("other")).submit(&job).await.expect("submitted");
    }
    let http = reqwest::Client::new();
    for path in ["/v1/events", "/v1/jobs/export"] {
        let open = async |token: &str| http.get(server.url(path)).bearer_auth(token).send().await.expect("an answer");
        let mut held = Vec::new();
        let refused = loop {
            match open("hoarder").await {
                answer if answer.status() == 200 => held.push(answer),
                refused => break problem(refused).await,
            }
            assert!(held.len() < 4, "{path}: it has all");
        };
        assert_eq!((held.len(), refused.status, refused.code.as_str()), (3, 429, "share_taken"), "{path}");
        let other = open("other").await;
        assert_eq!(other.status(), 200, "{path}: what is left is not kept for the other");
        drop((held, other));
    }
}

#[tokio::test]
async fn streams_of_schedules_that_bring_next_to_nothing_end_and_keep_nobody_out() {
    let limits = Limits { body_within: Duration::from_secs(2), ..Limits::default() };
    let tokens: [(&str, &[Role]); 3] =
        [("dripping", &[Role::Submit]), ("render", &[Role::Submit]), ("farm", &[Role::Work])];
    let server = guarded(&tokens, limits).await;
    let dripping = (0..32).map(|_| {
        // The first newline comes at once.
        let newlines = stream::unfold(interval(Duration::from_millis(200)), |mut ticks| async {
            ticks.tick().await;
            Some((Ok::<_, std::io::Error>(Bytes::from_static(b"\n")), ticks))
        });
        let call = reqwest::Client::new().post(server.url("/v1/schedules/bulk")).bearer_auth("dripping");
        let call = call.header("content-type", "application/x-ndjson");
        tokio::spawn(call.body(reqwest::Body::wrap_stream(newlines)).send())
    });
    let dripping: Vec<_> = dripping.collect();
    // All of them are open: none is answered before its time is over.
    tokio::time::sleep(Duration::from_millis(500)).await;
    for _ in 0..3 {
        life(&server, "render", "farm", 1_000).await;
    }
    // Not even the same token is kept out.
    server.client_with(Some("dripping")).submit(&SubmitJob::new("other", "k")).await.expect("submitted");
    for call in dripping {
        let answer = timeout(SOON, call).await.expect("it ends").expect("no panic").expect("an answer");
        let refused = problem(answer).await;
        assert_eq!((refused.status, refused.code.as_str()), (408, "body_stalled"));
    }
}

#[tokio::test]
async fn what_one_token_leaves_lying_is_its_own_share_and_work_has_another_budget() {
    let limits = Limits { body_bytes: 4 << 20, work_bytes: 8 << 20, ..Limits::default() };
    let tokens: [(&str, &[Role]); 4] = [
        ("hoarder", &[Role::Submit, Role::Work]),
        ("mill", &[Role::Submit]),
        ("hands", &[Role::Work]),
        ("watch", &[Role::Read]),
    ];
    let server = guarded(&tokens, limits).await;
    let as_hoarder = server.client_with(Some("hoarder"));
    let id = as_hoarder.submit(&SubmitJob::new("own", "k")).await.expect("submitted").id;
    let fence = as_hoarder.claim(&claim("own")).await.expect("an answer").jobs.remove(0).fence;

    let refused = r#"leasehold_budget_refused_total{budget="bodies",caller="hoarder"}"#;
    assert!(counter(&server, "watch", refused).await < 0.5, "nothing was refused yet");
    let http = reqwest::Client::new();
    let hoard = || {
        let call = http.post(server.url("/v1/jobs")).bearer_auth("hoarder").header("content-type", "application/json");
        tokio::spawn(call.body(unending(vec![b' '; 100_000])).send())
    };
    // More than its own part and all that is common.
    let mut open: Vec<_> = (0..60).map(|_| hoard()).collect();
    let full = async {
        while counter(&server, "watch", refused).await < 0.5 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, full).await.expect("it has its share");
    life(&server, "mill", "hands", 1_000_000).await;
    let (worker_id, result) = (WORKER.to_owned(), Some(json(&format!("\"{}\"", "x".repeat(900_000)))));
    let beat = HeartbeatJob { worker_id: worker_id.clone(), fence, progress: None };
    as_hoarder.heartbeat(&id, &beat).await.expect("its heartbeats are not of these");
    let done = CompleteJob { worker_id, fence, result, next: None };
    as_hoarder.complete(&id, &done).await.expect("nor are its ends");

    let answers = stream::iter(open.drain(..)).filter_map(|call| async move {
        let answer = timeout(Duration::from_millis(50), call).await.ok()?;
        Some(answer.expect("no panic").expect("an answer"))
    });
    let answers: Vec<reqwest::Response> = answers.collect().await;
    assert!(answers.len() > 20, "{} were refused", answers.len());
    for answer in answers {
        assert_eq!(answer.headers()["retry-after"], "1");
        let refused = problem(answer).await;
        assert_eq!((refused.status, refused.code.as_str()), (429, "share_taken"));
        assert!(refused.detail.starts_with("the token `hoarder` holds as many"), "{}", refused.detail);
    }
    let held = r#"leasehold_budget_held{budget="bodies"}"#;
    assert!(counter(&server, "watch", held).await >= 0.0, "what is held is said");
}

#[tokio::test]
async fn a_body_in_pieces_of_one_byte_takes_as_much_as_one_in_one() {
    const BYTES: usize = 1 << 18;
    let limits = Limits { body_bytes: 2 << 20, ..Limits::default() };
    let server = guarded(&[("crumbs", &[Role::Read]), ("loaf", &[Role::Submit])], limits).await;
    let mut crumbs = TcpStream::connect(server.address()).await.expect("connected");
    let head = "POST /v1/schedules/preview HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer crumbs\r\n\
                content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    crumbs.write_all(head.as_bytes()).await.expect("sent");
    let sent = timeout(SOON, crumbs.write_all("1\r\n \r\n".repeat(BYTES).as_bytes())).await;
    sent.expect("it is read").expect("sent");
    let payload = Some(json(&format!("\"{}\"", "x".repeat(900_000))));
    let job = SubmitJob { payload, ..SubmitJob::new("q", "k") };
    server.client_with(Some("loaf")).submit(&job).await.expect("submitted");
    crumbs.write_all(b"0\r\n\r\n").await.expect("it is read to its end");
    let mut first = [0; 12];
    timeout(SOON, tokio::io::AsyncReadExt::read_exact(&mut crumbs, &mut first)).await.expect("in time").expect("read");
    assert_eq!(&first, b"HTTP/1.1 400", "it is no JSON");
}

/// A connection of a stranger that begins to sign in.
async fn begin_to_sign_in(server: &Server, headers: &str, begins: &[u8]) -> TcpStream {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(format!("{HERE}:0").parse().expect("an address")).expect("bound");
    let mut stream = socket.connect(server.address()).await.expect("connected");
    let head = format!("POST /sign-in HTTP/1.1\r\nhost: localhost\r\ncontent-type: {FORM}\r\n{headers}\r\n\r\n");
    // A refusal may come, and the connection go, before all is sent.
    drop(stream.write_all(&[head.as_bytes(), begins].concat()).await);
    stream
}

/// The status with which a connection is answered, if it is.
async fn status(stream: &mut TcpStream) -> Option<u16> {
    let mut first = [0; 12];
    let read = tokio::io::AsyncReadExt::read_exact(stream, &mut first);
    timeout(Duration::from_millis(100), read).await.ok()?.ok()?;
    std::str::from_utf8(&first[9..]).ok()?.parse().ok()
}

#[tokio::test]
async fn hundreds_who_begin_to_sign_in_hold_little_and_keep_nobody_out() {
    let server = guarded(&[("clerk", &[Role::Submit, Role::Work, Role::Read])], Limits::default()).await;
    // Each announces two megabytes, and is refused before it has sent them.
    let mut announced =
        join_all((0..100).map(|_| begin_to_sign_in(&server, "content-length: 2000000", b"token="))).await;
    for stream in &mut announced {
        assert!(matches!(status(stream).await, Some(413 | 429)), "it is not read");
    }
    let piece = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    let chunked = || begin_to_sign_in(&server, "transfer-encoding: chunked", piece.as_bytes());
    let mut open = join_all((0..200).map(|_| chunked())).await;
    let mut waiting = 0;
    for stream in &mut open {
        match status(stream).await {
            Some(429) => {}
            None => waiting += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=4).contains(&waiting), "{waiting} are read at the expense of this address");
    life(&server, "clerk", "clerk", 1_000_000).await;
    assert_eq!(sign_in(&server, ELSEWHERE, "clerk").await.status(), 303, "another address has its own share");
    let refused = r#"leasehold_budget_refused_total{budget="unauthenticated_bodies",caller="address"}"#;
    assert!(counter(&server, "clerk", refused).await > 100.0);
    drop(open);
    let deadline = std::time::Instant::now() + SOON;
    while sign_in(&server, HERE, "clerk").await.status() != 303 {
        assert!(std::time::Instant::now() < deadline, "what they had is not given back");
    }
}

#[tokio::test]
async fn hundreds_of_streams_on_one_connection_without_a_token_hold_little() {
    let server = guarded(&[("porter", &[Role::Submit, Role::Work, Role::Read])], Limits::default()).await;
    let stream = TcpStream::connect(server.address()).await.expect("connected");
    let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (calls, connection) = connected.expect("HTTP/2 is spoken");
    let connection = tokio::spawn(connection);
    let streams = (0..200).map(|_| {
        let first = stream::once(ready(Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![b'x'; 10_000])))));
        let body = StreamBody::new(first.chain(stream::pending()));
        let request = http::Request::post(server.url("/sign-in")).header("content-type", FORM).body(body);
        let (mut calls, request) = (calls.clone(), request.expect("a request"));
        tokio::spawn(async move {
            calls.ready().await.expect("open");
            calls.send_request(request).await
        })
    });
    let streams: Vec<_> = streams.collect();
    let mut refused = 0;
    for stream in streams {
        // Those that are read are waited for until their time is over.
        if let Ok(answer) = timeout(Duration::from_millis(100), stream).await {
            let answer = answer.expect("no panic").expect("an answer");
            assert!([429, 503].contains(&answer.status().as_u16()), "{}", answer.status());
            answer.into_body().collect().await.expect("a whole answer");
            refused += 1;
        }
    }
    assert!(refused >= 196, "{refused} were refused");
    life(&server, "porter", "porter", 1_000_000).await;
    assert_eq!(sign_in(&server, ELSEWHERE, "porter").await.status(), 303);
    connection.abort();
}

#[tokio::test]
async fn open_calls_and_connections_without_a_token_are_counted_by_address() {
    let limits = Limits { unauthenticated_calls: 8, connections: 64, ..Limits::default() };
    let server = guarded(&[("usher", &[Role::Read])], limits).await;
    // A quarter of the calls, which wait for a form.
    let mut waiting = join_all((0..2).map(|_| begin_to_sign_in(&server, "content-length: 100", b"token="))).await;
    for stream in &mut waiting {
        assert_eq!(status(stream).await, None, "it is read");
    }
    let refused = problem(from(HERE).get(server.url("/openapi.json")).send().await.expect("an answer")).await;
    assert_eq!((refused.status, refused.code.as_str()), (429, "share_taken"));
    assert_eq!(from(HERE).get(server.url("/livez")).send().await.expect("an answer").status(), 200, "but for probes");
    assert_eq!(from(ELSEWHERE).get(server.url("/openapi.json")).send().await.expect("an answer").status(), 200);
    server.client_with(Some("usher")).health().await.expect("and for those who show a token");
    drop(waiting);

    // A half of the connections of those who show none, which are a half of all; and some of the reserve.
    let silent = join_all((0..100).map(|_| TcpStream::connect(server.address()))).await;
    let http = from(ELSEWHERE);
    let known = http.get(server.url("/v1/me")).bearer_auth("usher").send().await.expect("an answer");
    assert_eq!(known.status(), 200, "another address has a place");
    let refused = r#"leasehold_budget_refused_total{budget="unauthenticated_connections",caller="address"}"#;
    let text = http.get(server.url("/metrics")).bearer_auth("usher").send().await.expect("an answer").text().await;
    let text = text.expect("metrics");
    let times = text.lines().find_map(|line| line.strip_prefix(refused)?.trim().parse::<f64>().ok());
    assert!(times.is_some_and(|times| times > 10.0), "{times:?}");
    drop(silent);
}

#[tokio::test]
async fn what_is_said_of_clients_is_believed_of_a_trusted_proxy_alone() {
    let trusting = Limits { trusted_proxies: vec![HERE.parse().expect("a proxy")], ..Limits::default() };
    for (limits, is_trusted) in [(Limits::default(), false), (trusting, true)] {
        let limits = Limits { unauthenticated_calls: 4, ..limits };
        let server = guarded(&[("page", &[Role::Read])], limits).await;
        let call = from(HERE).post(server.url("/sign-in")).header("content-type", FORM);
        let call = call.header("origin", server.url("")).header("x-forwarded-proto", "https").body("token=page");
        let signed_in = call.send().await.expect("an answer");
        let cookie = signed_in.headers()["set-cookie"].to_str().expect("text").to_owned();
        assert_eq!(cookie.contains("; Secure"), is_trusted, "{cookie}");

        let of_one = "x-forwarded-for: 203.0.113.9\r\ncontent-length: 100";
        let mut waiting = begin_to_sign_in(&server, of_one, b"token=").await;
        assert_eq!(status(&mut waiting).await, None, "it is read");
        let of = async |client: &str| {
            let call = from(HERE).get(server.url("/openapi.json")).header("x-forwarded-for", client);
            call.send().await.expect("an answer").status().as_u16()
        };
        assert_eq!(of("203.0.113.9").await, 429);
        assert_eq!(of("203.0.113.10").await, if is_trusted { 200 } else { 429 });
    }
}
