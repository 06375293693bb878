//! Which node is asked, and what a failure says of a request.

use std::net::SocketAddr;

use tokio::net::TcpSocket;

use super::*;

fn reply(status: u16) -> Reply {
    Reply { status, body: Bytes::from_static(b"{}"), maybe_repeated: false }
}

#[test]
fn a_request_turned_away_was_not_done_and_one_that_a_proxy_lost_may_have_been() {
    assert!(matches!(judge("n", reply(429)), (Try::NotDone(_), false)));
    for status in [502, 503, 504] {
        assert!(matches!(judge("n", reply(status)), (Try::Unknown(_), true)), "{status}");
    }
    for status in [200, 400, 401, 404, 409, 413, 500] {
        assert!(matches!(judge("n", reply(status)), (Try::Answered(_), false)), "{status}");
    }
}

fn nodes(addresses: &[&str]) -> Nodes {
    let access = Access { credentials: None, certificate_authority: None, request_timeout: Duration::from_secs(5) };
    let urls = addresses.iter().map(|address| (Url::parse(address).expect("an address"), None)).collect();
    Nodes::new(urls, &access).expect("a client")
}

/// An address at which nobody listens, and what keeps it from being given to anybody else.
fn nobody() -> (String, TcpSocket) {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a free port");
    (format!("http://{}", socket.local_addr().expect("an address")), socket)
}

#[tokio::test]
async fn a_node_that_is_down_does_not_stand_before_one_that_is_up() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let up = format!("http://{}", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a connection");
        let mut buffer = [0; 1024];
        let _read = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await.expect("a request");
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.expect("an open connection");
    });
    let (down, _bound) = nobody();
    let nodes = nodes(&[&down, &up]);
    let deadline = Instant::now() + Duration::from_secs(5);

    let reply = nodes.try_call(&Request::get("x".to_owned()), deadline).await.expect("the second node's answer");

    assert_eq!((reply.status, reply.maybe_repeated), (200, false));
    server.await.expect("the server answered");
}

#[tokio::test]
async fn a_refused_connection_carried_nothing() {
    let (address, _bound) = nobody();
    let nodes = nodes(&[&address]);
    let deadline = Instant::now() + Duration::from_millis(200);
    let error = nodes.call(&Request::get("x".to_owned()), deadline).await.expect_err("nobody listens");
    assert!(!error.maybe_received, "{}", error.message);
}

#[tokio::test]
async fn a_node_that_is_slow_over_a_search_stays_in_its_turn_and_one_that_is_slow_over_a_read_rests() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let silent = tokio::spawn(async move {
        let mut connections = Vec::new();
        loop {
            connections.push(listener.accept().await.expect("a connection"));
        }
    });
    let nodes = Nodes { request_timeout: Duration::from_millis(50), ..nodes(&[&address]) };
    for (request, is_live) in [
        (Request::search("jobs/_search".to_owned(), Bytes::new()), true),
        (Request::post("jobs/_mget".to_owned(), Bytes::new()), false),
    ] {
        let deadline = Instant::now() + Duration::from_secs(5);
        nodes.try_call(&request, deadline).await.expect_err("nobody answers");
        assert_eq!(nodes.any_live(), is_live);
    }
    silent.abort();
}

#[tokio::test]
async fn a_connection_that_breaks_without_an_answer_may_have_carried_the_request() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let server = tokio::spawn(async move {
        for answer in [b"".as_slice(), b"", b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"] {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            let mut buffer = [0; 1024];
            let _read = tokio::io::AsyncReadExt::read(&mut stream, &mut buffer).await.expect("a request");
            tokio::io::AsyncWriteExt::write_all(&mut stream, answer).await.expect("an open connection");
        }
    });
    let nodes = nodes(&[&address]);
    let (request, deadline) = (Request::get("x".to_owned()), Instant::now() + Duration::from_secs(60));
    // One try, and then as many as there have to be.
    let error = nodes.try_call(&request, deadline).await.expect_err("no answer");
    assert!(error.maybe_received, "{}", error.message);
    let reply = nodes.call(&request, deadline).await.expect("the second try is answered");
    assert!(reply.maybe_repeated);
    server.await.expect("the server answered");
}
