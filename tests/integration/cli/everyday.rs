//! What people type all day: submissions with everything, one page about a job, whether all is well, and contexts.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use super::Bed;
use crate::program::{Engine, PROGRAM, Server, Started, eventually, leasehold, run, until};
use crate::servers::ports;

#[test]
fn a_job_is_submitted_waited_for_and_ends_the_command_as_its_own_did() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let line = "echo $GREETING from $PWD; echo err >&2; exit 7";
    let folder = bed.path().canonicalize().expect("a folder");
    let submit = |retries: &str| {
        let flags = ["submit", "--wait", "--retries", retries, "--env", "GREETING=hello", "--cwd"];
        let words = [&flags[..], &[folder.to_str().expect("text"), "--", "sh", "-c", line]].concat();
        bed.run(&words)
    };
    let ended = submit("1");
    assert_eq!(ended.code(), Some(7));
    assert_eq!(ended.stdout(), format!("hello from {}\n", folder.display()));
    assert!(
        ended.stderr().starts_with("err\n") && ended.stderr().contains("failed: exit status 7"),
        "{}",
        ended.stderr()
    );
    bed.run(&["submit", "--wait", "--", "true"]).expect(0);
    let json = bed.run(&["submit", "--wait", "--json", "--", "echo", "x"]).json(0);
    assert_eq!((&json["state"], &json["result"]["stdout"]), (&"completed".into(), &"x\n".into()));
}

#[test]
fn times_are_said_as_people_say_them_and_a_distance_makes_a_schedule() {
    let bed = Bed::start();
    let due = |flags: &[&str]| {
        let id = bed.submit(flags, "true");
        let job = bed.job(&id);
        assert_eq!(job["state"], "available");
        (job["run_at"].as_str().expect("a time").to_owned(), job["created_at"].as_str().expect("a time").to_owned())
    };
    let (run_at, created_at) = due(&["--in", "2h"]);
    assert!(run_at > created_at);
    assert_eq!(due(&["--at", "2031-01-31T08:00:00Z"]).0, "2031-01-31T08:00:00.000Z");
    assert!(due(&["--at", "tomorrow 02:00"]).0 > created_at);
    let id = bed.submit(&["--expires", "in 1h", "--resource", "gpus=2", "--notify", "https://example.org/"], "true");
    let job = bed.job(&id);
    assert!(job["expires_at"].is_string() && job["resources"]["gpus"] == 2, "{job}");
    assert_eq!(job["notify"][0]["url"], "***", "it is for an administrator who asks");
    bed.run(&["submit", "--id", "hourly", "--every", "1h", "--", "true"]).expect(0);
    assert_eq!(bed.run(&["schedule", "list", "--json"]).json(0)["period"]["every_ms"], 3_600_000);
    bed.run(&["submit", "--at", "noonish", "--", "true"]).expect(2);
    bed.run(&["submit", "--in", "1h", "--at", "12:00", "--", "true"]).expect(2);
}

#[test]
fn one_page_has_everything_about_a_job() {
    let bed = Bed::start();
    let waiting = bed.submit(&[], "true");
    let page = bed.run(&["describe", &waiting]).expect(0).stdout();
    assert!(page.contains("why it stands where it does") && page.contains("worker"), "{page}");
    let _worker = bed.worker(&[]);
    let failed = bed.submit(&["--max-attempts", "1"], "echo first; echo no paper >&2; exit 3");
    bed.run(&["watch", &failed]).expect(1);
    let page = bed.run(&["describe", &failed]).expect(0).stdout();
    for part in ["failed", "history", "the end of stdout of attempt 1", "first", "no paper", "leasehold logs"] {
        assert!(page.contains(part), "{part}: {page}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_watched_until_it_has_ended() {
    let bed = Bed::start();
    let id = bed.submit(&[], "true");
    let mut command = leasehold(bed.path(), ["watch", &id]);
    let watching = Started::of(command.env("LEASEHOLD_SERVER", bed.server.url()));
    // Of what happened before it listens it shows nothing.
    let is_open = async || bed.server.counter("leasehold_event_streams").await >= 1.0;
    eventually("the watch listens", is_open).await;
    let _worker = bed.worker(&[]);
    let said = watching.end().expect(0).stdout();
    let ends: Vec<_> = said.lines().filter(|line| line.contains(" completed ")).collect();
    assert_eq!(ends, Vec::from_iter(said.lines().last()), "{said}");
    // Of a job that had ended before, it shows the end.
    assert_eq!(bed.run(&["watch", &id]).expect(0).stdout().lines().collect::<Vec<_>>(), ends);
}

#[test]
fn the_status_says_what_is_to_be_done() {
    let bed = Bed::start();
    let said = bed.run(&["status"]).expect(0).stdout();
    assert!(said.contains("0 jobs wait") && said.contains("no job has failed"), "{said}");
    bed.submit(&[], "true");
    bed.run(&["queue", "pause", "reports", "--reason", "the printer burns"]).expect(0);
    let said = bed.run(&["status"]).expect(0).stdout();
    assert!(said.contains("no worker has called") && said.contains("`leasehold worker`"), "{said}");
    assert!(said.contains("reports is paused: the printer burns"), "{said}");
    assert_eq!(bed.run(&["status", "--json"]).json(0)["status"], "ok");
}

#[test]
fn the_doctor_looks_at_this_machine_and_at_the_server() {
    let bed = Bed::start();
    let said = bed.run(&["doctor", "--data-dir", "data"]).stdout();
    // How well the clocks can be compared depends on how fast the server answers.
    for part in ["data folder: data can be written", "disk", "server: it answers", "ok    clocks: "] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let place = tempfile::tempdir().expect("a directory");
    let away = run(place.path(), ["doctor", "--server", "127.0.0.1:1"]).expect(1).stdout();
    assert!(away.contains("WRONG server: cannot reach the server") && away.contains("can be made"), "{away}");
}

#[test]
fn a_context_is_kept_for_its_user_alone_and_its_token_goes_to_no_other_server() {
    let place = tempfile::tempdir().expect("a directory");
    let token = run(place.path(), ["token", "--json"]).json(0);
    let secret = token["token"].as_str().expect("a token").to_owned();
    let settings = place.path().join("server.toml");
    let hash = &token["sha256"];
    let text = format!("[[tokens]]\nname = \"me\"\nroles = [\"read\", \"admin\"]\nsha256 = {hash}\n");
    fs::write(&settings, text).expect("written");
    let engine = Engine::Embedded(place.path().join("data"));
    let arguments = ["serve", "--config", settings.to_str().expect("text")];
    let server = Server::begin_at(ports::free(), PROGRAM, &arguments, engine, &place.path().join("server.log"));
    until("the server listens", || server.log().contains("listening on"));
    let cli = |words: &[&str]| run(place.path(), words);
    let wrong = cli(&["login", "prod", "--server", &server.url(), "--token", "lh_wrong"]).expect(1).stderr();
    assert!(wrong.contains("--token"), "{wrong}");
    assert!(cli(&["context", "list"]).expect(0).stdout().contains("there are no contexts"));
    cli(&["login", "prod", "--server", &server.url(), "--token", &secret]).expect(0);
    let file = place.path().join("config/leasehold/contexts.toml");
    assert_eq!(fs::metadata(&file).expect("a file").permissions().mode() & 0o777, 0o600);
    cli(&["list"]).expect(0);
    cli(&["--context", "prod", "list"]).expect(0);
    let listed = cli(&["context", "list"]).expect(0).stdout();
    assert!(listed.contains("prod") && !listed.contains(&secret), "{listed}");
    // Named by a flag, the same server is another one: the token is not for it.
    let refused = cli(&["list", "--server", &server.url()]).expect(1).stderr();
    assert!(refused.contains("--token"), "{refused}");
    let unknown = cli(&["--context", "test", "list"]).expect(2).stderr();
    assert!(unknown.contains("no context `test`") && unknown.contains("prod"), "{unknown}");
    cli(&["context", "remove", "prod"]).expect(0);
    cli(&["context", "use", "prod"]).expect(2);
}

#[test]
fn help_and_manual_pages_are_there_for_commands_and_topics() {
    let place = tempfile::tempdir().expect("a directory");
    let help = |words: &[&str]| run(place.path(), [&["help"], words].concat());
    assert!(help(&["schedule", "add"]).expect(0).stdout().contains("--every"));
    assert!(help(&["kql"]).expect(0).stdout().contains("state: failed"));
    // Comments in a page are not for readers.
    assert!(!help(&["schedules"]).expect(0).stdout().contains("<!--"));
    assert!(help(&["exit-codes"]).expect(0).stdout().contains("130"));
    assert!(help(&["no-such"]).expect(2).stderr().contains("topics are exit-codes, kql"));
    run(place.path(), ["man", "--dir", "man1"]).expect(0);
    assert!(place.path().join("man1/leasehold-submit.1").exists());
    until("the page of the program", || run(place.path(), ["man"]).stdout().contains(".TH leasehold 1"));
}
