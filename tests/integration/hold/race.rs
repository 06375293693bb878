//! Many clients, several managers, one index.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::join_all;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::site::Site;
use crate::machine;
use crate::program::{Engine, Server};

const CLIENTS: usize = 64;
const JOBS: usize = 2_000;
const MANAGERS: usize = 3;

/// Who was given which job: the fence and the client.
type Claims = Mutex<HashMap<String, Vec<(u64, String)>>>;

/// How long the clients may take to claim everything.
const CLAIM_WITHIN: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread")]
async fn clients_racing_on_three_managers_claim_every_job_exactly_once() {
    let _share = machine::with_others();
    let logs = TempDir::new().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let starts = (0..MANAGERS).map(|number| {
        let log = logs.path().join(format!("server-{number}.log"));
        let engine = engine.clone();
        async move { Server::start(engine, &log).await }
    });
    let managers: Vec<Server> = join_all(starts).await;
    every_job_is_claimed_once(&managers).await;
    for manager in &managers {
        assert!(manager.counter("leasehold_claims_total").await > 0.0, "each manager hands out some");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_racing_on_three_members_claim_every_job_exactly_once() {
    let _share = machine::with_others();
    let site = Site::members(&[]).await;
    every_job_is_claimed_once(&site.servers).await;
    site.end_equal().await;
}

async fn every_job_is_claimed_once(managers: &[Server]) {
    submit(&managers[0]).await;

    let claims: Arc<Claims> = Arc::default();
    let clients = (0..CLIENTS).map(|number| {
        let (url, claims) = (managers[number % MANAGERS].url(), Arc::clone(&claims));
        tokio::spawn(async move { claim_until_all_are_claimed(&url, &format!("client-{number}"), &claims).await })
    });
    let all = tokio::time::timeout(CLAIM_WITHIN, join_all(clients));
    for ended in all.await.expect("everything is claimed in time") {
        ended.expect("a client ends well");
    }

    let claims = std::mem::take(&mut *claims.lock().expect("no client panicked"));
    assert_eq!(claims.len(), JOBS);
    for (id, owners) in claims {
        assert!(matches!(owners.as_slice(), [(1, _)]), "job {id} was claimed by {owners:?}");
    }
    for manager in managers {
        let log = manager.log();
        // Of a store that is slow for a moment a log may tell, but not of jobs.
        let is_complaint = |line: &&str| line.contains("ERROR") || line.contains("WARN");
        let told = log.lines().filter(is_complaint).filter(|line| line.contains("conflict") || line.contains("race-"));
        assert_eq!(told.collect::<Vec<_>>(), Vec::<&str>::new());
    }
}

async fn submit(server: &Server) {
    let lines: String = (0..JOBS)
        .map(|number| format!("{}\n", json!({"id": format!("race-{number}"), "queue": "race", "kind": "noop"})))
        .collect();
    let answer = reqwest::Client::new()
        .post(format!("{}/v1/jobs/bulk", server.url()))
        .header("content-type", "application/x-ndjson")
        .body(lines)
        .send()
        .await
        .expect("the server answers");
    let answer: Value = answer.json().await.expect("JSON");
    let items = answer["items"].as_array().expect("items");
    assert!(items.len() == JOBS && items.iter().all(|item| item["status"] == 201), "{answer}");
}

async fn claim_until_all_are_claimed(url: &str, client: &str, claims: &Claims) {
    let http = reqwest::Client::new();
    let mut calls = 0;
    while claims.lock().expect("no client panicked").len() < JOBS {
        calls += 1;
        let mut body = json!({"worker_id": client, "queues": ["race"], "max_jobs": 3, "wait_ms": 200});
        body["request_id"] = json!(format!("{client}-{calls}"));
        let answer = loop {
            let answer = http.post(format!("{url}/v1/claims")).json(&body).send().await.expect("the server answers");
            if answer.status() != StatusCode::SERVICE_UNAVAILABLE {
                break answer;
            }
            // Where the machine stands still another member may come to lead: the same call again finds out.
            body["repeated"] = json!(true);
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert!(answer.status().is_success(), "claiming: {}", answer.status());
        let answer: Value = answer.json().await.expect("JSON");
        let mut claims = claims.lock().expect("no client panicked");
        for job in answer["jobs"].as_array().expect("jobs") {
            let id = job["id"].as_str().expect("an id").to_owned();
            let fence = job["fence"].as_u64().expect("a fence");
            claims.entry(id).or_default().push((fence, client.to_owned()));
        }
    }
}
