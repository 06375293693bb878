//! The priorities of jobs under one limit, over two managers of one store.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::limits::times_of;
use super::sharing;
use crate::machine;
use crate::program::{Engine, Server};

/// How many jobs of no urgency wait, so that each manager holds more than it keeps, and in how many calls they come.
const BACKLOG: usize = 2_600;
const CALLS: usize = 4;

/// How many urgent jobs are submitted: so many that they take longer than it takes to learn of them.
const URGENT: usize = 24;

/// How many jobs run at once, and how many workers each manager has: some wait whichever manager has the slots.
const LIMIT: usize = 4;
const WORKERS: usize = 6;
const WORKS_FOR: Duration = Duration::from_millis(500);

/// How many jobs each manager is to have begun before.
const BEGUN: usize = 6;

/// When all urgent jobs must have begun.
const WITHIN: Duration = Duration::from_secs(60);

/// How long after the urgent jobs were acknowledged others may begin before them, where the managers tell each other
/// of jobs and where they do not. These are a second, and a second and the time of a refresh; the rest is for a machine
/// that does other things. Where priorities do not hold, it is more than a minute.
const TOLD: Duration = Duration::from_secs(9);
const NOT_TOLD: Duration = Duration::from_secs(10);

/// A start of a job.
struct Start {
    at: i64,
    is_urgent: bool,
    manager: usize,
}

#[derive(Default)]
struct Course {
    starts: Mutex<Vec<Start>>,
    is_over: AtomicBool,
}

impl Course {
    fn count(&self, wanted: impl Fn(&Start) -> bool) -> usize {
        self.starts.lock().iter().filter(|start| wanted(start)).count()
    }

    async fn until(&self, done: impl Fn(&Self) -> bool) {
        while !done(self) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn post(url: &str, path: &str, body: &Value) -> Option<Value> {
    let answer = reqwest::Client::new().post(format!("{url}{path}")).json(body).send().await.ok()?;
    if answer.status().is_success() { answer.json().await.ok() } else { None }
}

/// A worker of one manager.
async fn work(url: String, (manager, number): (usize, usize), labels: Value, course: Arc<Course>) {
    let name = format!("w{manager}-{number}");
    let claim = json!({"worker_id": name, "queues": ["q"], "wait_ms": 2_000, "labels": labels});
    while !course.is_over.load(Ordering::Relaxed) {
        let Some(answer) = post(&url, "/v1/claims", &claim).await else { continue };
        for job in answer["jobs"].as_array().expect("jobs") {
            let at = *times_of(job, "running").last().expect("it runs");
            course.starts.lock().push(Start { at, is_urgent: job["priority"] == 100, manager });
            tokio::time::sleep(WORKS_FOR).await;
            let (id, end) = (job["id"].as_str().expect("an id"), json!({"worker_id": name, "fence": job["fence"]}));
            post(&url, &format!("/v1/jobs/{id}/complete"), &end).await;
        }
    }
}

async fn submit(url: &str, job: &Value, count: usize) {
    let call = reqwest::Client::new().post(format!("{url}/v1/jobs/bulk"));
    let call = call.header("content-type", "application/x-ndjson").body(format!("{job}\n").repeat(count));
    let answer: Value = call.send().await.expect("an answer").json().await.expect("JSON");
    assert!(answer["items"].as_array().expect("items").iter().all(|item| item["status"] == 201), "{answer}");
}

/// Lets two managers work off a backlog under a limit, submits urgent jobs to the first one, and checks that from some
/// time after no other job begins before the last of them. Only workers of the first manager meet what they require.
async fn urgent_jobs_begin_first(options: &[&str], requires: &[&str], known_after: Duration) {
    let place = TempDir::new().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let mut servers = Vec::new();
    for number in 0..2 {
        let log = place.path().join(format!("server-{number}.log"));
        servers.push(Server::start_as("serve", options, engine.clone(), &log).await);
    }
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let limit = reqwest::Client::new().put(format!("{}/v1/limits/queue/q", urls[0]));
    let answer = limit.json(&json!({"max_concurrent": LIMIT})).send().await.expect("an answer");
    assert!(answer.status().is_success(), "{}", answer.status());
    let course = Arc::new(Course::default());
    let work = |manager: usize, number: usize| {
        let labels = if manager == 0 { json!({"site": "a"}) } else { json!({}) };
        tokio::spawn(work(urls[manager].clone(), (manager, number), labels, Arc::clone(&course)))
    };
    // Each manager has read of the other's workers before there are jobs.
    let workers: Vec<_> = (0..2 * WORKERS).map(|number| work(number % 2, number / 2)).collect();
    tokio::time::sleep(sharing::LEARNT).await;
    for _ in 0..CALLS {
        submit(&urls[0], &json!({"queue": "q", "kind": "k"}), BACKLOG / CALLS).await;
    }
    let both_work = |course: &Course| (0..2).all(|at| course.count(|start| start.manager == at) >= BEGUN);
    let begun = tokio::time::timeout(WITHIN, course.until(both_work)).await;
    let began_at = |at: usize| course.count(|start| start.manager == at);
    assert!(begun.is_ok(), "{} and {} jobs have begun", began_at(0), began_at(1));

    let urgent = json!({"queue": "q", "kind": "k", "priority": 100, "requires": requires});
    submit(&urls[0], &urgent, URGENT).await;
    let first_after = (chrono::Utc::now() + known_after).timestamp_millis();
    let all_begun = |course: &Course| course.count(|start| start.is_urgent) == URGENT;
    drop(tokio::time::timeout(WITHIN, course.until(all_begun)).await);
    let starts = course.starts.lock();
    let last_urgent = starts.iter().filter(|start| start.is_urgent).map(|start| start.at).max();
    let before: Vec<(i64, usize)> = starts
        .iter()
        .filter(|start| !start.is_urgent && start.at > first_after && Some(start.at) < last_urgent)
        .map(|start| (start.at - first_after, start.manager))
        .collect();
    drop(starts);
    assert!(all_begun(&course), "{} urgent jobs have begun", course.count(|start| start.is_urgent));
    assert_eq!(before, [], "so many milliseconds after they were to be known, at these managers");
    course.is_over.store(true, Ordering::Relaxed);
    workers.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_jobs_of_a_limit_begin_first_at_managers_that_do_not_know_each_others_addresses() {
    let _share = machine::with_others();
    urgent_jobs_begin_first(&sharing::OPTIONS[4..], &[], NOT_TOLD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_jobs_of_a_limit_begin_first_at_managers_that_tell_each_other() {
    let _share = machine::with_others();
    urgent_jobs_begin_first(&sharing::OPTIONS, &[], TOLD).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urgent_jobs_of_a_limit_have_its_slots_where_only_workers_of_one_manager_take_them() {
    let _share = machine::with_others();
    urgent_jobs_begin_first(&sharing::OPTIONS, &["site = a"], NOT_TOLD).await;
}
