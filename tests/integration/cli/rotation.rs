//! The secret of three members is changed while they work, without a restart.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::clock::SystemClock;
use leasehold::peers::{MESSAGES_PATH, PeerCall, Signer};
use leasehold::wire::SubmitJob;

use super::members::Trio;
use crate::program::until;

const OLD: &str = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
const NEW: &str = "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg=";

/// Returns the status of the answer to a call of member 1 that is signed with this secret.
async fn status(trio: &Trio, index: usize, secret: &str) -> u16 {
    let (address, body) = (trio.url(index), b"\x01\x04trio".to_vec().into());
    let receiver = format!("trio/{}", index + 1);
    let call =
        PeerCall { address: &address, receiver: &receiver, path: MESSAGES_PATH, body: &body, may_be_earlier: false };
    let url = format!("{address}{MESSAGES_PATH}");
    let send = |headers, body| reqwest::Client::new().post(&url).headers(headers).body::<bytes::Bytes>(body).send();
    let signer = Signer::new(secret.parse().expect("a secret"), "trio/9", Arc::new(SystemClock::default()));
    signer.call(&call, send).await.expect("an answer").status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_secret_of_members_is_changed_in_three_steps_while_they_work() {
    let trio = Arc::new(Trio::with_secret_files(OLD));
    trio.leader(&[0, 1, 2]).await;
    let is_over = Arc::new(AtomicBool::new(false));
    let submitting = tokio::spawn({
        let (trio, is_over) = (Arc::clone(&trio), Arc::clone(&is_over));
        async move {
            let mut count = 0;
            while !is_over.load(Ordering::Relaxed) {
                let client = trio.client(count % 3).with_max_retries(0);
                client.submit(&SubmitJob::new("q", "k")).await.expect("no call fails");
                count += 1;
            }
            count
        }
    });
    for (step, text) in [format!("{OLD}\n{NEW}\n"), format!("{NEW}\n{OLD}\n"), format!("{NEW}\n")].iter().enumerate() {
        for index in 0..3 {
            fs::write(trio.secret_file(index), text).expect("written");
            let said = || trio.log(index).matches("the secret of the cluster was changed").count();
            tokio::task::block_in_place(|| until("the file is read again", || said() == step + 1));
        }
        trio.leader(&[0, 1, 2]).await;
    }
    is_over.store(true, Ordering::Relaxed);
    assert!(submitting.await.expect("no call fails") > 0);
    for index in 0..3 {
        assert_eq!(status(&trio, index, OLD).await, 401, "the former secret is worth nothing");
        assert_eq!(status(&trio, index, NEW).await, 400, "the call is trusted, and means nothing");
        let log = trio.log(index);
        assert!(!log.contains("a member cannot be reached") || !log.contains("another `--cluster-secret`"), "{log}");
    }
}
