//! Limits and unique keys under faults: managers that are killed, frozen and cut off, and workers that die, on each
//! engine.
//!
//! What ran when is read from the histories of the jobs, which the servers on one machine date by one clock.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::site::{Site, Trouble};
use crate::machine;
use crate::program::{Engine, Server};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::servers;

/// The managers on Elasticsearch, of which one has an unreliable way to it.
const MANAGERS: usize = 4;

/// More than all limits together let work.
pub(super) const WORKERS: usize = 60;

/// The jobs of the key of which seven run at once, of all keys of which one does, of the queue that has a limit, and of
/// the queue that has a rate.
const OF_SEVEN: usize = 180;
const OF_ONE: usize = 90;
const ONES: usize = 15;
const OF_QUEUE: usize = 100;
const OF_RATE: usize = 70;
const JOBS: usize = OF_SEVEN + OF_ONE + OF_QUEUE + OF_RATE;
const SEVEN: usize = 7;
const QUEUE_LIMIT: usize = 5;
const BURST: usize = 5;
const PER_SECOND: usize = 10;

/// How long a claim may come after the token of the rate that it has taken.
const TOKEN_LASTS: Duration = Duration::from_secs(2);

/// The unique keys under which jobs are submitted all the time, and by how many.
const UNIQUE_KEYS: usize = 5;
const SUBMITTERS: usize = 8;

/// How long a worker works on a job: longer than a busy machine takes to begin the next, so that limits are full.
const WORKS_FOR: Duration = Duration::from_millis(250);

/// The leases, after which the monitor gives the jobs of dead workers back.
const LEASE: Duration = Duration::from_secs(2);

pub(super) const DONE_WITHIN: Duration = Duration::from_secs(300);

pub(super) const OPTIONS: [&str; 6] =
    ["--recovery-period-ms", "500", "--clock-skew-ms", "0", "--orphan-grace-ms", "500"];

async fn post(http: &reqwest::Client, url: &str, path: &str, body: &Value) -> Option<Value> {
    let answer = http.post(format!("{url}{path}")).json(body).send().await.ok()?;
    if answer.status().is_success() { answer.json().await.ok() } else { None }
}

async fn submit(url: &str) {
    let seven =
        (0..OF_SEVEN).map(|_| json!({"queue": "q", "kind": "k", "concurrency_key": "seven", "max_concurrent": SEVEN}));
    let ones = (0..OF_ONE)
        .map(|number| json!({"queue": "q", "kind": "k", "concurrency_key": format!("one-{}", number % ONES)}));
    let limited = (0..OF_QUEUE).map(|_| json!({"queue": "narrow", "kind": "k"}));
    let paced = (0..OF_RATE).map(|_| json!({"queue": "paced", "kind": "k"}));
    let lines: String = seven
        .chain(ones)
        .chain(limited)
        .chain(paced)
        .map(|mut job| {
            // A job that was given back waits for a slot and not for its time.
            job["retry"] = json!({"base_ms": 1, "max_ms": 1});
            job["max_attempts"] = json!(20);
            format!("{job}\n")
        })
        .collect();
    let call =
        reqwest::Client::new().post(format!("{url}/v1/jobs/bulk")).header("content-type", "application/x-ndjson");
    let answer: Value = call.body(lines).send().await.expect("an answer").json().await.expect("JSON");
    assert!(answer["items"].as_array().expect("items").iter().all(|item| item["status"] == 201), "{answer}");
}

/// Waits until so many jobs that a query finds are there and none of them waits or runs.
///
/// A count shows what was there a refresh ago: just after they were submitted, none.
pub(super) async fn all_have_ended(urls: &[String], kql: &str, jobs: usize) {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().expect("a client");
    let count = async |url: &str, kql: &str| -> Option<u64> {
        let answer = http.get(format!("{url}/v1/jobs/count")).query(&[("kql", kql)]).send().await.ok()?;
        answer.json::<Value>().await.ok()?["total"].as_u64()
    };
    let live = format!("({kql}) and state: (available or running)");
    for url in urls.iter().cycle() {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let are_there = count(url, kql).await.is_some_and(|found| found >= jobs as u64);
        if are_there && count(url, &live).await == Some(0) {
            return;
        }
    }
}

/// Submits jobs of unique keys while there is other work, at whichever manager answers.
async fn submit_unique(number: usize, urls: Arc<Vec<String>>, is_over: Arc<AtomicBool>) {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().expect("a client");
    for round in number.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let job = json!({"queue": "unique", "kind": "k", "unique_key": format!("u{}", round % UNIQUE_KEYS)});
        // Most are refused, since another job of the key is live; some do not reach a manager.
        post(&http, &urls[round % urls.len()], "/v1/jobs", &job).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A worker that goes on at the next manager when one does not answer. Every so often it dies with its job.
pub(super) async fn work(number: usize, urls: Arc<Vec<String>>, is_over: Arc<AtomicBool>) {
    let http = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().expect("a client");
    let (mut at, mut lives) = (number, 0);
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("w{number}-{lives}");
        let url = &urls[at % urls.len()];
        let claim = json!({
            "worker_id": name, "queues": ["q", "narrow", "paced", "unique"], "wait_ms": 1_000, "lease_ms": LEASE.as_millis() as u64,
        });
        let Some(answer) = post(&http, url, "/v1/claims", &claim).await else {
            at += 1;
            // Not without end at servers that are being started again.
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        for job in answer["jobs"].as_array().expect("jobs") {
            tokio::time::sleep(WORKS_FOR).await;
            if rand::random_ratio(1, 60) {
                lives += 1;
                continue;
            }
            let (id, body) = (job["id"].as_str().expect("an id"), json!({"worker_id": name, "fence": job["fence"]}));
            for _ in 0..urls.len() {
                let sent =
                    http.post(format!("{}/v1/jobs/{id}/complete", urls[at % urls.len()])).json(&body).send().await;
                match sent.map(|answer| answer.status()) {
                    // Or its lease has ended, and another worker has the job.
                    Ok(status) if status.is_success() || status.is_client_error() => break,
                    _ => at += 1,
                }
            }
        }
    }
}

/// Starts the workers, and those who submit meanwhile.
fn all_at_work(urls: &Arc<Vec<String>>) -> Vec<JoinHandle<()>> {
    let is_over = Arc::new(AtomicBool::new(false));
    let workers = (0..WORKERS).map(|number| tokio::spawn(work(number, Arc::clone(urls), Arc::clone(&is_over))));
    let submitters =
        (0..SUBMITTERS).map(|number| tokio::spawn(submit_unique(number, Arc::clone(urls), Arc::clone(&is_over))));
    let (all, flag) = (Arc::clone(urls), Arc::clone(&is_over));
    let watch = tokio::spawn(async move {
        all_have_ended(&all, "not queue: unique", JOBS).await;
        flag.store(true, Ordering::Relaxed);
    });
    workers.chain(submitters).chain([watch]).collect()
}

/// When jobs of one limit began and ended to run (+1, −1) and to wait, in the order of time.
#[derive(Default)]
struct Course(Vec<(i64, i32, i32)>);

impl Course {
    /// Adds what a job's history says.
    fn add(&mut self, job: &Value) {
        let (mut ran, mut waited) = (0, 0);
        for entry in job["history"].as_array().expect("a history") {
            let (runs, waits) = (i32::from(entry["to"] == "running"), i32::from(entry["to"] == "available"));
            self.0.push((millis(&entry["at"]), runs - ran, waits - waited));
            (ran, waited) = (runs, waits);
        }
    }

    /// Checks that no more ran at once than the limit lets, and at some time as many. How long fewer ran while jobs
    /// waited is printed: it depends on the machine.
    fn check(mut self, name: &str, limit: usize) {
        // At one moment, what ends does so before what begins.
        self.0.sort_unstable();
        let (mut running, mut waiting, mut most) = (0, 0, 0);
        let mut unused_since: Option<i64> = None;
        let mut longest = 0;
        for (at, ran, waited) in self.0 {
            if let Some(since) = unused_since {
                longest = longest.max(at - since);
            }
            running += ran;
            waiting += waited;
            most = most.max(running);
            assert!(running <= limit as i32, "{name}: {running} ran at once where {limit} may");
            let is_unused = waiting > 0 && running < limit as i32;
            // It is used again as soon as it is full.
            unused_since = if is_unused { unused_since.or(Some(at)) } else { None };
        }
        println!("{name}: {most} of {limit} at the most, not full for {longest} ms at the longest");
        assert_eq!(most, limit as i32, "{name} was used to the full at some time");
    }
}

/// Returns when a job went to a state.
pub(super) fn times_of(job: &Value, to: &str) -> Vec<i64> {
    let entries = job["history"].as_array().expect("a history").iter().filter(|entry| entry["to"] == to);
    entries.map(|entry| millis(&entry["at"])).collect()
}

fn millis(at: &Value) -> i64 {
    let at = at.as_str().expect("a time").parse::<chrono::DateTime<chrono::Utc>>();
    at.expect("a time").timestamp_millis()
}

/// Checks the starts of jobs under a rate: in any time, the burst and what comes in that time.
fn check_rate(mut starts: Vec<i64>) {
    starts.sort_unstable();
    for (begin, from) in starts.iter().enumerate() {
        for (end, to) in starts.iter().enumerate().skip(begin) {
            let (begun, time) = (end - begin + 1, to - from + TOKEN_LASTS.as_millis() as i64);
            let most = BURST as i64 + PER_SECOND as i64 * time / 1_000;
            assert!(begun as i64 <= most, "{begun} begun within {} ms where {most} may", to - from);
        }
    }
}

/// Checks the jobs of one unique key by when each was first claimed and when it ended: it was live all that time.
fn check_unique(key: &str, mut lives: Vec<(i64, i64)>) {
    lives.sort_unstable();
    println!("{key}: {} jobs one after the other", lives.len());
    assert!(lives.windows(2).all(|pair| pair[0].1 <= pair[1].0), "two of {key} were live at once: {lives:?}");
    assert!(lives.len() > 1, "{key} was used again");
}

/// Reads the histories of all jobs, and checks every limit and key.
async fn check(url: &str) {
    let answer = reqwest::get(format!("{url}/v1/jobs/export")).await.expect("an answer").text().await.expect("text");
    let mut courses: HashMap<(String, usize), Course> = HashMap::new();
    let mut lives: HashMap<String, Vec<(i64, i64)>> = HashMap::new();
    let mut starts = Vec::new();
    let mut count = 0;
    for line in answer.lines() {
        let job: Value = serde_json::from_str(line).expect("a job");
        if job["queue"] == "unique" {
            // A job stands for one that was not created, since its server was killed, and has no key.
            let Some(key) = job["unique_key"].as_str() else { continue };
            let end = times_of(&job, "completed").pop().unwrap_or(i64::MAX);
            lives
                .entry(key.to_owned())
                .or_default()
                .extend(times_of(&job, "running").first().map(|first| (*first, end)));
            continue;
        }
        assert_eq!((&job["state"], &job["history_folded"]), (&json!("completed"), &json!(0)), "{job}");
        count += 1;
        let limit = match (job["concurrency_key"].as_str(), job["queue"].as_str()) {
            (Some("seven"), _) => ("key:seven".to_owned(), SEVEN),
            (Some(key), _) => (format!("key:{key}"), 1),
            (None, Some("narrow")) => ("queue:narrow".to_owned(), QUEUE_LIMIT),
            _ => {
                starts.extend(times_of(&job, "running"));
                continue;
            }
        };
        courses.entry(limit).or_default().add(&job);
    }
    assert_eq!((count, courses.len(), lives.len()), (JOBS, 2 + ONES, UNIQUE_KEYS));
    for ((name, limit), course) in courses {
        course.check(&name, limit);
    }
    check_rate(starts);
    for (key, lives) in lives {
        check_unique(&key, lives);
    }
}

async fn set_limits(url: &str) {
    let rate = json!({"rate": {"count": PER_SECOND, "per_ms": 1_000, "burst": BURST}});
    for (queue, limit) in [("narrow", json!({"max_concurrent": QUEUE_LIMIT})), ("paced", rate)] {
        let call = reqwest::Client::new().put(format!("{url}/v1/limits/queue/{queue}"));
        let answer = call.json(&limit).send().await.expect("an answer");
        assert!(answer.status().is_success(), "{}", answer.status());
    }
    // Every manager knows of it before there is anything to run: the longest that one may go by what it has read.
    tokio::time::sleep(Duration::from_secs(6)).await;
}

/// Starts the managers on Elasticsearch, whose logs are put there. The last one goes through a proxy, which spoils some
/// answers once it is told to.
pub(super) async fn managers(logs: &Path) -> (Vec<Server>, FaultProxy) {
    let elasticsearch = servers::elasticsearch().await;
    let kinds = vec![Fault::Reset, Fault::Cut];
    let proxy = FaultProxy::start(elasticsearch.url(), Faults { one_in: 12, seed: 7, kinds }).await;
    let indices = Arc::new(elasticsearch.index_set().await);
    let start = |number: usize, url: String| {
        let engine = Engine::Elasticsearch { urls: vec![url], indices: Arc::clone(&indices) };
        let log = logs.join(format!("server-{number}.log"));
        async move { Server::start_as("serve", &OPTIONS, engine, &log).await }
    };
    let mut servers = vec![start(0, elasticsearch.url().to_owned()).await];
    let url_of = |number| if number + 1 == MANAGERS { proxy.url() } else { elasticsearch.url().to_owned() };
    servers.extend(join_all((1..MANAGERS).map(|number| start(number, url_of(number)))).await);
    (servers, proxy)
}

/// Kills the second manager, and freezes and thaws the third, each after so many milliseconds.
pub(super) async fn disturb(servers: &mut [Server], [killed, frozen, thawed]: [u64; 3]) {
    let begun = Instant::now();
    let at = |millis| tokio::time::sleep_until((begun + Duration::from_millis(millis)).into());
    at(killed).await;
    servers[1].kill_and_restart().await;
    at(frozen).await;
    servers[2].signal(Signal::SIGSTOP);
    at(thawed).await;
    servers[2].signal(Signal::SIGCONT);
}

/// Has everything befall members, the leader above all.
pub(super) async fn disturb_members(site: &mut Site) {
    for trouble in [Trouble::Kill, Trouble::Freeze, Trouble::Partition] {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let leader = site.a_leader().await;
        site.make(trouble, leader, Duration::from_millis(2_000)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of three members"]
async fn no_limit_is_exceeded_by_members_that_are_killed_frozen_and_parted() {
    let _share = machine::with_others();
    let mut site = Site::members(&OPTIONS).await;
    set_limits(&site.servers[0].url()).await;
    submit(&site.servers[0].url()).await;
    let workers = all_at_work(&Arc::new(site.urls()));
    disturb_members(&mut site).await;
    let all = tokio::time::timeout(DONE_WITHIN, join_all(workers)).await.expect("all jobs end in time");
    all.into_iter().for_each(|ended| ended.expect("a worker ends well"));
    check(&site.servers[0].url()).await;
    site.end_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: half a minute of managers on Elasticsearch"]
async fn no_limit_is_exceeded_by_managers_that_are_killed_frozen_and_cut_off() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let (mut servers, proxy) = managers(place.path()).await;
    set_limits(&servers[0].url()).await;
    submit(&servers[0].url()).await;
    proxy.inject(true);
    let urls = Arc::new(servers.iter().map(Server::url).collect::<Vec<_>>());
    let workers = all_at_work(&urls);
    disturb(&mut servers, [1_000, 2_500, 6_000]).await;
    let all = tokio::time::timeout(DONE_WITHIN, join_all(workers)).await.expect("all jobs end in time");
    all.into_iter().for_each(|ended| ended.expect("a worker ends well"));
    check(&servers[0].url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_limit_is_exceeded_by_a_server_that_is_killed() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let engine = Engine::Embedded(place.path().join("data"));
    let mut server = Server::start_as("serve", &OPTIONS, engine, &Path::join(place.path(), "server.log")).await;
    set_limits(&server.url()).await;
    submit(&server.url()).await;
    let urls = Arc::new(vec![server.url()]);
    let workers = all_at_work(&urls);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.kill_and_restart().await;
    }
    let all = tokio::time::timeout(DONE_WITHIN, join_all(workers)).await.expect("all jobs end in time");
    all.into_iter().for_each(|ended| ended.expect("a worker ends well"));
    check(&server.url()).await;
}
