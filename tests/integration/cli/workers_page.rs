//! The workers of `docs/workers.md`, as they stand there.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::Bed;
use crate::program::{Started, until};
use crate::servers;

const PAGE: &str = include_str!("../../../docs/workers.md");

/// The code of a language on the page.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block of the language");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_worker_in_python_keeps_all_the_rules() {
    keeps_all_the_rules("python", Path::new("python3"), &["worker.py"]);
}

#[test]
fn the_worker_in_typescript_keeps_all_the_rules() {
    keeps_all_the_rules("typescript", &servers::nodejs(), &["--experimental-strip-types", "worker.ts"]);
}

#[test]
fn the_worker_for_the_shell_keeps_all_the_rules() {
    keeps_all_the_rules("bash", Path::new("bash"), &["worker.sh"]);
}

/// A worker, and jobs that go well and badly, are cancelled, taken away, and under way while the server is away and when
/// the worker is to stop.
fn keeps_all_the_rules(language: &str, program: &Path, arguments: &[&str]) {
    let mut bed = Bed::start();
    let file = arguments.last().expect("a file");
    fs::write(bed.path().join(file), block(language)).expect("written");
    let mut command = Command::new(program);
    command.args(arguments).arg(bed.server.url()).current_dir(bed.path());
    // Longer than the server's restart takes, also where the machine stands still for a while.
    command.env("LEASE_MS", "15000").env("TMPDIR", bed.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut worker = Started::of(&mut command);

    // One that goes well, and one that cannot be done.
    let (good, bad) = (greet(&bed, "{\"name\": \"Zo\u{eb}\"}"), greet(&bed, "{}"));
    is(&bed, &good, "completed");
    assert_eq!(bed.job(&good)["result"]["greeting"], "hello, Zo\u{eb}");
    assert_eq!(bed.run(&["logs", &good]).expect(0).stdout(), "greeting Zo\u{eb}\n");
    is(&bed, &bad, "failed");
    let error = &bed.job(&bad)["error"];
    assert_eq!(error["code"], "exception");
    assert!(error["message"].as_str().is_some_and(|message| message.contains("name")), "{error}");

    // One that is cancelled, and one that is taken away: the worker ends both, and is free for the next.
    let cancelled = greet(&bed, "{\"name\": \"never\", \"seconds\": 3600}");
    is(&bed, &cancelled, "running");
    bed.run(&["cancel", &cancelled]).expect(0);
    is(&bed, &cancelled, "cancelled");
    let taken = greet(&bed, "{\"name\": \"nobody\", \"seconds\": 3600}");
    is(&bed, &taken, "running");
    bed.run(&["hold", &taken]).expect(0);
    bed.run(&["release", &taken, "--reason", "a test"]).expect(0);
    is(&bed, &taken, "available");

    // A server that is away, with the lease that it has written, and answers that never came.
    // It runs for long enough to be seen.
    let patient = greet(&bed, "{\"name\": \"patience\", \"seconds\": 5}");
    is(&bed, &patient, "running");
    bed.server.kill();
    bed.server.restart();
    is(&bed, &patient, "completed");
    assert_eq!(bed.job(&taken)["state"], "available", "it was not ended by the one that had lost it");

    // The end of the worker is that of its job.
    let last = greet(&bed, "{\"name\": \"and goodbye\", \"seconds\": 3}");
    until("its work has begun", || bed.run(&["logs", &last]).stdout().contains("goodbye"));
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
    assert_eq!(bed.job(&last)["result"]["greeting"], "hello, and goodbye");
}

/// Submits a job for the worker.
fn greet(bed: &Bed, payload: &str) -> String {
    let words = ["submit", "--queue", "greetings", "--kind", "greet", "--max-attempts", "1", "--payload", payload];
    bed.run(&words).expect(0).stdout().trim().to_owned()
}

/// Waits until a job is in a state.
fn is(bed: &Bed, id: &str, state: &str) {
    let mut job = Value::Null;
    until(&format!("{id} is {state}"), || {
        job = bed.job(id);
        job["state"] == state
    });
}
