//! An index that takes no writes, is closed, is gone, or holds what nobody can read: every call says so at once, health
//! and readiness too, and nothing is made anew in its place.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine;
use crate::program::{DEADLINE, Engine, Server, eventually};
use crate::servers;

/// The refusal of a call that an index out of order keeps from being done.
const REFUSAL: &str = "store_out_of_order";

/// A server on Elasticsearch, with a job that runs and one that waits.
struct Site {
    server: Server,
    elasticsearch: &'static str,
    prefix: String,
    _logs: TempDir,
}

/// An answer: its status and its body.
type Answer = (StatusCode, Value);

impl Site {
    async fn start(name: &str) -> Self {
        let logs = TempDir::new().expect("a directory");
        let server = servers::elasticsearch().await;
        let indices = server.own_indices(name);
        let (elasticsearch, prefix) = (server.url(), indices.prefix().to_owned());
        let engine = Engine::on(indices);
        let server = Server::start(engine, &logs.path().join("server.log")).await;
        let site = Self { server, elasticsearch, prefix, _logs: logs };
        for id in ["runs", "waits"] {
            assert_eq!(site.submit(id).await.0, StatusCode::CREATED);
            if id == "runs" {
                let claim = json!({ "worker_id": "w", "queues": ["q"], "max_jobs": 1, "wait_ms": 60_000 });
                let (status, claimed) = site.post("/v1/claims", claim).await;
                assert_eq!((status, &claimed["jobs"][0]["id"]), (StatusCode::OK, &json!("runs")), "{claimed}");
            }
        }
        site
    }

    async fn call(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let mut request = reqwest::Client::new().request(method, format!("{}{path}", self.server.url()));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("the server answers");
        (answer.status(), answer.json().await.expect("JSON"))
    }

    async fn get(&self, path: &str) -> Answer {
        self.call(Method::GET, path, None).await
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.call(Method::POST, path, Some(body)).await
    }

    async fn submit(&self, id: &str) -> Answer {
        self.post("/v1/jobs", json!({ "id": id, "queue": "q", "kind": "k" })).await
    }

    /// Calls that write, with and without a body of their own, of a job that is there and of a new one.
    async fn writes(&self) -> Vec<Answer> {
        let (lease, long) = (json!({ "worker_id": "w", "fence": 1 }), "x".repeat(100_000));
        vec![
            self.post("/v1/jobs", json!({ "queue": "q", "kind": "k" })).await,
            self.submit("named").await,
            self.post("/v1/jobs", json!({ "queue": "q", "kind": "k", "payload": long })).await,
            self.post("/v1/jobs/runs/heartbeat", lease.clone()).await,
            self.post("/v1/jobs/runs/complete", lease).await,
            self.post("/v1/jobs/waits/cancel", json!({})).await,
        ]
    }

    async fn reads(&self) -> Vec<Answer> {
        vec![self.get("/v1/jobs/waits").await, self.get("/v1/jobs").await, self.get("/v1/jobs/count").await]
    }

    /// Does something at the server of the store, past the program.
    async fn at_store(&self, method: Method, path: &str, body: Option<Value>) -> Answer {
        let path = path.replace("{prefix}", &self.prefix);
        let mut request = reqwest::Client::new().request(method, format!("{}/{path}", self.elasticsearch));
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await.expect("the server answers");
        (answer.status(), answer.json().await.expect("JSON"))
    }

    async fn block(&self, index: &str, is_blocked: bool) {
        let block = if is_blocked { json!(true) } else { Value::Null };
        let settings = json!({ "index.blocks.read_only_allow_delete": block });
        let path = format!("{{prefix}}{index}/_settings");
        assert_eq!(self.at_store(Method::PUT, &path, Some(settings)).await.0, StatusCode::OK);
    }

    /// Asserts that the server is not ready, and unwell, and says why.
    async fn says(&self, why: &str) {
        refused(&[self.readiness().await], why);
        let (_, health) = self.get("/v1/health").await;
        assert_eq!(health["status"], "error", "{health}");
        assert!(health["reasons"].to_string().contains(why), "{health}");
        assert_eq!(self.flag().await.as_deref(), Some("1"));
    }

    /// Whether the server is ready, as soon as the store answers it in time.
    async fn readiness(&self) -> Answer {
        let deadline = std::time::Instant::now() + DEADLINE;
        loop {
            let (status, answer) = self.get("/readyz").await;
            if answer["code"] != "store_unavailable" || std::time::Instant::now() > deadline {
                return (status, answer);
            }
        }
    }

    /// The value of the metric that tells of a store out of order.
    async fn flag(&self) -> Option<String> {
        let answer = reqwest::get(format!("{}/metrics", self.server.url())).await.expect("the server answers");
        let text = answer.text().await.expect("a text");
        text.lines().find_map(|line| line.strip_prefix("leasehold_store_out_of_order ")).map(str::to_owned)
    }

    /// Waits until the server does what it is asked again, and asserts that it is well.
    async fn recovers(&self) {
        let deadline = std::time::Instant::now() + DEADLINE;
        // It may be there by a try that was not answered in time.
        while ![StatusCode::CREATED, StatusCode::OK].contains(&self.submit("after").await.0) {
            assert!(std::time::Instant::now() < deadline, "it does not recover: {:?}", self.submit("after").await);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        assert_eq!(self.readiness().await.0, StatusCode::OK);
        // A scan that met the fault says so until its next run.
        eventually("a health without the fault", async || {
            let (_, health) = self.get("/v1/health").await;
            !health["reasons"].to_string().contains("index")
        })
        .await;
        assert_eq!(self.flag().await.as_deref(), Some("0"));
    }
}

/// Asserts that each was refused because an index is out of order, with these words.
fn refused(answers: &[Answer], why: &str) {
    for (status, answer) in answers {
        assert_eq!((*status, &answer["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!(REFUSAL)), "{answer}");
        assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains(why)), "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_of_the_store_is_said_at_once_and_lifted_without_a_restart() {
    let _share = machine::with_others();
    let site = Site::start("full").await;
    site.block("jobs-000001", true).await;

    refused(&site.writes().await, "flood-stage watermark");
    for (status, answer) in site.reads().await {
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    site.says("flood-stage watermark").await;

    site.block("jobs-000001", false).await;
    site.recovers().await;
    let (status, done) = site.post("/v1/jobs/runs/complete", json!({ "worker_id": "w", "fence": 1 })).await;
    assert_eq!((status, &done["state"]), (StatusCode::OK, &json!("completed")), "{done}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_bodies_or_records_refuses_what_needs_them_and_nothing_else() {
    let _share = machine::with_others();
    let site = Site::start("parts").await;
    site.block("bodies-000001", true).await;
    let long = json!({ "queue": "q", "kind": "k", "payload": "x".repeat(100_000) });
    refused(&[site.post("/v1/jobs", long.clone()).await], "flood-stage watermark");
    assert_eq!(site.submit("short").await.0, StatusCode::CREATED);
    site.says("bodies").await;
    site.block("bodies-000001", false).await;
    site.recovers().await;

    site.block("records-000001", true).await;
    refused(&[site.post("/v1/queues/q/pause", json!({})).await], "flood-stage watermark");
    assert_eq!(site.post("/v1/jobs", json!({ "queue": "q", "kind": "k" })).await.0, StatusCode::CREATED);
    site.says("records").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_index_of_jobs_is_said_at_once_and_nothing_is_made_in_its_place() {
    let _share = machine::with_others();
    let mut site = Site::start("lost").await;
    assert_eq!(site.at_store(Method::DELETE, "{prefix}jobs-000001", None).await.0, StatusCode::OK);

    refused(&site.writes().await, "is not there");
    refused(&site.reads().await, "is not there");
    site.says("is not there").await;
    assert_eq!(site.at_store(Method::GET, "{prefix}jobs*", None).await.1, json!({}), "nothing is made anew");
    // Nor by another hand without the mapping.
    let (status, refusal) = site.at_store(Method::PUT, "{prefix}jobs-000001/_doc/a", Some(json!({ "a": 1 }))).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{refusal}");

    // What the refusal says: an empty index, with the mapping of the template.
    let alias = json!({ "aliases": { format!("{}jobs", site.prefix): {} } });
    let (status, made) = site.at_store(Method::PUT, "{prefix}jobs-000001", Some(alias)).await;
    assert_eq!(status, StatusCode::OK, "{made}");
    // The server knows jobs and versions of the index that was there.
    refused(&site.writes().await, "restart");
    refused(&site.reads().await, "restart");
    site.server.kill_and_restart().await;
    site.recovers().await;
    let (_, mapping) = site.at_store(Method::GET, "{prefix}jobs-000001/_mapping", None).await;
    assert_eq!(mapping[format!("{}jobs-000001", site.prefix)]["mappings"]["dynamic"], "strict");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_index_is_said_at_once() {
    let _share = machine::with_others();
    let site = Site::start("closed").await;
    assert_eq!(site.at_store(Method::POST, "{prefix}jobs-000001/_close", None).await.0, StatusCode::OK);
    refused(&site.writes().await, "is closed");
    refused(&site.reads().await, "is closed");
    site.says("is closed").await;
    assert_eq!(site.at_store(Method::POST, "{prefix}jobs-000001/_open", None).await.0, StatusCode::OK);
    site.recovers().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_document_of_another_hand_is_said_to_be_unreadable() {
    let _share = machine::with_others();
    let site = Site::start("foreign").await;
    for path in ["{prefix}jobs/_doc/foreign?refresh=true", "{prefix}records/_doc/foreign?refresh=true"] {
        let foreign = if path.contains("jobs") { json!({ "queue": "q" }) } else { json!({ "kind": "queue" }) };
        assert_eq!(site.at_store(Method::PUT, path, Some(foreign)).await.0, StatusCode::CREATED);
    }
    let answers = [
        site.get("/v1/jobs/foreign").await,
        site.submit("foreign").await,
        site.post("/v1/jobs/foreign/cancel", json!({})).await,
        site.post("/v1/jobs/foreign/heartbeat", json!({ "worker_id": "w", "fence": 1 })).await,
    ];
    for (status, answer) in answers {
        let code = (status, answer["code"].as_str());
        assert_eq!(code, (StatusCode::SERVICE_UNAVAILABLE, Some("unreadable_document")), "{answer}");
        assert!(answer["detail"].as_str().is_some_and(|detail| detail.contains("foreign")), "{answer}");
    }
    for path in ["/v1/jobs", "/v1/queues"] {
        let (status, answer) = site.get(path).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
}
