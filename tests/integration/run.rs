//! `leasehold run` from outside: what ran, how often, and what is told of it.

mod arguments;
mod each;
mod everything;
mod hostile;
mod interrupted;
mod nights;
mod options;
mod output;
mod terminal;
mod whole;

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Ended, is_alive, lines, run, until};

/// Writes the list of jobs, each a line for the shell.
fn write_jobs(directory: &Path, commands: &[String]) {
    let lines: String =
        commands.iter().map(|command| format!("{}\n", serde_json::json!({"command": command}))).collect();
    fs::write(directory.join("jobs.jsonl"), lines).expect("written");
}

/// Runs it, with the summary as JSON.
fn run_jobs(directory: &Path, flags: &[&str]) -> Ended {
    run(directory, ["run", "jobs.jsonl", "--json"].iter().chain(flags))
}

fn number(summary: &Value, field: &str) -> u64 {
    summary[field].as_u64().unwrap_or_else(|| panic!("{field} in {summary}"))
}

#[test]
fn every_job_runs_once_and_who_goes_on_after_that_has_nothing_to_do() {
    let place = tempfile::tempdir().expect("a directory");
    let jobs: Vec<String> = (0..30).map(|number| format!("echo {number} >> ran")).collect();
    write_jobs(place.path(), &jobs);
    let first = run_jobs(place.path(), &["--slots", "4"]).last_json(0);
    assert_eq!((number(&first, "jobs"), number(&first, "completed"), number(&first, "failed")), (30, 30, 0));
    let second = run_jobs(place.path(), &["--resume"]).last_json(0);
    assert_eq!((number(&second, "completed"), number(&second, "completed_before")), (0, 30));
    let mut ran = lines(&place.path().join("ran"));
    ran.sort_by_key(|line| line.parse::<u32>().expect("a number"));
    assert_eq!(ran, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn one_at_a_time_jobs_run_in_the_order_of_their_lines() {
    let place = tempfile::tempdir().expect("a directory");
    write_jobs(place.path(), &(0..20).map(|number| format!("echo {number} >> ran")).collect::<Vec<_>>());
    run_jobs(place.path(), &["--slots", "1"]).last_json(0);
    assert_eq!(lines(&place.path().join("ran")), (0..20).map(|number| number.to_string()).collect::<Vec<_>>());
}

#[test]
fn an_id_is_that_of_one_command() {
    let place = tempfile::tempdir().expect("a directory");
    let write = |command: &str| {
        let line = serde_json::json!({"id": "mine", "command": command}).to_string();
        fs::write(place.path().join("jobs.jsonl"), line).expect("written");
    };
    write("true");
    run_jobs(place.path(), &[]).last_json(0);
    assert_eq!(number(&run_jobs(place.path(), &["--resume", "--attempts", "3"]).last_json(0), "completed_before"), 1);
    write("echo other");
    let said = run_jobs(place.path(), &["--resume"]).expect(2).stderr();
    assert!(said.contains("another job under the id mine"), "{said}");
}

#[test]
fn equal_lines_are_jobs_of_their_own() {
    let place = tempfile::tempdir().expect("a directory");
    write_jobs(place.path(), &["echo x >> ran".to_owned(), "echo x >> ran".to_owned()]);
    run_jobs(place.path(), &[]).last_json(0);
    assert_eq!(lines(&place.path().join("ran")).len(), 2);
}

#[test]
fn a_failure_is_told_with_its_last_words_and_stays_until_it_is_to_be_retried() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "echo x >> tries; test -f mended || { echo 'no paper' >&2; exit 7; }";
    write_jobs(place.path(), &[job.to_owned(), "true".to_owned()]);
    let told = run(place.path(), ["run", "jobs.jsonl"]).expect(1).stderr();
    assert!(told.contains("no paper") && told.contains("exit status 7"), "{told}");

    let again = run_jobs(place.path(), &["--resume"]).last_json(1);
    assert_eq!((number(&again, "failed"), number(&again, "completed_before")), (1, 1));
    assert_eq!(lines(&place.path().join("tries")).len(), 1, "a failed job ran again unasked");

    fs::write(place.path().join("mended"), "").expect("written");
    let retried = run_jobs(place.path(), &["--retry-failed"]).last_json(0);
    assert_eq!((number(&retried, "failed"), number(&retried, "completed")), (0, 1));
    assert_eq!(lines(&place.path().join("tries")).len(), 2);
}

#[test]
fn a_job_gets_the_attempts_that_it_is_given() {
    let place = tempfile::tempdir().expect("a directory");
    let job = r#"{"command": "echo x >> tries; test $LEASEHOLD_ATTEMPT = 3", "max_attempts": 3,
                  "retry": {"base_ms": 1}}"#;
    fs::write(place.path().join("jobs.jsonl"), job.replace('\n', " ")).expect("written");
    run_jobs(place.path(), &[]).last_json(0);
    assert_eq!(lines(&place.path().join("tries")).len(), 3);
}

#[test]
fn with_a_bad_line_nothing_runs_and_the_line_is_named() {
    let place = tempfile::tempdir().expect("a directory");
    fs::write(place.path().join("jobs.jsonl"), "{\"command\": \"echo x >> ran\"}\n{\"command\": \"a\", oops}\n")
        .expect("written");
    let said = run(place.path(), ["run", "jobs.jsonl"]).expect(2).stderr();
    assert!(said.contains("jobs.jsonl:2:18:"), "{said}");
    assert!(!place.path().join("ran").exists());
    assert!(!place.path().join("leasehold-data").exists(), "state was made for nothing");
}

#[test]
fn a_byte_order_mark_is_no_fault_and_a_bad_byte_is_named_with_its_line() {
    let place = tempfile::tempdir().expect("a directory");
    let jobs = place.path().join("jobs.jsonl");
    fs::write(&jobs, "\u{feff}{\"command\": \"echo x >> ran\"}\n").expect("written");
    run_jobs(place.path(), &[]).last_json(0);
    assert_eq!(lines(&place.path().join("ran")), ["x"]);
    fs::write(&jobs, b"{\"command\": \"true\"}\n{\"command\": \"\xc3\xa9\xff\"}\n").expect("written");
    let said = run_jobs(place.path(), &[]).expect(2).stderr();
    assert!(said.contains("jobs.jsonl:2:15: the byte 0xff is not UTF-8") && said.lines().count() == 1, "{said}");
}

#[test]
fn a_file_that_is_not_there_is_one_clear_line() {
    let place = tempfile::tempdir().expect("a directory");
    let said = run(place.path(), ["run", "nothing.jsonl"]).expect(2).stderr();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("nothing.jsonl"), "{said}");
}

#[test]
fn an_attempt_past_its_time_ends_with_all_its_processes() {
    let place = tempfile::tempdir().expect("a directory");
    let mut pids = Vec::new();
    // On a busy machine a command may come to its end before it has noted what it started.
    for timeout_ms in [500, 5_000, 50_000] {
        let job = serde_json::json!({
            "command": "sleep 600 & echo $! >> pids; echo $$ >> pids; wait", "timeout_ms": timeout_ms,
        });
        fs::write(place.path().join("jobs.jsonl"), job.to_string()).expect("written");
        let summary = run_jobs(place.path(), &[]).last_json(1);
        assert_eq!(summary["failures"][0]["error"]["code"], "timeout", "{summary}");
        pids = lines(&place.path().join("pids"));
        if pids.len() >= 2 {
            break;
        }
    }
    assert!(pids.len() >= 2, "{pids:?}");
    for pid in pids {
        until("its processes are gone", || !is_alive(&pid));
    }
}

#[test]
fn jobs_come_from_standard_input_too() {
    let place = tempfile::tempdir().expect("a directory");
    let input = "{\"command\": \"echo x >> ran\"}\n";
    for (completed, before) in [(1, 0), (0, 1)] {
        let mut command = crate::program::leasehold(place.path(), ["run", "-", "--json", "--resume"]);
        let summary = crate::program::Started::with_input(&mut command, input).end().last_json(0);
        assert_eq!((number(&summary, "completed"), number(&summary, "completed_before")), (completed, before));
    }
}
