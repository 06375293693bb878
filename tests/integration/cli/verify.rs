//! `leasehold verify`: a data directory is whole, or what in it is damaged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::json;

use crate::program::{Server, run};

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
    assert!(verify(&[]).expect(0).stdout().contains("everything is as it was written: 2 jobs, 1 bodies"));
    assert!(fs::read(place.path().join("data/store/0.jnl")).expect("a journal") == before, "the journal was changed");

    flip(&place.path().join("data/store/0.jnl"), 300);
    let damaged = verify(&[]).expect(1).stdout();
    assert!(damaged.contains("store/0.jnl: ") && damaged.contains("restore"), "{damaged}");
    let damaged = verify(&["--json"]).json(1);
    assert_eq!(damaged["damages"][0]["path"], "data/store/0.jnl", "{damaged}");
    let refused = run(place.path(), ["serve", "--listen", "127.0.0.1:0", "--data-dir", "data"]).expect(1).stderr();
    assert!(refused.contains("data/store/0.jnl") && refused.contains("leasehold verify --data-dir data"), "{refused}");

    flip(&place.path().join("data/store/0.jnl"), 300);
    verify(&[]).expect(0);
    let nowhere = verify_at(place.path(), "nowhere");
    assert!(nowhere.contains("nowhere"), "{nowhere}");
}

fn verify_at(place: &Path, directory: &str) -> String {
    run(place, ["verify", "--data-dir", directory]).expect(1).stderr()
}
