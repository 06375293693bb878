//! Where a member sends the calls of its clients, with their tokens.

use std::time::Duration;

use leasehold::store::{PROVED_ANSWERS, SIGNED_HEADS};
use leasehold::wire::SubmitJob;
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::members::pair;
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
