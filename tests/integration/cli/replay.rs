//! `leasehold bench --scenario replay`: how long the jobs of a load wait under several orders.

use std::fs;

use serde_json::{Value, json};

use crate::program::run;

/// Three jobs of an owner that come first, and one of another.
const LOAD: &str = r#"
{"at_ms": 1000, "owner": "many", "queue": "q", "runtime_ms": 10000}
{"at_ms": 1000, "owner": "many", "queue": "q", "runtime_ms": 10000}
{"at_ms": 1000, "owner": "many", "queue": "q", "runtime_ms": 10000}
{"at_ms": 2000, "owner": "few", "queue": "q", "runtime_ms": 2000, "expected_runtime_ms": 2000}
{"at_ms": 2000, "queue": "other", "priority": -9, "runtime_ms": 1}
"#;

#[test]
fn a_load_is_replayed_under_each_order_and_always_waits_the_same() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("load.jsonl"), LOAD).expect("written");
    let orders = ["--order", "dispatch", "--order", "owner,shortest"];
    let what = ["bench", "--scenario", "replay", "--file", "load.jsonl", "--workers", "1", "--json"];
    let said = || run(place.path(), what.iter().chain(&orders)).expect(0).stdout();
    let first = said();
    assert_eq!(first, said(), "the same load waits the same");
    let rows: Vec<Value> = first.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let waits = |jobs: u64, waits: [u64; 3]| {
        let [p50, p95, most] = waits;
        json!({ "jobs": jobs, "wait_p50_ms": p50, "wait_p95_ms": p95, "wait_max_ms": most })
    };
    let of = |row: &Value, owner: Value| {
        let owners = row["owners"].as_array().expect("owners");
        owners.iter().find(|found| found["owner"] == owner).expect("an owner")["waits"].clone()
    };
    let names: Vec<&Value> = rows.iter().map(|row| &row["order"]).collect();
    assert_eq!(names, ["dispatch", "owner", "shortest"]);
    assert_eq!(of(&rows[0], json!("few")), waits(1, [29_000, 29_000, 29_000]));
    assert_eq!(of(&rows[0], json!("many")), waits(3, [10_000, 20_000, 20_000]));
    assert_eq!(of(&rows[0], Value::Null), waits(1, [31_000, 31_000, 31_000]));
    assert_eq!(rows[0]["all"], waits(5, [20_000, 31_000, 31_000]));
    assert_eq!(of(&rows[1], json!("few")), waits(1, [9_000, 9_000, 9_000]));
    assert_eq!(
        of(&rows[2], json!("few")),
        waits(1, [9_000, 9_000, 9_000]),
        "a job that says nothing counts as a minute"
    );
}

#[test]
fn an_invented_load_shows_that_who_has_few_jobs_waits_less_where_owners_take_turns() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["bench", "--scenario", "replay", "--json"]).expect(0).stdout();
    let rows: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    let of_reports = |row: &Value| {
        let owners = row["owners"].as_array().expect("owners");
        let reports = owners.iter().find(|found| found["owner"] == "reports").expect("an owner");
        reports["waits"]["wait_p95_ms"].as_u64().expect("a wait")
    };
    assert_eq!(rows.len(), 2);
    assert!(10 * of_reports(&rows[1]) < of_reports(&rows[0]), "{rows:?}");
    let table = run(place.path(), ["bench", "--scenario", "replay"]).expect(0).stdout();
    assert!(["reports", "bulk", "models", "wait p50 (s)"].iter().all(|word| table.contains(word)), "{table}");
}

#[test]
fn a_load_that_is_none_and_flags_without_a_meaning_are_refused() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("wrong.jsonl"), "{\"at_ms\": 0, \"runtime_ms\": 1}\n{}\n").expect("written");
    fs::write(place.path().join("none.jsonl"), "{\"run_at\": \"2030-01-01T00:00:00Z\"}\n").expect("written");
    let replay = |more: &[&'static str]| run(place.path(), ["bench", "--scenario", "replay"].iter().chain(more));
    let said = replay(&["--file", "wrong.jsonl"]).expect(2).stderr();
    assert!(said.contains("line 2"), "{said}");
    replay(&["--file", "not-there.jsonl"]).expect(2);
    replay(&["--file", "none.jsonl"]).expect(1);
    replay(&["--order", "longest"]).expect(2);
    replay(&["--weight", "a=0"]).expect(2);
    let said = run(place.path(), ["bench", "--order", "owner"]).expect(2).stderr();
    assert!(said.contains("--order") && said.contains("--scenario lives"), "{said}");
}
