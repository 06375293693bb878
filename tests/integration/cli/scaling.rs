//! `leasehold bench` over several managers, and its simulation of more.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::machine;
use crate::program::{Started, leasehold, run};
use crate::servers;

/// A dozen processes start, one after the other, on a machine that may do much else.
const LONG: Duration = Duration::from_secs(300);

fn rows(output: &str) -> Vec<Value> {
    output.lines().map(|line| serde_json::from_str(line).expect("a row")).collect()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of Elasticsearch"]
async fn managers_over_one_elasticsearch_and_the_textbook_protocol_do_every_job_once() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let url = servers::elasticsearch().await.url();
    let what =
        ["bench", "--scenario", "scaling", "--elasticsearch-url", url, "--managers", "1,2", "--naive", "--ceiling"];
    let load = ["--jobs", "300", "--batch", "20", "--workers", "4", "--rate", "20", "--duration", "1s"];
    let output = ["--json", "--output", "results"];
    let started = Started::of(&mut leasehold(place.path(), what.iter().chain(&load).chain(&output)));
    let ended = tokio::task::block_in_place(|| started.end_within(LONG)).expect(0);

    let rows = rows(&ended.stdout());
    let managers: Vec<Option<u64>> = rows.iter().map(|row| row["managers"].as_u64()).collect();
    assert_eq!(managers, [None, Some(1), Some(2), None, None]);
    let protocols: Vec<&Value> = rows.iter().map(|row| &row["protocol"]).collect();
    assert_eq!(protocols, ["ceiling", "leasehold", "leasehold", "textbook", "ceiling"]);
    for ceiling in [&rows[0], &rows[4]] {
        assert_eq!((&ceiling["completed"], &ceiling["lost"]), (&300.into(), &0.into()), "{ceiling}");
        assert!(ceiling["jobs_per_second"].as_f64() > Some(0.0), "{ceiling}");
    }
    for row in &rows[1..4] {
        assert_eq!((&row["lost"], &row["handed_out_twice"]), (&0.into(), &0.into()), "{row}");
        assert_eq!((&row["jobs"], &row["workers"]), (&300.into(), &4.into()), "{row}");
        let measured = ["jobs_per_second", "processor_us_per_job", "wait_p50_ms", "wait_p99_ms"];
        assert!(measured.iter().all(|name| row[name].as_f64() > Some(0.0)), "{row}");
        assert!(row["conflicts_per_claim"].as_f64() >= Some(0.0), "{row}");
    }
    // The textbook's time is limited, and what it did not come to is not lost.
    assert!(rows[1..3].iter().all(|row| row["completed"] == 300), "{rows:?}");

    let written = |name: &str| fs::read_to_string(place.path().join("results").join(name)).expect("written");
    assert_eq!(written("scaling.jsonl"), ended.stdout());
    assert!(written("scaling.svg").contains("<polyline"), "a plot");
    let how = written("scaling.txt");
    assert!(["--managers 1,2", "Elasticsearch ", "textbook"].iter().all(|words| how.contains(words)), "{how}");
    assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 1, "it left something beside its results");
}

#[tokio::test(flavor = "multi_thread")]
async fn whole_lives_are_measured_beside_the_writes_that_they_consist_of() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let url = servers::elasticsearch().await.url();
    let what = ["bench", "--scenario", "scaling", "--elasticsearch-url", url, "--managers", "2", "--ceiling"];
    let load = ["--whole-lives", "--jobs", "100", "--batch", "20", "--submit-batch", "50", "--workers", "2"];
    let started = Started::of(&mut leasehold(place.path(), what.iter().chain(&load).chain(&["--json"])));
    let ended = tokio::task::block_in_place(|| started.end_within(LONG)).expect(0);
    let rows = rows(&ended.stdout());
    let protocols: Vec<&Value> = rows.iter().map(|row| &row["protocol"]).collect();
    assert_eq!(protocols, ["ceiling", "leasehold", "ceiling"]);
    for row in &rows {
        let counts = ["completed", "lost", "handed_out_twice"].map(|name| row[name].as_u64());
        assert_eq!(counts, [Some(100), Some(0), Some(0)], "{row}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of Elasticsearch"]
async fn an_interrupted_bench_leaves_none_of_the_processes_that_it_started() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let (home, java) = servers::distribution().await;
    let what = ["bench", "--scenario", "scaling", "--jobs", "200000", "--elasticsearch-home"].map(Into::into);
    let mut bench = Started::of(leasehold(place.path(), what.into_iter().chain([home])).env("ES_JAVA_HOME", java));
    let (groups, nodes) = tokio::task::block_in_place(|| {
        let told = BufReader::new(bench.child().stderr.take().expect("a pipe"));
        let warming = told.lines().map(|line| line.expect("text")).find(|line| line.starts_with("warming up"));
        assert!(warming.is_some(), "it ended before");
        let id = bench.child().id();
        until("a manager has started", || children(id).len() == 2);
        let groups = children(id);
        let nodes: Vec<PathBuf> = groups.iter().filter_map(|group| node_directory(group)).collect();
        bench.signal(Signal::SIGINT);
        bench.end_within(LONG).expect(130);
        (groups, nodes)
    });
    assert_eq!(nodes.len(), 1, "one of the two is a node");
    until("all processes have ended", || groups.iter().all(|group| members(group) == 0));
    assert!(!nodes[0].exists(), "a node's files stay");
    assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 0, "a manager's files stay");
}

fn until(what: &str, holds: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + LONG;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The processes that a process has started, each the first of a group of its own.
fn children(id: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).expect("the process is there");
    children.split_whitespace().map(str::to_owned).collect()
}

/// How many processes of a group have not ended.
fn members(group: &str) -> usize {
    let stats = fs::read_dir("/proc").expect("a directory").flatten();
    let stats = stats.filter_map(|process| fs::read_to_string(process.path().join("stat")).ok());
    let of_group = |stat: &String| {
        // The state, the parent and the group follow the name.
        let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().take(3).collect();
        fields[0] != "Z" && fields[2] == group
    };
    stats.filter(of_group).count()
}

/// The directory of a node of Elasticsearch.
fn node_directory(process: &str) -> Option<PathBuf> {
    let environment = fs::read(format!("/proc/{process}/environ")).expect("one's own process");
    let environment = String::from_utf8_lossy(&environment).into_owned();
    let config = environment.split('\0').find_map(|setting| setting.strip_prefix("ES_PATH_CONF="))?;
    Path::new(config).parent().map(Path::to_owned)
}

#[test]
fn flags_that_do_not_fit_the_scenario_are_refused() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let refused = |arguments: &[&str], words: &[&str]| {
        let said = run(place.path(), ["bench"].iter().chain(arguments)).expect(2).stderr();
        assert!(words.iter().all(|word| said.contains(word)), "{arguments:?}: {said}");
    };
    let scaling = |more: &[&'static str], words: &[&str]| {
        refused(&[&["--scenario", "scaling"], more].concat(), words);
    };
    refused(&["--naive"], &["--naive", "--scenario lives"]);
    refused(&["--scenario", "latency", "--managers", "2"], &["--managers", "--scenario latency"]);
    refused(&["--scenario", "recovery", "--output", "x"], &["--output", "--scenario recovery"]);
    refused(&["--scenario", "model", "--naive"], &["--naive", "--scenario model"]);
    refused(&["--elasticsearch-home", "x"], &["--elasticsearch-home", "--scenario lives"]);
    scaling(&["--server", "http://127.0.0.1:9"], &["--server", "--scenario scaling"]);
    scaling(&["--store", "embedded"], &["--store elasticsearch"]);
    scaling(&["--data-dir", "x"], &["--data-dir", "elasticsearch"]);
    scaling(&["--elasticsearch-home", "x", "--elasticsearch-url", "http://127.0.0.1:9"], &["--elasticsearch-url"]);
    scaling(&["--nodes", "3"], &["--elasticsearch-home"]);
    scaling(&["--managers", "2,8", "--workers", "4"], &["--workers 4", "8 managers"]);
    scaling(&["--elasticsearch-home", "not-there"], &["not-there"]);
    assert_eq!(fs::read_dir(place.path()).expect("a directory").count(), 0, "something was begun");
    let port = servers::ports::free();
    let nobody = format!("http://127.0.0.1:{port}");
    let away = ["bench", "--scenario", "scaling", "--elasticsearch-url", &nobody];
    assert!(run(place.path(), away).expect(3).stderr().contains("cannot reach Elasticsearch"));
}

#[test]
fn the_simulation_shows_both_rules_and_follows_from_its_seed() {
    let _share = machine::with_others();
    let place = tempfile::tempdir().expect("a directory");
    let simulated = |seed: &str| {
        let what = ["bench", "--scenario", "model", "--managers", "4", "--jobs", "8000", "--json", "--seed", seed];
        run(place.path(), what).expect(0).stdout()
    };
    let first = simulated("1");
    assert_eq!(first, simulated("1"));
    assert_ne!(first, simulated("2"));
    let rows = rows(&first);
    let conflicts = |rule: &str| {
        let row = rows.iter().find(|row| row["rule"] == rule && row["shards"] == 1).expect("a row");
        row["conflicts_per_claim"].as_f64().expect("a number")
    };
    assert!(conflicts("own partitions first") < conflicts("the most urgent first"), "{rows:?}");
}
