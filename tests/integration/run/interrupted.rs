//! Runs that are killed, stopped and changed on the way.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use nix::sys::signal::Signal;

use super::{number, run_jobs, write_jobs};
use crate::program::{Started, is_alive, leasehold, lines, run, until};

const SLOTS: usize = 3;

/// A command that goes on until it is let go, or its test has ended: nobody ends it when `leasehold run` is killed.
const HELD_UP: &str = "until test -f go || ! test -f jobs.jsonl; do sleep 0.1; done";

fn start(directory: &Path, flags: &[&str]) -> Started {
    Started::of(&mut leasehold(directory, ["run", "jobs.jsonl", "--json"].iter().chain(flags)))
}

/// Each job notes its beginning and its end. What was killed between the two runs again; what had ended and was
/// recorded does not. Between its end and the record only as many jobs can be as there are slots.
#[test]
fn killed_again_and_again_a_run_loses_nothing_and_repeats_only_what_ran_at_a_kill() {
    const JOBS: usize = 60;
    const KILLS: usize = 4;
    let place = tempfile::tempdir().expect("a directory");
    let log = place.path().join("log");
    // The last jobs wait for the last kill, so that no run comes to its end before.
    let job = |number| {
        let turn = if number < JOBS - 15 { "sleep 0.05" } else { HELD_UP };
        format!("echo begin {number} >> log; {turn}; echo end {number} >> log")
    };
    write_jobs(place.path(), &(0..JOBS).map(job).collect::<Vec<_>>());
    let ends = || lines(&log).into_iter().filter(|line| line.starts_with("end")).count();
    for kill in 1..=KILLS {
        let mut running = start(place.path(), &["--slots", "3"]);
        until("some more jobs have ended", || ends() >= kill * 10);
        running.child().kill().expect("killed");
        assert_eq!(running.end().code(), None, "it ended by itself before it was killed");
    }
    std::fs::write(place.path().join("go"), "").expect("written");
    let summary = run_jobs(place.path(), &["--slots", "3"]).last_json(0);
    let done = number(&summary, "completed") + number(&summary, "completed_before");
    assert_eq!((done, number(&summary, "failed"), number(&summary, "left")), (JOBS as u64, 0, 0));
    assert!(number(&summary, "completed_before") >= (KILLS * 10 - KILLS * SLOTS) as u64, "{summary}");

    let mut times: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for line in lines(&log) {
        let (what, which) = line.split_once(' ').expect("two words");
        let (begun, ended) = times.entry(which.to_owned()).or_default();
        *(if what == "begin" { begun } else { ended }) += 1;
    }
    assert_eq!(times.len(), JOBS);
    assert!(times.values().all(|(_, ended)| *ended >= 1), "a job was lost: {times:?}");
    let repeated: usize = times.values().map(|(begun, _)| begun - 1).sum();
    assert!(repeated <= KILLS * SLOTS, "{repeated} repetitions after {KILLS} kills of {SLOTS} slots");

    let before = lines(&log).len();
    assert_eq!(number(&run_jobs(place.path(), &["--resume"]).last_json(0), "completed_before"), JOBS as u64);
    assert_eq!(lines(&log).len(), before, "a finished job ran again");
}

#[test]
fn what_a_killed_run_leaves_running_is_ended_before_its_job_runs_again() {
    let place = tempfile::tempdir().expect("a directory");
    let pids = place.path().join("pids");
    write_jobs(place.path(), &["echo $$ >> pids; test -f go || sleep 600".to_owned()]);
    let mut running = start(place.path(), &[]);
    until("the job runs", || lines(&pids).len() == 1);
    running.child().kill().expect("killed");
    drop(running.end());
    let orphan = lines(&pids)[0].clone();
    assert!(is_alive(&orphan), "nothing was left, so this shows nothing");

    std::fs::write(place.path().join("go"), "").expect("written");
    let ended = run_jobs(place.path(), &[]);
    assert!(ended.stderr().contains("a former start had left behind"), "{}", ended.said());
    assert_eq!(number(&ended.last_json(0), "completed"), 1);
    assert!(!is_alive(&orphan));
    assert_eq!(lines(&pids).len(), 2);
}

#[test]
fn of_a_changed_file_new_lines_run_and_jobs_of_removed_lines_are_cancelled() {
    let place = tempfile::tempdir().expect("a directory");
    let ran = place.path().join("ran");
    let job = |name: &str| format!("echo {name} >> ran");
    let first = format!("echo first >> ran; {HELD_UP}");
    write_jobs(place.path(), &[first.clone(), job("gone"), job("kept")]);
    let mut running = start(place.path(), &["--slots", "1"]);
    until("the first job runs", || lines(&ran) == ["first"]);
    running.child().kill().expect("killed");
    drop(running.end());

    std::fs::write(place.path().join("go"), "").expect("written");
    write_jobs(place.path(), &[job("new"), job("kept"), first.clone()]);
    let summary = run_jobs(place.path(), &["--slots", "1"]).last_json(0);
    assert_eq!((number(&summary, "completed"), number(&summary, "cancelled")), (3, 1));
    let mut now = lines(&ran);
    now.sort();
    assert_eq!(now, ["first", "first", "kept", "new"]);

    // A line that comes back is a job again.
    write_jobs(place.path(), &[job("gone"), job("new"), job("kept"), first]);
    assert_eq!(number(&run_jobs(place.path(), &["--resume"]).last_json(0), "completed"), 1);
}

#[test]
fn a_signal_gives_running_jobs_back_and_the_next_start_goes_on() {
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let place = tempfile::tempdir().expect("a directory");
        let pids = place.path().join("pids");
        write_jobs(place.path(), &["echo $$ >> pids; test -f go || sleep 600".to_owned(), "true".to_owned()]);
        let mut running = start(place.path(), &["--drain-timeout", "0s", "--slots", "1"]);
        until("the job runs", || lines(&pids).len() == 1);
        running.signal(signal);
        let summary = running.end().last_json(code);
        assert_eq!((number(&summary, "left"), number(&summary, "failed")), (2, 0));
        until("its process is gone", || !is_alive(&lines(&pids)[0]));

        std::fs::write(place.path().join("go"), "").expect("written");
        assert_eq!(number(&run_jobs(place.path(), &[]).last_json(0), "completed"), 2);
    }
}

#[test]
fn the_first_signal_waits_for_what_runs_and_the_second_does_not() {
    let place = tempfile::tempdir().expect("a directory");
    let pids = place.path().join("pids");
    write_jobs(place.path(), &["echo $$ >> pids; sleep 600".to_owned()]);
    let mut running = start(place.path(), &["--drain-timeout", "10m"]);
    until("the job runs", || lines(&pids).len() == 1);
    running.signal(Signal::SIGINT);
    let mut said = BufReader::new(running.child().stderr.take().expect("its errors")).lines();
    let heard = said.any(|line| line.expect("text").contains("waiting for the running jobs"));
    assert!(heard && is_alive(&lines(&pids)[0]), "the first signal ended the job");
    running.signal(Signal::SIGINT);
    assert_eq!(number(&running.end().last_json(130), "left"), 1);
    until("its process is gone", || !is_alive(&lines(&pids)[0]));
}

#[test]
fn two_runs_of_one_list_do_not_run_at_once() {
    let place = tempfile::tempdir().expect("a directory");
    let ran = place.path().join("ran");
    write_jobs(place.path(), &[format!("echo x >> ran; {HELD_UP}")]);
    let _running = start(place.path(), &[]);
    until("the first runs", || lines(&ran).len() == 1);
    let said = run(place.path(), ["run", "jobs.jsonl"]).expect(1).stderr();
    assert!(said.contains("is in use by the process"), "{said}");
    assert_eq!(lines(&ran).len(), 1);
}
