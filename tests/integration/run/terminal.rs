//! The bar, on terminals of several widths.

use std::fs;

use nix::sys::signal::Signal;

use crate::program::{is_alive, leasehold, lines, run, until};
use crate::screen::{Colour, Terminal};

/// One job fails, one ends, and two run until they may end.
const JOB: &str = "case {} in bad) exit 3;; good) exit 0;; esac; touch begun-{}; until test -f go; do sleep 0.02; done";

#[test]
fn the_bar_says_what_runs_and_how_far_it_is_and_leaves_nothing_behind() {
    for (columns, colour) in
        [(40, Colour::No), (80, Colour::Yes), (80, Colour::No), (200, Colour::Yes), (0, Colour::No)]
    {
        let place = tempfile::tempdir().expect("a directory");
        let words = ["run", "-j2", "--shell", "--", JOB, ":::", "bad", "good", "left", "right"];
        let mut terminal = Terminal::start(&mut leasehold(place.path(), words), 60, columns, colour);
        // What is seen in the middle of a change is not whole.
        let bar = terminal.until(&format!("{columns}: both others run, each with its time"), |screen| {
            let is_of = |line: &&str, job: &str| line.contains(job) && line.trim_end().ends_with('s');
            let lines: Vec<&str> = screen.lines().filter(|line| line.contains("#3 ") || line.contains("#4 ")).collect();
            let are_shown = matches!(&lines[..], [third, fourth] if is_of(third, "#3 ") && is_of(fourth, "#4 "));
            are_shown && ["2/4", "left", "1 failed"].iter().all(|text| screen.contains(text))
        });
        assert!(bar.find("#1 ") < bar.find("2/4"), "the failure stands above the bar: {bar}");
        fs::write(place.path().join("go"), "").expect("written");
        let ended = terminal.end();
        assert_eq!(ended.code, Some(1), "{}", ended.text());
        assert!(
            !ended.screen.contains("2/4") && !ended.screen.contains("4/4"),
            "{columns}: a stale bar: {}",
            ended.screen
        );
        assert!(ended.screen.contains("completed"), "{}", ended.screen);
        let coloured = ended.text().contains("\u{1b}[38;5;") || ended.text().contains("\u{1b}[31m");
        assert_eq!(coloured, colour == Colour::Yes, "{columns}: {}", ended.text());
    }
}

#[test]
fn what_jobs_write_stands_above_the_bar_and_stays() {
    let place = tempfile::tempdir().expect("a directory");
    let job = "echo said-{}; test {} = 1 || until test -f go; do sleep 0.02; done";
    let words = ["run", "-j1", "--shell", "--", job, ":::", "1", "2"];
    let mut terminal = Terminal::start(&mut leasehold(place.path(), words), 24, 80, Colour::No);
    let bar =
        terminal.until("the second runs", |screen| ["said-1", "1/2", "#2 "].iter().all(|text| screen.contains(text)));
    assert!(bar.find("said-1") < bar.find("1/2"), "{bar}");
    fs::write(place.path().join("go"), "").expect("written");
    let ended = terminal.end();
    assert!(ended.screen.contains("said-1\nsaid-2\n"), "{}", ended.screen);
}

#[test]
fn the_first_interrupt_lets_jobs_end_and_the_second_ends_them() {
    for interrupts in [1, 2] {
        let place = tempfile::tempdir().expect("a directory");
        let pids = place.path().join("pids");
        let job = "echo $$ >> pids; until test -f go; do sleep 0.02; done; touch ended #";
        let words = ["run", "-j1", "--shell", "--", job, ":::", "1", "2"];
        let mut terminal = Terminal::start(&mut leasehold(place.path(), words), 24, 80, Colour::No);
        terminal.until("a job runs", |screen| screen.contains("#1 ") && lines(&pids).len() == 1);
        terminal.signal(Signal::SIGINT);
        terminal.until("it is said", |screen| screen.contains("waiting for the running jobs (1)"));
        assert!(is_alive(&lines(&pids)[0]), "the first signal ended the job");
        match interrupts {
            1 => fs::write(place.path().join("go"), "").expect("written"),
            _ => terminal.signal(Signal::SIGINT),
        }
        let ended = terminal.end();
        assert_eq!(ended.code, Some(130), "{}", ended.text());
        assert_eq!(place.path().join("ended").exists(), interrupts == 1);
        assert!(
            ended.screen.contains("goes on where this one was") && !ended.screen.contains("0/2"),
            "{}",
            ended.screen
        );
        until("its process is gone", || !is_alive(&lines(&pids)[0]));
        assert_eq!(lines(&pids).len(), 1, "another job was started");
    }
}

#[test]
fn without_a_terminal_there_is_no_bar() {
    let place = tempfile::tempdir().expect("a directory");
    let ended = run(place.path(), ["run", "--", "echo", ":::", "1"]).expect(0);
    assert!(!ended.stderr().contains('\u{1b}') && !ended.stderr().contains('\r'), "{}", ended.said());
}
