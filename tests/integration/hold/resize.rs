//! The number of shards of the live index, changed while servers, workers and monitors are at work.

use std::sync::Arc;
use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine;
use crate::program::{Engine, Server, Started, eventually, leasehold};
use crate::servers::{self, IndexSet};

/// How long the jobs run that hold their leases through everything.
const LONG_JOBS: u64 = 6;

/// Servers on one index, and the server behind it.
struct Site {
    place: TempDir,
    indices: Arc<IndexSet>,
    http: reqwest::Client,
}

impl Site {
    async fn new() -> Self {
        let indices = Arc::new(servers::elasticsearch().await.own_indices("resize"));
        let place = TempDir::new().expect("a directory");
        Self { place, indices, http: reqwest::Client::new() }
    }

    async fn server(&self, name: &str, options: &[&str]) -> Server {
        let engine =
            Engine::Elasticsearch { urls: vec![self.indices.url().to_owned()], indices: Arc::clone(&self.indices) };
        Server::start_as("serve", options, engine, &self.place.path().join(name)).await
    }

    fn worker(&self, server: &Server) -> Started {
        let arguments = ["worker", "--lease", "6s", "--slots", "8", "--queue", "q"];
        Started::of(leasehold(self.place.path(), arguments).env("LEASEHOLD_SERVER", server.url()))
    }

    async fn submit(&self, server: &Server, number: u64, command: &str) -> String {
        let id = format!("job-{number}");
        let payload = json!({ "command": command });
        let job = json!({ "id": id, "queue": "q", "kind": "shell", "payload": payload });
        eventually("the job is taken", async || {
            let call = self.http.post(format!("{}/v1/jobs", server.url())).json(&job);
            let status = call.send().await.expect("an answer").status();
            // On a machine that stands still a call may wait for longer than it may: the same one again finds out.
            assert!(
                status.is_success() || [StatusCode::SERVICE_UNAVAILABLE, StatusCode::CONFLICT].contains(&status),
                "{status}"
            );
            status != StatusCode::SERVICE_UNAVAILABLE
        })
        .await;
        id
    }

    async fn job(&self, server: &Server, id: &str) -> Value {
        let answer = reqwest::get(format!("{}/v1/jobs/{id}", server.url())).await.expect("an answer");
        answer.json().await.expect("JSON")
    }

    /// `leasehold migrate` to so many shards, as a process of its own, again where a machine that stands still had not
    /// made them in time.
    async fn migrate(&self, shards: &str) -> String {
        let named = ["migrate", "--elasticsearch-url", self.indices.url(), "--index-prefix", self.indices.prefix()];
        let more = ["--query-time", "500ms", "--elasticsearch-shards", shards];
        let arguments = [&named[..], &more].concat();
        let mut said = String::new();
        eventually("the shards are as many", async || {
            let mut command = leasehold(self.place.path(), &arguments);
            let ran = tokio::task::spawn_blocking(move || command.output().expect("it runs")).await.expect("it ran");
            said += &String::from_utf8_lossy(&ran.stdout);
            ran.status.success()
        })
        .await;
        said
    }

    async fn at(&self, method: Method, path: &str, body: Option<Value>) {
        let request = self.http.request(method, format!("{}/{}{path}", self.indices.url(), self.indices.prefix()));
        let request = match &body {
            Some(body) => request.json(body),
            None => request,
        };
        let answer = request.send().await.expect("the server answers");
        assert!(answer.status().is_success(), "{path}: {}", answer.text().await.unwrap_or_default());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_keep_their_leases_and_calls_wait_while_the_live_index_is_split_and_shrunk() {
    let _share = machine::with_others();
    let site = Site::new().await;
    let (one, other) = (site.server("one.log", &[]).await, site.server("other.log", &[]).await);
    let _workers = [site.worker(&one), site.worker(&other)];
    let (mut ids, go) = (Vec::new(), site.place.path().join("go"));
    // For longer than a lease, and until all is done.
    let long = format!("sleep 8; until test -e {}; do sleep 0.1; done", go.display());
    for number in 0..LONG_JOBS {
        ids.push(site.submit(&one, number, &long).await);
    }
    let running = async || {
        let mut running = 0;
        for id in &ids {
            running += u64::from(site.job(&other, id).await["state"] == "running");
        }
        running == LONG_JOBS
    };
    eventually("the jobs run", running).await;

    let migrating = async {
        let split = site.migrate("4").await;
        assert!(split.contains("from 1 to 4 shards"), "{split}");
        let shrunk = site.migrate("1").await;
        assert!(shrunk.contains("from 4 to 1 shards"), "{shrunk}");
    };
    let mut migrating = std::pin::pin!(migrating);
    let mut number = LONG_JOBS;
    let mut short = Vec::new();
    loop {
        let server = if number.is_multiple_of(2) { &one } else { &other };
        let mut submitting = std::pin::pin!(site.submit(server, number, "true"));
        let is_over = tokio::select! {
            () = &mut migrating => true,
            id = &mut submitting => {
                short.push(id);
                false
            }
        };
        number += 1;
        if is_over {
            short.push(submitting.await);
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(short.len() > 10, "{}", short.len());
    std::fs::write(&go, "").expect("written");
    for id in ids.iter().chain(&short) {
        eventually("the job is completed", async || site.job(&other, id).await["state"] == "completed").await;
        let job = site.job(&one, id).await;
        assert_eq!((&job["attempt"], &job["fence"]), (&json!(1), &json!(1)), "{job}");
    }
    for server in [one, other] {
        assert!(!server.log().contains("out of order"), "{}", server.log());
        assert_eq!(server.terminate(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of a server on Elasticsearch"]
async fn a_lease_that_ends_while_writes_wait_is_kept_when_its_heartbeat_was_sent_in_time() {
    let _share = machine::with_others();
    let site = Site::new().await;
    let (worked, watching) =
        (site.server("worked.log", &["--no-monitor"]).await, site.server("monitor.log", &[]).await);
    let _worker = site.worker(&worked);
    let id = site.submit(&worked, 0, "sleep 25").await;
    eventually("the job runs", async || site.job(&worked, &id).await["state"] == "running").await;
    site.at(
        Method::PUT,
        "jobs-000001/_alias/{prefix}resizing-1".replace("{prefix}", site.indices.prefix()).as_str(),
        None,
    )
    .await;
    site.at(Method::PUT, "jobs-000001/_block/write", None).await;
    // Longer than the lease and all that a recovery waits for, on the clock that the monitor goes by.
    tokio::time::sleep(Duration::from_secs(14)).await;
    site.at(Method::PUT, "jobs-000001/_settings", Some(json!({ "index.blocks.write": null }))).await;
    eventually("the job is completed", async || site.job(&watching, &id).await["state"] == "completed").await;
    let job = site.job(&watching, &id).await;
    assert_eq!((&job["attempt"], &job["fence"]), (&json!(1), &json!(1)), "{job}");
}
