//! Secrets and tokens are changed while servers work, without a restart.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use leasehold::api::access::token_hash;
use leasehold::clock::SystemClock;
use leasehold::peers::{MESSAGES_PATH, PeerCall, Signer};
use leasehold::wire::SubmitJob;
use nix::sys::signal::Signal;

use super::members::Trio;
use crate::program::{Server, eventually, until};

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

/// A settings file with these tokens, each of which is its name.
fn tokens(names: &[&str]) -> String {
    let lines = names
        .iter()
        .map(|name| format!("[[tokens]]\nname = \"{name}\"\nroles = [\"read\"]\nsha256 = \"{}\"\n", token_hash(name)));
    lines.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_renewed_while_a_server_works_and_a_hangup_does_not_end_it() {
    let place = tempfile::tempdir().expect("a directory");
    let file = place.path().join("leasehold.toml");
    fs::write(&file, tokens(&["former"])).expect("written");
    let mut server = Server::in_place_with(place.path(), &["--config", file.to_str().expect("a path")]);
    let url = format!("{}/v1/me", server.url());
    let knows = async |token: &str| {
        let answer = reqwest::Client::new().get(&url).bearer_auth(token).send().await.expect("the server answers");
        answer.status() == 200
    };
    assert!(knows("former").await && !knows("next").await);
    fs::write(&file, tokens(&["former", "next"])).expect("written");
    eventually("the file is read again by itself", async || knows("next").await).await;

    fs::write(&file, "[[tokens]").expect("written");
    server.signal(Signal::SIGHUP);
    tokio::task::block_in_place(|| until("it is said", || server.log().contains("the tokens cannot be renewed")));
    assert!(knows("former").await && knows("next").await, "a file that cannot be read changes nothing");

    fs::write(&file, tokens(&["next"])).expect("written");
    server.signal(Signal::SIGHUP);
    eventually("the former one is worth nothing", async || !knows("former").await).await;
    assert!(knows("next").await);
    let log = server.log();
    assert_eq!(log.matches("the tokens were renewed").count(), 2, "{log}");
    assert_eq!(server.terminate(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hangup_without_a_settings_file_is_taken_note_of() {
    let place = tempfile::tempdir().expect("a directory");
    let mut server = Server::in_place(place.path());
    server.signal(Signal::SIGHUP);
    tokio::task::block_in_place(|| until("it is said", || server.log().contains("there is no settings file")));
    assert_eq!(reqwest::get(format!("{}/livez", server.url())).await.expect("an answer").status(), 200);
}
