//! A member that was away catches up fast, and goes on answering meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use leasehold::job::Job;
use leasehold::store::Store;
use leasehold::store::embedded::EmbeddedOptions;

use super::members::{Group, MEMBERS, PATIENCE, create_each, creates, named, options, until};
use super::sample::submitted;
use crate::machine;

/// The version of the exchange from which on entries that come together are synced together.
const BATCHES: u32 = 5;

/// How long one client submits one job after the other, and how long a member is away while more clients do that.
const ALONE: Duration = Duration::from_secs(5);
const AWAY: Duration = Duration::from_secs(20);

/// How many clients submit one job after the other while a member is away.
const CLIENTS: usize = 8;

/// As a server has them.
fn of_server(member: u64) -> EmbeddedOptions {
    let group = options(member).group.map(|mut group| {
        group.tick = Duration::from_millis(100);
        group
    });
    EmbeddedOptions { group, ..EmbeddedOptions::default() }
}

/// Submits one job after the other for so long.
async fn submit(group: &Group, leader: u64, name: String, time: Duration) {
    let begun = Instant::now();
    for number in 0.. {
        let job: Arc<Job> = submitted(&format!("{name}-{number}"));
        let answers = group.store(leader).write(creates(&[job])).await;
        assert!(answers[0].is_ok(), "{answers:?}");
        if begun.elapsed() > time {
            return;
        }
    }
}

fn applied(group: &Group, member: u64) -> u64 {
    group.standing(member).applied
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of three members"]
async fn one_that_was_away_catches_up_ten_times_as_fast_as_one_client_submits_and_votes_meanwhile() {
    let _share = machine::with_few_others();
    let mut group = Group::with(of_server);
    let leader = group.leader().await;
    let version = |number: &u64| group.store(*number).member().expect("a member").members().borrow().version;
    until("the version", || MEMBERS.iter().all(|number| version(number) >= BATCHES).then_some(())).await;
    let (before, begun) = (applied(&group, leader), Instant::now());
    submit(&group, leader, "alone".to_owned(), ALONE).await;
    let alone = (applied(&group, leader) - before) as f64 / begun.elapsed().as_secs_f64();
    let away = MEMBERS.into_iter().find(|number| *number != leader).expect("another");
    let rounds = ["first", "second"];
    for (round, kills) in rounds.into_iter().zip([false, true]) {
        group.network.cut.lock().push(away);
        let clients = (0..CLIENTS).map(|client| submit(&group, leader, format!("{round}-{client}"), AWAY));
        join_all(clients).await;
        let (before, to) = (applied(&group, away), applied(&group, leader));
        group.network.cut.lock().clear();
        // It has begun to catch up.
        let from = until("the first entries", || Some(applied(&group, away)).filter(|now| *now > before)).await;
        let begun = Instant::now();
        if kills {
            group.network.cut.lock().push(leader);
            let killed = Instant::now();
            let next = group.leader().await;
            println!(
                "member {next} leads {:?} after the leader was killed, {} entries behind",
                killed.elapsed(),
                to - from
            );
            assert!(killed.elapsed() < PATIENCE);
        } else {
            until("the others", || (applied(&group, away) >= to).then_some(())).await;
            let caught_up = (to - from) as f64 / begun.elapsed().as_secs_f64();
            let ratio = caught_up / alone;
            println!("one client: {alone:.0} entries a second; catching up: {caught_up:.0}; {ratio:.1} times");
            assert!(ratio > 10.0, "{ratio}");
        }
    }
    group.network.cut.lock().clear();
    // The one that was cut off may still be found to lead.
    create_each(&group, named("last", 1)).await;
    let leader = group.leader().await;
    group.stop(leader).await;
}
