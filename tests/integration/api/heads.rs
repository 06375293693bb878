//! Calls between processes are looked at before anything of their bodies is read: who lacks the secret costs a server
//! no more than a connection, and a call counts once.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use bytes::Bytes;
use leasehold::executor::{HttpCall, HttpExecutor, Limits, TargetUrl};
use leasehold::peers::{
    CALLS_PATH, ClusterMap, DELIVERIES_PATH, Deputies, HINTS_PATH, MESSAGES_PATH, PeerCall, Reached, Signer,
    WORKERS_PATH,
};
use leasehold::store::{Member, SIGNED_HEADS};
use leasehold::wire::SubmitJob;
use parking_lot::Mutex;
use regex::Regex;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::members::{NOWHERE, Process, clock, executor, led, pair, secret};
use super::server::{SOON, Server, Setup};
use crate::architecture::sources;
use crate::notify::receiver::Receiver;

/// The calls that members make of each other, and those that managers make.
const OF_MEMBERS: [&str; 3] = [MESSAGES_PATH, DELIVERIES_PATH, CALLS_PATH];
const OF_MANAGERS: [&str; 2] = [HINTS_PATH, WORKERS_PATH];

/// What a caller without the secret may say of itself.
const SAID: [&str; 4] = [
    "",
    "webhook-id: a\r\nwebhook-timestamp: 1900000000\r\nwebhook-signature: v1,aaaa\r\n",
    "leasehold-head: test/2 00000000000000000000000000000001 test/1 00000000000000000000000000000002 1 1000000 a a\r\n",
    "leasehold-head: \r\nleasehold-opening: x\r\n",
];

/// Begins a call whose body is still to come.
async fn begin(address: SocketAddr, path: &str, said: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\n{said}");
    stream.write_all(format!("{head}content-length: 1000000\r\n\r\n").as_bytes()).await.expect("sent");
    stream
}

/// Reads the head of an answer.
async fn answer(stream: &mut TcpStream) -> String {
    let mut said = Vec::new();
    let read = async {
        while !said.windows(4).any(|end| end == b"\r\n\r\n") {
            if stream.read_buf(&mut said).await.expect("an answer") == 0 {
                break;
            }
        }
    };
    timeout(SOON, read).await.expect("an answer before the body");
    String::from_utf8_lossy(&said).into_owned()
}

/// Begins a call with a body of so many chunks of a byte, and leaves it open.
async fn chunks(address: SocketAddr, path: &str, said: &str, count: usize) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n{said}\r\n");
    stream.write_all(head.as_bytes()).await.expect("sent");
    // It may be refused before all of it was sent.
    drop(stream.write_all("1\r\nx\r\n".repeat(count).as_bytes()).await);
    stream
}

#[test]
fn every_call_between_processes_is_tested_here() {
    let path = Regex::new("\"(/cluster/[a-z]+)\"").expect("a pattern");
    let texts: Vec<String> = sources().into_iter().map(|source| source.text).collect();
    let found: BTreeSet<&str> = texts
        .iter()
        .flat_map(|text| path.captures_iter(text))
        .filter_map(|found| Some(found.get(1)?.as_str()))
        .collect();
    assert_eq!(found, OF_MEMBERS.into_iter().chain(OF_MANAGERS).collect());
}

#[tokio::test]
async fn nothing_of_a_body_is_read_without_the_secret() {
    let [member, _other] = pair(NOWHERE).await;
    let manager = Server::start_with(Setup { peer_secret: Some(secret()), ..Setup::default() }).await;
    let of_members = OF_MEMBERS.map(|path| (member.address, path));
    let of_managers = OF_MANAGERS.map(|path| (manager.address(), path));
    for (address, path) in of_members.into_iter().chain(of_managers) {
        for said in SAID {
            let answer = answer(&mut begin(address, path, said).await).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{path} {said}: {answer}");
            let lines: Vec<&str> = answer.lines().filter(|line| line.starts_with("leasehold-opening: ")).collect();
            assert!(lines.len() == 1 && lines[0].len() == "leasehold-opening: ".len() + 32, "{answer}");
        }
    }
    assert!(member.puppet.received.lock().is_empty());
}

#[tokio::test]
async fn bodies_without_the_secret_take_nothing_from_members_or_clients() {
    let (leader, _manager, follower) = led().await;
    let manager = Server::start_with(Setup { peer_secret: Some(secret()), ..Setup::default() }).await;
    let mut open = Vec::new();
    for version in [SIGNED_HEADS, SIGNED_HEADS - 1] {
        leader.agrees_on(version);
        for said in SAID {
            for path in OF_MEMBERS {
                open.push(chunks(leader.address, path, said, 20_000).await);
                open.push(begin(leader.address, path, said).await);
            }
            for path in OF_MANAGERS {
                open.push(chunks(manager.address(), path, said, 20_000).await);
            }
        }
    }
    for path in OF_MEMBERS {
        let length = if path == DELIVERIES_PATH { 36 } else { 2 << 20 };
        let status = call(&leader, path, Bytes::from(vec![b'x'; length]), |body| body).await;
        assert!(!status.is_server_error() && status != StatusCode::UNAUTHORIZED, "{path}: {status}");
    }
    for client in [leader.client(), follower.client(), manager.client()] {
        client.submit(&SubmitJob::new("q", "k")).await.expect("clients notice nothing");
    }
}

#[tokio::test]
async fn chunks_of_a_byte_are_charged_by_their_bytes() {
    let [member, _other] = pair(NOWHERE).await;
    member.agrees_on(SIGNED_HEADS - 1);
    let body = Bytes::from_static(b"\x01\x04test\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0");
    // As many pieces as a budget of 256 MiB has units.
    let _most = chunks(member.address, MESSAGES_PATH, SAID[1], 262_136).await;
    let _rest = chunks(member.address, MESSAGES_PATH, SAID[1], 8).await;
    let headers = secret().sign(&body, clock().now());
    let call = reqwest::Client::new().post(member.url(MESSAGES_PATH)).headers(headers).body(body);
    assert_eq!(call.send().await.expect("an answer").status(), 204);
}

/// Makes a signed call of member 1 whose body is another one than was signed, and returns the status of the answer.
async fn call(process: &Process, path: &str, body: Bytes, sent: impl Fn(Bytes) -> Bytes) -> StatusCode {
    let (url, address) = (process.url(path), process.url(""));
    let call = PeerCall { address: &address, receiver: "test/1", path, body: &body, may_be_earlier: false };
    let send = |headers: HeaderMap, body: Bytes| {
        let body = if body.is_empty() { body } else { sent(body) };
        let body = reqwest::Body::wrap_stream(futures::stream::iter(
            body.chunks(7).map(|piece| Ok::<_, std::io::Error>(Bytes::copy_from_slice(piece))).collect::<Vec<_>>(),
        ));
        reqwest::Client::new().post(&url).headers(headers).body(body).send()
    };
    Signer::new(secret(), "test/2", clock()).call(&call, send).await.expect("an answer").status()
}

#[tokio::test]
async fn a_body_that_is_not_the_signed_one_is_refused() {
    let [member, _other] = pair(NOWHERE).await;
    let good = Bytes::from_static(b"\x01\x04test\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0a");
    assert_eq!(call(&member, MESSAGES_PATH, good.clone(), |body| body).await, StatusCode::NO_CONTENT);
    let longer = |body: Bytes| [&body, &b"\x01\0\0\0b"[..]].concat().into();
    let shorter = |body: Bytes| body.slice(..body.len() - 5);
    let nothing = |_: Bytes| Bytes::new();
    let other = |body: Bytes| [&body[..body.len() - 1], b"b"].concat().into();
    for sent in [&longer as &dyn Fn(Bytes) -> Bytes, &shorter, &nothing, &other] {
        assert_eq!(call(&member, MESSAGES_PATH, good.clone(), sent).await, StatusCode::BAD_REQUEST);
    }
    assert_eq!(member.puppet.received.lock().len(), 1);
    // The length that is signed is refused before anything of the body has come.
    let too_long = Bytes::from(vec![0; 65]);
    assert_eq!(call(&member, DELIVERIES_PATH, too_long, |_| Bytes::new()).await, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn a_body_is_read_no_further_than_was_signed() {
    let [member, _other] = pair(NOWHERE).await;
    let head = captured_head(&member, MESSAGES_PATH, &Bytes::from_static(b"12345678")).await;
    let mut stream = chunks(member.address, MESSAGES_PATH, &format!("leasehold-head: {head}\r\n"), 9).await;
    // The body goes on, and the answer is there.
    assert!(answer(&mut stream).await.starts_with("HTTP/1.1 400 "));
    let head = captured_head(&member, MESSAGES_PATH, &Bytes::from_static(b"12345678")).await;
    let answer = answer(&mut begin(member.address, MESSAGES_PATH, &format!("leasehold-head: {head}\r\n")).await).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "another length is announced: {answer}");
}

/// Returns the head of a call that was never sent.
async fn captured_head(process: &Process, path: &str, body: &Bytes) -> String {
    let captured = Mutex::new(String::new());
    let (url, address) = (process.url(path), process.url(""));
    let call = PeerCall { address: &address, receiver: "test/1", path, body, may_be_earlier: false };
    let send = |headers: HeaderMap, body: Bytes| {
        if let Some(head) = headers.get("leasehold-head") {
            *captured.lock() = head.to_str().expect("text").to_owned();
        }
        let headers = HeaderMap::new();
        reqwest::Client::new().post(&url).headers(headers).body(body).send()
    };
    Signer::new(secret(), "test/2", clock()).call(&call, send).await.expect("an answer");
    captured.into_inner()
}

/// A way to a process that keeps what is sent over it.
async fn recording(to: SocketAddr) -> (String, Arc<Mutex<Vec<u8>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let kept: Arc<Mutex<Vec<u8>>> = Arc::default();
    let keeping = Arc::clone(&kept);
    tokio::spawn(async move {
        while let Ok((from, _)) = listener.accept().await {
            let (mut to, kept) = (TcpStream::connect(to).await.expect("connected"), Arc::clone(&keeping));
            tokio::spawn(async move {
                let (mut from, mut answers) = from.into_split();
                let (mut back, mut forth) = to.split();
                let forth = async {
                    let mut buffer = vec![0; 64 << 10];
                    while let Ok(read @ 1..) = from.read(&mut buffer).await {
                        kept.lock().extend_from_slice(&buffer[..read]);
                        forth.write_all(&buffer[..read]).await.expect("sent");
                    }
                };
                tokio::join!(forth, async { drop(copy(&mut back, &mut answers).await) });
            });
        }
    });
    (url, kept)
}

/// Makes each call that was kept once more, and returns the statuses of the answers.
async fn replay(to: SocketAddr, kept: &[u8]) -> Vec<String> {
    let starts: Vec<usize> = (0..kept.len()).filter(|at| kept[*at..].starts_with(b"POST /")).collect();
    let ends = starts[1..].iter().copied().chain([kept.len()]);
    let mut statuses = Vec::new();
    for (start, end) in starts.iter().zip(ends) {
        let mut stream = TcpStream::connect(to).await.expect("connected");
        stream.write_all(&kept[*start..end]).await.expect("sent");
        statuses.push(answer(&mut stream).await["HTTP/1.1 ".len()..].split(' ').next().expect("a word").to_owned());
    }
    statuses
}

/// Has the leader give one call to the follower over a way that keeps it, and returns what it has kept.
async fn passed_call(leader: &Process, follower: &Process, target: &Receiver) -> Vec<u8> {
    let (way, kept) = recording(follower.address).await;
    let addresses = [(1, leader.url("").into()), (2, way.as_str().into()), (3, NOWHERE.into())].into();
    let map = ClusterMap { cluster: "test".into(), member: 1, addresses, reached: Reached::default() };
    let signer = Signer::new(secret(), "test/1", clock());
    let member = Arc::clone(&leader.puppet) as Arc<dyn Member>;
    let deputies = Deputies::new(member, map, signer, Limits::default()).expect("deputies");
    let all: HttpExecutor = executor().with_deputy(Arc::new(deputies));
    let call = HttpCall {
        method: Method::POST,
        url: TargetUrl::parse(&target.url()).expect("a URL"),
        headers: HeaderMap::from_iter([(header::USER_AGENT, HeaderValue::from_static("a"))]),
        body: Bytes::from_static(b"once"),
        timeout: Duration::from_secs(20),
    };
    // Members take turns.
    while kept.lock().is_empty() {
        all.call(&call).await.expect("an answer");
    }
    kept.lock().clone()
}

#[tokio::test]
async fn a_call_that_was_seen_on_its_way_is_not_made_again() {
    let target = Receiver::listening().await;
    let [leader, follower] = pair(NOWHERE).await;
    let kept = passed_call(&leader, &follower, &target).await;
    let made = target.came().len();
    let answers = replay(follower.address, &kept).await;
    assert_eq!(answers, ["401", "400"], "the question for the opening, and the call");
    // Nor by the same member when it was started again, or by another one.
    let [other, started_again] = pair(NOWHERE).await;
    for process in [&started_again, &other] {
        assert_eq!(replay(process.address, &kept).await, ["401", "401"]);
    }
    assert_eq!(target.came().len(), made);
}
