//! A worker under a supervisor: what it says, when it ends by itself, and its restart in place.

use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Bed;
use crate::program::{DEADLINE, Started, leasehold, lines, until};

fn command(bed: &Bed, flags: &[&str]) -> Command {
    let log = File::create(bed.path().join("worker.log")).expect("a log");
    let mut command = leasehold(bed.path(), ["worker"].iter().chain(flags));
    command.env("LEASEHOLD_SERVER", bed.server.url()).stderr(log);
    command
}

/// Returns how many lines of the worker's log have this in them.
fn said(bed: &Bed, what: &str) -> usize {
    lines(&bed.path().join("worker.log")).iter().filter(|line| line.contains(what)).count()
}

#[test]
fn a_worker_says_what_it_does_and_ends_after_as_many_jobs_as_it_was_told() {
    let bed = Bed::start();
    let good = bed.submit(&["--priority", "9"], "true");
    let bad = bed.submit(&["--priority", "5", "--max-attempts", "1"], "printf 'no\\033[31m\\npaper\\n' >&2; exit 3");
    let untouched = bed.submit(&[], "true");
    let worker = Started::of(&mut command(&bed, &["--max-jobs", "2", "--slots", "3", "--log-format", "json"]));
    worker.end().expect(0);
    assert_eq!((&bed.job(&untouched)["state"], &bed.job(&untouched)["fence"]), (&"available".into(), &0.into()));

    let log = lines(&bed.path().join("worker.log"));
    let log: Vec<Value> = log.iter().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect();
    let of = |id: &str| {
        let of_job = log.iter().map(|line| &line["fields"]).filter(|fields| fields["job"] == *id);
        of_job.map(|fields| fields["message"].as_str().unwrap_or_default()).collect::<Vec<_>>()
    };
    assert_eq!((of(&good), of(&bad)), (vec!["started", "completed"], vec!["started", "failed"]));
    let summary = &log.last().expect("a summary")["fields"];
    assert_eq!((&summary["completed"], &summary["failed"]), (&1.into(), &1.into()), "{summary}");
}

#[test]
fn a_worker_ends_when_it_is_told_to_and_its_queue_is_empty() {
    let bed = Bed::start();
    let server = bed.server.url();
    let more = format!("LEASEHOLD_SERVER={server} {} submit -- true", env!("CARGO_BIN_EXE_leasehold"));
    let ids = [bed.submit(&[], "true"), bed.submit(&[], &more)];
    Started::of(&mut command(&bed, &["--exit-when-empty"])).end().expect(0);
    assert!(ids.iter().all(|id| bed.job(id)["state"] == "completed"));
    let count = bed.run(&["list", "--state", "completed", "--json"]).expect(0).stdout();
    assert_eq!(count.lines().count(), 3, "the job that a job has submitted ran as well: {count}");
}

#[test]
fn a_supervisor_is_told_when_the_worker_is_ready_and_when_it_stops() {
    let bed = Bed::start();
    let (ready, socket) = (bed.path().join("ready"), bed.path().join("notify"));
    let supervisor = UnixDatagram::bind(&socket).expect("a socket");
    supervisor.set_read_timeout(Some(DEADLINE)).expect("a time limit");
    let hear = || {
        let mut told = [0; 256];
        let length = supervisor.recv(&mut told).expect("the worker tells");
        String::from_utf8_lossy(&told[..length]).into_owned()
    };
    let mut worker = command(&bed, &["--ready-file", "ready"]);
    let mut worker = Started::of(worker.env("NOTIFY_SOCKET", &socket));
    assert!(hear().starts_with("READY=1\n"));
    assert!(ready.exists());
    worker.signal(Signal::SIGTERM);
    assert!(hear().starts_with("STOPPING=1\n"));
    worker.end().expect(0);
    assert!(!ready.exists());
}

#[test]
fn a_worker_restarts_in_place_on_sighup_once_its_jobs_have_ended() {
    let bed = Bed::start();
    let mut worker = Started::of(&mut command(&bed, &["--slots", "1"]));
    let first = bed.submit(&[], "touch runs; while ! test -f go; do sleep 0.02; done");
    until("the job runs", || bed.path().join("runs").exists());
    worker.signal(Signal::SIGHUP);
    until("the worker has heard of it", || said(&bed, "restarting") == 1);
    let second = bed.submit(&[], "true");
    std::fs::write(bed.path().join("go"), "").expect("written");
    bed.run(&["wait", &first, &second]).expect(0);
    assert_eq!((said(&bed, " working "), &bed.job(&first)["fence"]), (2, &1.into()));
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
}

#[test]
fn a_worker_that_takes_too_much_memory_restarts_after_a_job() {
    let bed = Bed::start();
    let mut worker = Started::of(&mut command(&bed, &["--max-memory", "1MiB"]));
    until("the worker works", || said(&bed, " working ") == 1);
    let id = bed.submit(&[], "true");
    bed.run(&["wait", &id]).expect(0);
    until("it has restarted", || said(&bed, " working ") == 2);
    let id = bed.submit(&[], "true");
    bed.run(&["wait", &id]).expect(0);
    // In between it may not listen for the signal yet.
    until("it has restarted once more", || said(&bed, " working ") == 3);
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
}

#[test]
fn a_worker_runs_jobs_of_the_kinds_that_it_is_told() {
    let bed = Bed::start();
    let _worker = Started::of(&mut command(&bed, &["--kinds", "report,mail"]));
    let other = bed.submit(&["--priority", "9"], "true");
    let id = bed.submit(&["--kind", "mail"], "true");
    bed.run(&["wait", &id]).expect(0);
    let why = bed.run(&["explain", &other]).expect(0).stdout();
    assert!(why.contains("takes those of the kind `shell`"), "{why}");
    assert_eq!((&bed.job(&other)["state"], &bed.job(&other)["attempt"]), (&"available".into(), &0.into()));
    let workers = bed.run(&["workers"]).expect(0).stdout();
    assert!(workers.contains("mail report"), "{workers}");
    let _shell = Started::of(&mut command(&bed, &[]));
    bed.run(&["wait", &other]).expect(0);
}
