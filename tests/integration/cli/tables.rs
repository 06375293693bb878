//! What tables look like: on terminals of several widths, with and without colours, and for programs.

use std::io::Read as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::Bed;
use crate::program::{Started, leasehold};
use crate::screen;

/// Runs a command whose output is a terminal of so many columns, and returns what it wrote.
fn on_terminal(command: &mut Command, columns: u16) -> String {
    let (mut terminal, inside) = screen::open(24, columns).expect("a terminal");
    let process = Started::of(command.env("TERM", "xterm-256color").stdout(Stdio::from(inside)));
    // The handle that is left in the command would keep the terminal open.
    command.stdout(Stdio::null());
    let (mut shown, mut chunk) = (Vec::new(), [0; 4096]);
    // Reading fails once nobody has the other side open.
    while let Ok(read @ 1..) = terminal.read(&mut chunk) {
        shown.extend_from_slice(&chunk[..read]);
    }
    process.end().expect(0);
    String::from_utf8(shown).expect("a text").replace("\r\n", "\n")
}

/// The text without what colours it.
fn plain(text: &str) -> String {
    regex::Regex::new("\u{1b}\\[[0-9;]*m").expect("a pattern").replace_all(text, "").into_owned()
}

impl Bed {
    fn shown(&self, columns: u16, settings: &[(&str, &str)], arguments: &[&str]) -> String {
        let mut command = leasehold(self.path(), arguments);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE").env("LEASEHOLD_SERVER", self.server.url());
        command.envs(settings.iter().copied());
        on_terminal(&mut command, columns)
    }
}

#[test]
fn a_table_fits_the_terminal_and_has_colors_where_they_are_wanted() {
    let bed = Bed::start();
    let id = bed.submit(&["--queue", "a-queue-with-a-very-long-name-that-needs-much-room"], "true");
    bed.submit(&["--id", "later", "--run-at", "2100-01-01T00:00:00Z"], "true");
    bed.submit(&["--id", "gone", "--label", "team=blue"], "true");
    bed.run(&["cancel", "gone"]).expect(0);
    for columns in [40, 80, 200, 0] {
        let colored = bed.shown(columns, &[], &["list"]);
        assert!(colored.contains('\u{1b}'), "{columns}: {colored}");
        let bare = bed.shown(columns, &[("NO_COLOR", "1")], &["list"]);
        assert!(!bare.contains('\u{1b}'), "{columns}: {bare}");
        for table in [plain(&colored), bare] {
            let width = usize::from(if columns == 0 { 80 } else { columns });
            assert!(table.lines().all(|line| line.chars().count() <= width), "{columns}:\n{table}");
            assert_eq!(table.lines().count(), 5, "{columns}:\n{table}");
            for word in [&id[28..], "scheduled in", "cancelled", "available"] {
                assert!(table.contains(word), "{columns}, {word}:\n{table}");
            }
            assert_eq!(table.contains("much-room"), columns == 200, "{columns}:\n{table}");
            assert_eq!(table.contains("created"), columns != 40, "{columns}:\n{table}");
        }
    }
    let never = bed.shown(80, &[("CLICOLOR_FORCE", "1")], &["--color", "never", "list"]);
    assert!(!never.contains('\u{1b}'), "{never}");
    assert!(!bed.run(&["list"]).expect(0).stdout().contains('\u{1b}'));
    let always = bed.run(&["list", "--color", "always"]).expect(0).stdout();
    assert!(always.contains("\u{1b}[34mscheduled in"), "{always}");
}

#[test]
fn a_short_id_names_its_job_and_an_exact_one_wins() {
    let bed = Bed::start();
    let twins = ["00000000-0000-7000-8000-aaaadeadbeef", "00000000-0000-7000-8000-bbbbdeadbeef"];
    for id in twins {
        bed.submit(&["--id", id], "true");
    }
    let id = bed.submit(&[], "true");
    assert_eq!(bed.job(&id[24..])["id"], id.as_str());
    let listed = bed.run(&["list"]).expect(0).stdout();
    assert!(listed.contains("\nadeadbeef") && listed.contains("\nbdeadbeef"), "{listed}");
    let said = bed.run(&["get", "deadbeef"]).expect(2).stderr();
    assert!(twins.iter().all(|id| said.contains(id)), "{said}");
    bed.submit(&["--id", "deadbeef"], "true");
    assert_eq!(bed.job("deadbeef")["id"], "deadbeef");

    let short = &twins[0][24..];
    assert!(bed.run(&["explain", short]).expect(0).stdout().contains(twins[0]));
    bed.run(&["cancel", short]).expect(0);
    // A job that has ended is found as well.
    assert_eq!(bed.run(&["wait", short]).expect(1).stdout().lines().count(), 3);
    bed.run(&["retry", short]).expect(0);
    assert_eq!(bed.job(twins[0])["state"], "available");
    assert_eq!(bed.job(twins[1])["state"], "available");
    assert!(bed.run(&["get", "0badc0de"]).expect(1).stderr().contains("0badc0de"));
}

#[test]
fn an_answer_has_the_form_that_is_asked_for() {
    let bed = Bed::start();
    bed.submit(&["--id", "a", "--run-at", "2030-01-01T00:00:00Z", "--label", "team=blue"], "true");
    assert_eq!(bed.run(&["list", "--output", "name"]).expect(0).stdout(), "a\n");
    assert_eq!(bed.run(&["queue", "list", "--output", "name"]).expect(0).stdout(), "default\n");
    let json = bed.run(&["list", "--output", "json"]).expect(0).stdout();
    assert_eq!(json, bed.run(&["list", "--json"]).expect(0).stdout());
    let yaml = bed.run(&["get", "a", "--output", "yaml"]).expect(0).stdout();
    let read: Value = serde_norway::from_str(yaml.trim_start_matches("---\n")).expect("YAML");
    assert_eq!(read, serde_json::from_str::<Value>(&json).expect("JSON"));
    let wide = bed.run(&["list", "--output", "wide"]).expect(0).stdout();
    assert!(wide.contains("labels") && wide.contains("team=blue"), "{wide}");
    let zone = ["list", "--time", "absolute", "--time-zone", "Europe/Berlin"];
    let dated = bed.run(&zone).expect(0).stdout();
    assert!(dated.contains("scheduled 2030-01-01T01:00:00.000+01:00"), "{dated}");
    let said = bed.run(&["list", "--time-zone", "Berlin"]).expect(2).stderr();
    assert!(said.contains("did you mean `Europe/Berlin`?"), "{said}");
}

#[test]
fn a_phase_is_queried_and_a_value_that_a_field_cannot_have_is_warned_of() {
    let bed = Bed::start();
    bed.submit(&["--id", "now"], "true");
    bed.submit(&["--id", "later", "--run-at", "2100-01-01T00:00:00Z"], "true");
    let found = |kql: &str| bed.run(&["list", kql, "--output", "name"]).expect(0).stdout();
    assert_eq!((found("phase: scheduled"), found("phase: available")), ("later\n".to_owned(), "now\n".to_owned()));
    assert_eq!(bed.run(&["count", "phase: (scheduled or retrying)"]).expect(0).stdout(), "1\n");
    for (kql, word) in [("state: runing", "running"), ("phase: scheduld", "scheduled")] {
        let listed = bed.run(&["list", kql]).expect(0);
        assert_eq!(listed.stdout(), "no jobs match\n");
        assert!(listed.stderr().contains(&format!("is `{word}` meant?")), "{}", listed.stderr());
    }
    for empty in ["workers", "orphans"] {
        assert_eq!(bed.run(&[empty]).expect(0).stdout().lines().count(), 1, "{empty}");
    }
}

#[test]
fn texts_of_others_do_no_harm_in_any_output() {
    let bed = Bed::start();
    let hostile = "x\u{1b}[2J\u{7}\r\n\u{202e}'\"y";
    let label = format!("team={hostile}");
    bed.submit(&["--id", "a", "--owner", "o'\"w", "--label", &label], "true");
    bed.run(&["cancel", "a", "--reason", hostile]).expect(0);
    bed.run(&["queue", "pause", "default", "--reason", hostile]).expect(0);
    let commands: [&[&str]; 9] = [
        &["list", "--output", "wide"],
        &["list", "--fields", "id,labels.team,history.reason"],
        &["get", "a"],
        &["events", "--since", "1h"],
        &["queue", "list"],
        &["queue", "show", "default"],
        &["explain", "a"],
        &["count", "--by", "labels.team"],
        &["get", hostile],
    ];
    for command in commands {
        let said = bed.run(command).said();
        let control = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!said.contains(control), "{command:?}: {said:?}");
    }
    assert_eq!(bed.run(&["list", "--output", "wide"]).expect(0).stdout().lines().count(), 3);
}

#[test]
fn a_line_that_is_no_job_is_described_in_plain_words() {
    let bed = Bed::start();
    let file = bed.path().join("jobs.jsonl");
    for (line, plainly) in [
        ("[1]", "expected an object, not a list"),
        (r#"{"command": ["a"], "priority": "x"}"#, "expected a whole number, not the text \"x\""),
        (r#"{"comand": ["a"]}"#, "unknown field `comand`; is `command` meant?"),
        (r#"{"command": ["a"]"#, "the JSON ends too early"),
    ] {
        std::fs::write(&file, line).expect("written");
        let said = bed.run(&["submit", "--file", "jobs.jsonl"]).expect(2).stderr();
        assert!(said.contains(plainly), "{said}");
    }
}

#[test]
fn a_terminal_shows_what_a_name_hides_and_programs_get_it_as_it_is() {
    let bed = Bed::start();
    let id = "a\u{202e}b\u{61c}c\u{200b}d";
    bed.submit(&["--id", id, "--label", "note=\u{9b}31m\u{feff}"], "true");
    let hidden = ['\u{202e}', '\u{61c}', '\u{200b}', '\u{9b}', '\u{feff}'];
    let forms = [
        &["list"][..],
        &["list", "--output", "wide"],
        &["list", "--fields", "id,labels.note"],
        &["describe", id],
        &["get", "--json", id],
        &["list", "--json"],
        &["get", "--output", "yaml", id],
        &["get", "--output", "name", id],
        &["events", "--since", "1d"],
        &["events", "--since", "1d", "--json"],
    ];
    for form in forms {
        let shown = bed.shown(200, &[], form);
        assert!(shown.contains('a') && !shown.contains(hidden), "{form:?}: {shown:?}");
    }
    let on_terminal: Value = serde_json::from_str(&bed.shown(0, &[], &["get", "--json", id])).expect("JSON");
    let piped = bed.run(&["get", "--json", id]).expect(0).stdout();
    assert!(piped.contains(id), "{piped}");
    assert_eq!(serde_json::from_str::<Value>(&piped).expect("JSON"), on_terminal);
}
