//! A worker process and a server process.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sys::signal::Signal;

use super::Bed;
use crate::program::{Started, is_alive, leasehold, lines, until};
use crate::servers::user::ServerUser;

#[test]
fn a_job_is_run_and_its_output_kept() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo out; echo err >&2");
    bed.run(&["wait", &id]).expect(0);
    let result = &bed.job(&id)["result"];
    assert_eq!(
        (&result["stdout"], &result["stderr"], &result["exit_code"]),
        (&"out\n".into(), &"err\n".into(), &0.into())
    );
    let failed = bed.submit(&["--max-attempts", "1"], "echo 'no paper' >&2; exit 3");
    let told = bed.run(&["wait", &failed]).expect(1).stdout();
    assert!(told.contains("no paper"), "{told}");
}

#[test]
fn a_cancelled_job_ends_with_all_its_processes() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "sleep 600 & echo $! >> pids; echo $$ >> pids; wait");
    let pids = || lines(&bed.path().join("pids"));
    until("both processes run", || pids().len() == 2);
    bed.run(&["cancel", &id]).expect(0);
    assert_eq!(bed.run(&["wait", &id]).code(), Some(1));
    assert_eq!(bed.job(&id)["state"], "cancelled");
    for pid in pids() {
        until("its processes are gone", || !is_alive(&pid));
    }
}

#[test]
fn a_job_taken_away_is_ended_and_its_worker_is_not_heard() {
    let bed = Bed::start();
    let _worker = bed.worker(&[]);
    let id = bed.submit(&[], "echo $$ >> pids; sleep 600");
    let pids = || lines(&bed.path().join("pids"));
    until("the job runs", || pids().len() == 1);
    bed.run(&["release", &id, "--then", "fail", "--reason", "host on fire"]).expect(0);
    until("its process is gone", || !is_alive(&pids()[0]));
    let job = bed.job(&id);
    assert_eq!((&job["state"], &job["error"]["message"]), (&"failed".into(), &"host on fire".into()));
}

#[test]
fn a_stopped_worker_gives_its_job_back_unharmed() {
    let bed = Bed::start();
    let mut worker = bed.worker(&["--drain-timeout", "0s", "--slots", "2"]);
    let id = bed.submit(&[], "echo $$ >> pids; sleep 600");
    let pids = || lines(&bed.path().join("pids"));
    until("the job runs", || pids().len() == 1);
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
    until("its process is gone", || !is_alive(&pids()[0]));
    let job = bed.job(&id);
    assert_eq!((&job["state"], &job["attempt"], &job["fence"]), (&"available".into(), &0.into(), &1.into()));
}

#[tokio::test]
async fn a_busy_workers_jobs_come_with_its_completions_and_none_runs_twice() {
    let bed = Bed::start();
    let command = ["sh", "-c", "echo $LEASEHOLD_JOB_ID >> ran"];
    let jobs = format!("{}\n", serde_json::json!({"command": command})).repeat(30);
    let mut submit = leasehold(bed.path(), ["submit", "--file", "-"]);
    let ids = Started::with_input(submit.env("LEASEHOLD_SERVER", bed.server.url()), &jobs).end().expect(0).stdout();
    let ids: BTreeSet<String> = ids.lines().map(str::to_owned).collect();
    let mut worker = leasehold(bed.path(), ["worker", "--slots", "2"]);
    let _worker = Started::of(worker.env("LEASEHOLD_SERVER", bed.server.url()));
    let all: Vec<&str> = std::iter::once("wait").chain(ids.iter().map(String::as_str)).collect();
    bed.run(&all).expect(0);

    let ran = lines(&bed.path().join("ran"));
    assert_eq!((ran.len(), ran.into_iter().collect()), (30, ids));
    let metrics = reqwest::get(format!("{}/metrics", bed.server.url())).await.expect("an answer");
    let metrics = metrics.text().await.expect("metrics");
    let answered = |route: &str| {
        let series = format!(r#"leasehold_http_requests_total{{route="{route}",method="POST",status="200"}} "#);
        metrics.lines().find_map(|line| line.strip_prefix(&series)).map_or(0, |count| count.parse().expect("a number"))
    };
    let (claims, completions) = (answered("/v1/claims"), answered("/v1/completions"));
    assert!(
        (1..=4).contains(&claims) && (15..=30).contains(&completions),
        "{claims} claims, {completions} completions"
    );
}

#[test]
fn a_worker_that_stops_takes_no_job_with_its_last_completion() {
    let bed = Bed::start();
    let errors = std::fs::File::create(bed.path().join("worker.log")).expect("a log");
    let mut worker = leasehold(bed.path(), ["worker", "--slots", "1"]);
    let mut worker = Started::of(worker.env("LEASEHOLD_SERVER", bed.server.url()).stderr(errors));
    let last = bed.submit(&[], "echo $$ >> pids; while ! test -f go; do sleep 0.02; done");
    until("the job runs", || lines(&bed.path().join("pids")).len() == 1);
    let untouched = bed.submit(&[], "true");
    worker.signal(Signal::SIGTERM);
    until("the worker has heard of it", || lines(&bed.path().join("worker.log")).join(" ").contains("stopping"));
    std::fs::write(bed.path().join("go"), "").expect("written");
    worker.end().expect(0);
    assert_eq!(bed.job(&last)["state"], "completed");
    let job = bed.job(&untouched);
    assert_eq!((&job["state"], &job["fence"]), (&"available".into(), &0.into()));
}

#[test]
fn a_result_outlives_a_server_that_was_killed_meanwhile() {
    let mut bed = Bed::start();
    // Its lease outlasts the time for which the server is away.
    let _worker = Started::of(leasehold(bed.path(), ["worker"]).env("LEASEHOLD_SERVER", bed.server.url()));
    let id = bed.submit(&[], "echo $$ >> pids; while ! test -f go; do sleep 0.02; done; echo done > done; echo 42");
    until("the job runs", || lines(&bed.path().join("pids")).len() == 1);
    bed.server.kill();
    std::fs::write(bed.path().join("go"), "").expect("written");
    until("the work is done while there is no server", || bed.path().join("done").exists());

    bed.server.restart();
    bed.run(&["wait", &id]).expect(0);
    let job = bed.job(&id);
    assert_eq!((&job["result"]["stdout"], &job["fence"], &job["attempt"]), (&"42\n".into(), &1.into(), &1.into()));
    assert_eq!(lines(&bed.path().join("pids")).len(), 1, "the job ran twice");
    assert_eq!(bed.server.terminate(), Some(0));
}

#[test]
fn a_command_gets_none_of_its_workers_settings() {
    let bed = Bed::start();
    let settings = [("LEASEHOLD_SERVER", bed.server.url()), ("LEASEHOLD_TOKEN", "lh_secret".to_owned())];
    let _worker = Started::of(leasehold(bed.path(), ["worker"]).envs(settings.clone()));
    let names = |file: &str| format!("env | grep ^LEASEHOLD_ | cut -d= -f1 | sort > {file}");
    let seen = |file: &str| lines(&bed.path().join(file));
    let own = ["LEASEHOLD_ATTEMPT", "LEASEHOLD_FENCE", "LEASEHOLD_JOB_ID", "LEASEHOLD_SCOPE"];
    let id = bed.submit(&[], &names("worker"));
    bed.run(&["wait", &id]).expect(0);
    assert_eq!(seen("worker"), own);

    let job = serde_json::json!({"command": names("run")});
    std::fs::write(bed.path().join("jobs.jsonl"), job.to_string()).expect("written");
    Started::of(leasehold(bed.path(), ["run", "jobs.jsonl"]).envs(settings.clone())).end().expect(0);
    // The number of its place, which `{%}` stands for.
    let in_a_run = [&own[..], &["LEASEHOLD_SLOT"]].concat();
    assert_eq!(seen("run"), in_a_run);

    let job = serde_json::json!({"command": names("given"), "env": {"LEASEHOLD_SERVER": "http://mine"}});
    std::fs::write(bed.path().join("jobs.jsonl"), job.to_string()).expect("written");
    Started::of(leasehold(bed.path(), ["run", "jobs.jsonl"]).envs(settings)).end().expect(0);
    assert!(seen("given").contains(&"LEASEHOLD_SERVER".to_owned()), "what the job itself brings is taken from it");
}

/// The program, where the user can run it whom nothing on this machine belongs to.
fn program_of_a_user(place: &Path) -> PathBuf {
    let program = place.join("leasehold");
    // By a process that has ended: while somebody has the file open to write to it, it cannot be run.
    let copied = Command::new("cp").arg(env!("CARGO_BIN_EXE_leasehold")).arg(&program).status();
    assert!(copied.is_ok_and(|status| status.success()), "copied");
    ServerUser::open(place).expect("anybody may run it");
    program
}

#[test]
fn a_command_cannot_read_its_workers_token_in_proc() {
    let bed = Bed::start();
    let place = tempfile::tempdir_in(ServerUser::reachable_temp_dir()).expect("a directory");
    let program = program_of_a_user(place.path());
    let words = ServerUser::command_line(Command::new(&program).arg("worker"));
    let settings = [("LEASEHOLD_SERVER", bed.server.url()), ("LEASEHOLD_TOKEN", "lh_secret".to_owned())];
    let _worker = Started::of(Command::new(&words[0]).args(&words[1..]).current_dir(place.path()).envs(settings));
    let id = bed.submit(&["--max-attempts", "1"], "tr '\\0' '\\n' < /proc/$PPID/environ");
    bed.run(&["wait", &id]).expect(1);
    let job = bed.job(&id).to_string();
    assert!(job.contains("ermission denied") && !job.contains("lh_secret"), "{job}");
}

#[test]
fn processes_of_a_servers_user_cannot_read_its_settings_in_proc() {
    const SCRIPT: &str = r#"
        "$0" serve --listen 127.0.0.1:0 --data-dir "$1/data" 2>"$1/log" >&2 & server=$!
        for _ in $(seq 600); do grep -q serving "$1/log" && break; sleep 0.1; done
        { tr '\0' '\n' <"/proc/$server/environ"; } 2>&1
        cat "$1/log"
        kill "$server"; wait "$server"
    "#;
    let place = tempfile::tempdir_in(ServerUser::reachable_temp_dir()).expect("a directory");
    let own = tempfile::tempdir_in(ServerUser::reachable_temp_dir()).expect("a directory");
    ServerUser::own(own.path()).expect("it is the user's");
    let mut script = Command::new("sh");
    script.args(["-c", SCRIPT]).arg(program_of_a_user(place.path())).arg(own.path());
    let words = ServerUser::command_line(&script);
    let mut script = Command::new(&words[0]);
    script.args(&words[1..]).current_dir(own.path()).env("LEASEHOLD_TOKEN", "lh_secret");
    let output = script.output().expect("it ran");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("serving") && !said.contains("WARN"), "{said}");
    assert!(said.contains("ermission denied") && !said.contains("lh_secret"), "{said}");
}

#[test]
fn a_worker_that_is_short_of_descriptors_fails_no_job() {
    let bed = Bed::start();
    let ids: Vec<String> = (0..40).map(|_| bed.submit(&[], "sleep 0.3")).collect();
    let mut worker = Command::new("sh");
    worker.args(["-c", "ulimit -n 64; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_leasehold")]);
    worker.args(["worker", "--slots", "40", "--server", &bed.server.url()]).current_dir(bed.path());
    let log = bed.path().join("worker.log");
    let _worker = Started::of(worker.stderr(std::fs::File::create(&log).expect("a log")));
    for id in ids {
        bed.run(&["wait", &id]).expect(0);
        let job = bed.job(&id);
        assert_eq!((&job["state"], &job["attempt"]), (&"completed".into(), &1.into()), "{job}");
    }
    let said = lines(&log).iter().filter(|line| line.contains("no command can be started")).count();
    assert_eq!(said, 1, "once a minute, unless there were descriptors for all");
}

#[test]
fn a_clean_stop_of_a_server_warns_of_nothing() {
    let Bed { place, server } = Bed::start();
    assert_eq!(server.terminate(), Some(0));
    let log = std::fs::read_to_string(place.path().join("server.log")).expect("its log");
    assert!(log.contains("serving") && !log.contains("WARN"), "{log}");
}

#[test]
fn a_server_that_is_away_is_told_of_once_and_its_return_once() {
    let mut bed = Bed::start();
    let log = bed.path().join("worker.log");
    let errors = std::fs::File::create(&log).expect("a log");
    let mut worker = leasehold(bed.path(), ["worker"]);
    // It does not meet what the workers of other tests leave behind, of which it would warn.
    worker.env("LEASEHOLD_SERVER", bed.server.url()).env("TMPDIR", bed.path());
    let mut worker = Started::of(worker.stderr(errors));
    let said = |what: &str| lines(&log).iter().filter(|line| line.contains(what)).count();
    let id = bed.submit(&[], "true");
    bed.run(&["wait", &id]).expect(0);
    until("the worker has heard that its end was taken", || said("completed") == 1);
    bed.server.kill();
    until("it says so", || said("WARN") > 0);
    bed.server.restart();
    let id = bed.submit(&[], "true");
    bed.run(&["wait", &id]).expect(0);
    until("it says that too", || said("answered again") > 0);
    assert_eq!((said("WARN"), said("answered again")), (1, 1), "{:?}", lines(&log));
    worker.signal(Signal::SIGTERM);
    worker.end().expect(0);
}
