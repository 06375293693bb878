//! Where a member sends the calls of its clients, with their tokens, and how often.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::client::{Client, JobQuery};
use leasehold::store::{Member as _, PROVED_ANSWERS, SIGNED_HEADS};
use leasehold::wire::SubmitJob;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::members::{Process, pair};
use super::server::SOON;

#[tokio::test]
async fn a_token_is_sent_to_no_address_where_nobody_has_proved_to_be_the_member() {
    let stranger = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", stranger.local_addr().expect("an address"));
    // A new group agrees on the later ones only after a while, in which a member that starts has heard of nobody.
    for (agreed, is_heard) in [(PROVED_ANSWERS, true), (PROVED_ANSWERS, false), (SIGNED_HEADS, false)] {
        let [_other, member] = pair(&address).await;
        member.agrees_on(agreed);
        if !is_heard {
            member.hears_nobody();
        }
        member.sees(1, Some(3));
        let client = member.client();
        let calling = tokio::spawn(async move { client.submit(&SubmitJob::new("q", "k")).await });
        let come = timeout(Duration::from_millis(300), stranger.accept()).await;
        assert!(come.is_err(), "who listens at the former address of the leader hears of no call");
        let _manager = member.take_office();
        member.sees(2, Some(2));
        calling.await.expect("no panic").expect("it has waited for a leader that is known");
    }

    // A version that does not say so proves nothing, and its member is called where it is by the settings.
    let [_other, member] = pair(&address).await;
    member.agrees_on(SIGNED_HEADS - 1);
    member.sees(1, Some(3));
    let client = member.client();
    let calling = tokio::spawn(async move { client.job("a").await });
    let (mut connection, _) = timeout(SOON, stranger.accept()).await.expect("in time").expect("a connection");
    let mut said = [0; 8];
    connection.read_exact(&mut said).await.expect("a call");
    assert_eq!(&said, b"GET /v1/");
    calling.abort();
}

/// A member that sees another leader lead in the next term whenever the one before has ended at a call, and how many
/// have.
async fn with_leaders_that_end_at_each_call() -> (Process, Process, Arc<AtomicU64>) {
    let leaders = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", leaders.local_addr().expect("an address"));
    let [other, member] = pair(&address).await;
    member.sees(1, Some(3));
    let (ended, puppet) = (Arc::new(AtomicU64::new(0)), Arc::clone(&member.puppet));
    let counted = Arc::clone(&ended);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = leaders.accept().await.expect("a connection");
            if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                counted.fetch_add(1, Ordering::SeqCst);
                drop(stream);
                puppet.hand_over(Some(3)).await;
            }
        }
    });
    (other, member, ended)
}

#[tokio::test]
async fn a_call_at_which_two_leaders_were_lost_reaches_no_third() {
    let (_other, member, ended) = with_leaders_that_end_at_each_call().await;
    // As patient as the program's own client is.
    let client = Client::new(&member.url(""), None).expect("a client");

    let refused = client.jobs(&JobQuery::default()).await.expect_err("refused");
    assert_eq!((refused.status(), refused.code()), (Some(500), Some("leaders_lost")), "a call that only reads");
    assert_eq!(ended.load(Ordering::SeqCst), 2);
    let refused = client.submit(&SubmitJob::new("q", "k")).await.expect_err("refused");
    assert_eq!((refused.status(), refused.code()), (Some(500), Some("leaders_lost")), "a call that changes something");
    assert_eq!(ended.load(Ordering::SeqCst), 4);

    let again = client.jobs(&JobQuery::default()).await.expect_err("refused");
    assert_eq!(again.code(), Some("leaders_lost"), "the same call, made again");
    assert_eq!(ended.load(Ordering::SeqCst), 4);
}
