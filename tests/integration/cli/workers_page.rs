//! The workers of `docs/workers.md`, as they stand there.

use std::fs;
use std::process::{Command, Stdio};

use super::Bed;
use crate::program::{Started, until};

const PAGE: &str = include_str!("../../../docs/workers.md");

/// The code of a language on the page.
fn block(language: &str) -> &'static str {
    let (_, rest) = PAGE.split_once(&format!("```{language}\n")).expect("a block of the language");
    rest.split_once("```").expect("its end").0
}

#[test]
fn the_worker_in_python_runs_jobs_sends_their_output_and_fails_what_it_cannot_do() {
    let bed = Bed::start();
    let program = bed.path().join("worker.py");
    fs::write(&program, block("python")).expect("written");
    let mut command = Command::new("python3");
    command.arg(&program).arg(bed.server.url()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let _worker = Started::of(&mut command);

    let submit = |payload: &str| {
        let words = ["submit", "--queue", "greetings", "--kind", "greet", "--max-attempts", "1", "--payload", payload];
        bed.run(&words).expect(0).stdout().trim().to_owned()
    };
    let (good, bad) = (submit("{\"name\": \"Zo\u{eb}\"}"), submit("{}"));
    until("both have ended", || {
        [&good, &bad]
            .iter()
            .all(|id| ["completed", "failed"].contains(&bed.job(id)["state"].as_str().expect("a state")))
    });
    assert_eq!(bed.job(&good)["result"]["greeting"], "hello, Zo\u{eb}");
    assert_eq!(bed.run(&["logs", &good]).expect(0).stdout(), "greeting Zo\u{eb}\n");
    let error = &bed.job(&bad)["error"];
    assert_eq!((&error["code"], &error["message"]), (&"exception".into(), &"KeyError('name')".into()));
}
