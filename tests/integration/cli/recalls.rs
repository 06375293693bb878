//! Cancellations and lost leases, of which a worker hears at once however long its leases are.

use std::path::Path;

use super::Bed;
use super::members::{Trio, others};
use super::peers::{ADVERTISED, pair};
use crate::program::{Engine, Started, is_alive, leasehold, lines, run, until};

/// Starts a worker of which no heartbeat comes while a test waits.
fn patient_worker(place: &Path, url: &str) -> Started {
    Started::of(leasehold(place, ["worker", "--lease", "24h"]).env("LEASEHOLD_SERVER", url))
}

/// Submits a job that sleeps, through one server, and waits until it runs. Returns its id and that of its process.
fn sleeper(place: &Path, url: &str) -> (String, String) {
    let shell = "echo $$ >> pids; sleep 600";
    let before = lines(&place.join("pids")).len();
    let said = run(place, ["submit", "--server", url, "--", "sh", "-c", shell]).expect(0).stdout();
    until("the job runs", || lines(&place.join("pids")).len() > before);
    (said.trim().to_owned(), lines(&place.join("pids")).pop().expect("a process"))
}

/// Cancels a job through one server, and waits until its process is gone and it is cancelled.
fn cancel(place: &Path, url: &str, (id, pid): &(String, String)) {
    run(place, ["cancel", "--server", url, id]).expect(0);
    until("the job's process is gone", || !is_alive(pid));
    assert_eq!(run(place, ["wait", "--server", url, id]).code(), Some(1));
}

#[test]
fn a_worker_hears_of_cancellations_and_lost_leases_before_its_next_heartbeat() {
    let bed = Bed::start();
    let url = bed.server.url();
    let _worker = patient_worker(bed.path(), &url);
    let cancelled = sleeper(bed.path(), &url);
    // It is claimed while the worker's call waits already.
    let (taken, pid) = sleeper(bed.path(), &url);
    bed.run(&["release", &taken, "--then", "fail", "--reason", "moved"]).expect(0);
    until("the process of the job that was taken away is gone", || !is_alive(&pid));
    cancel(bed.path(), &url, &cancelled);
    let job = bed.job(&cancelled.0);
    assert_eq!((&job["state"], &bed.job(&taken)["state"]), (&"cancelled".into(), &"failed".into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hears_of_a_cancellation_at_another_manager_of_the_same_elasticsearch() {
    let place = tempfile::tempdir().expect("a directory");
    let engine = Engine::elasticsearch().await;
    let [first, second] = pair(&engine, place.path(), [&ADVERTISED, &ADVERTISED]).await;
    let _worker = patient_worker(place.path(), &second.url());
    tokio::task::block_in_place(|| {
        let job = sleeper(place.path(), &second.url());
        cancel(place.path(), &first.url(), &job);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_hears_soon_of_a_cancellation_at_a_manager_that_cannot_tell_its_own() {
    for options in [[&[][..], &[]], [&ADVERTISED, &[]], [&[], &ADVERTISED]] {
        let place = tempfile::tempdir().expect("a directory");
        let engine = Engine::elasticsearch().await;
        let [first, second] = pair(&engine, place.path(), options).await;
        let _worker = patient_worker(place.path(), &second.url());
        tokio::task::block_in_place(|| {
            let (one, other) = (sleeper(place.path(), &second.url()), sleeper(place.path(), &second.url()));
            cancel(place.path(), &first.url(), &one);
            assert!(is_alive(&other.1), "the other job runs on");
            cancel(place.path(), &first.url(), &other);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_member_that_follows_hears_of_a_cancellation_at_another_one() {
    let trio = Trio::start();
    let leader = trio.leader(&[0, 1, 2]).await;
    let followers: Vec<String> = others(leader).into_iter().map(|index| trio.url(index)).collect();
    let _worker = patient_worker(trio.path(), &followers[0]);
    tokio::task::block_in_place(|| {
        let job = sleeper(trio.path(), &followers[0]);
        cancel(trio.path(), &followers[1], &job);
    });
}
