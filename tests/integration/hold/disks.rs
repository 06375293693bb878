//! The disk of one of three members is full, or fails, under load: it says so, the others go on, nothing acknowledged is
//! lost, and the member is one of them again: by itself once there is room, or once it is started with a disk that is
//! well.
//!
//! `strace` lets the calls fail that fail on such a disk.

use std::time::{Duration, Instant};

use reqwest::StatusCode;
use serde_json::Value;

use super::site::{ONE_CLOCK, Site};
use crate::durability::trace;
use crate::load::Load;
use crate::machine;
use crate::program::{DEADLINE, PROGRAM, eventually};

const SUBMITTERS: usize = 2;
const WORKERS: usize = 3;
/// Enough that the submitters go on until they are told to stop.
const PLENTY: usize = 1_000_000;
/// So many completions there are before the disk is bad, and with it.
const COMPLETIONS: usize = 50;

/// Calls that fail on a disk without room, that never return, and that fail on one which cannot keep what it was given,
/// from the so manieth of a thread on. A hang ends by itself, since a process that is killed meanwhile ends with it.
const FULL: &str = "--inject=pwrite64:error=ENOSPC:when=150+";
const HANGING: &str = "--inject=fdatasync:delay_enter=90s:when=150+";
const BROKEN: &str = "--inject=fdatasync,fsync:error=EIO:when=150+";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Leader,
    Follower,
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a cluster of its own, as for a broken disk"]
async fn a_follower_with_a_full_disk_holds_up_nobody() {
    let _share = machine::with_others();
    a_disk_is_bad(Role::Follower, FULL, "the disk is full").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_a_full_disk_gives_way_to_another() {
    let _share = machine::with_others();
    a_disk_is_bad(Role::Leader, FULL, "the disk is full").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a cluster of its own, as for a full disk"]
async fn a_follower_with_a_broken_disk_holds_up_nobody() {
    let _share = machine::with_others();
    a_disk_is_bad(Role::Follower, BROKEN, "the disk failed").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a cluster of its own, as for a full disk"]
async fn a_leader_with_a_broken_disk_gives_way_to_another() {
    let _share = machine::with_others();
    a_disk_is_bad(Role::Leader, BROKEN, "the disk failed").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a hang is lasting after more than a minute"]
async fn a_leader_whose_disk_hangs_gives_way_to_another_and_is_to_be_started_again_after_a_minute() {
    let _share = machine::with_others();
    let mut site = Site::members(&ONE_CLOCK).await;
    let victim = have_a_bad_disk(&mut site, Role::Leader, HANGING).await;
    let load = Load::on(site.urls());
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
    // Nobody may lead for a moment before.
    let hangs = async { while !says_of_itself(&site, victim, "readyz").await.contains("it hangs: ") {} };
    tokio::time::timeout(DEADLINE, hangs).await.expect("it says that it hangs");
    let lives = reqwest::get(format!("{}/livez", site.servers[victim].url())).await.expect("it answers");
    assert_eq!(lives.status(), StatusCode::OK, "it may go on by itself");
    health_says(&site, victim, "the store hangs: ").await;
    let before = load.ledger.completions();
    load.ledger.completions_beyond(before + COMPLETIONS).await;
    assert_ne!(site.a_leader().await, victim);
    load.stop_submitting();
    // Longer than anything else is waited for.
    tokio::time::sleep(Duration::from_secs(50)).await;
    let said = says_of_itself(&site, victim, "livez").await;
    assert!(said.contains("it hangs: "), "{said}");

    is_well_again(&mut site, victim).await;
    load.finish(submitters, workers).await;
    site.end_equal().await;
}

async fn a_disk_is_bad(role: Role, fault: &str, says: &str) {
    let mut site = Site::members(&ONE_CLOCK).await;
    let victim = have_a_bad_disk(&mut site, role, fault).await;
    let load = Load::on(site.urls());
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
    let said = says_of_itself(&site, victim, if fault == FULL { "readyz" } else { "livez" }).await;
    assert!(said.contains(says), "{said}");
    health_says(&site, victim, says).await;
    let before = load.ledger.completions();
    load.ledger.completions_beyond(before + COMPLETIONS).await;
    assert_ne!(site.a_leader().await, victim);

    match fault == FULL {
        // There is room again, and nobody starts it.
        true => {
            trace::detach(site.servers[victim].pid());
            site.servers[victim].ready().await;
            site.has_caught_up(victim).await;
        }
        false => is_well_again(&mut site, victim).await,
    }
    let before = load.ledger.completions();
    load.ledger.completions_beyond(before + COMPLETIONS).await;
    load.stop_submitting();
    load.finish(submitters, workers).await;
    site.end_equal().await;
}

/// Waits until the health that a member answers has this, which its leader cannot know.
async fn health_says(site: &Site, member: usize, what: &str) {
    let url = format!("{}/v1/health", site.servers[member].url());
    eventually("the health to say it", async || {
        let health: Value = reqwest::get(&url).await.expect("it answers").json().await.expect("JSON");
        // One that has left the cluster knows no leader, and refuses.
        health["status"] != "ok" && health.to_string().contains(what)
    })
    .await;
}

/// Starts a member again with a disk that is well.
async fn is_well_again(site: &mut Site, member: usize) {
    let server = &mut site.servers[member];
    server.kill();
    server.is_to_run(vec![PROGRAM.to_owned()]);
    server.start_again();
    server.ready().await;
    site.has_caught_up(member).await;
}

/// Starts the member with this role again with a disk that has a fault, and returns which it is.
async fn have_a_bad_disk(site: &mut Site, role: Role, fault: &str) -> usize {
    // Nothing is written yet: the first calls are those of the member's start.
    let leader = site.a_leader().await;
    let victim = match role {
        Role::Leader => leader,
        Role::Follower => (leader + 1) % site.servers.len(),
    };
    let trace = site.place.path().join("trace");
    let strace = trace::strace_for_a_while(&trace, &["--daemonize", "--trace=pwrite64,fdatasync,fsync", fault]);
    let strace = strace.into_iter().map(|part| part.into_string().expect("text"));
    let server = &mut site.servers[victim];
    server.stop();
    server.is_to_run(strace.chain([PROGRAM.to_owned()]).collect());
    server.start_again();
    server.ready().await;
    if role == Role::Leader {
        site.have_lead(victim).await;
    }
    victim
}

/// Waits until a member says at this path that it is not well, and returns what it says.
async fn says_of_itself(site: &Site, member: usize, path: &str) -> String {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let answer = reqwest::get(format!("{}/{path}", site.servers[member].url())).await.expect("the member answers");
        if answer.status() != StatusCode::OK {
            let problem: Value = answer.json().await.expect("JSON");
            return problem["detail"].as_str().expect("a reason").to_owned();
        }
        assert!(Instant::now() < deadline, "it is well: {}", site.servers[member].log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
