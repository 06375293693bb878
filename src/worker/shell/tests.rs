use std::fs;
use std::path::Path;

use nix::errno::Errno;

use super::*;
use crate::job::{Fence, JobId, QueueName, WorkerId};
use crate::worker::output::NoOutput;
use crate::worker::roster::{EndingHandle, Roster};
use crate::worker::service::ClaimedJob;

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);

fn attempt(payload: &serde_json::Value) -> (Attempt, EndingHandle) {
    let job = ClaimedJob {
        id: JobId::new("job-7").expect("a name"),
        fence: Fence::new(3),
        attempt: 2,
        queue: QueueName::new("q").expect("a name"),
        kind: kind(),
        payload: Some(Json::of(payload).expect("json")),
        timeout: None,
        resources: Default::default(),
    };
    Roster::default().enter(&job, &WorkerId::new("w").expect("a name"), Arc::new(NoOutput))
}

fn handler(grace: Duration) -> ShellHandler {
    ShellHandler::new(Scope::new("unit tests"), grace)
}

async fn run(payload: serde_json::Value) -> Result<serde_json::Value, HandlerError> {
    let (attempt, _ending) = attempt(&payload);
    let result = tokio::time::timeout(DEADLINE, handler(DEADLINE).run(attempt)).await.expect("it ends")?;
    Ok(serde_json::from_str(result.expect("a result").as_str()).expect("json"))
}

/// Whether a process is there and more than a corpse that nobody has collected.
fn is_alive(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        !matches!(state, Some('Z' | 'X'))
    })
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[tokio::test]
async fn a_result_tells_what_the_command_wrote_and_how_it_ended() {
    let result = run(serde_json::json!({"command": ["sh", "-c", "echo out; echo err >&2"]})).await.expect("completed");
    assert_eq!(
        (&result["exit_code"], &result["stdout"], &result["stderr"]),
        (&0.into(), &"out\n".into(), &"err\n".into())
    );
    assert_eq!((&result["stdout_bytes"], &result["stderr_bytes"]), (&4.into(), &4.into()));
}

#[tokio::test]
async fn no_shell_sees_a_list_and_one_sees_a_line() {
    let list = run(serde_json::json!({"command": ["echo", "$HOME", "a  b;"]})).await.expect("completed");
    assert_eq!(list["stdout"], "$HOME a  b;\n");
    let line = run(serde_json::json!({"command": "echo $((6 * 7))"})).await.expect("completed");
    assert_eq!(line["stdout"], "42\n");
}

#[tokio::test]
async fn a_command_knows_its_job_and_its_place_and_finds_no_input() {
    let place = tempfile::tempdir().expect("a directory");
    let script = "cat; pwd; echo $LEASEHOLD_JOB_ID $LEASEHOLD_FENCE $LEASEHOLD_ATTEMPT $COLOUR";
    let payload = serde_json::json!({"command": script, "cwd": place.path(), "env": {"COLOUR": "red"}});
    let result = run(payload).await.expect("completed");
    let place = place.path().canonicalize().expect("it exists");
    assert_eq!(result["stdout"], format!("{}\njob-7 3 2 red\n", place.display()));
}

#[tokio::test]
async fn a_bad_exit_fails_with_its_status_and_last_words() {
    let error = run(serde_json::json!({"command": "seq 100 >&2; exit 3"})).await.expect_err("failed");
    assert_eq!((error.code.as_str(), error.retryable), ("exit", true));
    let last: Vec<String> = (91..=100).map(|number| number.to_string()).collect();
    assert_eq!(error.message, format!("exit status 3: {}", last.join("\n")));
    let error = run(serde_json::json!({"command": "kill -SEGV $$"})).await.expect_err("failed");
    assert_eq!(error.message, "killed by SIGSEGV");
}

#[test]
fn what_the_worker_lacks_gives_the_job_back_and_what_the_command_lacks_fails_it() {
    let payload = serde_json::from_value::<ShellPayload>(serde_json::json!({"command": "true"})).expect("a payload");
    for (code, is_given_back) in [
        (Errno::EMFILE, true),
        (Errno::ENFILE, true),
        (Errno::EAGAIN, true),
        (Errno::ENOMEM, true),
        (Errno::ENOENT, false),
        (Errno::EACCES, false),
        (Errno::E2BIG, false),
    ] {
        let failure = payload.spawn_failure(&std::io::Error::from_raw_os_error(code as i32));
        assert_eq!(failure.not_begun, is_given_back, "{code}");
    }
}

#[test]
fn a_word_that_no_system_takes_is_refused_with_its_length() {
    let long = |bytes: usize| "x".repeat(bytes);
    for (payload, length) in [
        (serde_json::json!({"command": ["echo", long(131_072)]}), 131_072),
        (serde_json::json!({"command": long(200_000)}), 200_000),
        (serde_json::json!({"command": "true", "env": {"A": long(131_070)}}), 131_072),
    ] {
        let why = ShellPayload::parse(Some(&Json::of(&payload).expect("JSON"))).expect_err("too long");
        assert!(why.contains(&format!("has {length} bytes")), "{why}");
    }
    let most = serde_json::json!({"command": ["echo", long(131_071)], "env": {"A": long(131_069)}});
    ShellPayload::parse(Some(&Json::of(&most).expect("JSON"))).expect("as much as a system takes");
}

#[tokio::test]
async fn as_much_as_is_taken_can_be_run() {
    let word = "x".repeat(131_071);
    let job = serde_json::json!({"command": ["sh", "-c", "printf %s ${#1}", "sh", word]});
    let result = run(job).await.expect("completed");
    assert_eq!(result["stdout"], "131071");
}

#[tokio::test]
async fn what_cannot_be_run_is_said_so() {
    let error = run(serde_json::json!({"command": ["ls"], "stdin": "x"})).await.expect_err("failed");
    assert_eq!((error.code.as_str(), error.retryable), ("payload", false));
    assert!(error.message.contains("unknown field `stdin`"), "{error}");
    let error = run(serde_json::json!({"command": ["/no/such/program"]})).await.expect_err("failed");
    assert_eq!(error.code, "spawn");
    assert!(error.message.contains("`/no/such/program`"), "{error}");
}

#[tokio::test]
async fn of_a_long_output_the_end_is_kept_and_the_length_told() {
    let script = "head -c 1000000 /dev/zero | tr '\\0' a; echo end";
    let result = run(serde_json::json!({"command": script})).await.expect("completed");
    let kept = result["stdout"].as_str().expect("text");
    assert_eq!((kept.len(), &result["stdout_bytes"]), (tail::KEPT, &1_000_004.into()));
    assert!(kept.ends_with("aaaend\n"));
}

#[tokio::test]
async fn what_a_command_leaves_in_its_group_ends_with_it() {
    let result = run(serde_json::json!({"command": "sleep 600 >/dev/null 2>&1 & echo $!"})).await.expect("completed");
    let pid = result["stdout"].as_str().expect("text").trim().to_owned();
    until("the process left behind is gone", || !is_alive(&pid)).await;
}

#[tokio::test]
async fn a_daemon_that_keeps_the_output_open_does_not_hold_the_job_up() {
    let begun = Instant::now();
    let place = tempfile::tempdir().expect("a directory");
    let away = place.path().join("away");
    let daemon = format!("setsid sh -c 'touch {0}; exec sleep 600' & echo $!", away.display());
    let command = format!("{daemon}; until test -e {}; do sleep 0.01; done", away.display());
    let result = run(serde_json::json!({"command": command})).await.expect("completed");
    assert!(begun.elapsed() < DEADLINE, "the job waited for the daemon");
    let pid = result["stdout"].as_str().expect("text").trim();
    assert!(is_alive(pid), "the daemon was ended, so that nothing kept the output open");
    let output = fs::read_link(format!("/proc/{pid}/fd/1")).expect("the daemon's output");
    assert!(output.to_string_lossy().starts_with("pipe:"), "the daemon does not keep the output open: {output:?}");
    let pid: i32 = pid.parse().expect("a number");
    // It got away by its own will, and is nobody's but this test's.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
}

#[tokio::test]
async fn ending_an_attempt_ends_its_grandchildren_too() {
    let place = tempfile::tempdir().expect("a directory");
    let pids = place.path().join("pids");
    let script = format!("sh -c 'echo $$ >> {0}; sleep 600' & echo $$ >> {0}; wait", pids.display());
    let (attempt, ending) = attempt(&serde_json::json!({"command": script}));
    let job = tokio::spawn(async move { handler(DEADLINE).run(attempt).await });
    until("both processes run", || read(&pids).lines().count() == 2).await;
    ending.end(Ending::LeaseLost);
    let error = tokio::time::timeout(DEADLINE, job).await.expect("it ends").expect("no panic").expect_err("ended");
    assert_eq!(error.message, "killed by SIGTERM");
    for pid in read(&pids).lines() {
        until("the process is gone", || !is_alive(pid)).await;
    }
}

#[tokio::test]
async fn a_command_that_will_not_hear_is_killed_after_the_grace() {
    let place = tempfile::tempdir().expect("a directory");
    let ready = place.path().join("ready");
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.05; done", ready.display());
    let (attempt, ending) = attempt(&serde_json::json!({"command": script}));
    let job = tokio::spawn(async move { handler(Duration::from_millis(50)).run(attempt).await });
    until("the command runs", || !read(&ready).is_empty()).await;
    ending.end(Ending::Cancelled);
    let error = tokio::time::timeout(DEADLINE, job).await.expect("it ends").expect("no panic").expect_err("ended");
    assert_eq!(error.message, "killed by SIGKILL");
}

#[tokio::test]
async fn the_processes_of_a_worker_that_died_are_found_and_ended() {
    let scope = Scope::new(&format!("leftovers of {}", std::process::id()));
    let bystander = Scope::new(&format!("{} and more", scope.as_str()));
    let spawn = |scope: &Scope| {
        let mut command = std::process::Command::new("sh");
        // The grandchild runs in a session of its own: nothing but its environment tells whose it is.
        command.args(["-c", "setsid sleep 600 & wait"]).env(scope::VARIABLE, scope.as_str()).spawn().expect("started")
    };
    let (mut left, mut other) = (spawn(&scope), spawn(&bystander));
    until("all run", || scope_members(&scope) == 2 && scope_members(&bystander) == 2).await;
    let leftovers = scope.end_leftovers(DEADLINE).await;
    assert_eq!((leftovers.ended.len(), leftovers.alive.len()), (2, 0));
    assert!(left.wait().expect("waited for").code().is_none(), "not killed");
    assert_eq!(scope_members(&bystander), 2, "a process of another scope was ended");
    assert_eq!(bystander.end_leftovers(DEADLINE).await.alive, Vec::<i32>::new());
    drop(other.wait());
}

/// How many processes carry the scope, after their `exec`.
fn scope_members(scope: &Scope) -> usize {
    let entry = format!("{}={}", scope::VARIABLE, scope.as_str());
    let processes = fs::read_dir("/proc").expect("/proc");
    let has = |path: &Path| {
        fs::read(path.join("environ")).is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == entry.as_bytes()))
    };
    processes.flatten().filter(|process| has(&process.path())).count()
}
