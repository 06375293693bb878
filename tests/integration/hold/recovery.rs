//! Workers and monitors that die or fall silent: what they had goes on elsewhere, once.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use leasehold::clock::Timestamp;
use nix::sys::signal::Signal;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::site::{self, ONE_CLOCK};
use super::ways::Network;
use crate::machine;
use crate::program::{Engine, Server, Started, eventually, leasehold, lines};

const JOBS: usize = 500;
const WORKERS: usize = 5;
/// Long enough for a victim to be heard of while the others still claim, also on a machine that stalls.
const LEASE_MS: u64 = 12_000;
/// A worker that is well is heard of so often.
const BEAT_EVERY: Duration = Duration::from_millis(1_500);
/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server, the others beside it, and a directory for jobs to leave traces in.
struct Site {
    server: Server,
    /// Its monitors where they are processes of their own, or the other members of its cluster.
    monitors: Vec<Server>,
    /// What is between the members.
    _network: Option<Network>,
    place: TempDir,
    http: reqwest::Client,
}

impl Site {
    /// A server with its monitor in it.
    async fn on(engine: Engine, place: TempDir) -> Self {
        let server = Server::start_as("serve", &ONE_CLOCK, engine, &place.path().join("server.log")).await;
        Self { server, monitors: Vec::new(), _network: None, place, http: reqwest::Client::new() }
    }

    async fn embedded() -> Self {
        let place = TempDir::new().expect("a directory");
        Self::on(Engine::Embedded(place.path().join("data")), place).await
    }

    /// Three members, of which one leads that is not the server.
    async fn members() -> Self {
        let site = site::Site::members(&ONE_CLOCK).await;
        let leader = site.a_leader().await;
        let site::Site { servers: mut monitors, network, place, .. } = site;
        let server = monitors.remove((leader + 1) % site::MEMBERS);
        Self { server, monitors, _network: network, place, http: reqwest::Client::new() }
    }

    async fn elasticsearch() -> Self {
        Self::on(Engine::elasticsearch().await, TempDir::new().expect("a directory")).await
    }

    /// A server without a monitor, and two monitors.
    async fn with_monitors() -> Self {
        let (place, engine) = (TempDir::new().expect("a directory"), Engine::elasticsearch().await);
        let server =
            Server::start_as("serve", &["--no-monitor"], engine.clone(), &place.path().join("server.log")).await;
        let mut monitors = Vec::new();
        for name in ["monitor-1.log", "monitor-2.log"] {
            monitors.push(Server::start_as("monitor", &ONE_CLOCK, engine.clone(), &place.path().join(name)).await);
        }
        Self { server, monitors, _network: None, place, http: reqwest::Client::new() }
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        post(&self.http, &self.server.url(), path, body).await
    }

    /// Makes the same call until it is answered otherwise than that it may not have been carried out.
    async fn post_again(&self, path: &str, body: &Value) -> Value {
        let mut answered = Value::Null;
        eventually("an answer", async || {
            let (status, answer) = self.post(path, body).await;
            assert!([StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE].contains(&status), "{answer}");
            answered = answer;
            status == StatusCode::OK
        })
        .await;
        answered
    }

    async fn job(&self, id: &str) -> Value {
        let answer = self.http.get(format!("{}/v1/jobs/{id}", self.server.url())).send().await;
        answer.expect("the server answers").json().await.expect("JSON")
    }

    /// Submits a command that is run in the place.
    async fn submit(&self, id: &str, command: &str, more: Value) {
        let payload = json!({"command": command, "cwd": self.path()});
        let mut job = json!({"id": id, "queue": "q", "kind": "shell", "payload": payload, "retry": {"base_ms": 100}});
        let (job_fields, more) =
            (job.as_object_mut().expect("an object"), more.as_object().expect("an object").clone());
        job_fields.extend(more);
        let (status, answer) = self.post("/v1/jobs", &job).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
    }

    /// A worker process.
    fn worker(&self, name: &str, lease: &str) -> Started {
        let url = self.server.url();
        // One slot: a worker that is stopped must not have another claim waiting, which would be given its own job.
        let arguments =
            ["worker", "--server", &url, "--queue", "q", "--worker-id", name, "--lease", lease, "--slots", "1"];
        Started::of(leasehold(self.path(), arguments).env("LEASEHOLD_LOG", "error"))
    }

    /// The fences under which the job was started, in order.
    fn started(&self) -> Vec<String> {
        lines(&self.path().join("started"))
    }

    async fn until_started(&self, fences: &[&str]) {
        eventually("the job's start", async || self.started() == fences).await;
    }
}

async fn post(http: &reqwest::Client, url: &str, path: &str, body: &Value) -> (StatusCode, Value) {
    let answer = http.post(format!("{url}{path}")).json(body).send().await.expect("the server answers");
    (answer.status(), answer.json().await.expect("JSON"))
}

/// The events of a job and who brought them about, from its first claim on.
fn told(job: &Value) -> Vec<(String, String)> {
    let text = |entry: &Value, field: &str| entry[field].as_str().expect("text").to_owned();
    let history = job["history"].as_array().expect("a history");
    history.iter().skip(1).map(|entry| (text(entry, "event"), text(entry, "actor"))).collect()
}

/// Which call was given which fence of which job.
type Owners = Arc<Mutex<HashMap<(String, u64), String>>>;

fn note(owners: &Owners, job: &Value, owner: &str) -> (String, u64) {
    let key = (job["id"].as_str().expect("an id").to_owned(), job["fence"].as_u64().expect("a fence"));
    let before = owners.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), owner.to_owned());
    assert_eq!(before, None, "{key:?} was given to {owner} as well");
    key
}

/// Takes its share of jobs, and beats for as long as the task lives.
async fn start_victim(site: &Site, name: String, owners: Owners) -> JoinHandle<()> {
    let (http, url) = (site.http.clone(), site.server.url());
    let mut leases = Vec::new();
    while leases.len() < JOBS / WORKERS {
        let most = JOBS / WORKERS - leases.len();
        let claim =
            json!({"worker_id": name, "queues": ["q"], "max_jobs": most, "wait_ms": 1000, "lease_ms": LEASE_MS});
        let (status, answer) = post(&http, &url, "/v1/claims", &claim).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        for job in answer["jobs"].as_array().expect("jobs") {
            let (id, fence) = note(&owners, job, &name);
            leases.push(json!({"id": id, "fence": fence}));
        }
    }
    tokio::spawn(async move {
        loop {
            let (status, answer) =
                post(&http, &url, "/v1/heartbeats", &json!({"worker_id": name, "leases": leases})).await;
            assert_eq!(status, StatusCode::OK, "{answer}");
            tokio::time::sleep(BEAT_EVERY).await;
        }
    })
}

/// Takes jobs and completes them until all are completed.
async fn inherit(site: &Site, name: &str, owners: &Owners, completed: &Mutex<usize>) {
    let deadline = Instant::now() + PATIENCE;
    for call in 0.. {
        let done = *completed.lock().unwrap_or_else(PoisonError::into_inner);
        if done == JOBS {
            return;
        }
        assert!(Instant::now() < deadline, "only {done} jobs were completed in time");
        let claim = json!({
            "worker_id": name, "queues": ["q"], "max_jobs": 50, "wait_ms": 500, "lease_ms": 600_000,
            "request_id": format!("{name}-{call}"),
        });
        let answer = site.post_again("/v1/claims", &claim).await;
        let jobs = answer["jobs"].as_array().expect("jobs");
        let items: Vec<Value> = jobs
            .iter()
            .map(|job| note(owners, job, name))
            .map(|(id, fence)| json!({"id": id, "fence": fence, "result": name}))
            .collect();
        if items.is_empty() {
            continue;
        }
        let answer = site.post_again("/v1/completions", &json!({"worker_id": name, "items": items})).await;
        let accepted = answer["items"].as_array().expect("items").iter().filter(|item| item["status"] == 200).count();
        assert_eq!(accepted, items.len(), "{answer}");
        *completed.lock().unwrap_or_else(PoisonError::into_inner) += accepted;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: the embedded server runs, and `hold::chaos` on Elasticsearch"]
async fn five_hundred_jobs_outlive_their_workers_and_the_leading_monitor_on_elasticsearch() {
    let _share = machine::with_others();
    jobs_outlive_their_workers(Site::with_monitors().await, async |site| {
        // Each shows whether it leads as of its last step, so that for a moment none may show it, or both.
        let mut leading = Vec::new();
        eventually("one monitor leads", async || {
            leading.clear();
            for (index, monitor) in site.monitors.iter().enumerate() {
                if monitor.counter("leasehold_monitor_leader").await > 0.0 {
                    leading.push(index);
                }
            }
            leading.len() == 1
        })
        .await;
        site.monitors.remove(leading[0]).kill();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_jobs_outlive_their_workers_and_the_embedded_server() {
    let _share = machine::with_others();
    jobs_outlive_their_workers(Site::embedded().await, async |site| site.server.kill_and_restart().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of three members"]
async fn five_hundred_jobs_outlive_their_workers_and_the_member_that_leads() {
    let _share = machine::with_others();
    jobs_outlive_their_workers(Site::members().await, async |site| {
        let mut leading = None;
        for (index, member) in site.monitors.iter().enumerate() {
            if member.counter("leasehold_member_leads").await > 0.0 {
                leading = Some(index);
            }
        }
        match leading {
            Some(index) => site.monitors.remove(index).kill(),
            // Where a machine stood still, the member that is asked may lead by now.
            None => site.server.kill_and_restart().await,
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_of_its_own_serves_administrators_and_no_jobs() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let log = place.path().join("monitor.log");
    let monitor = Server::start_as("monitor", &ONE_CLOCK, Engine::elasticsearch().await, &log).await;
    for (path, status) in [
        ("/livez", StatusCode::OK),
        ("/metrics", StatusCode::OK),
        ("/v1/admin/orphans", StatusCode::OK),
        ("/v1/jobs", StatusCode::NOT_FOUND),
        ("/v1/queues", StatusCode::NOT_FOUND),
    ] {
        let answer = reqwest::get(format!("{}{path}", monitor.url())).await.expect("the monitor answers");
        assert_eq!(answer.status(), status, "{path}");
    }
}

async fn jobs_outlive_their_workers(mut site: Site, kill_the_leader: impl AsyncFnOnce(&mut Site)) {
    let jobs: String = (0..JOBS)
        .map(|number| json!({"id": format!("job-{number}"), "queue": "q", "kind": "k", "retry": {"base_ms": 100}}))
        .map(|job| format!("{job}\n"))
        .collect();
    let call = site.http.post(format!("{}/v1/jobs/bulk", site.server.url()));
    let answer = call.header("content-type", "application/x-ndjson").body(jobs).send().await.expect("an answer");
    assert_eq!(answer.status(), StatusCode::OK);
    let owners = Owners::default();
    let mut victims = Vec::new();
    for number in 0..WORKERS {
        victims.push(start_victim(&site, format!("victim-{number}"), Arc::clone(&owners)).await);
    }

    for victim in victims {
        victim.abort();
        assert!(victim.await.is_err_and(|ended| ended.is_cancelled()), "a worker ended before it was killed");
    }
    kill_the_leader(&mut site).await;

    let completed = Mutex::new(0);
    let names: Vec<String> = (0..WORKERS).map(|number| format!("heir-{number}")).collect();
    futures::future::join_all(names.iter().map(|name| inherit(&site, name, &owners, &completed))).await;
    let owners = owners.lock().unwrap_or_else(PoisonError::into_inner).clone();
    assert_eq!(owners.len(), 2 * JOBS, "each job was claimed twice");
    for number in 0..JOBS {
        let id = format!("job-{number}");
        let job = site.job(&id).await;
        let (victim, heir) = (&owners[&(id.clone(), 1)], &owners[&(id.clone(), 2)]);
        assert_eq!((&job["state"], &job["fence"], &job["result"]), (&json!("completed"), &json!(2), &json!(heir)));
        let mut steps = told(&job);
        // The flag depends on whether a scan came between the end of the lease and the end of the grace.
        steps.retain(|(event, _)| event != "orphaned");
        let expected = [("claimed", victim.as_str()), ("released", "monitor"), ("claimed", heir), ("completed", heir)];
        assert_eq!(steps, expected.map(|(event, actor)| (event.to_owned(), actor.to_owned())), "{job}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_stopped_past_its_lease_is_not_heard_on_elasticsearch() {
    let _share = machine::with_others();
    a_stopped_worker_is_not_heard(Site::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_stopped_past_its_lease_is_not_heard_on_the_embedded_store() {
    let _share = machine::with_others();
    a_stopped_worker_is_not_heard(Site::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: it runs on both engines, and a killed worker with members"]
async fn a_worker_that_was_stopped_past_its_lease_is_not_heard_by_members() {
    let _share = machine::with_others();
    a_stopped_worker_is_not_heard(Site::members().await).await;
}

async fn a_stopped_worker_is_not_heard(site: Site) {
    let mut sleeper = site.worker("sleeper", "3s");
    let command = "echo $LEASEHOLD_FENCE >> started; while test -e started && ! test -e go-$LEASEHOLD_FENCE; \
                   do sleep 0.05; done; echo $LEASEHOLD_FENCE";
    site.submit("job", command, json!({})).await;
    site.until_started(&["1"]).await;
    sleeper.signal(Signal::SIGSTOP);
    let _other = site.worker("other", "60s");
    site.until_started(&["1", "2"]).await;
    std::fs::write(site.path().join("go-2"), "").expect("written");
    eventually("the second result", async || site.job("job").await["state"] == "completed").await;
    let done = site.job("job").await;
    assert_eq!((&done["fence"], &done["result"]["stdout"]), (&json!(2), &json!("2\n")));

    sleeper.signal(Signal::SIGCONT);
    eventually("the refusal", async || {
        let mut lost = 0.0;
        for server in site.monitors.iter().chain([&site.server]) {
            lost += server.counter("leasehold_leases_lost_total").await;
        }
        lost > 0.0
    })
    .await;
    let late = json!({"worker_id": "sleeper", "fence": 1, "result": {"stdout": "1\n"}});
    let (status, answer) = site.post("/v1/jobs/job/complete", &late).await;
    assert_eq!((status, &answer["code"]), (StatusCode::CONFLICT, &json!("lease_lost")));
    assert_eq!(site.job("job").await, done);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_a_worker_that_were_stopped_together_go_on_with_the_attempt_on_elasticsearch() {
    let _share = machine::with_others();
    both_go_on(Site::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_and_a_worker_that_were_stopped_together_go_on_with_the_attempt_on_the_embedded_store() {
    let _share = machine::with_others();
    both_go_on(Site::embedded().await).await;
}

/// As on a machine that has slept: the server is back first, and scans before it hears of the worker.
async fn both_go_on(mut site: Site) {
    let mut worker = site.worker("sleeper", "6s");
    let command = "echo $LEASEHOLD_FENCE >> started; while test -e started && ! test -e go; do sleep 0.05; done";
    site.submit("job", command, json!({"max_attempts": 1})).await;
    site.until_started(&["1"]).await;
    worker.signal(Signal::SIGSTOP);
    site.server.signal(Signal::SIGSTOP);
    // The lease and the grace.
    tokio::time::sleep(Duration::from_secs(9)).await;
    site.server.signal(Signal::SIGCONT);
    tokio::time::sleep(Duration::from_secs(2)).await;
    worker.signal(Signal::SIGCONT);
    std::fs::write(site.path().join("go"), "").expect("written");
    eventually("its end", async || site.job("job").await["state"] != "running").await;
    let job = site.job("job").await;
    let steps = [("claimed", "sleeper"), ("completed", "sleeper")];
    assert_eq!(told(&job), steps.map(|(event, actor)| (event.to_owned(), actor.to_owned())), "{job}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: it runs on the embedded store"]
async fn a_slow_job_whose_worker_beats_is_told_overdue_once_and_never_released_on_elasticsearch() {
    let _share = machine::with_others();
    a_slow_job_is_never_released(Site::elasticsearch().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_job_whose_worker_beats_is_told_overdue_once_and_never_released_on_the_embedded_store() {
    let _share = machine::with_others();
    a_slow_job_is_never_released(Site::embedded().await).await;
}

async fn a_slow_job_is_never_released(site: Site) {
    let _worker = site.worker("slow", "6s");
    let command = "echo $LEASEHOLD_FENCE >> started; while test -e started && ! test -e go; do sleep 0.05; done";
    site.submit("job", command, json!({"expected_runtime_ms": 500})).await;
    let heartbeat = async || site.job("job").await["lease"]["heartbeat_at"].as_str().map(str::to_owned);
    // Where the machine stalls, a heartbeat may come late, and flag and its removal with it.
    let told = |job: &Value| told(job).into_iter().filter(|(event, _)| event != "orphaned").collect::<Vec<_>>();
    eventually("the alert", async || told(&site.job("job").await).len() == 2).await;
    // Long enough for it to be released several times over, if it were.
    let mut beats = 0;
    let mut last = heartbeat().await;
    eventually("many heartbeats", async || {
        let now = heartbeat().await;
        beats += usize::from(now != last);
        last = now;
        // 16 s, where the job would be released after 8 s without one.
        beats >= 8
    })
    .await;
    std::fs::write(site.path().join("go"), "").expect("written");
    eventually("its end", async || site.job("job").await["state"] == "completed").await;
    let steps = [("claimed", "slow"), ("overdue", "monitor"), ("completed", "slow")];
    assert_eq!(told(&site.job("job").await), steps.map(|(event, actor)| (event.to_owned(), actor.to_owned())));
    assert_eq!(site.started(), ["1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_job_runs_elsewhere_once_its_lease_has_ended_on_elasticsearch() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    // With the time that clocks may differ by default, and so compared with Elasticsearch's.
    let server = Server::start_as("serve", &[], Engine::elasticsearch().await, &place.path().join("server.log")).await;
    let site = Site { server, monitors: Vec::new(), _network: None, place, http: reqwest::Client::new() };
    eventually("the comparison of the clocks", async || {
        let metrics = reqwest::get(format!("{}/metrics", site.server.url())).await.expect("the server answers");
        metrics.text().await.expect("text").contains("\nleasehold_clock_offset_seconds ")
    })
    .await;
    a_job_runs_elsewhere(site).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_job_runs_elsewhere_once_its_lease_has_ended_on_the_embedded_store() {
    let _share = machine::with_others();
    a_job_runs_elsewhere(Site::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workers_job_runs_elsewhere_once_its_lease_has_ended_on_members() {
    let _share = machine::with_others();
    a_job_runs_elsewhere(Site::members().await).await;
}

async fn a_job_runs_elsewhere(site: Site) {
    const LEASE: Duration = Duration::from_secs(5);
    let mut victim = site.worker("victim", "5s");
    let command = "echo $LEASEHOLD_FENCE >> started; test $LEASEHOLD_FENCE != 1 || exec sleep 60";
    site.submit("job", command, json!({})).await;
    site.until_started(&["1"]).await;
    let lease = site.job("job").await["lease"].clone();
    let time = |value: &Value| Timestamp::parse_rfc3339(value.as_str().expect("a time")).expect("a time");
    let lasts = time(&lease["expires_at"]).since(time(&lease["heartbeat_at"]));
    // A machine that knows its clock lets it last longer by much less than clocks may differ, which is 5 s.
    assert!((LEASE..2 * LEASE).contains(&lasts), "{lease}");
    let _heir = site.worker("heir", "60s");
    victim.signal(Signal::SIGKILL);
    victim.end();
    site.until_started(&["1", "2"]).await;
    eventually("its end", async || site.job("job").await["state"] == "completed").await;
    let job = site.job("job").await;
    let history = job["history"].as_array().expect("a history");
    let released = history.iter().find(|entry| entry["event"] == "released").expect("it was released");
    assert!(time(&released["at"]) >= time(&lease["expires_at"]), "{job}");
}
