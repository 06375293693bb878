//! Elasticsearch away: at the start, and later.

use std::sync::Arc;

use reqwest::{Response, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine;
use crate::program::{Engine, Server, eventually};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers;

#[tokio::test(flavor = "multi_thread")]
async fn a_server_waits_for_its_store_says_when_it_is_away_and_recovers_by_itself() {
    let _share = machine::with_others();
    let logs = TempDir::new().expect("a directory");
    let elasticsearch = servers::elasticsearch().await;
    // Never switched on: here the whole server goes away.
    let faults = Faults { one_in: 2, seed: 1, kinds: vec![Fault::Reset] };
    let mut proxy = FaultProxy::start(elasticsearch.url(), faults).await;
    proxy.go_down().await;

    let engine =
        Engine::Elasticsearch { urls: vec![proxy.url()], indices: Arc::new(elasticsearch.own_indices("outage")) };
    let mut server = Server::begin(engine, &logs.path().join("server.log"));
    eventually("a message in the log", async || server.log().contains("not there yet")).await;
    proxy.come_up().await;
    server.ready().await;
    assert_eq!(submit(&server).await.status(), StatusCode::CREATED);

    proxy.go_down().await;
    eventually("a server that is not ready", async || readiness(&server).await == StatusCode::SERVICE_UNAVAILABLE)
        .await;
    let answer = reqwest::get(format!("{}/readyz", server.url())).await.expect("the server answers");
    let told: Value = answer.json().await.expect("JSON");
    let detail = told["detail"].as_str().unwrap_or_default();
    assert!(detail.contains("its nodes do not answer") && !detail.contains("127.0.0.1"), "{told}");
    let refused = submit(&server).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(refused.headers().contains_key("retry-after"), "{refused:?}");
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
    let alive = reqwest::get(format!("{}/livez", server.url())).await.expect("the server answers");
    assert_eq!(alive.status(), StatusCode::OK);

    proxy.come_up().await;
    eventually("a server that is ready", async || readiness(&server).await == StatusCode::OK).await;
    assert_eq!(submit(&server).await.status(), StatusCode::CREATED);
    let claim = json!({"worker_id": "w", "queues": ["q"], "max_jobs": 10, "wait_ms": 60_000});
    let answer = reqwest::Client::new().post(format!("{}/v1/claims", server.url())).json(&claim).send().await;
    let claimed: Value = answer.expect("the server answers").json().await.expect("JSON");
    assert!(claimed["jobs"].as_array().is_some_and(|jobs| !jobs.is_empty()), "{claimed}");
}

async fn submit(server: &Server) -> Response {
    let job = json!({"queue": "q", "kind": "k"});
    let call = reqwest::Client::new().post(format!("{}/v1/jobs", server.url())).json(&job);
    call.send().await.expect("the server answers")
}

async fn readiness(server: &Server) -> StatusCode {
    let answer = reqwest::get(format!("{}/readyz", server.url())).await.expect("the server answers");
    answer.status()
}
