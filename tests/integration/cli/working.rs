//! A worker process and a server process.

use nix::sys::signal::Signal;

use super::Bed;
use crate::program::{is_alive, lines, until};

#[test]
fn a_job_is_run_and_its_output_kept() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo out; echo err >&2");
    bed.run(&["wait", &id]).expect(0);
    let result = &bed.job(&id)["result"];
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &0.into())
    );
    let failed = bed.submit(&["--max-attempts", "1"], "echo 'no paper' >&2; exit 3");
    let told = bed.run(&["wait", &failed]).expect(1).stdout();
    assert!(told.contains("no paper"), "{told}");
}

#[test]
fn a_cancelled_job_ends_with_all_its_processes() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "sleep 600 & echo $! >> pids; echo $$ >> pids; wait");
    let pids = || lines(&bed.path().join("pids"));
    until("both processes run", || pids().len() == 2);
    bed.run(&["cancel", &id]).expect(0);
    assert_eq!(bed.run(&["wait", &id]).code(), Some(1));
    assert_eq!(bed.job(&id)["state"], "cancelled");
    for pid in pids() {
        until("its processes are gone", || !is_alive(&pid));
    }
}

#[test]
fn a_job_taken_away_is_ended_and_its_worker_is_not_heard() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo $$ >> pids; sleep 600");
    let pids = || lines(&bed.path().join("pids"));
    until("the job runs", || pids().len() == 1);
    bed.run(&["release", &id, "--then", "fail", "--reason", "host on fire"]).expect(0);
    until("its process is gone", || !is_alive(&pids()[0]));
    let job = bed.job(&id);
    assert_eq!((&job["state"], &job["error"]["message"]), (&"failed".into(), &"host on fire".into()));
}

#[test]
fn a_stopped_worker_gives_its_job_back_unharmed() {
    let bed = Bed::start();
    let mut worker = bed.worker(&["--drain-timeout", "0s", "--slots", "2"]);
    let id = bed.submit(&[], "echo $$ >> pids; sleep 600");
    let pids = || lines(&bed.path().join("pids"));
    until("the job runs", || pids().len() == 1);
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
    until("its process is gone", || !is_alive(&pids()[0]));
    let job = bed.job(&id);
    assert_eq!((&job["state"], &job["attempt"], &job["fence"]), (&"available".into(), &0.into(), &1.into()));
}

#[test]
fn a_result_outlives_a_server_that_was_killed_meanwhile() {
    let mut bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo $$ >> pids; while ! test -f go; do sleep 0.02; done; echo done > done; echo 42");
    until("the job runs", || lines(&bed.path().join("pids")).len() == 1);
    bed.server.kill();
    std::fs::write(bed.path().join("go"), "").expect("written");
    until("the work is done while there is no server", || bed.path().join("done").exists());

    bed.server.restart();
    bed.run(&["wait", &id]).expect(0);
    let job = bed.job(&id);
    assert_eq!((&job["result"]["stdout"], &job["fence"], &job["attempt"]), (&"42\n".into(), &1.into(), &1.into()));
    assert_eq!(lines(&bed.path().join("pids")).len(), 1, "the job ran twice");
    assert_eq!(bed.server.terminate(), Some(0));
}
