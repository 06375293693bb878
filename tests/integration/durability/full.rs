//! What runs out: a full disk, of which the server says so wherever it is asked, and which it survives; and memory.
//!
//! `strace` lets the calls fail that fail on a full disk: those that write to a file, or bring what was written to the
//! disk.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::trace;
use crate::machine;
use crate::program::{DEADLINE, Engine, Server, Started, leasehold};
use crate::servers;

/// `leasehold serve` on a disk where such calls fail: `faults` are `strace`'s options for that.
fn serve_with_faults(place: &Path, port: u16, faults: &[&str]) -> Started {
    let listen = format!("127.0.0.1:{port}");
    let serve = leasehold(place, ["serve", "--listen", &listen, "--data-dir", "data"]);
    // The server is the process that was started, and not the one that traces it: it is ended with the test.
    let options = [&["--daemonize", "--trace=fdatasync,fsync,pwrite64,write"], faults].concat();
    let strace = trace::strace(&place.join("trace"), &options);
    let mut command = Command::new(&strace[0]);
    command.args(&strace[1..]).arg(serve.get_program()).args(serve.get_args()).current_dir(place);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEASEHOLD_")) {
        command.env_remove(name);
    }
    let log = std::fs::File::create(place.join("log")).expect("creatable");
    let errors = log.try_clone().expect("a second handle");
    Started::of(command.stdin(Stdio::null()).stdout(log).stderr(errors))
}

async fn ask(url: &str, path: &str) -> Option<(StatusCode, Value)> {
    let answer = reqwest::get(format!("{url}{path}")).await.ok()?;
    Some((answer.status(), answer.json().await.expect("JSON")))
}

async fn submit(url: &str) -> (StatusCode, Value) {
    post(url, "/v1/jobs", json!({"queue": "q", "kind": "k"})).await
}

async fn ready(url: &str) {
    let deadline = Instant::now() + DEADLINE;
    while ask(url, "/readyz").await.is_none_or(|(status, _)| status != StatusCode::OK) {
        assert!(Instant::now() < deadline, "the server was not ready in time");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn post(url: &str, path: &str, body: Value) -> (StatusCode, Value) {
    let answer = reqwest::Client::new().post(format!("{url}{path}")).json(&body).send().await;
    let answer = answer.expect("the server answers");
    (answer.status(), answer.json().await.expect("JSON"))
}

fn says_what_to_do(text: &str) -> bool {
    text.contains("the disk is full") && text.contains("free space")
}

/// What a server says of itself while its disk is full.
#[derive(Default)]
struct Said {
    unready: Option<Value>,
    health: Option<Value>,
    metrics: bool,
}

impl Said {
    /// Asks again and again, until all was said.
    async fn gather(url: String) -> Self {
        let mut said = Self::default();
        while said.unready.is_none() || said.health.is_none() || !said.metrics {
            let (alive, answer) = ask(&url, "/livez").await.expect("the server answers");
            assert_eq!(alive, StatusCode::OK, "nothing but room is needed: {answer}");
            let (readiness, problem) = ask(&url, "/readyz").await.expect("the server answers");
            said.unready = said.unready.or((readiness != StatusCode::OK).then_some(problem));
            let (_, health) = ask(&url, "/v1/health").await.expect("the server answers");
            said.health = said.health.or((health["status"] == "error").then_some(health));
            let metrics = reqwest::get(format!("{url}/metrics")).await.expect("the server answers").text().await;
            said.metrics |= metrics.expect("text").lines().any(|line| line == "leasehold_store_out_of_order 1");
        }
        said
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_a_full_disk_says_so_everywhere_and_goes_on_by_itself_once_there_is_room() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let port = servers::ports::free();
    let url = format!("http://127.0.0.1:{port}");
    // Of each thread: those of a store that is opened again find room.
    let _server = serve_with_faults(place.path(), port, &["--inject=fdatasync:error=ENOSPC:when=40+"]);
    ready(&url).await;
    let said = tokio::spawn(Said::gather(url.clone()));

    let mut accepted = Vec::new();
    let unknown = loop {
        let (status, job) = submit(&url).await;
        match status {
            StatusCode::CREATED => accepted.push(job["id"].as_str().expect("an id").to_owned()),
            _ => break (status, job),
        }
        assert!(accepted.len() < 100, "the disk is never full");
    };
    assert_eq!(unknown.0, StatusCode::SERVICE_UNAVAILABLE, "{}", unknown.1);

    let mut refused = 0;
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (status, answer) = submit(&url).await;
        if status == StatusCode::CREATED {
            accepted.push(answer["id"].as_str().expect("an id").to_owned());
            break;
        }
        assert!(Instant::now() < deadline, "it does not go on: {answer}");
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
        if answer["code"] == "store_out_of_order" {
            assert!(says_what_to_do(answer["detail"].as_str().unwrap_or_default()), "{answer}");
            refused += 1;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(refused > 0, "it does not say why it refuses");
    let said = said.await.expect("it says so everywhere");
    for said in [said.unready, said.health].map(|said| said.expect("it was said").to_string()) {
        assert!(says_what_to_do(&said), "{said}");
    }
    ready(&url).await;
    for id in &accepted {
        let read = ask(&url, &format!("/v1/jobs/{id}")).await.expect("the server answers");
        assert_eq!(read.0, StatusCode::OK, "an accepted job is gone");
    }
    let log = std::fs::read_to_string(place.path().join("log")).expect("a log");
    let lines = log.lines().filter(|line| line.contains("disk is full")).count();
    // The store's own line, the call whose outcome is unknown, and the parts of the server that write by themselves.
    assert!((1..10).contains(&lines), "{lines} lines for {refused} refused calls:\n{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn output_goes_on_once_there_is_room_for_it_again() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let port = servers::ports::free();
    let url = format!("http://127.0.0.1:{port}");
    let folder = place.path().canonicalize().expect("it exists").join("data/output");
    let journals: Vec<String> =
        (0..4).map(|number| format!("--trace-path={}/{number}.jnl", folder.display())).collect();
    let faults: Vec<&str> =
        journals.iter().map(String::as_str).chain(["--inject=write:error=ENOSPC:when=4..5"]).collect();
    let _server = serve_with_faults(place.path(), port, &faults);
    ready(&url).await;
    let (_, job) = submit(&url).await;
    let (_, claim) = post(&url, "/v1/claims", json!({"queues": ["q"], "worker_id": "w"})).await;
    let fence = claim["jobs"][0]["fence"].clone();
    let path = format!("{url}/v1/jobs/{}/output", job["id"].as_str().expect("an id"));
    let client = reqwest::Client::new();
    let (mut written, mut refused) = (String::new(), 0);
    let deadline = Instant::now() + DEADLINE;
    while written.len() < 20 || refused == 0 {
        assert!(Instant::now() < deadline, "{refused} refused, and written: {written}");
        let text = format!("{}\n", written.len() % 10);
        let piece =
            json!({"worker_id": "w", "fence": fence, "stream": "stdout", "offset": written.len(), "text": text});
        let put = client.post(&path).json(&piece).send().await.expect("the server answers");
        match put.status() {
            StatusCode::NO_CONTENT => written += &text,
            status => {
                assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
                refused += 1;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
    let kept = client.get(format!("{path}?as_text=stdout")).send().await.expect("the server answers");
    assert_eq!(kept.text().await.expect("text"), written);
    assert_eq!(ask(&url, "/livez").await.expect("the server answers").0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_fails_and_says_what_to_do() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    assert_eq!(server.terminate(), Some(0));

    let port = servers::ports::free();
    let ended = serve_with_faults(place.path(), port, &["--inject=fsync:error=ENOSPC"]).end();

    let log = std::fs::read_to_string(place.path().join("log")).expect("a log");
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("is full") && log.contains("free space"), "{log}");
    drop(Server::start(Engine::Embedded(place.path().join("data")), &place.path().join("again.log")).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_is_no_room_for_a_while_new_jobs_are_refused_until_there_is_again() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let server = Server::in_place(place.path());
    assert_eq!(server.terminate(), Some(0));
    let seal = std::fs::read_to_string(place.path().join("data/leasehold.seal")).expect("a seal");
    let seal: Value = serde_json::from_str(seal.split_once('\n').expect("two lines").1).expect("JSON");
    // The next process goes on in the next segment.
    let last = seal["log"]["last"].as_u64().expect("a number");
    let segment = place.path().canonicalize().expect("it exists").join(format!("data/log/{:020}.log", last + 1));
    let only = format!("--trace-path={}", segment.display());
    let port = servers::ports::free();
    let url = format!("http://127.0.0.1:{port}");
    let _server = serve_with_faults(place.path(), port, &[&only, "--inject=pwrite64:error=ENOSPC:when=20..32"]);
    ready(&url).await;

    let mut accepted = Vec::new();
    let refused = loop {
        let (status, job) = submit(&url).await;
        match status {
            StatusCode::CREATED => accepted.push(job["id"].as_str().expect("an id").to_owned()),
            _ => break (status, job),
        }
        assert!(accepted.len() < 100, "the disk is never full");
    };
    let detail = refused.1["detail"].as_str().unwrap_or_default();
    assert_eq!((refused.0, &refused.1["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("store_out_of_order")));
    assert!(detail.contains("the disk is full") && detail.contains("free space"), "{detail}");
    let deadline = Instant::now() + DEADLINE;
    let mut refusals = 1;
    loop {
        let (status, job) = submit(&url).await;
        if status == StatusCode::CREATED {
            accepted.push(job["id"].as_str().expect("an id").to_owned());
            break;
        }
        refusals += 1;
        assert!(Instant::now() < deadline, "{refusals} refusals, the last one: {job}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for id in &accepted {
        let read = ask(&url, &format!("/v1/jobs/{id}")).await.expect("the server answers");
        assert_eq!(read.0, StatusCode::OK, "an accepted job is gone");
    }
    assert_eq!(ask(&url, "/livez").await.expect("the server answers").0, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn above_its_memory_limit_a_server_starts_refuses_new_jobs_and_goes_on_with_the_others() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let data = || Engine::Embedded(place.path().join("data"));
    let server = Server::start(data(), &place.path().join("log")).await;
    assert_eq!(submit(&server.url()).await.0, StatusCode::CREATED);
    assert_eq!(server.terminate(), Some(0));

    let limited = place.path().join("limited.log");
    let server = Server::start_as("serve", &["--memory-limit", "1MiB"], data(), &limited).await;
    let url = server.url();
    let deadline = Instant::now() + DEADLINE;
    let problem = loop {
        let (status, answer) = submit(&url).await;
        if status != StatusCode::CREATED {
            assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{answer}");
            break answer;
        }
        assert!(Instant::now() < deadline, "new jobs are taken");
    };
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.contains("--memory-limit")), "{problem}");
    let (_, health) = ask(&url, "/v1/health").await.expect("the server answers");
    assert!(health["reasons"].to_string().contains("--memory-limit"), "{health}");
    let (status, claim) = post(&url, "/v1/claims", json!({"queues": ["q"], "worker_id": "w"})).await;
    assert_eq!(status, StatusCode::OK, "{claim}");
    let (id, fence) = (claim["jobs"][0]["id"].as_str().expect("a job"), &claim["jobs"][0]["fence"]);
    let path = format!("/v1/jobs/{id}/complete");
    let (status, done) = post(&url, &path, json!({"worker_id": "w", "fence": fence})).await;
    assert_eq!(status, StatusCode::OK, "{done}");
    assert_eq!(server.terminate(), Some(0));

    let server = Server::start(data(), &place.path().join("log")).await;
    assert_eq!(submit(&server.url()).await.0, StatusCode::CREATED);
}
