//! That the servers are what the tests take them for, and that they end.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::watchdog::{Folder, Watched};
use super::{Cluster, elasticsearch, elasticsearch_version, fresh_prefix, opensearch, opensearch_version};
use crate::program::is_alive;

async fn versions(url: &str) -> Vec<String> {
    let answer = reqwest::get(format!("{url}/_nodes?filter_path=nodes.*.version")).await.expect("an answer");
    let nodes: Value = answer.json().await.expect("JSON");
    let nodes = nodes["nodes"].as_object().expect("nodes").values();
    nodes.map(|node| node["version"].as_str().expect("a version").to_owned()).collect()
}

#[tokio::test]
async fn elasticsearch_answers_and_has_the_version_that_the_project_names() {
    let server = elasticsearch().await;
    let versions = versions(server.url()).await;
    if server.is_ours() {
        assert_eq!(versions, [elasticsearch_version()]);
    }
    assert_eq!(versions.len(), 1);
}

#[tokio::test]
async fn opensearch_answers_and_has_the_version_that_was_asked_for() {
    let server = opensearch().await;
    let versions = versions(server.url()).await;
    if server.is_ours() {
        assert_eq!(versions, [opensearch_version()]);
    }
    assert_eq!(versions.len(), 1);
}

#[tokio::test]
#[ignore = "every night: three nodes of Elasticsearch for it alone"]
async fn a_cluster_of_three_keeps_its_documents_when_the_node_with_the_primary_is_killed() {
    let mut cluster = Cluster::start(3).await;
    let http = reqwest::Client::new();
    let index = format!("{}docs", fresh_prefix("cluster"));
    let one_shard = json!({ "settings": { "number_of_shards": 1, "number_of_replicas": 1 } });
    let made = http.put(format!("{}/{index}", cluster.url(0))).json(&one_shard).send().await.expect("an answer");
    assert_eq!(made.status(), 200);
    cluster.wait_until_green(0, 3).await;
    let document = json!({ "kept": true });
    let written = http.put(format!("{}/{index}/_doc/1", cluster.url(0))).json(&document).send().await;
    assert_eq!(written.expect("an answer").status(), 201);

    let holder = cluster.holder_of_primary(0, &index).await;
    cluster.kill(holder).await;
    let gone = reqwest::get(cluster.url(holder)).await;
    assert!(gone.expect_err("nobody listens").is_connect());

    let survivor = (holder + 1) % 3;
    cluster.wait_until_writable(survivor, 2).await;
    assert_ne!(cluster.holder_of_primary(survivor, &index).await, holder);
    let read: Value = reqwest::get(format!("{}/{index}/_doc/1", cluster.url(survivor)))
        .await
        .expect("an answer")
        .json()
        .await
        .expect("JSON");
    assert_eq!(read["_source"], document);

    cluster.restart(holder).await;
    cluster.wait_until_green(survivor, 3).await;
    assert_eq!(cluster.urls().len(), 3);
}

/// A server that, as Elasticsearch's launcher does, starts a second process and waits for it. Both hold the folder's
/// name among their words, so that they can be told from all others.
fn launcher_and_server(folder: &Folder) -> Command {
    let script =
        format!("sleep 600 & echo $! > '{0}/server'; echo $$ > '{0}/launcher'; wait", folder.server().display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
}

fn read_pid(watched: &Watched, name: &str) -> String {
    let file = watched.folder().join("server").join(name);
    let text = eventually(|| std::fs::read_to_string(&file).ok().filter(|text| text.ends_with('\n')));
    text.trim().to_owned()
}

fn eventually<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < deadline, "not within 30 s");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_and_what_it_started_end_when_the_pipe_from_the_test_does() {
    let folder = Folder::create("self-test").expect("a folder");
    let command = launcher_and_server(&folder);
    let watched = Watched::start(folder, &command).expect("started");
    let pids = [read_pid(&watched, "launcher"), read_pid(&watched, "server")];
    assert!(pids.iter().all(|pid| is_alive(pid)));
    let path = watched.folder().to_owned();

    drop(watched);
    eventually(|| (!pids.iter().any(|pid| is_alive(pid))).then_some(()));
    assert!(!path.exists(), "{} is left behind", path.display());
}

#[test]
fn a_killed_server_starts_again_in_its_own_folder() {
    let folder = Folder::create("self-test").expect("a folder");
    let command = launcher_and_server(&folder);
    let mut watched = Watched::start(folder, &command).expect("started");
    let before = [read_pid(&watched, "launcher"), read_pid(&watched, "server")];
    watched.kill().expect("killed");
    eventually(|| (!before.iter().any(|pid| is_alive(pid))).then_some(()));
    assert_eq!(watched.exited(), None, "a killed server has not ended by itself");

    watched.start_again().expect("started again");
    let after = eventually(|| Some(read_pid(&watched, "launcher")).filter(|pid| *pid != before[0]));
    assert!(is_alive(&after));
}

#[test]
fn a_server_that_ends_by_itself_tells_its_status_and_its_last_words() {
    let folder = Folder::create("self-test").expect("a folder");
    let mut command = Command::new("sh");
    command.args(["-c", "echo 'no room'; exit 7"]);
    let watched = Watched::start(folder, &command).expect("started");
    assert_eq!(eventually(|| watched.exited().filter(|status| !status.is_empty())), "7");
    assert_eq!(watched.log_tail(), "no room");
}

#[test]
fn two_tests_never_share_an_index_prefix() {
    assert_ne!(fresh_prefix("same"), fresh_prefix("same"));
}
