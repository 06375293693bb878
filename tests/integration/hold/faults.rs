//! Elasticsearch behind a bad network, and with a node less.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use crate::load::Load;
use crate::machine;
use crate::program::{Engine, Server};
use crate::proxy::{Fault, FaultProxy, Faults};
use crate::seed;
use crate::servers::{self, Cluster};

const SUBMITTERS: usize = 3;
const WORKERS: usize = 4;
const JOBS_EACH: usize = 40;

/// One answer in so many is spoiled.
const ONE_IN: u32 = 10;

/// How long a delayed response is held back.
const DELAY: Duration = Duration::from_millis(700);

/// Enough that the submitters go on until they are told to stop.
const PLENTY: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of Elasticsearch"]
async fn promises_are_kept_when_responses_are_swallowed() {
    let _share = machine::with_others();
    promises_are_kept_behind(Fault::Swallow).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: answers that are cut short and connections that are reset run"]
async fn promises_are_kept_when_responses_are_delayed() {
    let _share = machine::with_others();
    promises_are_kept_behind(Fault::Delay(DELAY)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_when_connections_are_reset() {
    let _share = machine::with_others();
    promises_are_kept_behind(Fault::Reset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn promises_are_kept_when_answers_are_cut_short() {
    let _share = machine::with_others();
    promises_are_kept_behind(Fault::Cut).await;
}

async fn promises_are_kept_behind(fault: Fault) {
    let logs = TempDir::new().expect("a directory");
    let elasticsearch = servers::elasticsearch().await;
    let faults = Faults { one_in: ONE_IN, seed: seed::any(), kinds: vec![fault] };
    let proxy = FaultProxy::start(elasticsearch.url(), faults).await;
    let engine = Engine::Elasticsearch { urls: vec![proxy.url()], indices: Arc::new(elasticsearch.index_set().await) };
    let server = Server::start(engine, &logs.path().join("server.log")).await;
    proxy.inject(true);
    let load = Load::on(vec![server.url()]);
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, JOBS_EACH)).collect();
    load.complete_all(submitters, workers).await;
    // What was promised is looked at over a good network: the promises were made over the bad one.
    proxy.inject(false);
    load.check().await;
    assert_eq!(load.ledger.completions(), SUBMITTERS * JOBS_EACH);
    assert!(proxy.counts().spoiled() > 0, "some answers were spoiled");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: three nodes of Elasticsearch for it alone"]
async fn promises_are_kept_when_the_node_with_the_primary_is_killed() {
    let _share = machine::with_few_others();
    let logs = TempDir::new().expect("a directory");
    let cluster = Cluster::start(3).await;
    let indices = Arc::new(cluster.indices("cluster"));
    let engine = Engine::Elasticsearch { urls: cluster.urls(), indices: Arc::clone(&indices) };
    let server = Server::start(engine, &logs.path().join("server.log")).await;
    cluster.wait_until_green(0, 3).await;
    let load = Load::on(vec![server.url()]);
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
    let before = load.ledger.completions_beyond(100).await;
    let holder = cluster.holder_of_primary(0, &format!("{}jobs", indices.prefix())).await;
    cluster.kill(holder).await;
    load.ledger.completions_beyond(before + 100).await;
    load.stop_submitting();
    load.finish(submitters, workers).await;
}
