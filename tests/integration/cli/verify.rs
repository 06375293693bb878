//! `leasehold verify`: a data directory is whole, or what in it is damaged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::json;

use crate::program::{Server, Started, leasehold, lines, run, until};

/// Flips a bit in a file.
fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).expect("a file");
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).expect("readable");
    file.write_all_at(&[byte[0] ^ 8], at).expect("writable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_directory_is_whole_until_a_bit_in_it_flips() {
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    for body in ["x".to_owned(), "y".repeat(20_000)] {
        let job = json!({"queue": "q", "kind": "k", "payload": {"body": body}});
        let call = reqwest::Client::new().post(format!("{}/v1/jobs", server.url())).json(&job);
        assert_eq!(call.send().await.expect("the server answers").status(), 201);
    }
    let verify = |more: &[&str]| run(place.path(), [&["verify", "--data-dir", "data"], more].concat());
    assert!(verify(&[]).expect(1).stderr().contains("in use"));
    assert_eq!(server.terminate(), Some(0));

    let before = fs::read(place.path().join("data/store/0.jnl")).expect("a journal");
    let whole = verify(&["--json"]).json(0);
    assert_eq!((&whole["whole"], &whole["jobs"], &whole["bodies"]), (&json!(true), &json!(2), &json!(1)), "{whole}");
    let shown = verify(&[]).expect(0).stdout();
    assert!(shown.contains("everything is as it was written: 2 jobs, 1 bodies"), "{shown}");
    let (state, entry) = (whole["state"].as_str().expect("a hash"), &whole["state_entry"]);
    assert!(state.len() == 32 && shown.contains(&format!("state {state} as of entry {entry}")), "{shown}");
    assert!(fs::read(place.path().join("data/store/0.jnl")).expect("a journal") == before, "the journal was changed");

    flip(&place.path().join("data/store/0.jnl"), 300);
    let damaged = verify(&[]).expect(1).stdout();
    assert!(damaged.contains("store/0.jnl: ") && damaged.contains("restore"), "{damaged}");
    let damaged = verify(&["--json"]).json(1);
    assert_eq!((&damaged["damages"][0]["path"], &damaged["state"]), (&json!("data/store/0.jnl"), &json!(null)));
    let refused = run(place.path(), ["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"]).expect(1).stderr();
    assert!(refused.contains("data/store/0.jnl") && refused.contains("leasehold verify --data-dir data"), "{refused}");

    flip(&place.path().join("data/store/0.jnl"), 300);
    assert_eq!(verify(&["--json"]).json(0)["state"], whole["state"]);
    let nowhere = verify_at(place.path(), "nowhere");
    assert!(nowhere.contains("nowhere"), "{nowhere}");
}

fn verify_at(place: &Path, directory: &str) -> String {
    run(place, ["verify", "--data-dir", directory]).expect(1).stderr()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_changes_with_the_documents_and_not_with_the_terms_of_the_log() {
    let place = tempfile::tempdir().expect("a directory");
    let mut server = Server::in_place(place.path());
    let state = |place: &Path| {
        let verified = run(place, ["verify", "--data-dir", "data", "--json"]).json(0);
        (verified["state"].clone(), verified["state_entry"].as_u64().expect("a number"))
    };
    let submit = async |server: &Server, id: &str| {
        let job = json!({"id": id, "queue": "q", "kind": "k"});
        let call = reqwest::Client::new().post(format!("{}/v1/jobs", server.url())).json(&job);
        assert_eq!(call.send().await.expect("the server answers").status(), 201);
    };
    submit(&server, "one").await;
    assert_eq!(server.stop(), Some(0));
    let (one, first) = state(place.path());
    // Each start begins a term, with an entry that changes no document.
    let options = ["serve", "--listen", "127.0.0.1:0", "--data-dir", "data", "--no-monitor"];
    let log = std::fs::File::create(place.path().join("again.log")).expect("a log");
    let mut again = Started::of(leasehold(place.path(), options).stdout(log));
    until("it listens", || lines(&place.path().join("again.log")).iter().any(|line| line.contains("listening on")));
    again.signal(nix::sys::signal::Signal::SIGTERM);
    again.end().expect(0);
    let (same, second) = state(place.path());
    assert_eq!(same, one);
    assert!(second > first, "{second} after {first}");
    server.restart();
    submit(&server, "two").await;
    assert_eq!(server.stop(), Some(0));
    assert_ne!(state(place.path()).0, one);
}
