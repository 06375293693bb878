//! Everything at once, for as long as it is told: servers are killed, stopped and frozen, the network to their store lies
//! and goes away, nodes of the store are killed, and workers are late, fail, and give jobs back. Every promise is kept.
//!
//! It is short among the tests. `.ci/nightly` lets it go on, and gives it a cluster whose nodes can be killed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::load::Load;
use crate::machine;
use crate::program::{DEADLINE, Server};
use crate::seed;
use crate::servers::{self, Cluster};

use super::site::{ONE_CLOCK, Site, Trouble};

/// For how long, in seconds.
const SECONDS: &str = "LEASEHOLD_CHAOS_SECONDS";
/// Set where the store has nodes of its own, which can be killed.
const NODES: &str = "LEASEHOLD_CHAOS_NODES";
const SHORT: Duration = Duration::from_secs(5);

const SUBMITTERS: usize = 3;
const WORKERS: usize = 8;
/// A submitter's pause after each job, so that there are no more jobs than can be looked at one by one afterwards.
const PAUSE: Duration = Duration::from_millis(20);
/// Submitters wait while so many jobs are left, so that the workers complete them in time in the end.
const BACKLOG: usize = 1_000;
/// Shorter than a worker may be late.
const LEASE_MS: u64 = 1_000;
const LATE_MS: std::ops::Range<u64> = 0..2_000;
/// The time between two troubles, and how long those last that end by themselves.
const QUIET_MS: std::ops::Range<u64> = 50..1_000;
const TROUBLE_MS: std::ops::Range<u64> = 300..2_000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: the same runs for three members and on Elasticsearch"]
async fn promises_are_kept_on_the_embedded_store_whatever_happens() {
    let _share = machine::with_others();
    let seed = seed::any();
    let site = Site::embedded(&ONE_CLOCK).await;
    keeps_promises(site, seed, &[Trouble::Kill, Trouble::Stop, Trouble::Freeze]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_by_three_members_whatever_happens() {
    let _share = machine::with_others();
    let seed = seed::any();
    let troubles = [Trouble::Kill, Trouble::Stop, Trouble::Freeze, Trouble::Partition];
    keeps_promises(Site::members(&ONE_CLOCK).await, seed, &troubles).await.end_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_by_three_managers_on_elasticsearch_whatever_happens() {
    let _share = machine::with_others();
    let seed = seed::any();
    let cluster = if std::env::var_os(NODES).is_some() { Some(Cluster::start(3).await) } else { None };
    let mut troubles = vec![Trouble::Kill, Trouble::Stop, Trouble::Freeze, Trouble::Outage];
    troubles.extend(cluster.is_some().then_some(Trouble::NodeKilled));
    let indices = Arc::new(match &cluster {
        Some(cluster) => cluster.indices("chaos"),
        None => servers::elasticsearch().await.index_set().await,
    });
    let site = Site::before_elasticsearch(seed, cluster).await.with_managers(&indices, &ONE_CLOCK).await;
    keeps_promises(site, seed, &troubles).await;
}

/// Makes one trouble after the other under load, and looks whether every promise was kept.
async fn keeps_promises(mut site: Site, seed: u64, troubles: &[Trouble]) -> Site {
    let mut random = StdRng::seed_from_u64(seed);
    let seconds = std::env::var(SECONDS).map(|text| Duration::from_secs(text.parse().expect("seconds")));
    let until = Instant::now() + seconds.unwrap_or(SHORT);
    let load = Load::on(site.servers.iter().map(Server::url).collect()).with_short_leases();
    let submitters = (0..SUBMITTERS).map(|name| submitter(&load, name)).collect();
    let workers = (0..WORKERS).map(|name| careless_worker(&load, name, random.random())).collect();
    site.lie(true);
    let mut made = Vec::new();
    while Instant::now() < until || troubles.iter().any(|trouble| !made.contains(trouble)) {
        tokio::time::sleep(Duration::from_millis(random.random_range(QUIET_MS))).await;
        let missing = troubles.iter().find(|trouble| !made.contains(trouble));
        let next = if Instant::now() < until { troubles.choose(&mut random) } else { missing };
        let Some(trouble) = next.copied() else { break };
        let lasts = Duration::from_millis(random.random_range(TROUBLE_MS));
        site.make(trouble, random.random_range(0..usize::MAX), lasts).await;
        made.push(trouble);
    }
    // What was promised is looked at over a good network: the promises were made over the bad one.
    site.lie(false);
    load.stop_submitting();
    load.finish(submitters, workers).await;
    let deadline = Instant::now() + DEADLINE;
    // A count is of what searches see, which may be as of a moment ago.
    while count(&site.servers[0]).await < Some(load.ledger.submissions()) {
        assert!(Instant::now() < deadline, "not every job is there");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(count(&site.servers[0]).await, Some(load.ledger.submissions()), "every job is there once");
    let often = |trouble: &Trouble| (*trouble, made.iter().filter(|made| *made == trouble).count());
    let made: Vec<(Trouble, usize)> = troubles.iter().map(often).collect();
    println!("{} jobs, {} refused completions, {made:?}", load.ledger.completions(), load.ledger.refusals());
    site
}

/// The number of jobs, as the server counts them; `None` when it cannot count them now.
async fn count(server: &Server) -> Option<usize> {
    let answer = reqwest::get(format!("{}/v1/jobs/count", server.url())).await.expect("the server answers");
    let answer: Value = answer.json().await.expect("JSON");
    answer["total"].as_u64().and_then(|total| usize::try_from(total).ok())
}

fn submitter(load: &Load, name: usize) -> JoinHandle<()> {
    let load = load.clone();
    tokio::spawn(async move {
        for number in 0.. {
            if load.ledger.is_stopping() {
                return;
            }
            let id = format!("job-{name}-{number}");
            let body = json!({
                "id": id, "queue": "load", "kind": "noop", "max_attempts": 1_000, "orphan_policy": "requeue",
                "retry": {"base_ms": 10, "max_ms": 500},
            });
            let (status, answer) = load.call(name, "/v1/jobs", |_| body.clone()).await;
            assert!(status.is_success(), "submitting {id}: {status} {answer}");
            load.ledger.submitted(&id);
            tokio::time::sleep(PAUSE).await;
            while load.ledger.is_behind(BACKLOG) && !load.ledger.is_stopping() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    })
}

/// A worker that may be late, fail, or give a job back before it completes it.
fn careless_worker(load: &Load, name: usize, seed: u64) -> JoinHandle<()> {
    let load = load.clone();
    tokio::spawn(async move {
        let mut random = StdRng::seed_from_u64(seed);
        let worker = format!("worker-{name}");
        let mut calls = 0;
        while !load.ledger.is_done() {
            calls += 1;
            let request_id = format!("{worker}-{calls}");
            for job in &load.claim(name, &worker, &request_id, 3, LEASE_MS).await {
                let (id, fence) = (job["id"].as_str().expect("an id"), job["fence"].as_u64().expect("a fence"));
                load.ledger.claimed(id, fence, &request_id);
                let mut held = json!({"worker_id": worker, "fence": fence});
                match random.random_range(0..20) {
                    0 => tokio::time::sleep(Duration::from_millis(random.random_range(LATE_MS))).await,
                    1 | 2 => drop(load.call(name, &format!("/v1/jobs/{id}/heartbeat"), |_| held.clone()).await),
                    3 => {
                        held["error"] = json!({"code": "careless", "message": "on purpose"});
                        load.ends(name, &format!("/v1/jobs/{id}/fail"), &held).await;
                        continue;
                    }
                    4 => {
                        held["delay_ms"] = json!(random.random_range(0..300));
                        load.ends(name, &format!("/v1/jobs/{id}/release"), &held).await;
                        continue;
                    }
                    _ => {}
                }
                load.complete(name, &worker, &request_id, job).await;
            }
        }
    })
}

impl Load {
    /// Ends an attempt otherwise than with a completion.
    async fn ends(&self, name: usize, path: &str, body: &Value) {
        let (status, answer) = self.call(name, path, |_| body.clone()).await;
        let is_lost = status == StatusCode::CONFLICT && answer["code"] == "lease_lost";
        assert!(status.is_success() || is_lost, "{path}: {status} {answer}");
    }
}
