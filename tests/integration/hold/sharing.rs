//! Managers that share a queue: urgent jobs, and managers that come, go and hang.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::sys::signal::Signal;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::machine;
use crate::program::{Engine, Server};

const MANAGERS: usize = 4;
pub(super) const OPTIONS: [&str; 6] = [
    "--advertise",
    "http://127.0.0.1:0",
    "--cluster-secret",
    "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
    "--clock-skew-ms",
    "0",
];

/// How many jobs of no urgency wait at each manager, and in how many calls they are submitted.
const BACKLOG: usize = 1_000;
const CALLS: usize = 10;

/// How many jobs the worker takes at once, and for how long it works on them: the managers have some five seconds to
/// find an urgent one.
const AT_ONCE: usize = 10;
const WORKS_FOR: Duration = Duration::from_secs(1);

/// How many jobs may start before an urgent one.
const BEFORE_URGENT: usize = 50;

/// How long managers are given to learn where workers are, and that they have moved: more than they take, which is up
/// to 17 s for a move.
pub(super) const LEARNT: Duration = Duration::from_secs(10);
const MOVED: Duration = Duration::from_secs(25);

/// How many jobs are submitted while managers come and go, and how often.
const STEADY_JOBS: usize = 1_200;
const STEADY_EVERY: Duration = Duration::from_millis(20);

/// How long the workers may take to end all jobs.
const DONE_WITHIN: Duration = Duration::from_secs(120);

async fn server(engine: &Engine, place: &Path, number: usize) -> Server {
    Server::start_as("serve", &OPTIONS, engine.clone(), &place.join(format!("server-{number}.log"))).await
}

async fn start(place: &Path) -> (Engine, Vec<Server>) {
    let engine = Engine::elasticsearch().await;
    let mut started = vec![server(&engine, place, 0).await];
    started.extend(join_all((1..MANAGERS).map(|number| server(&engine, place, number))).await);
    (engine, started)
}

/// Returns the answer to a call; `None` when there is none, or it is an error of the server.
async fn post(http: &reqwest::Client, url: &str, path: &str, body: &Value) -> Option<Value> {
    let answer = http.post(format!("{url}{path}")).json(body).send().await.ok()?;
    let status = answer.status();
    assert!(status.is_success() || status.is_server_error(), "{path}: {status}");
    if status.is_success() { answer.json().await.ok() } else { None }
}

async fn submit_backlog(server: &Server) {
    for _ in 0..CALLS {
        let job = json!({"queue": "q", "kind": "k"}).to_string() + "\n";
        let call = reqwest::Client::new().post(format!("{}/v1/jobs/bulk", server.url()));
        let call = call.header("content-type", "application/x-ndjson").body(job.repeat(BACKLOG / CALLS));
        let answer: Value = call.send().await.expect("an answer").json().await.expect("JSON");
        assert!(answer["items"].as_array().expect("items").iter().all(|item| item["status"] == 201), "{answer}");
    }
}

/// A worker with jobs to do for a while: returns the jobs that it takes next.
async fn take(http: &reqwest::Client, server: &Server) -> Vec<String> {
    let claim = json!({"worker_id": "w", "queues": ["q"], "max_jobs": AT_ONCE, "wait_ms": 1_000});
    let answer = post(http, &server.url(), "/v1/claims", &claim).await.expect("an answer");
    tokio::time::sleep(WORKS_FOR).await;
    let jobs = answer["jobs"].as_array().expect("jobs");
    jobs.iter().map(|job| job["id"].as_str().expect("an id").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_urgent_job_starts_before_the_next_fifty_wherever_it_is_submitted() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let (_, servers) = start(place.path()).await;
    join_all(servers.iter().map(submit_backlog)).await;
    let http = reqwest::Client::new();
    // All workers are at one manager; then they move to another.
    for (at, known_after) in [(0, LEARNT), (2, MOVED)] {
        let begun = Instant::now();
        while begun.elapsed() < known_after {
            take(&http, &servers[at]).await;
        }
        for (number, server) in servers.iter().enumerate() {
            let id = format!("urgent-{at}-{number}");
            let job = json!({"id": id, "queue": "q", "kind": "k", "priority": 100});
            post(&http, &server.url(), "/v1/jobs", &job).await.expect("it is taken");
            let mut before = 0;
            loop {
                let taken = take(&http, &servers[at]).await;
                if taken.contains(&id) {
                    break;
                }
                before += taken.len();
                assert!(before <= BEFORE_URGENT, "{id}: {before} jobs have started before it");
            }
        }
    }
}

/// Managers with workers, and what became of the jobs.
#[derive(Default)]
struct Course {
    urls: Vec<String>,
    submitted_at: HashMap<String, Instant>,
    /// When a job was handed out for the first time.
    started_at: HashMap<String, Instant>,
    /// Under which fences completions were accepted.
    completed: HashMap<String, BTreeSet<u64>>,
}

impl Course {
    fn url(&self, at: usize) -> String {
        self.urls[at % self.urls.len()].clone()
    }
}

/// A worker that goes on at the next manager when one does not answer, until all jobs are done.
async fn work(number: usize, course: Arc<Mutex<Course>>) {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(3)).build().expect("a client");
    let name = format!("w{number}");
    let (mut at, mut calls) = (number, 0);
    while course.lock().completed.len() < STEADY_JOBS {
        let url = course.lock().url(at);
        let request = format!("{name}-{calls}");
        let claim = json!({
            "worker_id": name, "queues": ["q"], "wait_ms": 1_000, "lease_ms": 5_000, "request_id": request,
        });
        let Some(answer) = post(&http, &url, "/v1/claims", &claim).await else {
            // The same claim once more, elsewhere: what it was given there is given again.
            at += 1;
            continue;
        };
        calls += 1;
        for job in answer["jobs"].as_array().expect("jobs") {
            let id = job["id"].as_str().expect("an id").to_owned();
            course.lock().started_at.entry(id.clone()).or_insert_with(Instant::now);
            complete(&http, &name, &id, job["fence"].as_u64().expect("a fence"), &mut at, &course).await;
        }
    }
}

/// Completes a job, at the next manager when one does not answer.
async fn complete(http: &reqwest::Client, worker: &str, id: &str, fence: u64, at: &mut usize, course: &Mutex<Course>) {
    loop {
        let url = course.lock().url(*at);
        let body = json!({"worker_id": worker, "fence": fence});
        let sent = http.post(format!("{url}/v1/jobs/{id}/complete")).json(&body).send().await;
        match sent.map(|answer| answer.status()) {
            Ok(status) if status.is_success() => {
                course.lock().completed.entry(id.to_owned()).or_default().insert(fence);
                return;
            }
            // The lease has ended, and another worker has the job.
            Ok(status) if status.is_client_error() => return,
            _ => *at += 1,
        }
    }
}

/// Submits jobs at a steady rate to the first manager.
async fn submit_steadily(course: Arc<Mutex<Course>>) {
    let (http, begun) = (reqwest::Client::new(), Instant::now());
    let url = course.lock().url(0);
    for number in 0..STEADY_JOBS {
        tokio::time::sleep_until((begun + STEADY_EVERY * number as u32).into()).await;
        let id = format!("steady-{number}");
        course.lock().submitted_at.insert(id.clone(), Instant::now());
        let job = json!({"id": id, "queue": "q", "kind": "k"});
        let (http, url) = (http.clone(), url.clone());
        tokio::spawn(async move { while post(&http, &url, "/v1/jobs", &job).await.is_none() {} });
    }
}

/// Returns the sum of a counter over the servers that run.
async fn sum(servers: &[Server], counter: &str) -> u64 {
    let mut sum = 0;
    for server in servers {
        let Ok(answer) = reqwest::get(format!("{}/metrics", server.url())).await else { continue };
        let metrics = answer.text().await.expect("a text");
        let value = metrics.lines().find_map(|line| line.strip_prefix(counter)?.trim().parse::<u64>().ok());
        sum += value.unwrap_or(0);
    }
    sum
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of managers on Elasticsearch"]
async fn managers_that_are_killed_frozen_and_added_lose_no_job_and_double_none() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let (engine, mut servers) = start(place.path()).await;
    let course = Arc::new(Mutex::new(Course { urls: servers.iter().map(Server::url).collect(), ..Course::default() }));
    let mut workers: Vec<_> = (0..2 * MANAGERS).map(|number| tokio::spawn(work(number, Arc::clone(&course)))).collect();
    tokio::time::sleep(LEARNT).await;
    let begun = Instant::now();
    let submitting = tokio::spawn(submit_steadily(Arc::clone(&course)));
    let at = |seconds| tokio::time::sleep_until((begun + Duration::from_secs(seconds)).into());
    at(3).await;
    servers[1].kill();
    at(7).await;
    servers[2].signal(Signal::SIGSTOP);
    at(12).await;
    servers.push(server(&engine, place.path(), MANAGERS).await);
    course.lock().urls.push(servers[MANAGERS].url());
    workers.push(tokio::spawn(work(MANAGERS, Arc::clone(&course))));
    at(20).await;
    servers[2].signal(Signal::SIGCONT);
    submitting.await.expect("all are submitted");
    let all = tokio::time::timeout(DONE_WITHIN, join_all(workers)).await.expect("all jobs end in time");
    all.into_iter().for_each(|ended| ended.expect("a worker ends well"));

    let claims = sum(&servers, "leasehold_claims_total ").await;
    let conflicts = sum(&servers, "leasehold_conflicts_total{operation=\"claim\"} ").await;
    println!("{conflicts} conflicts for {claims} claims, without those of the one that was killed");

    let course = course.lock();
    assert_eq!(course.completed.len(), STEADY_JOBS);
    for (id, fences) in &course.completed {
        assert_eq!(fences.len(), 1, "{id} was completed under several leases");
    }
    for (what, from, to) in
        [("undisturbed", 0, 3), ("one killed", 3, 7), ("one frozen", 7, 12), ("one added", 12, 20), ("woken", 20, 24)]
    {
        let within = |at: &Instant| (from..to).contains(&at.duration_since(begun).as_secs());
        let submitted = course.submitted_at.iter().filter(|(_, at)| within(at));
        let mut waits: Vec<Duration> = submitted.map(|(id, at)| course.started_at[id].duration_since(*at)).collect();
        waits.sort_unstable();
        println!("{what}: {} jobs waited {:?} at p50, {:?} at most", waits.len(), waits[waits.len() / 2], waits.last());
    }
}
