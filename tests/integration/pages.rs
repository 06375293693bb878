//! Every command that `README.md` and the pages in `docs/` show, run in order as a reader would paste them.
//!
//! Each page has a bash of its own in an empty directory, with `leasehold` in its path ([`shell`]). Each block of commands
//! has to end with success. An HTML comment before a block says what else is to be known about it; readers do not see it
//! ([`page`]):
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- commands: server -->` | the following commands need a server; it stands on a line of its own |
//! | `<!-- commands: server on elasticsearch -->` | the same with a server on Elasticsearch |
//! | `<!-- commands: says "TEXT" -->` | the next block goes on in the background, and prints TEXT |
//! | `<!-- commands: until "TEXT" -->` | the commands of the next block end by Ctrl-C only, once they have printed TEXT |
//! | `<!-- commands: again -->` | the next block is run again until it succeeds, as what it needs takes a moment |
//! | `<!-- commands: again "TEXT" -->` | the same until it also prints TEXT |
//! | `<!-- commands: exit 1 -->` | a command of the next block ends with this status |
//! | `<!-- commands: shows -->` | the next block is what the commands before it print, with other numbers |
//! | `<!-- commands: not run: REASON -->` | the next block cannot run here; it stands in [`NOT_RUN`] as well |
//!
//! Ports that begin with 74, `http://localhost:9200`, the folder `/tmp/` and names of machines are exchanged for what the
//! test has ([`shell::Stand`]). Numbers differ in what is shown, and so does who leads.

mod page;
mod security;
mod shell;

use std::path::PathBuf;

use page::{End, Page, Step};
use shell::{Shell, Stand};

/// All commands that are not run, each with its page. Other tests or `.ci/run` run the first of them; the others need what
/// a test must not or cannot have.
const NOT_RUN: &[(&str, &str)] = &[
    ("README.md", "cargo run --release -- run examples/source-tree.jsonl"),
    ("README.md", "cargo test"),
    (
        "docs/deploying.md",
        "curl --user elastic -X PUT https://es-1:9200/_security/role/leasehold \
         -H 'content-type: application/json' --data @role.json",
    ),
    (
        "docs/deploying.md",
        "curl --user elastic -X POST https://es-1:9200/_security/api_key -H 'content-type: application/json' \\",
    ),
    ("docs/kibana.md", "leasehold kibana install --kibana-url http://localhost:5601"),
    ("docs/safety.md", "bash .ci/nightly duplicates 300000"),
];

/// The languages of blocks that show no commands.
const OTHER_LANGUAGES: &[&str] =
    &["text", "json", "toml", "ini", "sql", "python", "typescript", "bash", "nginx", "caddyfile", "mermaid"];

/// Declares a test for each page, and the list of them.
macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(#[test]
        fn $test() {
            run($page);
        })*

        const PAGES: &[&str] = &[$($page,)*];
    };
}

pages! {
    commands_of_the_readme: "README.md",
    commands_about_the_command_line: "docs/cli.md",
    commands_about_deploying: "docs/deploying.md",
    commands_about_events: "docs/events.md",
    commands_about_kibana: "docs/kibana.md",
    commands_about_queries: "docs/kql.md",
    commands_about_limits: "docs/limits.md",
    commands_about_members: "docs/members.md",
    commands_about_notifications: "docs/notifications.md",
    commands_about_operating: "docs/operating.md",
    commands_about_order: "docs/order.md",
    commands_about_output: "docs/output.md",
    commands_about_the_web_page: "docs/page.md",
    commands_about_safety: "docs/safety.md",
    commands_about_schedules: "docs/schedules.md",
    commands_about_security: "docs/security.md",
    commands_about_unique_keys: "docs/unique.md",
    commands_about_workers: "docs/workers.md",
}

#[test]
fn every_page_has_a_test_and_only_what_is_listed_is_not_run() {
    let mut there: Vec<String> = vec!["README.md".to_owned()];
    for entry in root().join("docs").read_dir().expect("the folder is there") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name that is text");
        there.extend(name.ends_with(".md").then(|| format!("docs/{name}")));
    }
    there.sort();
    assert_eq!(there, PAGES, "each page has a line in `pages!`, in this order");

    let mut not_run = Vec::new();
    for name in PAGES {
        for step in read(name).steps {
            if let Step::NotRun { commands, .. } = step {
                let first = commands.lines().next().unwrap_or_default().to_owned();
                not_run.push(((*name).to_owned(), first));
            }
        }
    }
    let listed: Vec<(String, String)> =
        NOT_RUN.iter().map(|(page, command)| ((*page).to_owned(), (*command).to_owned())).collect();
    assert_eq!(not_run, listed, "what is not run stands in `NOT_RUN`, in this order");
}

#[test]
fn a_page_without_a_reason_an_unknown_remark_and_a_command_outside_of_a_block_are_refused() {
    let wrong = [
        ("<!-- commands: not run: -->\n```sh\nfalse\n```\n", "remark"),
        ("<!-- commands: maybe -->\n```sh\nfalse\n```\n", "remark"),
        ("<!-- commands: exit 1 -->\n\n```text\nfalse\n```\n", "no block of commands"),
        ("<!-- commands: exit 1 -->\nProse.\n", "no block of commands"),
        ("```\nfalse\n```\n", "language"),
        ("```rust\nfalse\n```\n", "language"),
        ("Thus:\n\n    leasehold list\n", "fenced"),
        ("```sh\nfalse\n", "end"),
    ];
    for (text, why) in wrong {
        let refused = Page::parse(text).err().unwrap_or_else(|| panic!("taken: {text}"));
        assert!(refused.contains(why), "{text}: {refused}");
    }
}

#[test]
fn a_command_that_fails_in_the_middle_of_a_block_is_noticed_and_what_was_started_ends() {
    let place = tempfile::tempdir().expect("a directory");
    let mut shell = Shell::start(place.path(), Stand::of(place.path(), false));
    let failed = shell.run("true\nsh -c 'exit 3'\ntrue", &End::Status(0)).expect_err("noticed");
    assert!(failed.contains("3 sh -c 'exit 3'"), "{failed}");
    shell.run("sleep 1000 & echo $! > pid", &End::Status(0)).expect("it begins");
    let pid = std::fs::read_to_string(place.path().join("pid")).expect("written").trim().to_owned();
    assert!(crate::program::is_alive(&pid));
    drop(shell);
    assert!(!crate::program::is_alive(&pid));
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> Page {
    let text = std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    Page::parse(&text).unwrap_or_else(|why| panic!("{name}:{why}"))
}

/// Runs all commands of a page, in order.
fn run(name: &str) {
    let page = read(name);
    let place = tempfile::tempdir().expect("a directory");
    let is_on_elasticsearch =
        |step: &Step| matches!(step, Step::Run { commands, .. } if shell::names_elasticsearch(commands));
    let needs_elasticsearch = page.steps.iter().any(is_on_elasticsearch);
    let mut shell = Shell::start(place.path(), Stand::of(place.path(), needs_elasticsearch));
    let mut printed = String::new();
    for step in page.steps {
        match step {
            Step::Run { line, commands, end } => {
                let ran = shell.run(&commands, &end);
                printed = ran.unwrap_or_else(|why| panic!("{name}:{line}: {commands}\n{why}"));
            }
            Step::Shows { line, text } => {
                let missing = page::missing(&text, &printed);
                assert!(missing.is_empty(), "{name}:{line}: not printed: {missing:?}; but:\n{printed}");
            }
            Step::NotRun { line, commands, why } => println!("{name}:{line}: not run, {why}: {commands}"),
        }
    }
}
