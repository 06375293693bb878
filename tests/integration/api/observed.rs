//! What a server tells of itself: metrics and health, and what the alerts and dashboards of `deploy/` make of them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::api::metrics::{METRICS, Sort};
use leasehold::client::{Client, JobQuery};
use leasehold::wire::{
    BulkChange, BulkFilter, CompleteJob, FailJob, HealthStatus, HeartbeatJob, Job, JobError, ReleaseJob, ServerHealth,
    SubmitJob,
};
use serde_norway::Value;

use super::members::{NOWHERE, pair};
use super::server::{Server, Setup, WORKER, claim};
use crate::engines::{self, Engine};
use crate::program;

const RULES: &str = include_str!("../../../deploy/prometheus/leasehold.rules.yml");
const SCRAPE: &str = include_str!("../../../deploy/prometheus/prometheus.yml");
const DASHBOARD: &str = include_str!("../../../deploy/grafana/leasehold.json");
const OPERATING: &str = include_str!("../../../docs/operating.md");

/// Submits a job and claims it.
async fn running(client: &Client, queue: &str) -> Job {
    client.submit(&SubmitJob::new(queue, "k")).await.expect("submitted");
    client.claim(&claim(queue)).await.expect("an answer").jobs.remove(0)
}

/// A few jobs that end in different ways, some of it refused.
async fn short_life(client: &Client) {
    let worker_id = WORKER.to_owned();
    let done = running(client, "q").await;
    let beat = HeartbeatJob { worker_id: worker_id.clone(), fence: done.fence, progress: None };
    client.heartbeat(&done.id, &beat).await.expect("heard");
    let complete = CompleteJob { worker_id: worker_id.clone(), fence: done.fence, result: None, next: None };
    client.complete(&done.id, &complete).await.expect("completed");
    let failed = running(client, "q").await;
    let error = JobError { code: "exit".to_owned(), message: "status 1".to_owned() };
    let failure = |fence| FailJob {
        worker_id: worker_id.clone(),
        fence,
        error: error.clone(),
        retryable: None,
        retry_after_ms: Some(60_000),
        next: None,
    };
    assert!(client.fail(&failed.id, &failure(9)).await.is_err(), "under a fence that it never had");
    client.fail(&failed.id, &failure(failed.fence)).await.expect("failed");
    let returned = running(client, "r").await;
    let release = ReleaseJob { worker_id: worker_id.clone(), fence: returned.fence, reason: None, delay_ms: None };
    client.release(&returned.id, &release).await.expect("released");
    let waiting = SubmitJob {
        payload: Some(super::server::json(&format!("\"{}\"", "x".repeat(9_000)))),
        ..SubmitJob::new("q", "k")
    };
    client.submit(&waiting).await.expect("submitted");
    client.jobs(&JobQuery::default()).await.expect("a list");
    let order = BulkChange {
        filter: BulkFilter { all: true, ..BulkFilter::default() },
        reason: Some("over".to_owned()),
        dry_run: false,
        ..BulkChange::default()
    };
    client.cancel_many(&order).await.expect("cancelled");
}

/// What `/metrics` gives once the jobs have been counted, and a member of a group in this process was asked as well.
async fn metrics(server: &Server) -> String {
    let [member, _other] = pair(NOWHERE).await;
    member.client().metrics().await.expect("the metrics of a member");
    let deadline = std::time::Instant::now() + super::server::SOON;
    loop {
        let text = server.client().metrics().await.expect("metrics");
        if text.contains("leasehold_jobs{") && text.contains("leasehold_queue_oldest_waiting_seconds{") {
            return text;
        }
        assert!(std::time::Instant::now() < deadline, "the jobs were not counted in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The metrics in a text, each with its type.
fn types(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    lines.filter_map(|line| line.split_once(' ')).filter(|(name, _)| name.starts_with("leasehold_")).collect()
}

async fn every_metric_is_in_the_table_and_there_after_a_short_life(engine: Box<dyn Engine>) {
    let server = Server::start_with(Setup { store: Some(engine.store()), ..Setup::default() }).await;
    short_life(&server.client()).await;
    let text = metrics(&server).await;
    let told = types(&text);
    for metric in METRICS {
        let expected = match metric.sort {
            Sort::Counter => "counter",
            Sort::Gauge => "gauge",
            Sort::Histogram(_) => "histogram",
        };
        assert_eq!(told.get(metric.name), Some(&expected), "{}", metric.name);
        let help = format!("# HELP {} {}\n", metric.name, metric.help);
        assert!(text.contains(&help), "{} is not described", metric.name);
        let is_counter = metric.sort == Sort::Counter;
        assert_eq!(metric.name.ends_with("_total"), is_counter, "only counters are totals: {}", metric.name);
    }
    let listed: BTreeSet<&str> = METRICS.iter().map(|metric| metric.name).collect();
    assert_eq!(listed.len(), METRICS.len(), "a metric is listed twice");
    let unlisted: Vec<&str> = told.keys().filter(|name| !listed.contains(*name)).copied().collect();
    assert!(unlisted.is_empty(), "not in the table: {unlisted:?}");
    for series in [
        r#"leasehold_jobs{queue="q",state="completed"} "#,
        r#"leasehold_store_operations_total{operation="write",outcome="ok"} "#,
        r#"leasehold_mismatches_total{reason="fence"} "#,
        r#"leasehold_run_seconds_count{state="completed"} "#,
        r#"leasehold_transitions_total{event="retried"} "#,
        r#"leasehold_bulk_changes_total{action="cancel",outcome="changed"} "#,
    ] {
        assert!(text.contains(series), "no {series} in\n{text}");
    }
}

/// In a process of its own, where nothing else is counted.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_life_moves_the_counters_that_tell_of_it_by_as_much_as_happened() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = program::Engine::Embedded(place.path().join("data"));
    let server = program::Server::start(engine, &place.path().join("log")).await;
    short_life(&Client::new(&server.url(), None).expect("a client")).await;
    for (series, happened) in [
        ("leasehold_submissions_total ", 4.0),
        ("leasehold_claims_total ", 3.0),
        ("leasehold_heartbeats_total ", 1.0),
        ("leasehold_leases_lost_total ", 1.0),
        (r#"leasehold_mismatches_total{reason="fence"}"#, 1.0),
        (r#"leasehold_attempts_ended_total{state="completed"}"#, 1.0),
        (r#"leasehold_attempts_ended_total{state="available"}"#, 2.0),
        ("leasehold_retries_total ", 1.0),
        (r#"leasehold_transitions_total{event="completed"}"#, 1.0),
        (r#"leasehold_transitions_total{event="retried"}"#, 1.0),
        (r#"leasehold_transitions_total{event="returned"}"#, 1.0),
        (r#"leasehold_transitions_total{event="cancelled"}"#, 3.0),
        (r#"leasehold_bulk_changes_total{action="cancel",outcome="changed"}"#, 3.0),
        ("leasehold_claim_drift_seconds_count ", 3.0),
        (r#"leasehold_run_seconds_count{state="completed"}"#, 1.0),
        (r#"leasehold_run_seconds_count{state="available"}"#, 2.0),
    ] {
        assert!((server.counter(series).await - happened).abs() < 0.5, "{series} is {}", server.counter(series).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn embedded_every_metric_is_in_the_table_and_there_after_a_short_life() {
    every_metric_is_in_the_table_and_there_after_a_short_life(engines::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elasticsearch_every_metric_is_in_the_table_and_there_after_a_short_life() {
    every_metric_is_in_the_table_and_there_after_a_short_life(engines::elasticsearch().await).await;
}

/// The names in a query that could be metrics of ours, as they stand in a text's `TYPE` lines.
fn metrics_in(query: &str) -> BTreeSet<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'));
    let ours = words.filter(|word| word.starts_with("leasehold_"));
    let is_histogram =
        |name: &str| METRICS.iter().any(|metric| metric.name == name && matches!(metric.sort, Sort::Histogram(_)));
    ours.map(|word| {
        let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| word.strip_suffix(end));
        of_histogram.filter(|name| is_histogram(name)).unwrap_or(word).to_owned()
    })
    .collect()
}

/// Every alert of the rules: its name and the rule.
fn alerts() -> Vec<(String, Value)> {
    let rules: Value = serde_norway::from_str(RULES).expect("the rules are YAML");
    let groups = rules["groups"].as_sequence().expect("groups");
    let rules = groups.iter().flat_map(|group| group["rules"].as_sequence().expect("rules"));
    rules.map(|rule| (rule["alert"].as_str().expect("an alert").to_owned(), rule.clone())).collect()
}

/// Every query of the dashboard, with the title of its panel.
fn queries() -> Vec<(String, String)> {
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("the dashboard is JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let of = |panel: &serde_json::Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().expect("targets").clone();
        targets.into_iter().map(move |target| (title.clone(), target["expr"].as_str().expect("a query").to_owned()))
    };
    panels.iter().flat_map(of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_that_an_alert_or_a_panel_asks_for_is_there() {
    let server = Server::start().await;
    short_life(&server.client()).await;
    let text = metrics(&server).await;
    let told = types(&text);
    let alerts = alerts().into_iter().map(|(name, rule)| (name, rule["expr"].as_str().expect("a query").to_owned()));
    let mut asked = 0;
    for (place, query) in alerts.chain(queries()) {
        let balanced = |open, close| query.matches(open).count() == query.matches(close).count();
        assert!(balanced('(', ')') && balanced('[', ']') && balanced('{', '}'), "{place}: {query}");
        let names = metrics_in(&query);
        assert!(!names.is_empty() || query.contains("up{"), "{place} asks for nothing of ours: {query}");
        for name in names {
            assert!(told.contains_key(name.as_str()), "{place} asks for `{name}`, which there is not");
            asked += 1;
        }
    }
    assert!(asked > 40, "{asked}");
}

#[test]
fn every_alert_says_what_it_is_about_and_what_to_do() {
    let alerts = alerts();
    let names: BTreeSet<&str> = alerts.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.len(), alerts.len(), "two alerts of one name");
    for (name, rule) in &alerts {
        for annotation in ["summary", "description"] {
            assert!(rule["annotations"][annotation].as_str().is_some_and(|text| !text.is_empty()), "{name}");
        }
        assert!(matches!(rule["labels"]["severity"].as_str(), Some("warning" | "critical")), "{name}");
        let runbook = format!("docs/operating.md#{}", name.to_lowercase());
        assert_eq!(rule["annotations"]["runbook"].as_str(), Some(runbook.as_str()));
        assert!(OPERATING.contains(&format!("\n### {name}\n")), "docs/operating.md does not tell of {name}");
    }
    let scrape: Value = serde_norway::from_str(SCRAPE).expect("the sample is YAML");
    assert_eq!(scrape["rule_files"][0].as_str(), Some("leasehold.rules.yml"));
    assert_eq!(scrape["scrape_configs"][0]["job_name"].as_str(), Some("leasehold"), "as the rules name it");
}

#[test]
fn promtool_accepts_the_rules() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/prometheus");
    for arguments in [["check", "rules", "leasehold.rules.yml"], ["check", "config", "prometheus.yml"]] {
        let checked = match Command::new("promtool").args(arguments).current_dir(&folder).output() {
            Ok(checked) => checked,
            // `.ci/run` installs it. The other tests need nothing but what the README names, and neither does this one.
            Err(missing) if std::env::var_os("CI").is_none() => {
                return eprintln!("the rules were not checked: promtool, which comes with Prometheus: {missing}");
            }
            Err(missing) => panic!("promtool: {missing}"),
        };
        let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
        assert!(checked.status.success(), "{said}");
    }
}

#[tokio::test]
async fn a_queue_shows_how_many_workers_it_has() {
    let server = Server::start().await;
    server.running("busy").await;
    let deadline = std::time::Instant::now() + super::server::SOON;
    // The metrics of queues begin with the first count of the jobs.
    loop {
        let text = server.client().metrics().await.expect("metrics");
        let series: Vec<&str> = text.lines().filter(|line| line.starts_with("leasehold_queue_workers{")).collect();
        if series == [r#"leasehold_queue_workers{queue="busy"} 1"#] {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{series:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn health(server: &Server) -> ServerHealth {
    server.client().health().await.expect("its health")
}

#[tokio::test]
async fn health_tells_how_jobs_fared_lately_and_of_what_kind_they_were() {
    let server = Server::start().await;
    let idle = health(&server).await;
    assert_eq!((idle.status, idle.performance.run_time.count), (HealthStatus::Ok, 0));
    assert_eq!(idle.configuration["store"], "embedded");
    short_life(&server.client()).await;
    let busy = health(&server).await;
    let performance = &busy.performance;
    assert_eq!((performance.claim_wait.count, performance.drift.count, performance.run_time.count), (3, 3, 3));
    assert!(performance.submitted_per_second > 0.0 && performance.mismatches_per_second > 0.0);
    let [kind] = busy.workload.as_slice() else { panic!("{:?}", busy.workload) };
    assert_eq!(kind.kind.as_deref(), Some("k"));
    assert_eq!((kind.submitted, kind.claimed, kind.completed, kind.failed), (4, 3, 1, 1));
    assert_eq!((busy.capacity.workers_seen, busy.capacity.waiting_claims), (1, 0));
    assert!(busy.capacity.places_needed.is_some());
}

#[tokio::test]
async fn a_queue_that_is_gone_has_no_series() {
    let server = Server::start().await;
    let client = server.client();
    let job = client.submit(&SubmitJob::new("a \"queue\"", "k")).await.expect("submitted");
    let counted = async |is_there: bool| {
        let deadline = std::time::Instant::now() + super::server::SOON;
        loop {
            let text = client.metrics().await.expect("metrics");
            let of_queue: Vec<&str> = text.lines().filter(|line| line.contains(r#"queue="a \"queue\"""#)).collect();
            if of_queue.is_empty() != is_there {
                return of_queue.len();
            }
            assert!(std::time::Instant::now() < deadline, "still there: {of_queue:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert_eq!(counted(true).await, 7, "six states, and the wait");
    let job = server.manager.get(&job.id.parse().expect("an id")).await.expect("the job").versioned;
    assert!(server.manager.remove(&[job]).await.into_iter().all(|removed| removed.expect("removed")));
    counted(false).await;
}

#[tokio::test]
async fn health_never_asks_the_store() {
    let server = Server::start().await;
    server.running("q").await;
    // Jobs may have been counted before this one was claimed.
    let deadline = std::time::Instant::now() + super::server::SOON;
    while health(&server).await.capacity.running_jobs != Some(1) {
        assert!(std::time::Instant::now() < deadline, "the job was not counted as running in time");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.manager.shutdown().await;
    assert!(server.client().ready().await.is_err(), "the store is closed");
    let told = health(&server).await;
    assert_eq!(told.capacity.running_jobs, Some(1), "as last counted");
}
