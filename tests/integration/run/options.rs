//! How many jobs run, in which order, how often, for how long, and when a run ends early.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::number;
use crate::program::{lines, run};

/// Runs a command for values, with flags, and returns the lines of JSON that it prints.
fn told(place: &Path, flags: &[&str], words: &[&str], code: i32) -> Vec<Value> {
    let all = [&["run", "--json"], flags, &["--"], words].concat();
    let stdout = run(place, all).expect(code).stdout();
    // The first line says which run it is.
    stdout.lines().skip(1).map(|line| serde_json::from_str(line).expect(line)).collect()
}

#[test]
fn a_dry_run_prints_commands_that_a_shell_can_read_and_leaves_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    let said =
        run(place.path(), ["run", "--dry-run", "--", "echo", "{}", ":::", "a b", "it's", "$c"]).expect(0).stdout();
    let outputs: Vec<_> = said
        .lines()
        .map(|line| std::process::Command::new("sh").args(["-c", line]).output().expect("run").stdout)
        .collect();
    assert_eq!(outputs.concat(), b"a b\nit's\n$c\n");
    let line = ["run", "--dry-run", "--shell", "--", "cat {} > {.}.out", ":::", "a b.c"];
    assert_eq!(run(place.path(), line).expect(0).stdout(), "cat 'a b.c' > 'a b'.out\n");
    assert_eq!(fs::read_dir(place.path()).expect("there").count(), 0);
}

#[test]
fn as_many_jobs_run_as_are_asked_for() {
    let place = tempfile::tempdir().expect("a directory");
    // Each job goes on once all of them run.
    let line = "touch here-{#}; until test -f here-1 -a -f here-2 -a -f here-3 -a -f here-4; do sleep 0.02; done";
    let values = [line, ":::", "1", "2", "3", "4"];
    for jobs in ["4", "0", "100000%", "+3"] {
        for number in 1..=4 {
            let _ = fs::remove_file(place.path().join(format!("here-{number}")));
        }
        let data = format!("data-{jobs}");
        told(place.path(), &["-j", jobs, "--data-dir", &data, "--timeout", "50s", "--shell"], &values, 0);
    }
    let said = run(place.path(), ["run", "-j", "many", "--", "true", ":::", "1"]).expect(2).stderr();
    assert!(said.contains("50%"), "{said}");
}

#[test]
fn a_run_halts_soon_or_now_at_failures_and_successes() {
    let place = tempfile::tempdir().expect("a directory");
    let halt = |halt: &str, words: &[&str], code| {
        let data = format!("data-{halt}");
        let all = told(place.path(), &["-j1", "--halt", halt, "--data-dir", &data], words, code);
        let summary = all.last().expect("a summary").clone();
        (number(&summary, "completed"), number(&summary, "failed"), number(&summary, "left"))
    };
    let test = ["test", "{}", "=", "1", ":::"];
    let with = |values: &[&'static str]| [&test[..], values].concat();
    assert_eq!(halt("soon,fail=2", &with(&["1", "2", "1", "2", "1", "1"]), 1), (2, 2, 2));
    assert_eq!(halt("now,success=1", &with(&["2", "1", "1", "1"]), 0), (1, 1, 2));
    assert_eq!(halt("soon,fail=50%", &with(&["2", "2", "2", "1", "1", "1"]), 1), (0, 3, 3));
    assert_eq!(halt("never", &with(&["2", "2", "1", "1"]), 1), (2, 2, 0));
    let said = run(place.path(), ["run", "--halt", "later,fail=1", "--", "true", ":::", "1"]).expect(2).stderr();
    assert!(said.contains("now,fail=1"), "{said}");
}

#[test]
fn now_ends_what_runs_and_the_same_command_goes_on_with_it() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "test -f fixed && exit; test {} = long && { touch begun; sleep 600; }; \
               until test -f begun; do sleep 0.02; done; exit 1";
    let words = [job, ":::", "long", "short"];
    let flags = ["-j2", "--halt", "now,fail=1", "--shell"];
    let summary = told(place.path(), &flags, &words, 1).pop().expect("a summary");
    assert_eq!((number(&summary, "failed"), number(&summary, "left")), (1, 1));
    assert_eq!(summary["halted"], true);
    fs::write(place.path().join("fixed"), "").expect("written");
    let summary = told(place.path(), &[&flags[..], &["--resume-failed"]].concat(), &words, 0).pop().expect("a summary");
    assert_eq!(number(&summary, "completed"), 2);
}

#[test]
fn retries_are_attempts_in_all_and_a_time_limit_ends_one() {
    let mut tries = 0;
    // On a busy machine an attempt may come to its end before it has noted that it was there.
    for limit in ["100ms", "2s", "20s"] {
        let place = tempfile::tempdir().expect("a directory");
        let flags = ["--retries", "2", "--timeout", limit, "--shell"];
        let told = told(place.path(), &flags, &["echo {} >> tries; sleep {}", ":::", "600"], 1);
        assert_eq!((&told[0]["error"]["code"], &told[0]["attempt"]), (&"timeout".into(), &2.into()), "{told:?}");
        tries = lines(&place.path().join("tries")).len();
        if tries >= 2 {
            break;
        }
    }
    assert_eq!(tries, 2);
}

#[test]
fn each_job_that_ends_is_a_line_of_json_before_the_summary() {
    let place = tempfile::tempdir().expect("a directory");
    let told = told(place.path(), &["-j1", "--shell"], &["echo out; echo err >&2; exit {}", ":::", "0", "3"], 1);
    let [first, second, summary] = &told[..] else { panic!("{told:?}") };
    assert_eq!((&first["type"], &first["state"], &first["line"]), (&"job".into(), &"completed".into(), &1.into()));
    assert_eq!((&second["state"], &second["error"]["code"]), (&"failed".into(), &"exit".into()));
    for (stream, text) in [("stdout", "out\n"), ("stderr", "err\n")] {
        let file = second[stream].as_str().expect("a file");
        assert_eq!(fs::read_to_string(file).expect("there"), text);
    }
    assert_eq!((&summary["type"], number(summary, "failed")), (&"summary".into(), 1));
}

#[test]
fn jobs_start_in_random_order_if_they_are_to() {
    let place = tempfile::tempdir().expect("a directory");
    let numbers: Vec<String> = (0..60).map(|number| number.to_string()).collect();
    let values: Vec<&str> = ["echo {} >> ran", ":::"].into_iter().chain(numbers.iter().map(String::as_str)).collect();
    told(place.path(), &["-j1", "--shuf", "--shell"], &values, 0);
    let mut ran = lines(&place.path().join("ran"));
    assert_ne!(ran, numbers, "60 jobs in the order of the list");
    ran.sort_by_key(|line| line.parse::<u32>().expect("a number"));
    assert_eq!(ran, numbers);
}

#[test]
fn jobs_are_as_nice_as_they_are_told() {
    let place = tempfile::tempdir().expect("a directory");
    let own: i32 = String::from_utf8(std::process::Command::new("nice").output().expect("run").stdout)
        .expect("text")
        .trim()
        .parse()
        .expect("a number");
    let said = run(place.path(), ["run", "--nice", "7", "--shell", "--", "nice #", ":::", "1"]).expect(0).stdout();
    assert_eq!(said.trim(), (own + 7).min(19).to_string());
}
