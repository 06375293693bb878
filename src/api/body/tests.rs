//! How bodies are charged, and how slowly they may come.

use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;

use futures::{StreamExt, stream};
use tokio::time::sleep;

use super::*;
use crate::api::budget::{Budget, Holder, Sharing};

const WITHIN: Duration = Duration::from_secs(10);

fn account(bytes: usize) -> Account {
    let budget = Budget::new("test", "bytes", bytes, &Sharing::Parts(1));
    Account { budget, holder: Holder::at(Ipv4Addr::LOCALHOST.into()), within: WITHIN }
}

fn parts(account: &Account) -> Parts {
    let mut request = http::Request::new(());
    request.extensions_mut().insert(account.clone());
    request.into_parts().0
}

/// A body whose pieces come with this pause between them.
fn paced(pieces: usize, piece: &'static [u8], pause: Duration) -> Body {
    let pieces = stream::iter(0..pieces).then(move |_| async move {
        sleep(pause).await;
        Ok::<_, Infallible>(Bytes::from_static(piece))
    });
    Body::from_stream(pieces)
}

#[tokio::test]
async fn a_body_is_charged_by_what_it_takes_in_memory_in_however_many_pieces_it_comes() {
    let account = account(8 * 1024);
    let parts = parts(&account);
    let of_pieces = |pieces: usize| {
        let pieces = (0..pieces).map(|_| Ok::<_, io::Error>(Bytes::from_static(b"x")));
        read(&parts, Body::from_stream(stream::iter(pieces)), usize::MAX)
    };
    let is_left = |bytes: usize| account.take(bytes).is_ok();
    let held = of_pieces(3_000).await.expect("there is room");
    assert_eq!(held.bytes.len(), 3_000);
    assert!(is_left(4 * 1024) && !is_left(4 * 1024 + 1), "its buffer has doubled to 4 KiB");
    let many: Vec<Read> =
        futures::future::join_all((0..1_000).map(|_| of_pieces(1))).await.into_iter().flatten().collect();
    assert_eq!(many.len(), 1_000, "a byte is a byte");
    drop((held, many));
    assert!(of_pieces(8 * 1024).await.is_ok());
    assert_eq!(of_pieces(8 * 1024 + 1).await.err().expect("too long").code(), Code::Overloaded);
    assert!(is_left(8 * 1024), "it was given back");
}

#[tokio::test]
async fn the_buffer_of_a_body_whose_length_is_known_is_no_longer_than_it() {
    let account = account(3_000);
    let mut parts = parts(&account);
    parts.headers.insert(CONTENT_LENGTH, 3_000.into());
    let pieces = (0..30).map(|_| Ok::<_, io::Error>(Bytes::from_static(&[b'x'; 100])));
    assert!(read(&parts, Body::from_stream(stream::iter(pieces)), usize::MAX).await.is_ok());
}

#[tokio::test]
async fn a_body_that_nobody_reads_is_charged_as_what_the_connection_holds_of_it() {
    let account = account(UNREAD_BYTES);
    let endless = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
    let unread = Unread::of(endless, &account).expect("there is room");
    assert_eq!(account.take(1).expect_err("it is full").code(), Code::Overloaded);
    drop(unread);
    let mut short = Unread::of(Body::from("abc"), &account).expect("there is room");
    assert!(account.take(UNREAD_BYTES - 3).is_ok() && account.take(UNREAD_BYTES - 2).is_err());
    short.frame().await.expect("a frame").expect("readable");
    assert!(account.take(UNREAD_BYTES).is_ok(), "nothing of it is left");
}

#[tokio::test(start_paused = true)]
async fn a_body_that_brings_too_little_ends_and_one_that_brings_enough_goes_on() {
    static PIECE: [u8; LEAST_BYTES] = [b'x'; LEAST_BYTES];
    let account = account(1 << 20);
    let parts = parts(&account);
    let slow = read(&parts, paced(20, &PIECE, WITHIN.mul_f32(0.9)), usize::MAX).await.expect("it brings enough");
    assert_eq!(slow.bytes.len(), 20 * LEAST_BYTES);
    let begun = Instant::now();
    let dripping = read(&parts, paced(20, b"\n", WITHIN / 4), usize::MAX).await;
    assert_eq!(dripping.err().expect("it ends").code(), Code::BodyStalled);
    assert_eq!(begun.elapsed(), WITHIN, "however often a little comes");
}
