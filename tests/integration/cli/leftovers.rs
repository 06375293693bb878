//! What a worker leaves behind that is killed, and who ends it.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Bed;
use crate::program::{Started, is_alive, leasehold, lines, until};

/// A command with a child in its group, and one that has left it. Each writes down its process.
const FAMILY: &str = "sleep 600 & echo $! >> pids; setsid sh -c 'echo $$ >> pids; exec sleep 600' & \
                      echo $$ >> pids; wait";

fn pids(bed: &Bed) -> Vec<String> {
    lines(&bed.path().join("pids"))
}

/// Starts a worker that looks for former workers in the test's own directory only.
fn worker(bed: &Bed) -> Started {
    let mut command = leasehold(bed.path(), ["worker", "--lease", "24h", "--slots", "1"]);
    Started::of(command.env("LEASEHOLD_SERVER", bed.server.url()).env("TMPDIR", bed.path()))
}

/// Returns the warden of a worker.
fn warden(worker: &mut Started) -> Pid {
    let parent = worker.child().id();
    let is_warden = |pid: &str| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let after_name = stat.rsplit(')').next().unwrap_or_default();
        after_name.split_whitespace().nth(1) == Some(&parent.to_string())
            && words.split(|byte| *byte == 0).any(|word| word == b"warden")
    };
    let processes = fs::read_dir("/proc").expect("processes").flatten();
    let names = processes.filter_map(|process| process.file_name().into_string().ok());
    let found = names.filter(|name| name.parse::<i32>().is_ok()).find(|pid| is_warden(pid)).expect("a warden");
    Pid::from_raw(found.parse().expect("a number"))
}

#[test]
fn the_commands_of_a_worker_that_is_killed_end_with_their_children() {
    let bed = Bed::start();
    let mut worker = worker(&bed);
    bed.submit(&[], FAMILY);
    until("the command and its children run", || pids(&bed).len() == 3);
    worker.signal(Signal::SIGKILL);
    for pid in pids(&bed) {
        until("nothing of the job is left", || !is_alive(&pid));
    }
}

#[test]
fn what_a_killed_worker_left_is_ended_by_the_next_one_before_it_runs_a_job() {
    let bed = Bed::start();
    let mut first = worker(&bed);
    bed.submit(&[], FAMILY);
    until("the command and its children run", || pids(&bed).len() == 3);
    let left = pids(&bed);
    // Without its warden, nothing ends its commands.
    kill(warden(&mut first), Signal::SIGKILL).expect("killed");
    first.signal(Signal::SIGKILL);
    first.end();
    assert!(left.iter().all(|pid| is_alive(pid)));

    // Where nobody collects orphans, their corpses stay.
    let is_gone = |pid: &String| format!("! grep -qs '^State:.[RSDT]' /proc/{pid}/status");
    let check = left.iter().map(is_gone).collect::<Vec<_>>().join(" && ");
    let id = bed.submit(&["--max-attempts", "1"], &check);
    let _second = worker(&bed);
    bed.run(&["wait", &id]).expect(0);
}

#[test]
fn a_worker_leaves_the_commands_of_others_alone() {
    let bed = Bed::start();
    let _first = worker(&bed);
    bed.submit(&[], FAMILY);
    until("the command and its children run", || pids(&bed).len() == 3);
    let mut second = worker(&bed);
    let id = bed.submit(&[], "true");
    bed.run(&["wait", &id]).expect(0);
    second.signal(Signal::SIGTERM);
    second.end().expect(0);
    assert!(pids(&bed).iter().all(|pid| is_alive(pid)));
}
