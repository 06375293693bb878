//! The commands that speak to a server, against a real one.

mod admin;
mod amending;
mod asking;
mod audit;
mod changing;
mod copied;
mod events;
mod everyday;
mod hostile;
mod leftovers;
mod logs;
mod members;
mod migrate;
mod peers;
mod queues;
mod recalls;
mod replay;
mod rotation;
mod scaling;
mod schedules;
mod settings;
mod signing_in;
mod supervised;
mod tables;
mod verify;
mod workers_page;
mod working;

use std::path::Path;

use serde_json::Value;

use crate::program::{Ended, Server, Started, leasehold, run, until};
use crate::servers::ports;

/// A server and a directory to work in.
pub(crate) struct Bed {
    place: tempfile::TempDir,
    pub(crate) server: Server,
}

impl Bed {
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// A server with options.
    pub(crate) fn with(options: &[&str]) -> Self {
        let place = tempfile::tempdir().expect("a directory");
        let server = Server::in_place_with(place.path(), options);
        Self { place, server }
    }

    /// A server that keeps an audit, which is behind by little.
    pub(crate) fn audited() -> Self {
        Self::with(&["--audit", "--audit-period-ms", "100"])
    }

    /// Waits until the audit has this event of a job.
    pub(crate) fn until_audited(&self, id: &str, event: &str) {
        let named = ["audit", "--job", id, "--event", event, "--output", "name"];
        until(&format!("{event} of {id} is in the audit"), || !self.run(&named).expect(0).stdout().is_empty());
    }

    pub(crate) fn path(&self) -> &Path {
        self.place.path()
    }

    /// Runs a command against the server.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        Started::of(leasehold(self.path(), arguments).env("LEASEHOLD_SERVER", self.server.url())).end()
    }

    /// Submits a line for the shell and gives its id.
    pub(crate) fn submit(&self, flags: &[&str], line: &str) -> String {
        let arguments: Vec<&str> = ["submit"].iter().chain(flags).chain(&["--", "sh", "-c", line]).copied().collect();
        self.run(&arguments).expect(0).stdout().trim().to_owned()
    }

    pub(crate) fn job(&self, id: &str) -> Value {
        self.run(&["get", "--json", id]).json(0)
    }

    /// Waits until a job is in a state.
    pub(crate) fn until(&self, id: &str, state: &str) {
        until(&format!("{id} is {state}"), || self.job(id)["state"] == state);
    }

    /// Starts a worker whose leases outlast a machine that stands still for some seconds.
    fn worker(&self, flags: &[&str]) -> Started {
        self.patient_worker(&[&["--lease", "10s", "--grace", "2s"], flags].concat())
    }

    /// Starts a worker whose leases are as long as usual.
    pub(crate) fn patient_worker(&self, flags: &[&str]) -> Started {
        let arguments = ["worker"].iter().chain(flags);
        Started::of(leasehold(self.path(), arguments).env("LEASEHOLD_SERVER", self.server.url()))
    }
}

#[test]
fn a_job_is_submitted_found_cancelled_and_retried() {
    let bed = Bed::start();
    let id = bed.submit(&["--id", "my-job", "--label", "month=2030-01", "--priority", "-5"], "true");
    assert_eq!(id, "my-job");
    assert_eq!(bed.submit(&["--id", "my-job", "--label", "month=2030-01", "--priority", "-5"], "true"), "my-job");
    let said = bed.run(&["submit", "--id", "my-job", "--", "false"]).expect(1).stderr();
    assert!(said.contains("submission_differs") && said.lines().count() == 1, "{said}");

    let page = bed.run(&["get", "my-job"]).expect(0).stdout();
    assert!(page.contains("month=2030-01") && page.contains("available"), "{page}");
    let list = bed.run(&["list", "--state", "available"]).expect(0).stdout();
    assert!(list.contains("my-job"), "{list}");
    let counts = bed.run(&["list", "--count", "--json"]).json(0);
    assert_eq!(counts["total"], 1);

    assert_eq!(bed.run(&["cancel", "my-job", "--reason", "wrong"]).expect(0).stdout().trim(), "my-job: cancelled");
    assert!(bed.run(&["list", "--state", "available", "--json"]).expect(0).stdout().is_empty());
    assert_eq!(bed.run(&["wait", "my-job"]).code(), Some(1));
    assert_eq!(bed.run(&["retry", "my-job"]).expect(0).stdout().trim(), "my-job: available");
    assert_eq!(bed.run(&["wait", "my-job", "--timeout", "10ms"]).code(), Some(4));
    let said = bed.run(&["get", "no-such-job"]).expect(1).stderr();
    assert!(said.contains("no-such-job") && said.lines().count() == 1, "{said}");
}

#[test]
fn many_jobs_come_from_a_file_and_are_waited_for() {
    let bed = Bed::start();
    let lines: String = (0..2500).map(|number| format!("{{\"command\": [\"echo\", \"{number}\"]}}\n")).collect();
    let submit = |input: &str| {
        let mut command = leasehold(bed.path(), ["submit", "--file", "-"]);
        Started::with_input(command.env("LEASEHOLD_SERVER", bed.server.url()), input).end()
    };
    let ids = submit(&lines).expect(0).stdout();
    assert_eq!(ids.lines().count(), 2500);
    assert_eq!(bed.run(&["list", "--json", "-n", "0"]).expect(0).stdout().lines().count(), 2500);

    let mut few: Vec<&str> = ids.lines().take(5).collect();
    for id in ids.lines().skip(5) {
        assert!(!few.contains(&id), "an id twice");
    }
    few.insert(0, "wait");
    few.insert(1, "--json");
    let _worker = bed.worker(&["--slots", "2"]);
    let ended = bed.run(&few).expect(0).stdout();
    assert_eq!(ended.lines().count(), 5);
    let bad = submit("{\"command\": []}\n").expect(2).stderr();
    assert!(bad.contains("-:1:1:"), "{bad}");
}

#[test]
fn a_server_that_is_not_there_is_one_line_and_a_status_of_its_own() {
    let place = tempfile::tempdir().expect("a directory");
    let port = ports::free();
    let said = run(place.path(), ["list", "--server", &format!("http://127.0.0.1:{port}")]).expect(3).stderr();
    let where_it_was = format!(" at http://127.0.0.1:{port};");
    assert!(said.contains("cannot reach the server: Connection refused") && said.contains(&where_it_was), "{said}");
    assert!(said.contains("`leasehold serve`") && said.lines().count() == 1, "{said}");
}

#[test]
fn several_servers_are_named_by_flags_the_environment_and_the_file_and_one_that_serves_suffices() {
    let bed = Bed::start();
    let port = ports::free();
    let (nobody, real) = (format!("http://127.0.0.1:{port}"), bed.server.url());
    let list = |flags: &[&str], environment: Option<&str>| {
        let mut command = leasehold(bed.path(), ["list"].iter().chain(flags));
        Started::of(command.envs(environment.map(|text| ("LEASEHOLD_SERVER", text)))).end()
    };
    list(&["--server", &nobody, "--server", &real], None).expect(0);
    list(&["--server", &format!("{nobody},{real}")], None).expect(0);
    list(&[], Some(&format!("{nobody},{real}"))).expect(0);
    std::fs::write(bed.path().join("s.toml"), format!("[client]\nserver = [\"{nobody}\", \"{real}\"]"))
        .expect("written");
    list(&["--config", "s.toml"], None).expect(0);
    std::fs::write(bed.path().join("s.toml"), "[client]\nserver = []").expect("written");
    list(&["--config", "s.toml"], None).expect(2);
    let said = list(&["--server", &nobody, "--server", "http://127.0.0.1:1"], None).expect(3).stderr();
    assert!(said.contains(&nobody) && said.contains("http://127.0.0.1:1 ("), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_reader_that_has_had_enough_is_no_error() {
    let place = tempfile::tempdir().expect("a directory");
    let mut token = leasehold(place.path(), ["token"]);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let ended = Started::of(token.stdout(writer)).end();
    assert_eq!((ended.code(), ended.stderr().as_str()), (Some(141), ""));
}

#[test]
fn a_small_bench_counts_every_job() {
    let place = tempfile::tempdir().expect("a directory");
    let lives = run(place.path(), ["bench", "--jobs", "3000", "--workers", "4", "--json"]).json(0);
    assert_eq!((&lives["completed"], &lives["server_counts_completed"]), (&3000.into(), &3000.into()));
    let latency = ["bench", "--scenario", "latency", "--rate", "50", "--duration", "1s", "--workers", "20", "--json"];
    let latency = run(place.path(), latency).json(0);
    assert_eq!((&latency["completed"], &latency["handed_out_twice"]), (&50.into(), &0.into()));
    assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 0, "the bench left something behind");
}
