//! Lines under faults: jobs of ordering keys that are submitted and run while managers are killed, frozen and cut off,
//! and workers die, on each engine.
//!
//! What ran when is read from the histories of the jobs, which the servers on one machine date by one clock; what was
//! submitted when, the submitters note themselves.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::limits::{DONE_WITHIN, OPTIONS, WORKERS, all_have_ended, disturb, disturb_members, managers, work};
use super::site::Site;
use crate::machine;
use crate::program::{Engine, Server};

const KEYS: usize = 12;

/// How many submit at once, how often each does, and how many jobs of one key with each call.
const SUBMITTERS: usize = 6;
const CALLS: usize = 20;
const JOBS_PER_CALL: usize = 2;
const JOBS: usize = SUBMITTERS * CALLS * JOBS_PER_CALL;

/// The time between two calls of a submitter.
const PAUSE: Duration = Duration::from_millis(150);

/// A call that was accepted in the end.
struct Accepted {
    key: String,
    jobs: Vec<String>,
    /// When the call was first made, and when it was answered.
    begun: Instant,
    answered: Instant,
    /// Whether the first try was answered.
    at_once: bool,
}

/// Makes one call of a submitter, at one manager after the other until it is accepted.
async fn submit(http: &reqwest::Client, urls: &[String], at: &mut usize, name: String, key: String) -> Accepted {
    let jobs: Vec<String> = (0..JOBS_PER_CALL).map(|number| format!("{name}-{number}")).collect();
    let line = |id: &String| {
        let priority = rand::random_range(0..5);
        json!({"id": id, "queue": "q", "kind": "k", "ordering_key": key, "priority": priority, "max_attempts": 100})
    };
    let lines: String = jobs.iter().map(|id| format!("{}\n", line(id))).collect();
    let begun = Instant::now();
    let mut at_once = true;
    // Bounded by the time that the test has.
    loop {
        let call = http.post(format!("{}/v1/jobs/bulk", urls[*at % urls.len()])).body(lines.clone());
        let sent = call.header("content-type", "application/x-ndjson").send().await;
        let answer = match sent {
            Ok(answer) => answer.json::<Value>().await.ok(),
            Err(_) => None,
        };
        let is_taken = |item: &Value| item["status"] == 201 || item["status"] == 200;
        let items = answer.as_ref().and_then(|answer| answer["items"].as_array());
        if items.is_some_and(|items| items.iter().all(is_taken)) {
            return Accepted { key, jobs, begun, answered: Instant::now(), at_once };
        }
        at_once = false;
        *at += 1;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn submitters(urls: &Arc<Vec<String>>) -> Vec<JoinHandle<Vec<Accepted>>> {
    let submitter = |number: usize| {
        let urls = Arc::clone(urls);
        async move {
            let http = reqwest::Client::builder().timeout(Duration::from_secs(4)).build().expect("a client");
            let (mut at, mut accepted) = (number, Vec::new());
            for call in 0..CALLS {
                let key = format!("key-{}", rand::random_range(0..KEYS));
                accepted.push(submit(&http, &urls, &mut at, format!("j-{number}-{call}"), key).await);
                tokio::time::sleep(PAUSE).await;
            }
            accepted
        }
    };
    (0..SUBMITTERS).map(|number| tokio::spawn(submitter(number))).collect()
}

/// When a job first ran, and when it ended for good.
#[derive(Clone, Copy, Debug)]
struct Course {
    began: i64,
    ended: i64,
}

impl Course {
    fn of(job: &Value) -> Self {
        assert_eq!((&job["state"], &job["history_folded"]), (&json!("completed"), &json!(0)), "{job}");
        let history = job["history"].as_array().expect("a history");
        let at = |entry: &Value| {
            entry["at"].as_str().expect("a time").parse::<chrono::DateTime<chrono::Utc>>().expect("a time")
        };
        let first = history.iter().find(|entry| entry["to"] == "running").expect("it ran");
        let last = history.last().expect("an end");
        Self { began: at(first).timestamp_millis(), ended: at(last).timestamp_millis() }
    }
}

/// Reads the histories of all jobs, and checks that of each key one ran after another, none before one that was
/// accepted before it was submitted.
async fn check(url: &str, accepted: Vec<Accepted>) {
    let answer = reqwest::get(format!("{url}/v1/jobs/export")).await.expect("an answer").text().await.expect("text");
    let mut courses: HashMap<String, Course> = HashMap::new();
    let mut lines: HashMap<String, Vec<(Course, String)>> = HashMap::new();
    for line in answer.lines() {
        let job: Value = serde_json::from_str(line).expect("a job");
        let (id, course) = (job["id"].as_str().expect("an id").to_owned(), Course::of(&job));
        courses.insert(id.clone(), course);
        lines.entry(job["ordering_key"].as_str().expect("a key").to_owned()).or_default().push((course, id));
    }
    assert_eq!(courses.len(), JOBS);
    for (key, mut ran) in lines {
        ran.sort_by_key(|(course, _)| (course.began, course.ended));
        for pair in ran.windows(2) {
            assert!(pair[0].0.ended <= pair[1].0.began, "{key}: {:?} ran beside {:?}", pair[0], pair[1]);
        }
    }
    let mut pairs = 0;
    let mut is_before = |one: &str, other: &str, why: &str| {
        pairs += 1;
        let (first, second) = (courses[one], courses[other]);
        assert!(first.ended <= second.began, "{one} {first:?} was overtaken by {other} {second:?}: {why}");
    };
    for call in &accepted {
        if call.at_once {
            call.jobs.windows(2).for_each(|pair| is_before(&pair[0], &pair[1], "both are of one call"));
        }
        for later in accepted.iter().filter(|later| later.key == call.key && later.begun >= call.answered) {
            let why = "it was accepted before the other was submitted";
            call.jobs.iter().for_each(|one| later.jobs.iter().for_each(|other| is_before(one, other, why)));
        }
    }
    println!("{pairs} pairs of jobs kept their order");
    assert!(pairs > JOBS, "{pairs}");
}

/// Submits and runs the jobs, while `disturb` does what it does.
async fn run(urls: Vec<String>, disturb: impl AsyncFnOnce()) -> Vec<Accepted> {
    let (urls, is_over) = (Arc::new(urls), Arc::new(AtomicBool::new(false)));
    let workers: Vec<_> =
        (0..WORKERS).map(|number| tokio::spawn(work(number, Arc::clone(&urls), Arc::clone(&is_over)))).collect();
    let submitting = submitters(&urls);
    disturb().await;
    let accepted =
        tokio::time::timeout(DONE_WITHIN, join_all(submitting)).await.expect("all jobs are accepted in time");
    // A worker does not hear of an end that it has told a server which was killed.
    let ended = tokio::time::timeout(DONE_WITHIN, all_have_ended(&urls, "queue: *", JOBS)).await;
    ended.expect("all jobs end in time");
    is_over.store(true, Ordering::Relaxed);
    let all = tokio::time::timeout(DONE_WITHIN, join_all(workers)).await.expect("all workers end in time");
    all.into_iter().for_each(|ended| ended.expect("a worker ends well"));
    accepted.into_iter().flat_map(|accepted| accepted.expect("a submitter ends well")).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of three managers on Elasticsearch"]
async fn no_order_is_changed_by_managers_that_are_killed_frozen_and_cut_off() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let (mut servers, proxy) = managers(place.path()).await;
    proxy.inject(true);
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let accepted = run(urls, async || disturb(&mut servers, [1_000, 2_000, 5_000]).await).await;
    check(&servers[0].url(), accepted).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn no_order_is_changed_by_members_that_are_killed_frozen_and_parted() {
    let _share = machine::with_others();
    let mut site = Site::members(&OPTIONS).await;
    let accepted = run(site.urls(), async || disturb_members(&mut site).await).await;
    check(&site.servers[0].url(), accepted).await;
    site.end_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_order_is_changed_by_a_server_that_is_killed() {
    let _share = machine::with_others();
    let place = TempDir::new().expect("a directory");
    let engine = Engine::Embedded(place.path().join("data"));
    let mut server = Server::start_as("serve", &OPTIONS, engine, &Path::join(place.path(), "server.log")).await;
    let accepted = run(vec![server.url()], async || {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            server.kill_and_restart().await;
        }
    })
    .await;
    check(&server.url(), accepted).await;
}
