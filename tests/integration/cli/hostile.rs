//! Names that would do something where a shell read them as code, or a terminal as what they hold.

use std::path::Path;
use std::process::{Command, Stdio};

use super::Bed;
use super::asking::completions;
use crate::program::{PROGRAM, Started, until};
use crate::screen::{Colour, Terminal};

/// Ids that jobs can have.
const IDS: [&str; 5] = ["abc$(touch F)", "-rf", "a b'`touch F`", "!!;touch F", "x\u{202e}y\u{200b}\u{61c}"];

impl Bed {
    /// Runs a line as somebody who pastes it.
    fn paste(&self, place: &Path, line: &str) -> Started {
        let mut shell = Command::new("sh");
        let function = "leasehold() { \"$PROGRAM\" \"$@\"; }";
        shell.args(["-c", &format!("{function}\n{line}")]).current_dir(place).stdin(Stdio::null());
        shell.env("PROGRAM", PROGRAM).env("LEASEHOLD_SERVER", self.server.url());
        Started::of(shell.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }
}

#[test]
fn what_is_shown_to_be_pasted_does_what_it_says_whatever_a_job_is_called() {
    let bed = Bed::start();
    let place = tempfile::tempdir().expect("a directory");
    for id in IDS {
        bed.submit(&[&format!("--id={id}")], "true");
        let page = bed.run(&["describe", "--", id]).expect(0).stdout();
        let line = page.lines().find_map(|line| line.strip_prefix("more: ")).expect("commands");
        let (logs, events) = line.rsplit_once("; ").expect("two commands");
        bed.paste(place.path(), logs).end().expect(0);
        let told = bed.paste(place.path(), &format!("{events} --json")).end().expect(0).stdout();
        assert!(told.contains("\"submitted\""), "{line}: {told}");
    }
    let queue = "nightly$(touch F)";
    bed.submit(&["--queue", queue], "true");
    bed.run(&["queue", "pause", queue]).expect(0);
    let said = bed.run(&["status"]).stdout();
    let line = said.split('`').find(|part| part.starts_with("leasehold queue resume ")).expect("a command");
    bed.paste(place.path(), line).end().expect(0);
    assert!(!bed.run(&["queue", "show", queue, "--json"]).json(0)["paused"].as_bool().expect("a flag"));
    assert_eq!(std::fs::read_dir(place.path()).expect("a directory").count(), 0, "nothing was touched");
}

#[test]
fn a_shell_that_completes_a_name_runs_nothing_of_it() {
    let bed = Bed::start();
    let place = tempfile::tempdir().expect("a directory");
    for id in ["abc$(touch F)", "abc`touch F`", "-abc", "abc; touch F"] {
        bed.submit(&[&format!("--id={id}"), "--queue", "nig$(touch F)"], "true");
    }
    bed.submit(&["--id", "abc-plain"], "true");
    until("the plain id", || completions(&bed, &["get", "ab"]) == ["abc-plain"]);
    until("no such queue", || bed.run(&["list"]).stdout().contains("nig"));
    assert_eq!(completions(&bed, &["list", "--queue", "nig"]), [""; 0]);
    assert_eq!(completions(&bed, &["list", "queue: nig"]), [""; 0]);

    let folder = Path::new(PROGRAM).parent().expect("a folder").display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").expect("a path"));
    let mut bash = Command::new("bash");
    bash.args(["--norc", "--noprofile", "-i"]).current_dir(place.path()).env("PS1", "ready> ").env("PATH", path);
    bash.env("LEASEHOLD_SERVER", bed.server.url()).env("XDG_CONFIG_HOME", place.path()).env_remove("HISTFILE");
    let mut terminal = Terminal::start(&mut bash, 50, 200, Colour::No);
    terminal.until("a prompt", |screen| screen.contains("ready>"));
    terminal.press("source <(leasehold completions bash); echo com''plete\r");
    terminal.until("it completes", |screen| screen.contains("\ncomplete\n"));
    for (typed, ends) in [
        ("leasehold get --json ab\t\r", "\"id\":\"abc-plain\""),
        ("leasehold get --json \"ab\t\r", "\"id\":\"abc-plain\""),
        ("leasehold list --queue nig\t\r", "no jobs match"),
        ("leasehold list queue:nig\t\r", "no jobs match"),
    ] {
        terminal.press("clear\r");
        terminal.until("an empty screen", |screen| screen.lines().next().is_some_and(|line| line == "ready>"));
        terminal.press(typed);
        terminal.until(typed, |screen| screen.contains(ends));
    }
    terminal.press("exit\r");
    let _shown = terminal.end();
    assert!(!place.path().join("F").exists());
}
