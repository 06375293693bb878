//! What `docs/deploying.md` gives to copy: units for systemd, and the role for Elasticsearch.

use std::process::Command;

use crate::program::{DEADLINE, Engine, PROGRAM, Server, Started, leasehold, until};
use crate::servers;

const DEPLOYING: &str = include_str!("../../../docs/deploying.md");
const OPERATING: &str = include_str!("../../../docs/operating.md");

/// The blocks of a page in a language.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let begin = format!("\n```{language}\n");
    page.split(begin.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn the_program_takes_every_command_of_the_units() {
    let units = [blocks(DEPLOYING, "ini"), blocks(OPERATING, "ini")].concat();
    let lines = units.iter().flat_map(|unit| unit.lines());
    let commands: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/leasehold ")).collect();
    assert_eq!(commands.len(), units.len(), "{commands:?}");
    for command in commands {
        // What stands before `--help` has to be right all the same.
        let output = Command::new(PROGRAM).args(command.split(' ')).arg("--help").output().expect("it runs");
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: an Elasticsearch for it alone; nothing else tries the role"]
async fn the_role_for_elasticsearch_is_all_that_the_program_needs() {
    let section = DEPLOYING.split_once("\n## A role for Elasticsearch\n").expect("a section").1;
    let elasticsearch = servers::elasticsearch_with_role(blocks(section, "json")[0]).await;
    let place = tempfile::tempdir().expect("a directory");
    let prefix = "leasehold-";
    let engine = Engine::on(elasticsearch.indices_under(prefix.to_owned()));
    let options = ["--query-time", "2s", "--monitor-scan-period-ms", "1000", "--audit", "--audit-period-ms", "500"];
    let server = Server::start_as("serve", &options, engine.clone(), &place.path().join("server.log")).await;

    let run = |arguments: &[&str]| {
        let mut command = leasehold(place.path(), arguments);
        let started = Started::of(command.env("LEASEHOLD_SERVER", server.url()));
        tokio::task::block_in_place(|| started.end_within(5 * DEADLINE).expect(0).stdout())
    };
    let _worker =
        Started::of(leasehold(place.path(), ["worker", "--queue", "default"]).env("LEASEHOLD_SERVER", server.url()));
    // A job with a long result, output, a limit and keys; a schedule, and its trigger.
    let keys = ["--unique-key", "one", "--ordering-key", "two", "--concurrency-key", "three"];
    let submit = [&["submit", "--id", "a-job", "--wait"][..], &keys, &["--", "echo", "hello"]].concat();
    assert_eq!(run(&submit), "hello\n");
    assert_eq!(run(&["logs", "a-job"]), "hello\n");
    run(&["limit", "set", "queue:reports", "7"]);
    run(&["schedule", "add", "nightly", "0 2 * * *", "--", "date"]);
    let backfill = ["--from", "2025-01-01T00:00:00Z", "--to", "2025-01-02T00:00:00Z", "--wait"];
    run(&[&["schedule", "backfill", "nightly"][..], &backfill].concat());
    // A search finds what was written up to a second before.
    until("the job is listed", || run(&["list", "kind: shell"]).contains("a-job"));
    until("its completion is counted", || run(&["stats", "--by", "state"]).contains("completed"));
    run(&["rerun", "a-job"]);
    run(&["delete", "a-job"]);
    // The audit, and a monitor beside the server, which reads it as well.
    let monitor = Server::start_as("monitor", &["--audit"], engine, &place.path().join("monitor.log")).await;
    for url in [server.url(), monitor.url()] {
        let deleted = ["audit", "--job", "a-job", "--event", "deleted", "--output", "name", "--server", &url];
        until("the deletion is in the audit", || !run(&deleted).is_empty());
    }

    let to = ["--elasticsearch-url", elasticsearch.url(), "--index-prefix", prefix, "--query-time", "2s"];
    let migrate = [&["migrate", "--store", "elasticsearch"][..], &to].concat();
    assert!(run(&migrate).contains("up to date"));
    for shards in ["2", "1"] {
        let said = run(&[&migrate[..], &["--elasticsearch-shards", shards]].concat());
        assert!(said.contains("done"), "{said}");
    }
    let log = server.log() + &monitor.log();
    assert!(!log.contains("security_exception") && !log.contains("HTTP 403"), "{log}");
}
