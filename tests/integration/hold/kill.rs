//! `kill -9` of the server at random moments under load.

use std::time::Duration;

use tempfile::TempDir;

use crate::load::Load;
use crate::program::{Engine, Server};
use crate::servers;

const KILLS: usize = 20;
const SUBMITTERS: usize = 4;
const WORKERS: usize = 6;

/// A server lives this long at least and at most before it is killed.
const LIFE_MS: std::ops::Range<u64> = 50..600;

/// Enough that the submitters never run out before the last kill.
const PLENTY: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_keeps_every_promise_over_twenty_kills() {
    let directory = TempDir::new().expect("a directory");
    let engine = Engine::Embedded(directory.path().join("data"));
    promises_are_kept_over_kills(engine, &directory).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_on_elasticsearch_keeps_every_promise_over_twenty_kills() {
    let directory = TempDir::new().expect("a directory");
    let elasticsearch = servers::elasticsearch().await;
    let engine =
        Engine::Elasticsearch { urls: vec![elasticsearch.url().to_owned()], prefix: servers::fresh_prefix("kill") };
    promises_are_kept_over_kills(engine, &directory).await;
}

async fn promises_are_kept_over_kills(engine: Engine, directory: &TempDir) {
    let mut server = Server::start(engine, &directory.path().join("server.log")).await;
    let load = Load::on(vec![server.url()]);
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
    for _ in 0..KILLS {
        let life = Duration::from_millis(rand::random_range(LIFE_MS));
        // Not a wait for something: the kill's moment is what is left to chance.
        tokio::time::sleep(life).await;
        server.kill_and_restart().await;
    }
    load.stop_submitting();
    load.finish(submitters, workers).await;
    assert!(load.ledger.completions() > KILLS, "the load went on between the kills");
}
