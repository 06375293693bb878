//! The same command on the next night, and after a night that was cut short.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::number;
use crate::program::{Started, leasehold, leasehold_in_a_terminal, lines, run, until};

/// A line for the shell that notes its argument, and waits where it is to.
const JOB: &str = "echo {} >> ran; case {} in wait*) until test -f go; do sleep 0.02; done;; esac; test {} != bad";

fn words<'a>(flags: &[&'a str], values: &[&'a str]) -> Vec<&'a str> {
    [&["run", "-j1"], flags, &["--shell", "--", JOB, ":::"], values].concat()
}

fn summary(place: &Path, flags: &[&str], values: &[&str], code: i32) -> Value {
    run(place, words(&[flags, &["--json"]].concat(), values)).last_json(code)
}

fn ran(place: &Path) -> Vec<String> {
    lines(&place.join("ran"))
}

/// Starts it, and kills it once the job that waits runs.
fn killed(place: &Path, flags: &[&str], values: &[&str]) {
    let before = ran(place).len();
    let mut running = Started::of(&mut leasehold(place, words(flags, values)));
    let until_wait = values.iter().position(|value| value.starts_with("wait")).expect("one waits") + 1;
    until("the job that waits runs", || ran(place).len() == before + until_wait);
    running.kill();
}

#[test]
fn after_a_night_that_has_ended_the_same_command_runs_every_job_again() {
    let place = tempfile::tempdir().expect("a directory");
    for flags in [&[][..], &["--data-dir", "data"]] {
        let _ = fs::remove_file(place.path().join("ran"));
        let mut ids = Vec::new();
        for night in 1..=3 {
            let ended = run(place.path(), words(&[flags, &["--json"]].concat(), &["a", "bad", "b"]));
            let told = ended.last_json(1);
            assert_eq!((number(&told, "completed"), number(&told, "failed")), (2, 1), "{told}");
            assert_eq!((number(&told, "completed_before"), number(&told, "run")), (0, night));
            assert!(!ended.stderr().contains("going on"), "{}", ended.stderr());
            assert_eq!(ran(place.path()).len() as u64, 3 * night);
            ids.push(told["failures"][0]["id"].clone());
        }
        ids.dedup();
        assert_eq!(ids.len(), 3, "a night has ids of its own: {ids:?}");
    }
}

#[test]
fn after_a_night_that_was_cut_short_the_same_command_goes_on_and_says_so_first() {
    let place = tempfile::tempdir().expect("a directory");
    let values = ["a", "bad", "wait", "b"];
    for night in 1..=2 {
        let _ = fs::remove_file(place.path().join("go"));
        killed(place.path(), &["--data-dir", "data"], &values);
        fs::write(place.path().join("go"), "").expect("written");
        let ended = run(place.path(), words(&["--data-dir", "data", "--json"], &values));
        let said = ended.stderr();
        let first = said.lines().next().unwrap_or_default();
        assert!(first.starts_with("going on with the run of ") && first.ends_with(": 2 of 4 done before"), "{said}");
        let told: Value = serde_json::from_str(ended.stdout().lines().next().expect("a line")).expect("JSON");
        assert_eq!((&told["type"], &told["goes_on"]), (&"run".into(), &true.into()), "{told}");
        assert_eq!((number(&told, "run"), number(&told, "jobs"), number(&told, "done_before")), (night, 4, 2));
        assert_eq!(number(&ended.last_json(1), "completed"), 2);
        // What was running at the kill runs again.
        assert_eq!(ran(place.path()).len() as u64, 5 * night);
    }
}

/// A kill between the end of the last job and the note of it: the note is taken away.
#[test]
fn a_night_whose_end_was_not_noted_has_ended_if_its_jobs_have() {
    let place = tempfile::tempdir().expect("a directory");
    let marker = place.path().join("data/run.json");
    assert_eq!(number(&summary(place.path(), &["--data-dir", "data"], &["a", "bad"], 1), "run"), 1);
    let mut noted: Value = serde_json::from_slice(&fs::read(&marker).expect("read")).expect("JSON");
    assert!(noted["runs"][0]["ended_at"].is_string(), "{noted}");
    noted["runs"][0].as_object_mut().expect("a run").remove("ended_at");
    fs::write(&marker, noted.to_string()).expect("written");
    let told = summary(place.path(), &["--data-dir", "data"], &["a", "bad"], 1);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (2, 1));
    // Before the first job was stored there is nothing to go on with, and nothing is lost.
    fs::write(&marker, noted.to_string().replace("\"number\":1", "\"number\":7")).expect("written");
    let told = summary(place.path(), &["--data-dir", "data"], &["a", "bad"], 1);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (7, 1));
}

#[test]
fn what_a_former_version_has_left_is_the_first_night() {
    for is_ended in [true, false] {
        let place = tempfile::tempdir().expect("a directory");
        let data = place.path().join("data");
        let flags = ["--data-dir", "data"];
        match is_ended {
            true => drop(summary(place.path(), &flags, &["a", "wait"][..1], 0)),
            false => killed(place.path(), &flags, &["a", "wait"]),
        }
        for entry in fs::read_dir(data.join("1")).expect("there").flatten() {
            fs::rename(entry.path(), data.join(entry.file_name())).expect("moved");
        }
        fs::remove_dir(data.join("1")).expect("empty");
        let source = serde_json::from_slice::<Value>(&fs::read(data.join("run.json")).expect("read")).expect("JSON");
        let former = serde_json::json!({"source": source["source"]}).to_string();
        fs::write(data.join("run.json"), former).expect("written");
        fs::write(place.path().join("go"), "").expect("written");
        let values = if is_ended { &["a"][..] } else { &["a", "wait"] };
        let told = summary(place.path(), &flags, values, 0);
        let expected = if is_ended { (2, 0, 1) } else { (1, 1, 1) };
        assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "completed")), expected);
    }
}

#[test]
fn fresh_begins_a_night_and_resume_never_does() {
    let place = tempfile::tempdir().expect("a directory");
    killed(place.path(), &[], &["a", "wait"]);
    fs::write(place.path().join("go"), "").expect("written");
    let told = summary(place.path(), &["--fresh"], &["a", "wait"], 0);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (2, 2));
    for _ in 0..2 {
        let told = summary(place.path(), &["--resume"], &["a", "wait"], 0);
        assert_eq!((number(&told, "run"), number(&told, "completed"), number(&told, "completed_before")), (2, 0, 2));
    }
    assert_eq!(number(&summary(place.path(), &[], &["a", "wait"], 0), "run"), 3);
    run(place.path(), words(&["--fresh", "--resume"], &["a"])).expect(2);
    run(place.path(), words(&["--fresh", "--retry-failed"], &["a"])).expect(2);
}

#[test]
fn failed_jobs_that_run_again_are_those_of_the_last_night() {
    let place = tempfile::tempdir().expect("a directory");
    for _ in 0..2 {
        summary(place.path(), &[], &["a", "bad"], 1);
    }
    let told = summary(place.path(), &["--retry-failed"], &["a", "bad"], 1);
    assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "failed")), (2, 1, 1));
    assert_eq!(ran(place.path()), ["a", "bad", "a", "bad", "bad"]);
}

#[test]
fn a_halted_night_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let values = ["a", "bad", "b"];
    assert_eq!(number(&summary(place.path(), &["--halt", "now,fail=1"], &values, 1), "left"), 1);
    let told = summary(place.path(), &["--halt", "now,fail=1"], &values, 1);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (1, 1));
    assert_eq!(ran(place.path()), values);
    assert_eq!(number(&summary(place.path(), &[], &values, 1), "run"), 2);
}

#[test]
fn an_interrupted_night_goes_on() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let place = tempfile::tempdir().expect("a directory");
        let values = ["a", "wait", "b"];
        for night in 1..=2 {
            let _ = fs::remove_file(place.path().join("go"));
            let mut running = Started::of(&mut leasehold_in_a_terminal(place.path(), words(&["--json"], &values)));
            until("the second job runs", || ran(place.path()).len() == 3 * night - 1);
            // A terminal that is closed sends it more than once.
            for _ in 0..if signal == Signal::SIGHUP { 3 } else { 1 } {
                running.signal(signal);
                std::thread::sleep(std::time::Duration::from_millis(50));
            }
            fs::write(place.path().join("go"), "").expect("written");
            let told = running.end().last_json(code);
            assert_eq!((number(&told, "completed"), number(&told, "left")), (2, 1), "{signal}: {told}");
            let told = summary(place.path(), &[], &values, 0);
            assert_eq!((number(&told, "completed"), number(&told, "completed_before")), (1, 2));
            assert_eq!(ran(place.path()).len(), 3 * night, "{signal}: a job ran twice");
        }
    }
}

#[test]
fn a_hangup_that_was_ignored_at_the_start_stays_so() {
    let place = tempfile::tempdir().expect("a directory");
    let program = crate::program::PROGRAM;
    let words = words(&["--json"], &["a", "wait", "b"]);
    let mut command = leasehold(place.path(), [""; 0]);
    let mut with_nohup = std::process::Command::new("nohup");
    with_nohup.arg(program).args(words).current_dir(place.path());
    with_nohup.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    for (name, _) in command.get_envs().filter(|(_, value)| value.is_none()) {
        with_nohup.env_remove(name);
    }
    command = with_nohup;
    command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::piped());
    command.stderr(std::process::Stdio::piped());
    let mut running = Started::of(&mut command);
    until("the second job runs", || ran(place.path()).len() == 2);
    running.signal(Signal::SIGHUP);
    std::thread::sleep(std::time::Duration::from_millis(200));
    fs::write(place.path().join("go"), "").expect("written");
    assert_eq!(number(&running.end().last_json(0), "completed"), 3);
}

#[test]
fn only_so_many_nights_are_kept_with_what_their_jobs_wrote() {
    let place = tempfile::tempdir().expect("a directory");
    let data = place.path().join("data");
    let folders = || {
        let mut numbers: Vec<u64> = fs::read_dir(&data)
            .expect("there")
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    };
    for night in 1..=7 {
        let words = ["run", "--data-dir", "data", "--results", "res", "--", "echo", ":::", "x"];
        run(place.path(), words).expect(0);
        assert!(data.join(format!("{night}/output")).read_dir().expect("there").count() == 1);
    }
    assert_eq!(folders(), [3, 4, 5, 6, 7]);
    let words = ["run", "--data-dir", "data", "--keep-runs", "2", "--results", "other", "--", "echo", ":::", "x"];
    run(place.path(), words).expect(0);
    assert_eq!(folders(), [7, 8]);
    assert_eq!(fs::read_to_string(place.path().join("res/1/x/stdout")).expect("the user's"), "x\n");
}

/// What a job of Leasehold's own is, is in its environment: its id.
#[test]
fn within_a_job_only_another_attempt_of_it_goes_on() {
    let place = tempfile::tempdir().expect("a directory");
    let in_job = |job: &str, fence: &str, flags: &[&str], values: &[&str]| {
        let mut command = leasehold(place.path(), words(&[flags, &["--json"]].concat(), values));
        command.env("LEASEHOLD_JOB_ID", job).env("LEASEHOLD_FENCE", fence);
        Started::of(&mut command)
    };
    let values = ["a", "wait"];
    let mut running = in_job("night-1", "1", &[], &values);
    until("the second job runs", || ran(place.path()).len() == 2);
    running.kill();
    fs::write(place.path().join("go"), "").expect("written");
    let told = in_job("night-1", "2", &[], &values).end().last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed"), number(&told, "completed_before")), (1, 1, 1));
    // The worker died before it had reported the end.
    let told = in_job("night-1", "3", &[], &values).end().last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed"), number(&told, "completed_before")), (1, 0, 2));

    fs::remove_file(place.path().join("go")).expect("removed");
    let before = ran(place.path()).len();
    let mut running = in_job("night-2", "1", &[], &values);
    until("the second job runs", || ran(place.path()).len() == before + 2);
    running.kill();
    fs::write(place.path().join("go"), "").expect("written");
    let told = in_job("night-3", "1", &[], &values).end().last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (3, 2), "another trigger begins a night");

    // Another attempt runs what failed again; another trigger runs all. (Other arguments are a list of their own.)
    in_job("night-4", "1", &["--retry-failed"], &["a", "bad"]).end().last_json(1);
    let told = in_job("night-4", "2", &["--retry-failed"], &["a", "bad"]).end().last_json(1);
    assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "failed")), (1, 1, 1));
    let told = in_job("night-5", "1", &["--retry-failed"], &["a", "bad"]).end().last_json(1);
    assert_eq!((number(&told, "run"), number(&told, "completed")), (2, 1));
}

/// A second command of the same attempt is as one outside of any job.
#[test]
fn a_job_that_runs_a_list_twice_runs_its_jobs_twice() {
    let place = tempfile::tempdir().expect("a directory");
    let in_job = |fence: &str, flags: &[&str], values: &[&str]| {
        let mut command = leasehold(place.path(), words(&[flags, &["--json"]].concat(), values));
        command.env("LEASEHOLD_JOB_ID", "mine").env("LEASEHOLD_FENCE", fence);
        Started::of(&mut command)
    };
    let told = |fence: &str, code: i32| {
        let told = in_job(fence, &[], &["a", "bad"]).end().last_json(code);
        (number(&told, "run"), number(&told, "completed"), number(&told, "completed_before"))
    };
    assert_eq!([told("3", 1), told("3", 1)], [(1, 1, 0), (2, 1, 0)]);
    // The next attempt goes on with the last one, and its second command does not.
    assert_eq!([told("5", 1), told("5", 1)], [(2, 0, 1), (3, 1, 0)]);
    // An attempt before that is one of another server's job.
    assert_eq!(told("4", 1), (4, 1, 0));

    let values = ["a", "wait"];
    let before = ran(place.path()).len();
    let mut running = in_job("1", &[], &values);
    until("the second job runs", || ran(place.path()).len() == before + 2);
    running.kill();
    fs::write(place.path().join("go"), "").expect("written");
    let told = in_job("1", &[], &values).end().last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed"), number(&told, "completed_before")), (1, 1, 1));
}

/// A start that was refused, or killed, between the removal of a line and the end of the rest.
#[test]
fn a_job_whose_line_was_gone_for_a_while_has_not_ended() {
    let place = tempfile::tempdir().expect("a directory");
    let data = place.path().join("data");
    let line = |id: &str, command: &str| format!("{}\n", serde_json::json!({"id": id, "command": command}));
    let wait = "echo wait >> ran; until test -f go; do sleep 0.02; done";
    let write = |lines: &[String]| fs::write(place.path().join("jobs"), lines.concat()).expect("written");
    let flags = ["run", "jobs", "-j1", "--json", "--data-dir", "data"];
    let both = [line("a", "echo a >> ran"), line("w", wait)];
    write(&both);
    let mut running = Started::of(&mut leasehold(place.path(), flags));
    until("the second job runs", || ran(place.path()).len() == 2);
    running.kill();
    write(&[line("a", "echo other")]);
    run(place.path(), flags).expect(2);
    write(&both[..1]);
    let told = run(place.path(), flags).last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "cancelled")), (1, 1, 1));
    let mut noted: Value = serde_json::from_slice(&fs::read(data.join("run.json")).expect("read")).expect("JSON");
    noted["runs"][0].as_object_mut().expect("a run").remove("ended_at");
    fs::write(data.join("run.json"), noted.to_string()).expect("written");
    write(&both);
    fs::write(place.path().join("go"), "").expect("written");
    let ended = run(place.path(), flags);
    assert!(ended.stderr().contains(": 1 of 2 done before"), "{}", ended.said());
    let told = ended.last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "completed")), (1, 1, 1));
    assert_eq!(ran(place.path()), ["a", "wait", "wait"]);
}

#[test]
fn a_refused_list_cancels_nothing() {
    let place = tempfile::tempdir().expect("a directory");
    let line = |id: &str, command: &str| format!("{}\n", serde_json::json!({"id": id, "command": command}));
    let wait = "echo wait >> ran; until test -f go; do sleep 0.02; done";
    let write = |lines: &[String]| fs::write(place.path().join("jobs"), lines.concat()).expect("written");
    let both = [line("a", "echo a >> ran"), line("w", wait)];
    write(&both);
    let mut running = Started::of(&mut leasehold(place.path(), ["run", "jobs", "-j1"]));
    until("the second job runs", || ran(place.path()).len() == 2);
    running.kill();
    write(&[line("a", "echo other")]);
    run(place.path(), ["run", "jobs", "-j1"]).expect(2);
    write(&both);
    fs::write(place.path().join("go"), "").expect("written");
    let told = run(place.path(), ["run", "jobs", "-j1", "--json"]).last_json(0);
    assert_eq!((number(&told, "run"), number(&told, "completed_before"), number(&told, "completed")), (1, 1, 1));
}

#[test]
fn what_runs_again_was_not_done_before() {
    let place = tempfile::tempdir().expect("a directory");
    summary(place.path(), &[], &["a", "bad"], 1);
    for (flag, done) in [("--resume", 2), ("--retry-failed", 1)] {
        let said = run(place.path(), words(&[flag], &["a", "bad"])).expect(1).stderr();
        assert!(
            said.lines().next().is_some_and(|line| line.ends_with(&format!(": {done} of 2 done before"))),
            "{said}"
        );
    }
}

#[test]
fn results_in_the_data_directory_are_refused_with_the_reason() {
    let place = tempfile::tempdir().expect("a directory");
    for results in ["data", "data/20261129", "./x/../data/"] {
        let words = ["run", "--data-dir", "data", "--results", results, "--", "echo", ":::", "x"];
        let said = run(place.path(), words).expect(2).stderr();
        assert!(said.contains("the results cannot be in the data directory") && said.contains("removed"), "{said}");
        assert!(!place.path().join("data").exists());
    }
}

#[test]
fn after_a_hangup_one_more_signal_ends_the_running_jobs() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let place = tempfile::tempdir().expect("a directory");
        let said = || fs::read_to_string(place.path().join("said")).unwrap_or_default();
        let file = fs::File::create(place.path().join("said")).expect("made");
        let mut command = leasehold_in_a_terminal(place.path(), words(&[], &["a", "wait", "b"]));
        let mut running = Started::of(command.stderr(file));
        until("the second job runs", || ran(place.path()).len() == 2);
        running.signal(Signal::SIGHUP);
        until("it waits", || said().contains("again to end them"));
        running.signal(signal);
        running.end().expect(129);
        assert!(said().contains("ending the running jobs"), "{}", said());
    }
}

/// A run in a job of a run: its next night begins the inner one's as well.
#[test]
fn a_run_within_a_run_begins_with_it() {
    let place = tempfile::tempdir().expect("a directory");
    let inner = format!("{} run -- sh -c 'echo $0 >> ran' ::: a b #", crate::program::PROGRAM);
    fs::write(place.path().join("jobs"), serde_json::json!({"id": "mine", "command": inner}).to_string())
        .expect("written");
    for night in 1..=3 {
        run(place.path(), ["run", "jobs"]).expect(0);
        assert_eq!(ran(place.path()).len(), 2 * night);
    }
}
