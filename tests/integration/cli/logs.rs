//! What jobs wrote, shown by `leasehold logs`.

use std::fs;

use super::Bed;
use crate::program::{DEADLINE, Started, leasehold, until};
use crate::screen::{Colour, Terminal};

#[test]
fn what_a_failed_job_wrote_is_shown_for_each_attempt() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let line = "{\"command\": \"echo out of attempt $LEASEHOLD_ATTEMPT; echo err >&2; exit 3\", \
                \"max_attempts\": 2, \"retry\": {\"base_ms\": 10}}";
    let mut submit = leasehold(bed.path(), ["submit", "--file", "-"]);
    let submitted = Started::with_input(submit.env("LEASEHOLD_SERVER", bed.server.url()), line).end();
    let id = submitted.expect(0).stdout().trim().to_owned();
    bed.run(&["wait", &id]).expect(1);
    let shown = bed.run(&["logs", &id]).expect(0);
    assert_eq!((shown.stdout().as_str(), shown.stderr().as_str()), ("out of attempt 2\n", "err\n"));
    assert_eq!(bed.run(&["logs", &id, "--attempt", "1"]).expect(0).stdout(), "out of attempt 1\n");
    assert_eq!(bed.run(&["logs", &id, "--fence", "1"]).expect(0).stdout(), "out of attempt 1\n");
    assert_eq!(bed.run(&["logs", &id, "--json"]).json(0)["streams"][0]["ended"], true);
    assert!(bed.run(&["logs", &id, "--attempt", "3"]).expect(1).stderr().contains("no attempt 3"));
}

#[test]
fn a_running_job_is_followed_to_its_end() {
    let bed = Bed::start();
    let go_on = bed.path().join("go-on");
    let line = format!("echo first; while ! [ -e {} ]; do sleep 0.05; done; echo last", go_on.display());
    let id = bed.submit(&[], &line);
    // It is followed before it is started.
    let follow = |arguments: &[&str]| {
        let mut command = leasehold(bed.path(), arguments);
        let said = fs::File::create(bed.path().join("said")).expect("a file");
        Started::of(command.env("LEASEHOLD_SERVER", bed.server.url()).stdout(said))
    };
    let following = follow(&["logs", "--follow", &id]);
    let _worker = bed.worker(&[]);
    let said = || fs::read_to_string(bed.path().join("said")).expect("a file");
    until("the first line is shown", || said() == "first\n");
    fs::write(&go_on, "").expect("written");
    following.end().expect(0);
    assert_eq!(said(), "first\nlast\n");
}

#[test]
fn on_a_terminal_of_any_width_what_is_followed_stands_as_it_was_written() {
    let bed = Bed::start();
    let go = bed.path().join("go");
    let wide = "w".repeat(100);
    let line = format!(
        "echo begun; printf '\\033[31mred\\n'; echo {wide}; while ! test -e {}; do sleep 0.1; done; echo gone on",
        go.display()
    );
    let id = bed.submit(&["--queue", "night"], &line);
    let _worker = bed.worker(&["--queue", "night"]);
    until("it runs", || bed.job(&id)["state"] == "running");
    let mut terminals: Vec<Terminal> = [(40, Colour::Yes), (80, Colour::No), (200, Colour::Yes)]
        .into_iter()
        .map(|(columns, colour)| {
            let mut command = leasehold(bed.path(), ["logs", "--follow", &id]);
            Terminal::start(command.env("LEASEHOLD_SERVER", bed.server.url()), 24, columns, colour)
        })
        .collect();
    for terminal in &mut terminals {
        terminal.until("it is followed while it runs", |screen| screen.contains("begun") && screen.contains("red"));
    }
    std::fs::write(&go, "").expect("written");
    for terminal in terminals {
        let shown = terminal.end();
        assert_eq!(shown.code, Some(0), "{}", shown.text());
        let screen: Vec<&str> = shown.screen.lines().map(str::trim_end).filter(|row| !row.is_empty()).collect();
        assert_eq!((screen.first(), screen.last()), (Some(&"begun"), Some(&"gone on")), "{}", shown.screen);
        assert_eq!(screen[1..].concat().matches('w').count(), 100, "{}", shown.screen);
    }
}

#[test]
fn a_job_that_writes_without_end_costs_bounded_memory_and_disk_and_ends_well() {
    const WRITTEN: u64 = 1 << 30;
    let mut bed = Bed::start();
    let mut worker = bed.worker(&[]);
    let id = bed.submit(&[], &format!("yes 0123456789abcdef | head -c {WRITTEN}"));
    let mut wait = leasehold(bed.path(), ["wait", &id]);
    // As much as that takes a slow machine minutes.
    Started::of(wait.env("LEASEHOLD_SERVER", bed.server.url())).end_within(5 * DEADLINE).expect(0);
    assert_eq!(bed.job(&id)["result"]["stdout_bytes"], WRITTEN);
    let output = bed.run(&["logs", &id, "--json"]).json(0);
    assert_eq!((&output["streams"][0]["bytes"], &output["streams"][0]["ended"]), (&WRITTEN.into(), &true.into()));
    let shown = bed.run(&["logs", &id]).expect(0).stdout();
    assert!(shown.contains("bytes left out]\n") && shown.len() < 300 * 1024, "{} bytes", shown.len());
    let peak = |pid: u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process");
        let line = status.lines().find(|line| line.starts_with("VmHWM")).expect("its peak").to_owned();
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
    };
    let (of_worker, of_server) = (peak(worker.child().id()), peak(bed.server.pid()));
    assert!(of_worker < 256 && of_server < 512, "the worker took {of_worker} MiB, the server {of_server} MiB");
    let disk: u64 = walk(&bed.path().join("data").join("output"));
    assert!(disk < 100 << 20, "{disk} bytes on disk");
}

fn walk(folder: &std::path::Path) -> u64 {
    let entries = fs::read_dir(folder).expect("a folder").flatten();
    let size = |entry: fs::DirEntry| match entry.metadata() {
        Ok(found) if found.is_dir() => walk(&entry.path()),
        found => found.map_or(0, |found| found.len()),
    };
    entries.map(size).sum()
}
