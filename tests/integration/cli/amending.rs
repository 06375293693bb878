//! Jobs that are held, edited, made due, deleted and run again, on the command line.

use super::Bed;
use crate::program::until;

#[test]
fn a_held_job_waits_until_it_is_let_go() {
    let bed = Bed::start();
    let id = bed.submit(&[], "true");
    bed.run(&["hold", &id, "--reason", "wrong month"]).expect(0);
    let _worker = bed.worker(&[]);
    let other = bed.submit(&[], "true");
    bed.run(&["wait", &other]).expect(0);
    assert_eq!(bed.job(&id)["state"], "available", "a later job went ahead");
    let said = bed.run(&["explain", &id]).expect(0).stdout();
    assert!(said.contains("held") && said.contains("wrong month"), "{said}");
    let listed = bed.run(&["list", "held: true", "--json"]).json(0);
    assert_eq!(listed["id"], id.as_str());
    bed.run(&["unhold", &id]).expect(0);
    bed.run(&["wait", &id]).expect(0);
    bed.run(&["hold", &id]).expect(1);
}

#[test]
fn an_edited_job_has_its_new_values_and_is_still_the_one_that_was_submitted() {
    let bed = Bed::start();
    let submit = || bed.submit(&["--id", "report-7", "--label", "month=2030-01"], "true");
    submit();
    bed.run(&["edit", "report-7", "--priority", "7", "--label", "month=2030-02", "--timeout", "10m"]).expect(0);
    let job = bed.job("report-7");
    assert_eq!((&job["priority"], &job["labels"]["month"]), (&7.into(), &"2030-02".into()));
    assert_eq!(job["timeout_ms"], 600_000);
    assert_eq!(submit(), "report-7", "the submission is recognised");
    bed.run(&["edit", "report-7", "--remove-label", "month", "--run-at", "tomorrow 02:00"]).expect(0);
    assert!(bed.job("report-7")["labels"].get("month").is_none());
    bed.run(&["edit", "report-7", "--priority", "1000"]).expect(2);
    bed.run(&["edit", "report-7"]).expect(2);
}

#[test]
fn a_job_that_is_due_later_is_run_now_and_an_ended_one_again() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&["--in", "1h"], "echo once more");
    assert!(bed.run(&["list"]).expect(0).stdout().contains("scheduled"));
    bed.run(&["run-now", &id]).expect(0);
    bed.run(&["wait", &id]).expect(0);
    let again = bed.run(&["rerun", &id, "--json"]).json(0)["id"].as_str().expect("an id").to_owned();
    assert_ne!(again, id);
    bed.run(&["wait", &again]).expect(0);
    assert_eq!(bed.job(&again)["rerun_of"], id.as_str());
    assert_eq!(bed.run(&["logs", &again]).expect(0).stdout(), "once more\n");
}

#[test]
fn a_deleted_job_is_gone_and_a_running_one_is_not_deleted() {
    let bed = Bed::start();
    let waiting = bed.submit(&["--id", "waiting", "--in", "1h"], "true");
    bed.run(&["delete", &waiting, "--reason", "a test"]).expect(0);
    assert!(bed.run(&["get", &waiting]).expect(1).stderr().contains("waiting"));
    let _worker = bed.worker(&[]);
    let running = bed.submit(&["--id", "runs"], "sleep 600");
    until("the job runs", || bed.job(&running)["state"] == "running");
    let said = bed.run(&["delete", &running]).expect(1).stderr();
    assert!(said.contains("still_running") || said.contains("running"), "{said}");
    bed.run(&["cancel", &running]).expect(0);
    until("the job has ended", || bed.job(&running)["state"] == "cancelled");
    bed.run(&["delete", &running]).expect(0);
    bed.run(&["get", &running]).expect(1);
}

#[test]
fn what_a_query_finds_is_changed_after_a_look_at_it() {
    let bed = Bed::start();
    for number in 0..3 {
        bed.submit(&["--label", "month=2030-01", "--id", &format!("a-{number}")], "true");
    }
    bed.submit(&["--id", "another"], "true");
    let query = ["--query", "labels.month: 2030-01", "--reason", "wrong month"];
    let change = |verb: &str, more: &[&str]| bed.run(&[&[verb], &query[..], more].concat());
    assert!(change("hold", &["--dry-run"]).expect(0).said().contains('3'));
    assert_eq!(bed.job("a-0")["hold"], serde_json::Value::Null, "a look changes nothing");
    change("hold", &["--yes"]).expect(0);
    assert_eq!(bed.run(&["list", "held: true", "--output", "name"]).expect(0).stdout().lines().count(), 3);
    change("unhold", &["--yes"]).expect(0);
    change("edit", &["--priority", "3", "--yes"]).expect(0);
    assert_eq!(bed.job("a-2")["priority"], 3);
    change("delete", &["--yes"]).expect(0);
    assert_eq!(bed.run(&["list", "--output", "name"]).expect(0).stdout(), "another\n");
}
