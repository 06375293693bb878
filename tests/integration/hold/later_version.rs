//! A job as a later version writes it, before this one is upgraded: the others are handed out, and somebody is told.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine;
use crate::program::{Engine, Server};
use crate::servers;

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_later_version_keeps_no_worker_from_the_others_and_shows_in_the_health() {
    let _share = machine::with_others();
    let logs = TempDir::new().expect("a directory");
    let set = servers::elasticsearch().await.index_set().await;
    let (elasticsearch, prefix) = (set.url().to_owned(), set.prefix().to_owned());
    let engine = Engine::on(set);
    let mut server = Server::start(engine, &logs.path().join("server.log")).await;
    let http = reqwest::Client::new();
    for id in ["a", "b", "c"] {
        let job = json!({ "id": id, "queue": "q", "kind": "k" });
        let answer = http.post(format!("{}/v1/jobs", server.url())).json(&job).send().await.expect("an answer");
        assert_eq!(answer.status(), 201);
    }
    server.kill();
    let document = format!("{elasticsearch}/{prefix}jobs/_doc/a");
    let found: Value = reqwest::get(&document).await.expect("an answer").json().await.expect("JSON");
    let mut source = found["_source"].clone();
    source["history"][0]["event"] = json!("teleported");
    let put = http.put(format!("{document}?refresh=true")).json(&source).send().await.expect("an answer");
    assert!(put.status().is_success());
    server.kill_and_restart().await;

    let mut claimed = Vec::new();
    while claimed.len() < 2 {
        let claim = json!({ "worker_id": "w", "queues": ["q"], "max_jobs": 3, "wait_ms": 60_000 });
        let answer = http.post(format!("{}/v1/claims", server.url())).json(&claim).send().await;
        let answer: Value = answer.expect("an answer").json().await.expect("JSON");
        let jobs = answer["jobs"].as_array().filter(|jobs| !jobs.is_empty()).unwrap_or_else(|| panic!("{answer}"));
        claimed.extend(jobs.iter().map(|job| job["id"].as_str().expect("an id").to_owned()));
    }
    claimed.sort();
    assert_eq!(claimed, ["b", "c"]);
    let health: Value =
        reqwest::get(format!("{}/v1/health", server.url())).await.expect("an answer").json().await.expect("JSON");
    assert_ne!(health["status"], "ok", "{health}");
    assert!(health["reasons"].to_string().contains("cannot be read: 1"), "{health}");
    assert!(server.counter("leasehold_store_unreadable_total").await >= 1.0);
    assert_eq!(server.log().matches("it is passed over").count(), 1, "{}", server.log());
}
