//! Several `leasehold serve` over one Elasticsearch that tell each other of jobs.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::program::{Engine, Server, eventually};
use crate::servers;

const SECRET: [&str; 2] = ["--cluster-secret", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="];
pub(super) const ADVERTISED: [&str; 4] = ["--advertise", "http://127.0.0.1:0", SECRET[0], SECRET[1]];

async fn post(server: &Server, path: &str, body: &Value) -> (u16, Value) {
    let call = reqwest::Client::new().post(format!("{}{path}", server.url())).json(body);
    let answer = call.send().await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}

async fn health(server: &Server) -> Value {
    let answer = reqwest::get(format!("{}/v1/health", server.url())).await.expect("an answer");
    answer.json().await.expect("JSON")
}

pub(super) async fn pair(engine: &Engine, place: &Path, options: [&[&str]; 2]) -> [Server; 2] {
    let start = async |number: usize| {
        let log = place.join(format!("{number}.log"));
        Server::start_as("serve", options[number], engine.clone(), &log).await
    };
    [start(0).await, start(1).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_know_each_other_start_a_job_at_once_wherever_a_worker_waits() {
    let place = tempfile::tempdir().expect("a directory");
    let set = servers::elasticsearch().await.index_set().await;
    let (url, prefix) = (set.url().to_owned(), set.prefix().to_owned());
    let engine = Engine::on(set);
    let [first, second] = pair(&engine, place.path(), [&ADVERTISED, &ADVERTISED]).await;
    // From now on, no search finds a job that is written.
    let settings = json!({"index": {"refresh_interval": "-1"}});
    let put = reqwest::Client::new().put(format!("{url}/{prefix}jobs/_settings")).json(&settings).send().await;
    assert!(put.expect("an answer").status().is_success());

    let claim = json!({"worker_id": "w", "queues": ["q"], "wait_ms": 60_000});
    let received = "leasehold_hints_total{outcome=\"received\"}";
    let worker = async {
        // A refresh that was under way may be late, and let a search find the first jobs after all.
        while second.counter(received).await < 1.0 {
            let (status, claimed) = post(&second, "/v1/claims", &claim).await;
            assert_eq!((status, claimed["jobs"].as_array().map(Vec::len)), (200, Some(1)), "{claimed}");
        }
    };
    let client = async {
        // Ends with the worker: the first jobs may come before its server is known to have one.
        loop {
            assert_eq!(post(&first, "/v1/jobs", &json!({"queue": "q", "kind": "k"})).await.0, 201);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = worker => {}
        () = client => {}
    }
    // The worker may have its job before the first server has the answer to its call.
    let sent = "leasehold_hints_total{outcome=\"sent\"}";
    eventually("the first server knows that its call was taken", async || first.counter(sent).await >= 1.0).await;
    for server in [&first, &second] {
        let health = health(server).await;
        assert_eq!(health["configuration"]["advertise"], json!(server.url()), "{health}");
    }
    // A call that a busy machine makes too late is told of until the next one.
    let claim = json!({"worker_id": "w", "queues": ["q"], "wait_ms": 1_000});
    eventually("the servers have no trouble with each other", async || {
        let job = json!({"queue": "q", "kind": "k"});
        let (claimed, submitted) = tokio::join!(post(&second, "/v1/claims", &claim), post(&first, "/v1/jobs", &job));
        assert_eq!((claimed.0, submitted.0), (200, 201));
        let reasons = [health(&first).await, health(&second).await].map(|health| health["reasons"].to_string());
        reasons.iter().all(|reasons| !reasons.contains("manager"))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_tells_another_of_a_job_whose_kind_only_workers_of_that_one_take() {
    let place = tempfile::tempdir().expect("a directory");
    let set = servers::elasticsearch().await.index_set().await;
    let (url, prefix) = (set.url().to_owned(), set.prefix().to_owned());
    let engine = Engine::on(set);
    let [first, second] = pair(&engine, place.path(), [&ADVERTISED, &ADVERTISED]).await;
    // From now on, no search finds a job that is written.
    let settings = json!({"index": {"refresh_interval": "-1"}});
    let put = reqwest::Client::new().put(format!("{url}/{prefix}jobs/_settings")).json(&settings).send().await;
    assert!(put.expect("an answer").status().is_success());
    let usual = json!({"worker_id": "v", "queues": ["q"], "kinds": ["usual"], "wait_ms": 60_000});
    let rare = json!({"worker_id": "w", "queues": ["q"], "kinds": ["rare", "rarer"], "wait_ms": 60_000});
    let worker = async {
        for number in 0..3 {
            let (status, claimed) = post(&second, "/v1/claims", &rare).await;
            assert_eq!((status, claimed["jobs"].as_array().map(Vec::len)), (200, Some(1)), "{number}: {claimed}");
            assert_eq!(claimed["jobs"][0]["kind"], "rare");
        }
    };
    let client = async {
        // Ends with the worker: the first jobs may come before its server is known to have one.
        loop {
            assert_eq!(post(&first, "/v1/jobs", &json!({"queue": "q", "kind": "rare"})).await.0, 201);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        () = worker => {}
        () = client => {}
        (_, claimed) = post(&first, "/v1/claims", &usual) => panic!("there are no such jobs: {claimed}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_do_not_know_where_others_are_or_have_another_secret_say_so() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let other = ["--advertise", "http://127.0.0.1:0", SECRET[0], "OTg3NjU0MzIxMDk4NzY1NDMyMTA5ODc2NTQzMjEwOTg="];
    let [first, second] = pair(&engine, place.path(), [&ADVERTISED, &other]).await;
    let reasons = async |server: &Server| health(server).await["reasons"].to_string();
    let claim = json!({"worker_id": "w", "queues": ["q"], "wait_ms": 1_000});
    eventually("the first server says that the second has another secret", async || {
        let job = json!({"queue": "q", "kind": "k"});
        let (claimed, submitted) = tokio::join!(post(&second, "/v1/claims", &claim), post(&first, "/v1/jobs", &job));
        assert_eq!((claimed.0, submitted.0), (200, 201));
        reasons(&first).await.contains("another `--cluster-secret`")
    })
    .await;

    let log = place.path().join("monitor.log");
    let monitor = Server::start_as("monitor", &ADVERTISED, engine.clone(), &log).await;
    assert_eq!(post(&monitor, "/cluster/hints", &json!({"available": []})).await.0, 401, "a monitor is told as well");
    let third = Server::start_as("serve", &[], engine, &place.path().join("third.log")).await;
    assert_eq!(post(&third, "/cluster/hints", &json!({"available": []})).await.0, 404);
    for server in [&first, &second, &third] {
        eventually("a manager without an address is told of", async || {
            reasons(server).await.contains("1 of 4 managers have no address")
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_server_knows_the_workers_of_all_that_have_an_address() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let [first, second] = pair(&engine, place.path(), [&ADVERTISED, &ADVERTISED]).await;
    let log = place.path().join("monitor.log");
    let monitor = Server::start_as("monitor", &ADVERTISED, engine.clone(), &log).await;
    let known = async |server: &Server| {
        let call = reqwest::Client::new().get(format!("{}/v1/workers", server.url()));
        // As the page asks, which a monitor serves too.
        let answer = call.header("x-leasehold-page", "1").send().await.expect("an answer");
        answer.json::<Value>().await.expect("JSON")
    };
    let claim = json!({"worker_id": "idle", "queues": ["q"], "kinds": ["k"], "wait_ms": 60_000});
    let call = reqwest::Client::new().post(format!("{}/v1/claims", second.url())).json(&claim);
    let waiting = tokio::spawn(call.header("user-agent", "some-worker/7").send());
    for server in [&first, &second, &monitor] {
        eventually("each server knows the worker that waits at the second", async || {
            let known = known(server).await;
            let worker = &known["items"][0];
            known["servers_unasked"] == 0
                && (&worker["id"], &worker["waiting"]) == (&json!("idle"), &json!(true))
                && (&worker["user_agent"], &worker["kinds"]) == (&json!("some-worker/7"), &json!(["k"]))
        })
        .await;
    }
    let one = reqwest::get(format!("{}/v1/workers/idle", first.url())).await.expect("an answer");
    assert_eq!(one.json::<Value>().await.expect("JSON")["worker"]["queues"], json!(["q"]));
    waiting.abort();

    assert_eq!(
        post(&second, "/cluster/workers", &json!({"id": null})).await.0,
        401,
        "who has no secret is told nothing"
    );
    let third = Server::start_as("serve", &[], engine, &place.path().join("third.log")).await;
    eventually("those that cannot be asked are counted", async || {
        known(&third).await["servers_unasked"] == 3 && known(&first).await["servers_unasked"] == 1
    })
    .await;
}
