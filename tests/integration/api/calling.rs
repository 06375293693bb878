//! The client, when calls do not get through.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use leasehold::client::{Client, ClientError};
use leasehold::wire::SubmitJob;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

use super::server::{Server, Setup, claim};
use crate::servers::ports;

/// An address that takes requests and breaks the connection instead of answering, and how many it took.
async fn breaking() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let taken = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&taken);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 1024];
            if stream.read(&mut head).await.is_ok_and(|read| read > 0) {
                counter.fetch_add(1, Ordering::SeqCst);
            }
        }
    });
    (url, taken)
}

#[tokio::test]
async fn a_call_that_may_have_been_heard_is_sent_again_only_where_that_does_no_harm() {
    let (url, taken) = breaking().await;
    let client = Client::new(&url, None).expect("a client").with_max_retries(2);
    assert!(matches!(client.job("x").await, Err(ClientError::Broken(_))));
    assert_eq!(taken.swap(0, Ordering::SeqCst), 3, "a read is tried again");
    assert!(client.submit(&SubmitJob::new("q", "k")).await.is_err());
    assert_eq!(taken.swap(0, Ordering::SeqCst), 3, "a submission has an id by which the server knows it again");
    assert!(client.retry("x", None).await.is_err());
    assert_eq!(taken.swap(0, Ordering::SeqCst), 1, "a retry might start the job twice");
    assert!(client.claim(&claim("q")).await.is_err());
    assert_eq!(taken.load(Ordering::SeqCst), 1, "a claim without a name might take twice as many jobs");
}

#[tokio::test]
async fn a_call_that_was_not_heard_is_sent_again_until_the_server_is_there() {
    let address = SocketAddr::from(([127, 0, 0, 1], ports::free()));
    let client = Client::new(&format!("http://{address}"), None).expect("a client").with_max_retries(20);
    let patient = client.clone();
    let calling = tokio::spawn(async move { patient.retry("x", None).await });
    assert!(matches!(client.with_max_retries(0).job("x").await, Err(ClientError::Connect(_))));
    let _server = Server::start_at(Setup::default(), address).await;
    let answer = calling.await.expect("no panic").expect_err("there is no such job");
    assert_eq!(answer.code(), Some("not_found"));
}

#[tokio::test]
async fn a_client_that_cannot_be_meant_is_refused() {
    for url in ["", "localhost:port", "ftp://localhost", "http://"] {
        assert!(matches!(Client::new(url, None), Err(ClientError::Usage(_))), "{url}");
    }
    assert!(matches!(Client::new("http://localhost", Some("a\nb")), Err(ClientError::Usage(_))));
}
