//! Callers without the secret, who leave long bodies open at every member.

use std::time::{Duration, Instant};

use leasehold::client::Client;
use leasehold::wire::SubmitJob;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::site::{MEMBERS, Site};
use crate::machine;
use crate::program::DEADLINE;

/// The pieces of a byte that the bodies at each member have: together as many as two of the longest bodies have KiB.
const PIECES: [usize; 2] = [262_136, 8];
/// How long they are there before the members are looked at: a leader that hears nothing of the others steps down.
const MEANWHILE: Duration = Duration::from_secs(4);
/// Members that were heard of since exchange their messages.
const LATELY_MS: u64 = 2_000;
const JOBS: usize = 30;
/// What looks like the signature of an earlier version.
const SIGNED: &str = "webhook-id: a\r\nwebhook-timestamp: 1\r\nwebhook-signature: v1,aaaa\r\n";

/// Begins one call after the other, each with a body in pieces that does not end.
async fn call_without_end(address: String, pieces: usize) {
    let body = "1\r\nx\r\n".repeat(pieces);
    loop {
        let Ok(mut stream) = TcpStream::connect(&address).await else { continue };
        let head = "POST /cluster/messages HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n";
        // It is refused at any moment, or is left open for as long as the member bears it.
        drop(stream.write_all(format!("{head}{SIGNED}\r\n{body}").as_bytes()).await);
        while stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {}
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_without_the_secret_cost_members_neither_their_leader_nor_each_other() {
    let _share = machine::with_others();
    let site = Site::members(&[]).await;
    site.a_leader().await;
    let addresses = site.urls().into_iter().map(|url| url.trim_start_matches("http://").to_owned());
    let bodies = addresses.flat_map(|address| PIECES.map(|pieces| (address.clone(), pieces)));
    let strangers: Vec<_> = bodies.map(|(address, pieces)| tokio::spawn(call_without_end(address, pieces))).collect();
    tokio::time::sleep(MEANWHILE).await;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let standings = site.standings().await;
        let hears = |heard: Option<u64>| heard.is_some_and(|ago| ago < LATELY_MS);
        let hearing = standings.iter().flatten();
        let hearing = hearing.map(|status| status.members.iter().filter(|member| hears(member.heard_ms)).count());
        if hearing.clone().count() == MEMBERS && hearing.clone().all(|heard| heard == MEMBERS - 1) {
            break;
        }
        assert!(Instant::now() < deadline, "the members do not hear of each other: {standings:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for number in 0..JOBS {
        let url = site.servers[number % MEMBERS].url();
        let client = Client::new(&url, None).expect("a client").with_max_retries(0);
        client.submit(&SubmitJob::new("q", "k")).await.expect("a leader takes it");
    }
    strangers.into_iter().for_each(|stranger| stranger.abort());
    site.end_equal().await;
}
