//! `kill -9` of the server at random moments under load.

use std::time::Duration;

use super::site::{Site, Trouble};
use crate::load::Load;
use crate::machine;

const KILLS: usize = 20;
/// Each of these has another one lead, one time in three.
const KILLS_OF_MEMBERS: usize = 8;
const SUBMITTERS: usize = 4;
const WORKERS: usize = 6;

/// A server lives this long at least and at most before it is killed.
const LIFE_MS: std::ops::Range<u64> = 50..600;

/// How long a member that was killed is away.
const AWAY_MS: std::ops::Range<u64> = 0..1_000;

/// Enough that the submitters never run out before the last kill.
const PLENTY: usize = 1_000_000;

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_server_keeps_every_promise_over_twenty_kills() {
    let _share = machine::with_others();
    promises_are_kept_over_kills(Site::embedded(&[]).await, KILLS).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: most of a minute of three members"]
async fn three_members_keep_every_promise_over_eight_kills() {
    let _share = machine::with_others();
    promises_are_kept_over_kills(Site::members(&[]).await, KILLS_OF_MEMBERS).await.end_equal().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "every night: a minute of a server on Elasticsearch"]
async fn a_server_on_elasticsearch_keeps_every_promise_over_twenty_kills() {
    let _share = machine::with_others();
    promises_are_kept_over_kills(Site::elasticsearch(&[]).await, KILLS).await;
}

async fn promises_are_kept_over_kills(mut site: Site, kills: usize) -> Site {
    let load = Load::on(site.urls());
    let workers = (0..WORKERS).map(|name| load.worker(name, 3)).collect();
    let submitters = (0..SUBMITTERS).map(|name| load.submitter(name, PLENTY)).collect();
    for _ in 0..kills {
        let life = Duration::from_millis(rand::random_range(LIFE_MS));
        // Not a wait for something: the kill's moment is what is left to chance.
        tokio::time::sleep(life).await;
        let away = Duration::from_millis(rand::random_range(AWAY_MS));
        site.make(Trouble::Kill, rand::random_range(0..usize::MAX), away).await;
    }
    load.stop_submitting();
    load.finish(submitters, workers).await;
    assert!(load.ledger.completions() > kills, "the load went on between the kills");
    site
}
